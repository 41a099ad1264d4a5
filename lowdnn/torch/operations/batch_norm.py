"""Batch normalisation: training, inference and gradients, in the forms of torch and of cuDNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowdnn.enums import NormFwdPhase, NormMode, PointwiseMode
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.tensor import Tensor
from lowdnn.torch.operation import ABSENT, Arguments, Overload, Result, optional
from lowdnn.torch.operations.statistics import statistics_type
from lowdnn.torch.sketch import FLOATS, Declined, Sketch, compute_type_of, name_of, suggested_strides

_X, _WEIGHT, _BIAS, _RUNNING_MEAN, _RUNNING_VAR = range(5)
_DY, _BACKWARD_X, _BACKWARD_WEIGHT, _SAVED_MEAN, _SAVED_ROOT = range(5)


def read(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float
) -> Arguments:
    tensors = x, optional(weight), optional(bias), optional(running_mean), optional(running_var)
    return tensors, (training, eps)


def read_without_statistics(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Arguments:
    return (x, optional(weight), optional(bias), ABSENT, ABSENT), (training, eps)


def forward(sketch: Sketch, training: bool, eps: float) -> Result:
    """(y, mean, inv_variance). In inference torch's CPU kernel gives no statistics; its CUDA kernel gives those in use,
    which is left to it."""
    if not training and sketch.tensors[_X].device.type == "cuda":
        raise Declined("statistics of the inference phase")
    return _forward(sketch, training, eps)


def _forward(sketch: Sketch, training: bool, eps: float) -> Result:
    x, *parameters = sketch.tensors
    _check(x, *parameters)
    y = sketch.allocate(x.shape, x.dtype, suggested_strides((x,), x.shape))
    saved_type = statistics_type(x, *parameters)
    if training:
        saved = [sketch.allocate((x.shape[1],), saved_type) for _ in range(2)]
        _add_training(sketch, y, saved, eps)
    else:
        saved = [sketch.allocate((0,), saved_type) for _ in range(2)]
        _add_inference(sketch, y, eps)
    sketch.end_step()
    return (y, *saved)


def cudnn_forward(sketch: Sketch, training: bool, eps: float) -> Result:
    """As ``forward``, with the reserve that cuDNN's gradients need and lowdnn's do not."""
    results = _forward(sketch, training, eps)
    return (*results, sketch.allocate((0,), torch.uint8))


def read_with_update(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Arguments:
    return read(x, weight, bias, running_mean, running_var, True, momentum, eps)


def read_no_update(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Arguments:
    return read(x, weight, bias, running_mean, running_var, False, momentum, eps)


def no_update(sketch: Sketch, training: bool, eps: float) -> Result:
    """(y, no statistics, no reserve), on a GPU as well, where torch has no kernel of this entry."""
    return (*_forward(sketch, training, eps), sketch.allocate((0,), torch.uint8))


def read_backward(
    dy: Any, x: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any, save_invstd: Any, train: bool,
    eps: float, output_mask: Sequence[bool],
) -> Arguments:  # fmt: skip
    return (dy, x, optional(weight), optional(save_mean), optional(save_invstd)), (train, tuple(output_mask))


def read_any_backward(
    dy: Any, x: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any, save_var: Any, update: bool,
    eps: float, output_mask: Sequence[bool], reserve: Any,
) -> Arguments:  # fmt: skip
    return read_backward(
        dy, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )  # fmt: skip


def read_cudnn_backward(
    x: Any, dy: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any, save_var: Any, eps: float,
    reserve: Any,
) -> Arguments:  # fmt: skip
    return (dy, x, weight, optional(save_mean), optional(save_var)), (True, (True, True, True))


def backward(sketch: Sketch, train: bool, mask: tuple[bool, bool, bool]) -> Result:
    dy, x, weight, mean, root = sketch.tensors
    _check(x, dy, weight, mean, root)
    if not train or mean.shape is None or root.shape is None:
        raise Declined("gradients of the inference phase")
    if dy.dtype != x.dtype:
        raise Declined(f"a gradient of {name_of(dy.dtype)} for {name_of(x.dtype)}")
    results: list[int | None] = [None, None, None]
    ports: dict[str, Any] = {}
    source, gradient = sketch.at(_BACKWARD_X), sketch.at(_DY)
    if mask[0]:
        results[0] = dx = sketch.allocate(x.shape, x.dtype, suggested_strides((x,), x.shape))
        ports["dx"] = sketch.at(dx)
    else:
        ports["dx"] = sketch.virtual(x.shape, source.data_type)
    for number, port in ((1, "dscale"), (2, "dbias")):
        if mask[number]:
            dtype = mean.dtype if weight.dtype is None else weight.dtype
            results[number] = place = sketch.allocate((x.shape[1],), dtype)
            ports[port] = _row(sketch, place)
    if weight.shape is not None:
        ports["scale"] = _row(sketch, _BACKWARD_WEIGHT)
    sketch.add(
        NormBackward(
            NormMode.BATCH_NORM, source, gradient, mean=_row(sketch, _SAVED_MEAN),
            inv_variance=_row(sketch, _SAVED_ROOT), **ports,
        )
    )  # fmt: skip
    sketch.end_step()
    return tuple(results)


def cudnn_backward_native(native: Callable[..., Any], keys: Any, *args: Any) -> Any:
    """cuDNN's gradients need its own reserve. Where lowdnn has left none, torch's kernel computes them."""
    x, dy, weight, running_mean, running_var, save_mean, save_var, eps, reserve = args
    if reserve.numel():
        return native(keys, *args)
    return torch.ops.aten.native_batch_norm_backward(
        dy, x, weight, running_mean, running_var, save_mean, save_var, True, eps, [True, True, True]
    )


def any_backward_native(native: Callable[..., Any], keys: Any, *args: Any) -> Any:
    """torch's entry calls cuDNN's gradients where cuDNN's forward pass would have run, whose reserve is not there."""
    *others, reserve = args
    if reserve.numel() or not others[7]:
        return native(keys, *args)
    return torch.ops.aten.native_batch_norm_backward(*others)


def _add_training(sketch: Sketch, y: int, saved: Sequence[int], eps: float) -> None:
    x = sketch.at(_X)
    compute = compute_type_of(x.data_type)
    ports: dict[str, Any] = _parameters(sketch)
    ports["mean"], ports["inv_variance"] = (_row(sketch, place) for place in saved)
    if sketch.tensors[_RUNNING_MEAN].shape is not None:
        for name, place in (("mean", _RUNNING_MEAN), ("var", _RUNNING_VAR)):
            for direction in ("input", "output"):
                ports[f"{direction}_running_{name}"] = _row(sketch, place)
        ports["exp_avg_factor"] = sketch.given_value(x.rank, compute)
    epsilon = sketch.value(eps, x.rank, compute)
    sketch.add(NormForward(NormMode.BATCH_NORM, NormFwdPhase.TRAINING, x, epsilon, sketch.at(y), **ports))


def _add_inference(sketch: Sketch, y: int, eps: float) -> None:
    """y = (x - running mean) * slope + bias, with slope = scale / sqrt(running variance + epsilon)."""
    if sketch.tensors[_RUNNING_MEAN].shape is None or sketch.tensors[_RUNNING_VAR].shape is None:
        raise Declined("inference without running statistics")
    x, target = sketch.at(_X), sketch.at(y)
    compute, mode = compute_type_of(x.data_type), PointwiseMode
    row = (1, x.dims[1], *(1,) * (x.rank - 2))
    parameters = _parameters(sketch)
    mean, variance = _row(sketch, _RUNNING_MEAN), _row(sketch, _RUNNING_VAR)
    epsilon = sketch.value(eps, x.rank, compute)
    raised = sketch.pointwise(mode.ADD, sketch.virtual(row, compute), variance, epsilon)
    slope = sketch.pointwise(mode.RSQRT, sketch.virtual(row, compute), raised)
    if "scale" in parameters:
        slope = sketch.pointwise(mode.MUL, sketch.virtual(row, compute), slope, parameters["scale"])
    centred = sketch.pointwise(mode.SUB, sketch.virtual(x.dims, compute), x, mean)
    shift = parameters.get("bias")
    scaled = sketch.pointwise(mode.MUL, target if shift is None else sketch.virtual(x.dims, compute), centred, slope)
    if shift is not None:
        sketch.pointwise(mode.ADD, target, scaled, shift)


def _parameters(sketch: Sketch) -> dict[str, Tensor]:
    places = {"scale": _WEIGHT, "bias": _BIAS}
    return {port: _row(sketch, place) for port, place in places.items() if sketch.tensors[place].shape is not None}


def _row(sketch: Sketch, place: int) -> Tensor:
    """One element for each channel."""
    tensor = sketch.at(place)
    rank = max(len(own.shape) for own in sketch.tensors if own.shape is not None)
    return sketch.at(place, (1, tensor.dims[0], *(1,) * (rank - 2)), (0, tensor.strides[0], *(0,) * (rank - 2)))


def _check(x: Any, *others: Any) -> None:
    if x.dtype not in FLOATS or len(x.shape) < 2:
        raise Declined(f"{name_of(x.dtype)} of rank {len(x.shape)}, where floats of rank 2 or more are expected")
    for tensor in others:
        if tensor.dtype not in (None, *FLOATS):
            raise Declined(f"parameters or statistics of {name_of(tensor.dtype)}")


#: Momentum's place among the arguments: a network whose momentum changes needs one plan.
_MOMENTUM = 6
#: Its place in ``_batch_norm_with_update``, which always trains.
_MOMENTUM_OF_UPDATE = 5

OVERLOADS = (
    Overload("native_batch_norm", "batch_norm", read, forward, given=_MOMENTUM),
    Overload("_native_batch_norm_legit", "batch_norm", read, forward, given=_MOMENTUM),
    Overload("_native_batch_norm_legit.no_stats", "batch_norm", read_without_statistics, forward),
    Overload("native_batch_norm_backward", "batch_norm", read_backward, backward),
    Overload("_batch_norm_with_update", "batch_norm", read_with_update, cudnn_forward, given=_MOMENTUM_OF_UPDATE),
    Overload("_batch_norm_no_update", "batch_norm", read_no_update, no_update),
    Overload("batch_norm_backward", "batch_norm", read_any_backward, backward, fallback=any_backward_native),
    Overload("cudnn_batch_norm", "batch_norm", read, cudnn_forward, keys=("CUDA",), given=_MOMENTUM),
    Overload(
        "cudnn_batch_norm_backward", "batch_norm", read_cudnn_backward, backward, keys=("CUDA",),
        fallback=cudnn_backward_native,
    ),
)  # fmt: skip
