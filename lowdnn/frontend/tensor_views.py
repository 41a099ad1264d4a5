"""Shapes and strides of views: parts of a tensor, its axes in another order, the same elements in another shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lowdnn.checks import integers, shown
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import BadParamError, ShapeMismatchError

Dims = tuple[int, ...]


def sliced(shape: Dims, strides: Dims, index: object) -> tuple[Dims, Dims, int]:
    """Shape, strides and offset in elements of what ``index`` chooses: integers, slices, at most one ellipsis.

    Raises IndexError for an index out of range or too many of them, BadParamError for an index of another kind and for
    a slice that does not step forward.
    """
    given = index if isinstance(index, tuple) else (index,)
    dims, steps, offset = list[int](), list[int](), 0
    for axis, item in enumerate(_one_for_each_axis(given, len(shape))):
        if isinstance(item, slice):
            start, stop, step = item.indices(shape[axis])
            if step < 1:
                raise BadParamError.at("tensor.index", expected="slices with positive steps", got=shown(item))
            chosen = range(start, stop, step)
            dims.append(len(chosen))
            steps.append(strides[axis] * step)
            offset += strides[axis] * start if chosen else 0
        else:
            offset += strides[axis] * _position(item, axis, shape[axis])
    return tuple(dims), tuple(steps), offset


def reshaped(shape: Dims, strides: Dims, wanted: Sequence[int]) -> Dims:
    """The extents ``wanted``, of which one may be -1, for a packed tensor of ``shape``.

    Raises BadParamError for a tensor that is not packed in row-major order and for a second -1, ShapeMismatchError for
    another number of elements.
    """
    if any(
        extent > 1 and step != packed
        for extent, step, packed in zip(shape, strides, packed_strides(shape), strict=True)
    ):
        raise BadParamError.at("tensor.reshape", expected="a tensor packed in row-major order", got=list(strides))
    dims, count = integers(wanted, "tensor.reshape.shape", -1), math.prod(shape)
    known = math.prod(extent for extent in dims if extent >= 0)
    if dims.count(-1) > 1:
        raise BadParamError.at("tensor.reshape.shape", expected="at most one -1", got=list(dims))
    if -1 in dims and known and count % known == 0:
        dims = tuple(count // known if extent < 0 else extent for extent in dims)
    if math.prod(dims) != count or -1 in dims:
        raise ShapeMismatchError.at("tensor.reshape.shape", expected=f"{count} elements", got=list(dims))
    return dims


def permuted(rank: int, axes: Sequence[int]) -> Dims:
    """``axes`` as integers from 0 on; raises BadParamError unless each of ``rank`` axes occurs once."""
    chosen = tuple(axis + rank if axis < 0 else axis for axis in integers(axes, "tensor.permute.axes"))
    if sorted(chosen) != list(range(rank)):
        raise BadParamError.at("tensor.permute.axes", expected=f"each of {rank} axes once", got=list(chosen))
    return chosen


def _one_for_each_axis(given: tuple[object, ...], rank: int) -> list[object]:
    """An index for each axis: an ellipsis, or the end, stands for whole axes."""
    places = [place for place, item in enumerate(given) if item is ...]
    if len(places) > 1:
        raise BadParamError.at("tensor.index", expected="at most one ellipsis", got=shown(given))
    missing = rank - len(given) + len(places)
    if missing < 0:
        raise IndexError(f"tensor.index: expected at most {rank} indices, got {len(given) - len(places)}")
    place = places[0] if places else len(given)
    return [*given[:place], *[slice(None)] * missing, *given[place + len(places) :]]


def _position(item: object, axis: int, extent: int) -> int:
    (position,) = integers((item,), "tensor.index")
    if not -extent <= position < extent:
        raise IndexError(f"tensor.index: expected {-extent} to {extent - 1} along axis {axis}, got {position}")
    return position % extent
