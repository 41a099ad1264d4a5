"""Layer and RMS normalisation over the last axes, and their gradients: rows of a matrix, one mean for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowdnn.enums import NormFwdPhase, NormMode
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.tensor import Tensor
from lowdnn.torch.operation import Arguments, Overload, Result, optional
from lowdnn.torch.operations.statistics import statistics_type
from lowdnn.torch.sketch import FLOATS, Declined, Dims, Sketch, collapsed, compute_type_of, name_of

#: Groups of neighbouring axes, each of which is one axis in memory.
Groups = tuple[tuple[int, ...], ...]

_X, _WEIGHT, _BIAS = range(3)
_DY, _BACKWARD_X, _MEAN, _ROOT, _BACKWARD_WEIGHT = range(5)


def read_layer_norm(x: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Arguments:
    return (x, optional(weight), optional(bias)), (NormMode.LAYER_NORM, tuple(normalized_shape), eps)


def read_rms_norm(x: Any, normalized_shape: Sequence[int], weight: Any, eps: float | None) -> Arguments:
    return (x, optional(weight), optional(None)), (NormMode.RMS_NORM, tuple(normalized_shape), eps)


def forward(sketch: Sketch, mode: NormMode, normalized: Dims, eps: float | None) -> Result:
    """(y, mean, inv_variance), without the mean for RMS norm."""
    x, *parameters = sketch.tensors
    check_rows(x, normalized, *parameters)
    has_parameters = any(own.shape is not None for own in parameters)
    source = matrix(sketch, _X, normalized, row_axes(sketch, (_X,), normalized, has_parameters=has_parameters))
    *rows, _ = source.dims
    y = sketch.allocate(x.shape, x.dtype)
    dtype = statistics_type(x, *parameters)
    stats = (*x.shape[: len(x.shape) - len(normalized)], *(1,) * len(normalized))
    ports: dict[str, Any] = {}
    saved = [sketch.allocate(stats, dtype) for _ in range(1 if mode is NormMode.RMS_NORM else 2)]
    for port, place in zip(("inv_variance", "mean"), reversed(saved), strict=False):
        ports[port] = sketch.at(place, (*rows, 1))
    for port, place in (("scale", _WEIGHT), ("bias", _BIAS)):
        if sketch.tensors[place].shape is not None:
            ports[port] = row(sketch, place, len(rows))
    compute = compute_type_of(source.data_type)
    epsilon = torch.finfo(FLOATS[0] if x.dtype == FLOATS[0] else FLOATS[1]).eps if eps is None else eps
    margin = sketch.constant(epsilon, source.rank, compute)
    sketch.add(NormForward(mode, NormFwdPhase.TRAINING, source, margin, sketch.at(y, source.dims), **ports))
    sketch.end_step()
    return (y, *saved)


def read_layer_norm_backward(
    dy: Any, x: Any, normalized_shape: Sequence[int], mean: Any, rstd: Any, weight: Any, bias: Any,
    output_mask: Sequence[bool],
) -> Arguments:  # fmt: skip
    numbers = NormMode.LAYER_NORM, tuple(normalized_shape), tuple(output_mask)
    return (dy, x, mean, rstd, optional(weight)), numbers


def read_rms_norm_backward(
    dy: Any, x: Any, normalized_shape: Sequence[int], rstd: Any, weight: Any, output_mask: Sequence[bool]
) -> Arguments:
    numbers = NormMode.RMS_NORM, tuple(normalized_shape), tuple(output_mask)
    return (dy, x, optional(None), rstd, optional(weight)), numbers


def backward(sketch: Sketch, mode: NormMode, normalized: Dims, mask: tuple[bool, ...]) -> Result:
    """(dx, dscale, dbias), as far as the mask asks for them."""
    dy, x, *others = sketch.tensors
    check_rows(x, normalized, dy, *others)
    if dy.dtype != x.dtype:
        raise Declined(f"a gradient of {name_of(dy.dtype)} for {name_of(x.dtype)}")
    weight = sketch.tensors[_BACKWARD_WEIGHT]
    places, has_parameters = (_BACKWARD_X, _DY), weight.shape is not None or any(mask[1:])
    groups = row_axes(sketch, places, normalized, has_parameters=has_parameters)
    source, gradient = (matrix(sketch, place, normalized, groups) for place in places)
    *rows, _ = source.dims
    results: list[int | None] = [None] * len(mask)
    ports: dict[str, Any] = {"inv_variance": sketch.at(_ROOT, (*rows, 1))}
    if mode is NormMode.LAYER_NORM:
        ports["mean"] = sketch.at(_MEAN, (*rows, 1))
    if weight.shape is not None:
        ports["scale"] = row(sketch, _BACKWARD_WEIGHT, len(rows))
    if mask[0]:
        results[0] = dx = sketch.allocate(x.shape, x.dtype)
        ports["dx"] = sketch.at(dx, source.dims)
    else:
        ports["dx"] = sketch.virtual(source.dims, source.data_type)
    for number, port in zip(range(1, len(mask)), ("dscale", "dbias"), strict=False):
        if mask[number]:
            results[number] = place = sketch.allocate(normalized, x.dtype if weight.dtype is None else weight.dtype)
            ports[port] = sketch.at(place, (*(1,) * len(rows), source.dims[-1]))
    sketch.add(NormBackward(mode, source, gradient, **ports))
    sketch.end_step()
    return tuple(results)


def rms_norm_backward_native(native: Callable[..., Any], keys: Any, *args: Any) -> Any:
    """torch has no such kernel for CPU tensors, on which its own RMS norm is several operations."""
    dy, x, normalized, root, weight, mask = args
    if x.device.type != "cpu":
        return native(keys, *args)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    axes = tuple(range(-len(normalized), 0))
    outer = tuple(range(x.dim() - len(normalized)))
    xhat, slope = x.to(wide) * root, dy.to(wide)
    dscale = (slope * xhat).sum(outer).to(weight.dtype) if mask[1] else None
    if weight is not None:
        slope = slope * weight
    dx = (root * (slope - xhat * (slope * xhat).mean(axes, keepdim=True))).to(x.dtype) if mask[0] else None
    return dx, dscale


def check_rows(x: Any, normalized: Dims, *others: Any) -> None:
    """Declines axes and types of norms that do not fit."""
    if x.dtype not in FLOATS or any(tensor.dtype not in (None, *FLOATS) for tensor in others):
        raise Declined(f"{name_of(x.dtype)} with others, where float types are expected")
    count = len(normalized)
    if not count or tuple(x.shape[len(x.shape) - count :]) != normalized:
        raise Declined(f"a norm over {list(normalized)} of dims {list(x.shape)}")


def row_axes(sketch: Sketch, places: Sequence[int], normalized: Dims, *, has_parameters: bool) -> Groups:
    """The axes in front of the normalised ones, in as few groups of neighbours as the tensors at all places allow.

    Without parameters to say which axes are normalised, a norm is over all but the first.
    """
    shape, strides = sketch.shape_at(places[0]), [sketch.strides_at(place) for place in places]
    groups: list[tuple[int, ...]] = [()]
    for axis in range(len(shape) - len(normalized)):
        long = [before for before in groups[-1] if shape[before] > 1]
        is_one = shape[axis] == 1 or not long or all(own[long[-1]] == own[axis] * shape[axis] for own in strides)
        if is_one:
            groups[-1] += (axis,)
        else:
            groups.append((axis,))
    if len(groups) > 1 and not has_parameters:
        raise Declined(f"strides {list(strides[0])} of rows {list(shape)}, in a norm without scale and bias")
    return tuple(groups)


def matrix(sketch: Sketch, place: int, normalized: Dims, groups: Groups | None = None) -> Tensor:
    """The tensor as rows of normalised elements.  groups: axes that are one; by default all in front of these."""
    tensor = sketch.at(place)
    first = tensor.rank - len(normalized)
    axes = (*(groups or (tuple(range(first)),)), tuple(range(first, tensor.rank)))
    found = [collapsed([tensor.dims[a] for a in group], [tensor.strides[a] for a in group]) for group in axes]
    return sketch.at(place, *zip(*found, strict=True))


def row(sketch: Sketch, place: int, leading: int = 1) -> Tensor:
    """The tensor as one row, which repeats along so many axes."""
    tensor = sketch.at(place)
    extent, stride = collapsed(tensor.dims, tensor.strides)
    return sketch.at(place, (*(1,) * leading, extent), (*(0,) * leading, stride))


OVERLOADS = (
    Overload("native_layer_norm", "layer_norm", read_layer_norm, forward),
    Overload("native_layer_norm_backward", "layer_norm", read_layer_norm_backward, backward),
    Overload("_fused_rms_norm", "rms_norm", read_rms_norm, forward),
    Overload(
        "_fused_rms_norm_backward", "rms_norm", read_rms_norm_backward, backward, fallback=rms_norm_backward_native
    ),
)
