"""Maximum, average and adaptive pooling in two and three dimensions, and their gradients.

torch's index of a maximum is its place in the image, row-major over the spatial axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowdnn.enums import NanPropagation, PaddingMode, ResampleMode
from lowdnn.ops.resample import Resample
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.ops.tensor import Tensor
from lowdnn.torch.operation import Arguments, Overload, Result
from lowdnn.torch.sketch import Declined, Dims, Sketch, check_floats, compute_type_of, data_type_of, suggested_strides

#: Windows, strides and paddings, one for each axis, and whether a last window may overhang.
Windows = tuple[Dims, Dims, Dims, bool]

_X, _DY, _BACKWARD_X = 0, 0, 1


def read_max(
    x: Any, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> Arguments:  # fmt: skip
    return (x,), (tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), ceil_mode)


def read_max_backward(
    dy: Any, x: Any, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool, indices: Any,
) -> Arguments:  # fmt: skip
    return (dy, x), (tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), ceil_mode)


def read_average(
    x: Any, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Arguments:  # fmt: skip
    return (x,), (tuple(kernel), tuple(stride), tuple(padding), ceil_mode, count_include_pad, divisor_override)


def read_average_backward(dy: Any, x: Any, *numbers: Any) -> Arguments:
    (_,), found = read_average(x, *numbers)
    return (dy, x), found


def read_adaptive(x: Any, output_size: Sequence[int]) -> Arguments:
    return (x,), (tuple(output_size),)


def read_adaptive_backward(dy: Any, x: Any, indices: Any = None) -> Arguments:
    return (dy, x), ()


def max_forward(spatial: int) -> Callable[..., Result]:
    def sketched(sketch: Sketch, kernel: Dims, stride: Dims, padding: Dims, dilation: Dims, ceil: bool) -> Result:
        (x,) = sketch.tensors
        _check_dilation(dilation)
        return _max(sketch, _resample(x, spatial, (kernel, stride, padding, ceil), ResampleMode.MAXPOOL))

    return sketched


def max_backward(spatial: int) -> Callable[..., Result]:
    def sketched(sketch: Sketch, kernel: Dims, stride: Dims, padding: Dims, dilation: Dims, ceil: bool) -> Result:
        x = sketch.tensors[_BACKWARD_X]
        _check_dilation(dilation)
        return _gradient(sketch, _resample(x, spatial, (kernel, stride, padding, ceil), ResampleMode.MAXPOOL))

    return sketched


def average_forward(spatial: int) -> Callable[..., Result]:
    def sketched(sketch: Sketch, kernel: Dims, stride: Dims, padding: Dims, *rest: Any) -> Result:
        return _average(sketch, _averaging(sketch.tensors[_X], spatial, (kernel, stride, padding, rest[0]), *rest[1:]))

    return sketched


def average_backward(spatial: int) -> Callable[..., Result]:
    def sketched(sketch: Sketch, kernel: Dims, stride: Dims, padding: Dims, *rest: Any) -> Result:
        x = sketch.tensors[_BACKWARD_X]
        return _gradient(sketch, _averaging(x, spatial, (kernel, stride, padding, rest[0]), *rest[1:]))

    return sketched


def adaptive_average(spatial: int) -> Callable[..., Result]:
    def sketched(sketch: Sketch, output_size: Dims) -> Result:
        mode = ResampleMode.AVGPOOL_EXCLUDE_PADDING
        return _average(sketch, _adaptive(sketch.tensors[_X], spatial, output_size, mode))

    return sketched


def adaptive_max(spatial: int) -> Callable[..., Result]:
    def sketched(sketch: Sketch, output_size: Dims) -> Result:
        return _max(sketch, _adaptive(sketch.tensors[_X], spatial, output_size, ResampleMode.MAXPOOL))

    return sketched


def adaptive_backward(spatial: int, mode: ResampleMode) -> Callable[..., Result]:
    def sketched(sketch: Sketch) -> Result:
        dy, x = sketch.tensors
        return _gradient(sketch, _adaptive(x, spatial, tuple(dy.shape[len(dy.shape) - spatial :]), mode))

    return sketched


def _max(sketch: Sketch, resample: Resample) -> Result:
    """(y, index), the index as torch counts."""
    (x,) = sketch.tensors
    check_floats(x)
    y = _result(sketch, resample, x.dtype)
    indices = _result(sketch, resample, torch.int64)
    x, target, places = (_as_image(sketch, place, resample) for place in (_X, y, indices))
    sketch.add(ResampleForward(resample, x, target, places, index_in_image=True))
    sketch.end_step()
    return y, indices


def _average(sketch: Sketch, resample: Resample) -> Result:
    (x,) = sketch.tensors
    check_floats(x)
    y = _result(sketch, resample, x.dtype)
    sketch.add(ResampleForward(resample, _as_image(sketch, _X, resample), _as_image(sketch, y, resample)))
    sketch.end_step()
    return y


def _gradient(sketch: Sketch, resample: Resample) -> Result:
    """dx. A maximum is found again in x: torch's indices would have to be counted back."""
    dy, x = sketch.tensors
    check_floats(dy, x)
    dx = sketch.allocate(x.shape, x.dtype, suggested_strides((x,), x.shape))
    image = _as_image(sketch, _BACKWARD_X, resample) if resample.mode is ResampleMode.MAXPOOL else None
    gradient = _as_image(sketch, _DY, resample)
    sketch.add(ResampleBackward(resample, gradient, _as_image(sketch, dx, resample), x=image))
    sketch.end_step()
    return dx


def _result(sketch: Sketch, resample: Resample, dtype: Any) -> int:
    """The place of a new tensor with y's dims."""
    x = sketch.tensors[_X]
    batch = (1,) * (resample.spatial_dims + 2 - len(x.shape))
    shape = resample.output_dims((*batch, *x.shape))[len(batch) :]
    return sketch.allocate(shape, dtype, suggested_strides((x,), shape))


def _averaging(x: Any, spatial: int, windows: Windows, counts_padding: bool, divisor_override: int | None) -> Resample:
    if divisor_override is not None:
        raise Declined("an average with a divisor of the caller's")
    found = _resample(x, spatial, windows, ResampleMode.AVGPOOL_EXCLUDE_PADDING)
    if not counts_padding or not any(found.pre_paddings):
        return found
    if found.post_paddings != found.pre_paddings:
        raise Declined("an average that counts the padding, with a last window that overhangs it")
    return _resample(x, spatial, windows, ResampleMode.AVGPOOL_INCLUDE_PADDING)


def _adaptive(x: Any, spatial: int, output_size: Dims, mode: ResampleMode) -> Resample:
    extents = tuple(x.shape[len(x.shape) - spatial :])
    outputs = _each(output_size, spatial)
    if not spatial < len(x.shape) <= spatial + 2 or min(outputs) < 1:
        raise Declined(f"adaptive pooling of dims {list(x.shape)} to {list(outputs)}")
    compute = compute_type_of(data_type_of(x.dtype))
    if mode is not ResampleMode.MAXPOOL:
        return Resample.to_size(mode, extents, outputs, compute, NanPropagation.PROPAGATE_NAN)
    if any(extent % output for extent, output in zip(extents, outputs, strict=True)):
        raise Declined("adaptive maxima over windows of several sizes, whose places torch counts by")
    windows = tuple(extent // output for extent, output in zip(extents, outputs, strict=True))
    return _resample(x, spatial, (windows, windows, (0,), False), mode)


def _resample(x: Any, spatial: int, windows: Windows, mode: ResampleMode) -> Resample:
    rank = len(x.shape)
    if not spatial < rank <= spatial + 2:
        raise Declined(f"pooling of rank {rank}")
    extents = x.shape[rank - spatial :]
    kernel, padding = _each(windows[0], spatial), _each(windows[2], spatial)
    stride = _each(windows[1], spatial) if windows[1] else kernel
    if min(stride) < 1 or min(kernel) < 1 or any(2 * pad > size for pad, size in zip(padding, kernel, strict=True)):
        raise Declined(f"windows {list(kernel)} with strides {list(stride)} and padding {list(padding)}")
    post = tuple(_post_padding(*axis, windows[3]) for axis in zip(extents, kernel, stride, padding, strict=True))
    compute = compute_type_of(data_type_of(x.dtype))
    pad_mode = PaddingMode.NEG_INF_PAD if mode is ResampleMode.MAXPOOL else PaddingMode.ZERO_PAD
    return Resample(spatial, kernel, stride, padding, post, mode, compute, NanPropagation.PROPAGATE_NAN, pad_mode)


def _post_padding(extent: int, kernel: int, stride: int, padding: int, ceil: bool) -> int:
    """The padding behind an axis, with which it has as many outputs as torch gives it."""
    reach = extent + 2 * padding - kernel
    if reach < 0:
        raise Declined(f"a window of {kernel} in an image of {extent} with its padding")
    outputs = 1 + (reach + (stride - 1 if ceil else 0)) // stride
    if ceil and (outputs - 1) * stride >= extent + padding:
        outputs -= 1
    return max(padding, (outputs - 1) * stride + kernel - extent - padding)


def _as_image(sketch: Sketch, place: int, resample: Resample) -> Tensor:
    """The tensor at a place with a batch axis."""
    tensor = sketch.at(place)
    if tensor.rank == resample.spatial_dims + 2:
        return tensor
    return sketch.at(place, (1, *tensor.dims), (tensor.dims[0] * tensor.strides[0], *tensor.strides))


def _each(values: Dims, spatial: int) -> Dims:
    return values if len(values) == spatial else values * spatial


def _check_dilation(dilation: Dims) -> None:
    if any(value != 1 for value in dilation):
        raise Declined(f"dilation {list(dilation)}, where windows without gaps are expected")


_AVERAGE, _MAXIMUM = ResampleMode.AVGPOOL_EXCLUDE_PADDING, ResampleMode.MAXPOOL

OVERLOADS = tuple(
    overload
    for spatial in (2, 3)
    for overload in (
        Overload(f"max_pool{spatial}d_with_indices", "pooling", read_max, max_forward(spatial)),
        Overload(f"max_pool{spatial}d_with_indices_backward", "pooling", read_max_backward, max_backward(spatial)),
        Overload(f"avg_pool{spatial}d", "pooling", read_average, average_forward(spatial)),
        Overload(f"avg_pool{spatial}d_backward", "pooling", read_average_backward, average_backward(spatial)),
        Overload(f"_adaptive_avg_pool{spatial}d", "pooling", read_adaptive, adaptive_average(spatial)),
        Overload(
            f"_adaptive_avg_pool{spatial}d_backward", "pooling", read_adaptive_backward,
            adaptive_backward(spatial, _AVERAGE),
        ),
        Overload(f"adaptive_max_pool{spatial}d", "pooling", read_adaptive, adaptive_max(spatial)),
        Overload(
            f"adaptive_max_pool{spatial}d_backward", "pooling", read_adaptive_backward,
            adaptive_backward(spatial, _MAXIMUM),
        ),
    )
)  # fmt: skip
