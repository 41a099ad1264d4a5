"""Group normalisation and its gradients: one mean for each sample and group of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowdnn.enums import NormFwdPhase, NormMode
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.tensor import Tensor
from lowdnn.torch.operation import Arguments, Overload, Result, optional
from lowdnn.torch.operations.statistics import parameter_type
from lowdnn.torch.sketch import FLOATS, Declined, Sketch, compute_type_of, name_of, suggested_strides

_X, _WEIGHT, _BIAS = range(3)
_DY, _BACKWARD_X, _MEAN, _ROOT, _BACKWARD_WEIGHT = range(5)


def read(x: Any, weight: Any, bias: Any, n: int, c: int, hxw: int, groups: int, eps: float) -> Arguments:
    return (x, optional(weight), optional(bias)), (c, groups, eps)


def forward(sketch: Sketch, channels: int, groups: int, eps: float) -> Result:
    """(y, mean, inv_variance)."""
    x, *parameters = sketch.tensors
    _check(x, channels, *parameters)
    y = sketch.allocate(x.shape, x.dtype, suggested_strides((x,), x.shape))
    dtype = parameter_type(x, *parameters)
    saved = [sketch.allocate((x.shape[0], groups), dtype) for _ in range(2)]
    source = sketch.at(_X)
    ports: dict[str, Any] = {"mean": _statistics(sketch, saved[0]), "inv_variance": _statistics(sketch, saved[1])}
    for port, place in (("scale", _WEIGHT), ("bias", _BIAS)):
        if sketch.tensors[place].shape is not None:
            ports[port] = _row(sketch, place)
    epsilon = sketch.value(eps, source.rank, compute_type_of(source.data_type))
    sketch.add(
        NormForward(NormMode.GROUP_NORM, NormFwdPhase.TRAINING, source, epsilon, sketch.at(y), groups=groups, **ports)
    )
    sketch.end_step()
    return (y, *saved)


def read_backward(
    dy: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, hxw: int, groups: int,
    output_mask: Sequence[bool],
) -> Arguments:  # fmt: skip
    return (dy, x, mean, rstd, optional(weight)), (c, tuple(output_mask))


def backward(sketch: Sketch, channels: int, mask: tuple[bool, bool, bool]) -> Result:
    dy, x, *others = sketch.tensors
    _check(x, channels, dy, *others)
    if dy.dtype != x.dtype:
        raise Declined(f"a gradient of {name_of(dy.dtype)} for {name_of(x.dtype)}")
    weight = sketch.tensors[_BACKWARD_WEIGHT]
    results: list[int | None] = [None, None, None]
    ports: dict[str, Any] = {"mean": _statistics(sketch, _MEAN), "inv_variance": _statistics(sketch, _ROOT)}
    source = sketch.at(_BACKWARD_X)
    if mask[0]:
        results[0] = dx = sketch.allocate(x.shape, x.dtype, suggested_strides((x,), x.shape))
        ports["dx"] = sketch.at(dx)
    else:
        ports["dx"] = sketch.virtual(x.shape, source.data_type)
    if weight.shape is not None:
        ports["scale"] = _row(sketch, _BACKWARD_WEIGHT)
    for number, port in ((1, "dscale"), (2, "dbias")):
        if mask[number]:
            results[number] = place = sketch.allocate((channels,), x.dtype if weight.dtype is None else weight.dtype)
            ports[port] = _row(sketch, place)
    sketch.add(NormBackward(NormMode.GROUP_NORM, source, sketch.at(_DY), **ports))
    sketch.end_step()
    return tuple(results)


def _check(x: Any, channels: int, *others: Any) -> None:
    if x.dtype not in FLOATS or any(tensor.dtype not in (None, *FLOATS) for tensor in others):
        raise Declined(f"{name_of(x.dtype)} with others, where float types are expected")
    if len(x.shape) < 2 or x.shape[1] != channels:
        raise Declined(f"dims {list(x.shape)} with {channels} channels")


def _rank(sketch: Sketch) -> int:
    return max(len(tensor.shape) for tensor in sketch.tensors if tensor.shape is not None)


def _row(sketch: Sketch, place: int) -> Tensor:
    """One element for each channel."""
    tensor, more = sketch.at(place), _rank(sketch) - 2
    return sketch.at(place, (1, tensor.dims[0], *(1,) * more), (0, tensor.strides[0], *(0,) * more))


def _statistics(sketch: Sketch, place: int) -> Tensor:
    """One element for each sample and group."""
    tensor, more = sketch.at(place), _rank(sketch) - 2
    return sketch.at(place, (*tensor.dims, *(1,) * more), (*tensor.strides, *(0,) * more))


OVERLOADS = (
    Overload("native_group_norm", "group_norm", read, forward),
    Overload("native_group_norm_backward", "group_norm", read_backward, backward),
)
