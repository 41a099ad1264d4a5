"""A residual sum and its normalisation in one kernel, with gradients:

    total = x + residual        y = (total - mean) / sqrt(variance + eps) * weight + bias

over the last axis; RMS norm has no mean, and the mean square instead of the variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lowdnn.enums import NormFwdPhase, NormMode, PointwiseMode
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.torch.library.definition import Definition, check_floats, check_shape, wide_type
from lowdnn.torch.operation import Arguments, Overload, Result, optional
from lowdnn.torch.operations.row_norms import check_rows, matrix, row, row_axes
from lowdnn.torch.sketch import Sketch, compute_type_of

_X, _RESIDUAL, _WEIGHT, _BIAS = range(4)
_DY, _DTOTAL, _TOTAL, _BACKWARD_WEIGHT, _MEAN, _ROOT = range(6)


def add_rms_norm(x: Any, residual: Any, weight: Any = None, *, eps: float = 1e-6) -> tuple[Any, Any]:
    """(y, total): ``total = x + residual`` in the type of residual, and in x's type y, its RMS norm over the last axis.

    x, residual: floats of one shape (..., size).  weight: (size,), or None.  Statistics are computed in fp32, or in
    fp64 for fp64. All inputs have gradients. Raises BadParamError for other shapes and types.
    Source: Zhang and Sennrich, "Root mean square layer normalization".
    """
    _check("add_rms_norm", x, residual, weight, None)
    y, total, _, _ = torch.ops.lowdnn.add_norm(x, residual, weight, None, eps, False)
    return y, total


def add_layer_norm(
    x: Any, residual: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5
) -> tuple[Any, Any]:
    """(y, total): as ``add_rms_norm``, with layer norm, and with a bias (size,) or None."""
    _check("add_layer_norm", x, residual, weight, bias)
    y, total, _, _ = torch.ops.lowdnn.add_norm(x, residual, weight, bias, eps, True)
    return y, total


def _check(where: str, x: Any, residual: Any, weight: Any, bias: Any) -> None:
    check_floats(where, ("weight", "bias"), x=x, residual=residual, weight=weight, bias=bias)
    check_shape(where, "x", x, (None,) * max(x.dim(), 1), "[..., size]")
    check_shape(where, "residual", residual, tuple(x.shape), f"that of x, {list(x.shape)}")
    for name, tensor in (("weight", weight), ("bias", bias)):
        check_shape(where, name, tensor, (x.shape[-1],), f"[{x.shape[-1]}]")


def _read(x: Any, residual: Any, weight: Any, bias: Any, eps: float, centred: bool) -> Arguments:
    return (x, residual, optional(weight), optional(bias)), (eps, centred)


def _sketched(sketch: Sketch, eps: float, centred: bool) -> Result:
    x, residual, weight, bias = sketch.tensors
    normalized = tuple(x.shape[-1:])
    check_rows(x, normalized, residual, weight, bias)
    has_parameters = weight.shape is not None or bias.shape is not None
    groups = row_axes(sketch, (_X, _RESIDUAL), normalized, has_parameters=has_parameters)
    source, other = (matrix(sketch, place, normalized, groups) for place in (_X, _RESIDUAL))
    *rows, _ = dims = source.dims
    wide = wide_type(x, residual)
    y, total = sketch.allocate(x.shape, x.dtype), sketch.allocate(x.shape, residual.dtype)
    stats = (*x.shape[:-1], 1)
    mean, root = sketch.allocate(stats if centred else (0,), wide), sketch.allocate(stats, wide)
    ports: dict[str, Any] = {"inv_variance": sketch.at(root, (*rows, 1))}
    if centred:
        ports["mean"] = sketch.at(mean, (*rows, 1))
    for port, place, tensor in (("scale", _WEIGHT, weight), ("bias", _BIAS, bias)):
        if tensor.shape is not None:
            ports[port] = row(sketch, place, len(rows))
    sums = sketch.pointwise(PointwiseMode.ADD, sketch.at(total, dims), source, other)
    margin = sketch.value(eps, len(dims), compute_type_of(sums.data_type, source.data_type))
    mode = NormMode.LAYER_NORM if centred else NormMode.RMS_NORM
    sketch.add(NormForward(mode, NormFwdPhase.TRAINING, sums, margin, sketch.at(y, dims), **ports))
    sketch.end_step()
    return y, total, mean, root


def _plain(x: Any, residual: Any, weight: Any, bias: Any, eps: float, centred: bool) -> Any:
    wide = wide_type(x, residual)
    total = (x.to(wide) + residual.to(wide)).to(residual.dtype).contiguous()
    values = total.to(wide)
    mean = values.mean(-1, keepdim=True) if centred else None
    deviation = values - mean if mean is not None else values
    root = (deviation.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = deviation * root
    y = y * weight if weight is not None else y
    y = y + bias if bias is not None else y
    return y.to(x.dtype).contiguous(), total, values.new_empty(0) if mean is None else mean, root


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, _, weight, bias, ctx.eps, ctx.centred = inputs
    _, total, mean, root = output
    ctx.x_dtype, ctx.bias_dtype = x.dtype, None if bias is None else bias.dtype
    ctx.save_for_backward(total, weight, mean, root)
    ctx.mark_non_differentiable(mean, root)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: Any, dtotal: Any, *_: Any) -> Any:
    total, weight, mean, root = ctx.saved_tensors
    nothing = (None,) * 6
    if dy is None:
        return nothing if dtotal is None else (dtotal.to(ctx.x_dtype), dtotal, *nothing[2:])
    found, dweight, dbias = torch.ops.lowdnn.add_norm_backward(
        dy, dtotal, total, weight, mean, root, ctx.eps, ctx.centred
    )
    return (
        found.to(ctx.x_dtype),
        found,
        None if weight is None else dweight.to(weight.dtype),
        None if ctx.bias_dtype is None else dbias.to(ctx.bias_dtype),
        None,
        None,
    )


def _read_backward(
    dy: Any, dtotal: Any, total: Any, weight: Any, mean: Any, root: Any, eps: float, centred: bool
) -> Arguments:
    return (dy, optional(dtotal), total, optional(weight), mean if centred else optional(None), root), (centred,)


def _sketched_backward(sketch: Sketch, centred: bool) -> Result:
    """(dtotal, dweight, dbias) with the gradients of the parameters in the type of the statistics."""
    dy, dtotal, total, weight, mean, root = sketch.tensors
    normalized = tuple(total.shape[-1:])
    check_rows(total, normalized, dy, dtotal, weight, mean, root)
    place = sketch.allocate(total.shape, total.dtype)
    read = [own for own, tensor in ((_TOTAL, total), (_DY, dy), (_DTOTAL, dtotal)) if tensor.shape is not None]
    groups = row_axes(sketch, read, normalized, has_parameters=True)
    source, gradient, *others = (matrix(sketch, own, normalized, groups) for own in read)
    *rows, columns = source.dims
    found = sketch.at(place, source.dims)
    ports: dict[str, Any] = {"inv_variance": sketch.at(_ROOT, (*rows, 1))}
    if centred:
        ports["mean"] = sketch.at(_MEAN, (*rows, 1))
    if weight.shape is not None:
        ports["scale"] = row(sketch, _BACKWARD_WEIGHT, len(rows))
    parameters = [sketch.allocate(normalized, root.dtype) for _ in ("dscale", "dbias")]
    for port, own in zip(("dscale", "dbias"), parameters, strict=True):
        ports[port] = sketch.at(own, (*(1,) * len(rows), columns))
    compute = compute_type_of(source.data_type)
    own_share = sketch.virtual(source.dims, compute) if others else found
    mode = NormMode.LAYER_NORM if centred else NormMode.RMS_NORM
    sketch.add(NormBackward(mode, source, gradient, dx=own_share, **ports))
    if others:
        sketch.pointwise(PointwiseMode.ADD, found, own_share, *others)
    sketch.end_step()
    return place, *parameters


def _plain_backward(
    dy: Any, dtotal: Any, total: Any, weight: Any, mean: Any, root: Any, eps: float, centred: bool
) -> tuple[Any, Any, Any]:
    wide, axes = root.dtype, _outer_axes(total)
    xhat = ((total.to(wide) - mean) if centred else total.to(wide)) * root
    slope = dy.to(wide)
    dweight, dbias = (slope * xhat).sum(axes), slope.sum(axes)
    slope = slope * weight if weight is not None else slope
    found = slope - xhat * (slope * xhat).mean(-1, keepdim=True)
    found = (found - slope.mean(-1, keepdim=True) if centred else found) * root
    found = found + dtotal.to(wide) if dtotal is not None else found
    return found.to(total.dtype).contiguous(), dweight, dbias


def _outer_axes(total: Any) -> Sequence[int]:
    return tuple(range(total.dim() - 1))


def _differentiable_backward(
    dy: Any, dtotal: Any, total: Any, weight: Any, mean: Any, root: Any, eps: float, centred: bool
) -> tuple[Any, Any, Any]:
    values = total.to(root.dtype)
    mean = values.mean(-1, keepdim=True) if centred else mean
    deviation = values - mean if centred else values
    root = (deviation.square().mean(-1, keepdim=True) + eps).rsqrt()
    return _plain_backward(dy, dtotal, total, weight, mean, root, eps, centred)


def _overload(name: str, read: Any, sketched: Any) -> Overload:
    return Overload(f"lowdnn::{name}", "residual_norm", read, sketched, keys=("CPU",))


DEFINITIONS = (
    Definition(
        "add_norm",
        "(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps, bool centred)"
        " -> (Tensor, Tensor, Tensor, Tensor)",
        _plain, _overload("add_norm", _read, _sketched), _save, _backward,
    ),
    Definition(
        "add_norm_backward",
        "(Tensor dy, Tensor? dtotal, Tensor total, Tensor? weight, Tensor mean, Tensor root, float eps, bool centred)"
        " -> (Tensor, Tensor, Tensor)",
        _plain_backward, _overload("add_norm_backward", _read_backward, _sketched_backward),
        differentiable=_differentiable_backward,
    ),
)  # fmt: skip
