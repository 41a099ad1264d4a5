"""Random transforms that pad, cut and fold, and NumPy's versions of them."""

from __future__ import annotations

from math import prod

import numpy as np

from lowdnn.capi.classic_enums import FoldingDirection
from tests.support.random_calls.elementwise import pair
from tests.support.random_calls.operands import Array, Call, Draw, Enum, Family, Made, blended


def resized(x: Array, before: tuple[int, ...], after: tuple[int, ...]) -> Array:
    """x with zeros around it, or cut off where a number is below 0."""
    added = [(max(a, 0), max(b, 0)) for a, b in zip(before, after, strict=True)]
    cut = tuple(slice(max(-a, 0), b if b < 0 else None) for a, b in zip(before, after, strict=True))
    return np.pad(x[cut], added)


def folded(x: Array, folds: tuple[int, ...]) -> Array:
    """Each f-th element along an axis in channels of its own."""
    n, c, *spatial = x.shape
    places = [extent // fold for extent, fold in zip(spatial, folds, strict=True)]
    split = [part for both in zip(places, folds, strict=True) for part in both]
    rank = len(folds)
    order = (0, 1, *(3 + 2 * axis for axis in range(rank)), *(2 + 2 * axis for axis in range(rank)))
    return x.reshape(n, c, *split).transpose(order).reshape(n, c * prod(folds), *places)


def unfolded(x: Array, folds: tuple[int, ...]) -> Array:
    """The inverse, by where ``folded`` puts each element."""
    n, c, *spatial = x.shape
    shape = (n, c // prod(folds), *(extent * fold for extent, fold in zip(spatial, folds, strict=True)))
    moved = folded(np.arange(x.size).reshape(shape), folds)
    result = np.empty(x.size, x.dtype)
    result[moved.ravel()] = x.ravel()
    return result.reshape(shape)


def transform_tensor(draw: Draw) -> Call:
    scales, dims, direction = draw.scales(), draw.dims(3), draw.choose(FoldingDirection)
    folds = tuple(draw.choose((1, 1, 2, 3)) for _ in dims[2:])
    if direction is FoldingDirection.UNFOLD:
        dims = (dims[0], dims[1] * prod(folds), *dims[2:])
    unpadded = (dims[0], dims[1] // prod(folds), *map(prod, zip(dims[2:], folds, strict=True)))
    padded = dims if direction is FoldingDirection.FOLD else unpadded
    before = tuple(draw.rng.randint(-1, 2) if extent > 2 else draw.rng.randint(0, 2) for extent in padded)
    after = [draw.rng.randint(0, 2) for _ in padded]
    if direction is FoldingDirection.FOLD:
        for axis, fold in enumerate(folds, 2):
            after[axis] += -(padded[axis] + before[axis] + after[axis]) % fold
    x = draw.operand("x", draw.integers(dims))
    if direction is FoldingDirection.FOLD:
        result = folded(resized(x.values, before, tuple(after)), folds)
    else:
        result = resized(unfolded(x.values, folds), before, tuple(after))
    y = draw.operand("y", draw.old(result.shape, scales[1]))
    arguments = (len(dims), Enum(0), before, tuple(after), folds, Enum(direction))
    made = Made("TensorTransform", "cudnnSetTensorTransformDescriptor", arguments)
    passed = [made, draw.scale(scales[0]), *pair(x), draw.scale(scales[1]), *pair(y)]
    return Call("cudnnTransformTensorEx", passed, {"y": blended(scales, result, y.values)})


FAMILIES: tuple[Family, ...] = (transform_tensor,)
