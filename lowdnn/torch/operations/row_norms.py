"""Layer and RMS normalisation over the last axes, and their gradients: rows of a matrix, one mean for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from lowdnn.enums import NormFwdPhase, NormMode
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.tensor import Tensor
from lowdnn.torch.operation import Arguments, Overload, Result, optional
from lowdnn.torch.operations.statistics import statistics_type
from lowdnn.torch.sketch import FLOATS, Declined, Dims, Sketch, collapsed, compute_type_of, name_of

_X, _WEIGHT, _BIAS = range(3)
_DY, _BACKWARD_X, _MEAN, _ROOT, _BACKWARD_WEIGHT = range(5)


def read_layer_norm(x: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Arguments:
    return (x, optional(weight), optional(bias)), (NormMode.LAYER_NORM, tuple(normalized_shape), eps)


def read_rms_norm(x: Any, normalized_shape: Sequence[int], weight: Any, eps: float | None) -> Arguments:
    return (x, optional(weight), optional(None)), (NormMode.RMS_NORM, tuple(normalized_shape), eps)


def forward(sketch: Sketch, mode: NormMode, normalized: Dims, eps: float | None) -> Result:
    """(y, mean, inv_variance), without the mean for RMS norm."""
    x, *parameters = sketch.tensors
    rows = row_count(x, normalized, *parameters)
    y = sketch.allocate(x.shape, x.dtype)
    dtype = statistics_type(x, *parameters)
    stats = (*x.shape[: len(x.shape) - len(normalized)], *(1,) * len(normalized))
    ports: dict[str, Any] = {}
    saved = [sketch.allocate(stats, dtype) for _ in range(1 if mode is NormMode.RMS_NORM else 2)]
    for port, place in zip(("inv_variance", "mean"), reversed(saved), strict=False):
        ports[port] = sketch.at(place, (rows, 1))
    for port, place in (("scale", _WEIGHT), ("bias", _BIAS)):
        if sketch.tensors[place].shape is not None:
            ports[port] = row(sketch, place)
    source = matrix(sketch, _X, normalized)
    compute = compute_type_of(source.data_type)
    epsilon = torch.finfo(FLOATS[0] if x.dtype == FLOATS[0] else FLOATS[1]).eps if eps is None else eps
    margin = sketch.value(epsilon, 2, compute)
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
    rows = row_count(x, normalized, dy, *others)
    if dy.dtype != x.dtype:
        raise Declined(f"a gradient of {name_of(dy.dtype)} for {name_of(x.dtype)}")
    source, gradient = matrix(sketch, _BACKWARD_X, normalized), matrix(sketch, _DY, normalized)
    weight = sketch.tensors[_BACKWARD_WEIGHT]
    results: list[int | None] = [None] * len(mask)
    ports: dict[str, Any] = {"inv_variance": sketch.at(_ROOT, (rows, 1))}
    if mode is NormMode.LAYER_NORM:
        ports["mean"] = sketch.at(_MEAN, (rows, 1))
    if weight.shape is not None:
        ports["scale"] = row(sketch, _BACKWARD_WEIGHT)
    if mask[0]:
        results[0] = dx = sketch.allocate(x.shape, x.dtype)
        ports["dx"] = sketch.at(dx, source.dims)
    else:
        ports["dx"] = sketch.virtual(source.dims, source.data_type)
    for number, port in zip(range(1, len(mask)), ("dscale", "dbias"), strict=False):
        if mask[number]:
            results[number] = place = sketch.allocate(normalized, x.dtype if weight.dtype is None else weight.dtype)
            ports[port] = sketch.at(place, (1, source.dims[1]))
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


def row_count(x: Any, normalized: Dims, *others: Any) -> int:
    """The number of rows of a norm. Declines axes and types that do not fit."""
    if x.dtype not in FLOATS or any(tensor.dtype not in (None, *FLOATS) for tensor in others):
        raise Declined(f"{name_of(x.dtype)} with others, where float types are expected")
    count = len(normalized)
    if not count or tuple(x.shape[len(x.shape) - count :]) != normalized:
        raise Declined(f"a norm over {list(normalized)} of dims {list(x.shape)}")
    return prod(x.shape[: len(x.shape) - count])


def matrix(sketch: Sketch, place: int, normalized: Dims) -> Tensor:
    """The tensor as rows of normalised elements."""
    tensor = sketch.at(place)
    first = tensor.rank - len(normalized)
    rows = collapsed(tensor.dims[:first], tensor.strides[:first])
    columns = collapsed(tensor.dims[first:], tensor.strides[first:])
    return sketch.at(place, (rows[0], columns[0]), (rows[1], columns[1]))


def row(sketch: Sketch, place: int) -> Tensor:
    """The tensor as one row, which repeats."""
    tensor = sketch.at(place)
    extent, stride = collapsed(tensor.dims, tensor.strides)
    return sketch.at(place, (1, extent), (0, stride))


OVERLOADS = (
    Overload("native_layer_norm", "layer_norm", read_layer_norm, forward),
    Overload("native_layer_norm_backward", "layer_norm", read_layer_norm_backward, backward),
    Overload("_fused_rms_norm", "rms_norm", read_rms_norm, forward),
    Overload(
        "_fused_rms_norm_backward", "rms_norm", read_rms_norm_backward, backward, fallback=rms_norm_backward_native
    ),
)
