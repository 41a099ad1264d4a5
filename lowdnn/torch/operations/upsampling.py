"""Nearest and linear interpolation in one to three dimensions, and their gradients.

torch computes positions in fp32, lowdnn in integers. Where a nearest position of torch's is another one, its own kernel
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from lowdnn.enums import PaddingMode, ResampleMode
from lowdnn.ops.resample import Resample, whole
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.torch.operation import Arguments, Overload, Result
from lowdnn.torch.sketch import Declined, Dims, Sketch, check_floats, compute_type_of, data_type_of, suggested_strides

#: The scales that the caller gave, None where they follow from the sizes.
Scales = tuple[float | None, ...]
#: Makes the resampling from one size to another.
Geometry = Callable[[Dims, Dims, Scales, bool], Resample]


def read_nearest(x: Any, output_size: Sequence[int], *scales: float | None) -> Arguments:
    return (x,), (tuple(output_size), scales, False)


def read_linear(x: Any, output_size: Sequence[int], align_corners: bool, *scales: float | None) -> Arguments:
    return (x,), (tuple(output_size), scales, align_corners)


def read_nearest_backward(
    dy: Any, output_size: Sequence[int], input_size: Sequence[int], *scales: float | None
) -> Arguments:
    return (dy,), (tuple(input_size), scales, False)


def read_linear_backward(
    dy: Any, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool, *scales: float | None
) -> Arguments:
    return (dy,), (tuple(input_size), scales, align_corners)


def forward(geometry: Geometry) -> Callable[..., Result]:
    def sketched(sketch: Sketch, output_size: Dims, scales: Scales, align_corners: bool) -> Result:
        (x,) = sketch.tensors
        check_floats(x)
        resample = _typed(geometry(tuple(x.shape[2:]), output_size, scales, align_corners), x)
        shape = (*x.shape[:2], *output_size)
        y = sketch.allocate(shape, x.dtype, suggested_strides((x,), shape))
        sketch.add(ResampleForward(resample, sketch.at(0), sketch.at(y)))
        sketch.end_step()
        return y

    return sketched


def backward(geometry: Geometry) -> Callable[..., Result]:
    def sketched(sketch: Sketch, input_size: Dims, scales: Scales, align_corners: bool) -> Result:
        (dy,) = sketch.tensors
        check_floats(dy)
        resample = _typed(geometry(input_size[2:], tuple(dy.shape[2:]), scales, align_corners), dy)
        dx = sketch.allocate(input_size, dy.dtype, suggested_strides((dy,), input_size))
        sketch.add(ResampleBackward(resample, sketch.at(0), sketch.at(dx)))
        sketch.end_step()
        return dx

    return sketched


def nearest(extents: Dims, outputs: Dims, scales: Scales, _: bool) -> Resample:
    """Output o reads position floor(o * extent / outputs)."""
    strides = _strides(extents, outputs)
    _check_nearest(extents, outputs, scales, 0.0)
    half = Fraction(1, 2)
    behind = tuple(whole(half - stride) for stride in strides)
    spatial = len(strides)
    return Resample(spatial, (1,) * spatial, strides, (half,) * spatial, behind, ResampleMode.NEAREST)


def nearest_exact(extents: Dims, outputs: Dims, scales: Scales, _: bool) -> Resample:
    """Output o reads the position in which its middle lies."""
    _strides(extents, outputs)
    _check_nearest(extents, outputs, scales, 0.5)
    return Resample.to_size(ResampleMode.NEAREST, extents, outputs)


def linear(extents: Dims, outputs: Dims, scales: Scales, align_corners: bool) -> Resample:
    """Middles of pixels lie on middles, or with ``align_corners`` the outermost ones on each other."""
    strides = _strides(extents, outputs)
    if not align_corners:
        for stride, scale in zip(strides, scales, strict=False):
            if scale is not None and scale > 0 and Fraction(1 / scale) != stride:
                raise Declined(f"a scale of {scale} that is not that of the sizes")
        return Resample.to_size(ResampleMode.BILINEAR, extents, outputs)
    if min(*extents, *outputs, 2) < 2:
        raise Declined("corners of an axis with one element")
    strides = tuple(whole(Fraction(x - 1, y - 1)) for x, y in zip(extents, outputs, strict=True))
    half = (Fraction(1, 2),) * len(strides)
    return Resample(len(strides), (2,) * len(strides), strides, half, half, ResampleMode.BILINEAR)


def _strides(extents: Dims, outputs: Dims) -> tuple[int | Fraction, ...]:
    if len(extents) != len(outputs) or min(*extents, *outputs, 1) < 1:
        raise Declined(f"interpolation from {list(extents)} to {list(outputs)}")
    return tuple(whole(Fraction(x, y)) for x, y in zip(extents, outputs, strict=True))


def _check_nearest(extents: Dims, outputs: Dims, scales: Scales, shift: float) -> None:
    """Declines sizes and scales for which fp32 gives other positions than the sizes say."""
    for axis, (extent, count) in enumerate(zip(extents, outputs, strict=True)):
        given = scales[axis] if axis < len(scales) else None
        scale = np.float32(1 / given) if given is not None and given > 0 else np.float32(extent) / np.float32(count)
        places = np.arange(count)
        rounded = np.minimum(np.floor((places.astype(np.float32) + np.float32(shift)) * scale), extent - 1)
        twice = int(2 * shift)
        if not np.array_equal(rounded, (2 * places + twice) * extent // (2 * count)):
            raise Declined(f"positions of {count} outputs in {extent} that fp32 rounds to neighbours")


def _typed(resample: Resample, x: Any) -> Resample:
    """The resampling in the arithmetic for x; positions outside stand for the nearest inside."""
    return Resample(
        resample.spatial_dims, resample.window_dims, resample.strides, resample.pre_paddings, resample.post_paddings,
        resample.mode, compute_type_of(data_type_of(x.dtype)), padding_mode=PaddingMode.EDGE_VAL_PAD,
    )  # fmt: skip


def _overloads(name: str, geometry: Geometry, *, is_linear: bool) -> tuple[Overload, ...]:
    read, read_back = (read_linear, read_linear_backward) if is_linear else (read_nearest, read_nearest_backward)
    return (
        Overload(name, "upsampling", read, forward(geometry)),
        Overload(f"{name}_backward", "upsampling", read_back, backward(geometry)),
    )


OVERLOADS = (
    *(item for rank in (1, 2, 3) for item in _overloads(f"upsample_nearest{rank}d", nearest, is_linear=False)),
    *(
        item
        for rank in (1, 2, 3)
        for item in _overloads(f"_upsample_nearest_exact{rank}d", nearest_exact, is_linear=False)
    ),
    *_overloads("upsample_linear1d", linear, is_linear=True),
    *_overloads("upsample_bilinear2d", linear, is_linear=True),
    *_overloads("upsample_trilinear3d", linear, is_linear=True),
)
