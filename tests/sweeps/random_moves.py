"""Random moves of elements, random numbers and block scales, as case lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

ValueT = TypeVar("ValueT")

_TYPES = ("fp64", "fp32", "fp16", "bf16", "e4m3", "e5m2", "int8", "int32", "int64", "uint8", "bool")
_LAYOUTS = ("row", "row", "nhwc", "padded", "transposed")


def draw(rng: np.random.Generator, most: int) -> str:
    """A case whose tensors have up to about ``most`` elements."""
    kinds = (_transpose, _transpose, _slice, _reshape, _concat, _band, _pages, _numbers, _scales)
    return _pick(rng, kinds)(rng, most)


def _transpose(rng: np.random.Generator, most: int) -> str:
    dims = _dims(rng, most)
    permutation = ",".join(map(str, rng.permutation(len(dims))))
    return f"transform op=transpose dims={_joined(dims)} perm={permutation} {_types(rng)} {_layouts(rng)}"


def _slice(rng: np.random.Generator, most: int) -> str:
    dims = _dims(rng, most)
    bounds = [sorted(int(place) for place in rng.integers(0, extent + 1, 2)) for extent in dims]
    start, limit = (",".join(str(bound[n]) for bound in bounds) for n in (0, 1))
    step = ",".join(str(rng.choice([1, 1, 2, 3])) for _ in dims)
    return (
        f"transform op=slice dims={_joined(dims)} start={start} limit={limit} step={step} {_types(rng)} {_layouts(rng)}"
    )


def _reshape(rng: np.random.Generator, most: int) -> str:
    """Both shapes from the same factors, cut at different places."""
    factors = [int(factor) for factor in rng.choice([1, 2, 2, 3, 4, 5, 7], 7)]
    while np.prod(factors) > most:
        factors.pop()
    shapes = [_grouped(rng, factors) for _ in "xy"]
    return f"transform op=reshape dims={shapes[0]} to={shapes[1]} {_types(rng)} {_layouts(rng)}"


def _concat(rng: np.random.Generator, most: int) -> str:
    dims = _dims(rng, most // 3 + 1)
    axis = int(rng.integers(len(dims)))
    parts = ",".join(str(part) for part in rng.integers(0, dims[axis] + 1, rng.integers(1, 11)))
    return f"transform op=concat dims={_joined(dims)} axis={axis} parts={parts} {_types(rng)} {_layouts(rng)}"


def _band(rng: np.random.Generator, most: int) -> str:
    dims = _dims(rng, most, least_rank=2)
    axis, lower, upper = int(rng.integers(1, len(dims))), *(int(width) for width in rng.integers(0, 9, 2))
    op = _pick(rng, ("expand", "contract"))
    return (
        f"transform op={op} dims={_joined(dims)} axis={axis} lower={lower} upper={upper} pad={rng.integers(5)}"
        f" {_types(rng)} {_layouts(rng)}"
    )


def _pages(rng: np.random.Generator, most: int) -> str:
    dims = [int(extent) for extent in rng.integers(1, 6, 2)] + [int(extent) for extent in rng.integers(1, 40, 2)]
    page = 1 << rng.integers(0, 7)
    return f"transform op=load dims={_joined(dims)} page={page} dtype={_pick(rng, _TYPES)} {_layouts(rng)}"


def _numbers(rng: np.random.Generator, most: int) -> str:
    dist = _pick(rng, ("bernoulli", "uniform", "normal"))
    types = _TYPES if dist == "bernoulli" else _TYPES[:4]
    source = _pick(rng, ("number", "host", "device"))
    words = f"dist={dist} seed={rng.integers(2**62)} offset={rng.integers(2**62)} source={source}"
    return f"rng dims={_joined(_dims(rng, most))} {words} dtype={_pick(rng, types)} layout={_pick(rng, _LAYOUTS)}"


def _scales(rng: np.random.Generator, most: int) -> str:
    dims = _dims(rng, most)
    block, axis = int(rng.choice([1, 2, 7, 16, 16, 32, 32, 64])), int(rng.integers(len(dims)))
    scale = _pick(rng, ("e8m0", "e8m0", "e4m3", "fp32"))
    words = f"block_scale dims={_joined(dims)} axis={axis} block={block} scale={scale} {_layouts(rng)}"
    if rng.integers(3):
        return f"{words} dtype={_pick(rng, _TYPES[:4])} out={_pick(rng, ('e4m3', 'e5m2'))}"
    return f"{words} dir=dequantize dtype={_pick(rng, ('e4m3', 'e5m2'))} out={_pick(rng, _TYPES[:4])}"


def _dims(rng: np.random.Generator, most: int, least_rank: int = 1) -> list[int]:
    """One to five extents, some of them 1."""
    rank = int(rng.integers(least_rank, 6))
    scale = most ** (1 / rank)
    return [1 if not rng.integers(8) else int(rng.integers(1, max(2, int(1.6 * scale)) + 1)) for _ in range(rank)]


def _grouped(rng: np.random.Generator, factors: list[int]) -> str:
    """The factors in order, neighbours multiplied at random."""
    groups = [1]
    for factor in factors:
        if rng.integers(2) and len(groups) < 5:
            groups.append(factor)
        else:
            groups[-1] *= factor
    return _joined(groups)


def _types(rng: np.random.Generator) -> str:
    data_type = _pick(rng, _TYPES)
    return f"dtype={data_type} out={data_type if rng.integers(3) else _pick(rng, _TYPES)} align={rng.choice([8, 16])}"


def _layouts(rng: np.random.Generator) -> str:
    return f"layout={_pick(rng, _LAYOUTS)} out_layout={_pick(rng, _LAYOUTS)}"


def _pick(rng: np.random.Generator, values: Sequence[ValueT]) -> ValueT:
    return values[int(rng.integers(len(values)))]


def _joined(values: list[int]) -> str:
    return "x".join(map(str, values))
