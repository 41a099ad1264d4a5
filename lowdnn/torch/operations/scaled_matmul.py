"""Products of quantised matrices: fp8 with scales of tensors or of rows and columns, and int8.

y = scale_a * scale_b * (a @ b) + bias
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.torch.operation import Arguments, Overload, Result, optional
from lowdnn.torch.operations.matmul import as_batch, overlaps, product_shape
from lowdnn.torch.sketch import Declined, Sketch, name_of

_A, _B, _OUT, _BIAS, _SCALE_A, _SCALE_B = range(6)
_WIDE = (torch.float32, torch.float16, torch.bfloat16)
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
#: torch's numbers of scales for a whole tensor, and for each row or column.
_RECIPES = (0, 1)


def read_scaled(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, scale_result: Any = None, out_dtype: Any = None,
    use_fast_accum: bool = False, *, out: Any = None,
) -> Arguments:  # fmt: skip
    tensors = a, b, optional(out), optional(bias), scale_a, scale_b
    return tensors, (out_dtype or a.dtype, scale_result is None, overlaps(out, a, b))


def read_scaled_by_recipes(
    a: Any, b: Any, scale_a: Sequence[Any], recipe_a: Sequence[int], swizzle_a: Sequence[int], scale_b: Sequence[Any],
    recipe_b: Sequence[int], swizzle_b: Sequence[int], bias: Any, out_dtype: Any, contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False, *, out: Any = None,
) -> Arguments:  # fmt: skip
    """Also with a list of scales, of which there may be several levels."""
    is_simple = len(scale_a) == len(scale_b) == 1 and not (any(swizzle_a) or any(swizzle_b) or contraction_dim)
    is_simple &= all(recipe in _RECIPES for recipe in (*recipe_a, *recipe_b))
    tensors = a, b, optional(out), optional(bias), scale_a[0], scale_b[0]
    return tensors, (out_dtype or a.dtype, is_simple, overlaps(out, a, b))


def scaled(sketch: Sketch, out_dtype: Any, is_simple: bool, has_overlap: bool) -> Result:
    a, b, _, bias, *scales = sketch.tensors
    if a.dtype not in _FP8 or b.dtype not in _FP8 or out_dtype not in _WIDE:
        raise Declined(f"{name_of(a.dtype)} and {name_of(b.dtype)} to {name_of(out_dtype)}")
    if not is_simple or any(scale.dtype != torch.float32 for scale in scales):
        raise Declined("a scale of the result, or scales of blocks")
    shape = product_shape(a, b, 2)
    y = _output(sketch, shape, out_dtype, has_overlap)
    target = as_batch(sketch, y)
    found = sketch.virtual(target.dims, DataType.FLOAT)
    sketch.add(MatmulOperation(Matmul(DataType.FLOAT), as_batch(sketch, _A), as_batch(sketch, _B), found))
    places = ((_SCALE_A, (shape[0], 1)), (_SCALE_B, (1, shape[1])))
    for number, (place, dims) in enumerate(places):
        is_last = number == 1 and bias.shape is None
        scaled = target if is_last else sketch.virtual(target.dims, DataType.FLOAT)
        found = sketch.pointwise(PointwiseMode.MUL, scaled, found, _scale(sketch, place, dims))
    if bias.shape is not None:
        if tuple(bias.shape) != shape[1:]:
            raise Declined(f"a bias of dims {list(bias.shape)}")
        row = sketch.at(_BIAS, (1, 1, shape[1]), (0, 0, bias.stride(0)))
        sketch.pointwise(PointwiseMode.ADD, target, found, row)
    sketch.end_step()
    return y


def read_integers(a: Any, b: Any, *, out: Any = None) -> Arguments:
    return (a, b, optional(out)), (overlaps(out, a, b),)


def integers(sketch: Sketch, has_overlap: bool) -> Result:
    a, b, _ = sketch.tensors
    if a.dtype != torch.int8 or b.dtype != torch.int8:
        raise Declined(f"{name_of(a.dtype)} and {name_of(b.dtype)}, where int8 is expected")
    y = _output(sketch, product_shape(a, b, 2), torch.int32, has_overlap)
    operands = (as_batch(sketch, place) for place in (_A, _B, y))
    sketch.add(MatmulOperation(Matmul(DataType.INT32), *operands))
    sketch.end_step()
    return y


def _output(sketch: Sketch, shape: tuple[int, ...], dtype: Any, has_overlap: bool) -> int:
    out = sketch.tensors[_OUT]
    if out.shape is None:
        return sketch.allocate(shape, dtype)
    if has_overlap or tuple(out.shape) != shape or out.dtype != dtype:
        raise Declined("an output of other dims or another type, or one that overlaps an operand")
    return _OUT


def _scale(sketch: Sketch, place: int, dims: tuple[int, int]) -> Tensor:
    """One scale, or one for each row or column."""
    scale = sketch.tensors[place]
    if scale.numel() == 1:
        return sketch.at(place, (1, 1, 1), (1, 1, 1))
    if tuple(scale.shape) != dims:
        raise Declined(f"scales of dims {list(scale.shape)}, where one or {list(dims)} are expected")
    return sketch.at(place, (1, *dims), (0, *scale.stride()))


OVERLOADS = tuple(
    Overload(name + suffix, "quantised_matmul", read, sketched, kind="matmul")
    for name, read, sketched in (
        ("_scaled_mm", read_scaled, scaled),
        ("_scaled_mm_v2", read_scaled_by_recipes, scaled),
        ("_int_mm", read_integers, integers),
    )
    for suffix in ("", ".out")
)
