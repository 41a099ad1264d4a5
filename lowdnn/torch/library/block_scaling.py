"""Block-scale quantisation to fp8 along the last axis: ``ops.block_scale_quantize`` has the formulas."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from lowdnn.enums import DataType
from lowdnn.ops.block_scale_dequantize import BlockScaleDequantize
from lowdnn.ops.block_scale_quantize import LARGEST, BlockScaleQuantize
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError, NotSupportedError
from lowdnn.torch.library.definition import Definition, check_floats, check_shape
from lowdnn.torch.operation import Arguments, Overload, Result
from lowdnn.torch.operations.row_norms import matrix
from lowdnn.torch.sketch import Sketch, data_type_of

_X, _SCALE = range(2)
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_SCALES = (torch.float8_e8m0fnu, torch.float8_e4m3fn, torch.float32)


def block_scale_quantize(
    x: Any, block_size: int = 32, *, dtype: Any = torch.float8_e4m3fn, scale_dtype: Any = torch.float8_e8m0fnu
) -> tuple[Any, Any]:
    """(y, scale): x (..., size) divided by one scale for each ``block_size`` neighbours along the last axis.

    The scale lets the greatest magnitude of a block just fit into ``dtype``, float8_e4m3fn or float8_e5m2. scale is
    (..., ceil(size / block_size)) in ``scale_dtype``: float8_e8m0fnu, which rounds up to a power of two,
    float8_e4m3fn or float32. There are no gradients. Raises BadParamError for other types, and for a size below 1.
    Source: OCP Microscaling Formats (MX) Specification 1.0.
    """
    where = "block_scale_quantize"
    check_floats(where, x=x)
    check_shape(where, "x", x, (None,) * max(x.dim(), 1), "[..., size]")
    _check_type(where, "dtype", dtype, _FP8)
    _check_type(where, "scale_dtype", scale_dtype, _SCALES)
    _check_size(where, block_size)
    found: tuple[Any, Any] = torch.ops.lowdnn.block_scale_quantize(x, block_size, dtype, scale_dtype)
    return found


def block_scale_dequantize(y: Any, scale: Any, block_size: int = 32, *, dtype: Any = torch.bfloat16) -> Any:
    """y times the scales of its blocks, in ``dtype``: what ``block_scale_quantize`` has divided, but for roundings."""
    where = "block_scale_dequantize"
    check_floats(where, y=y, scale=scale)
    _check_size(where, block_size)
    blocks = (*y.shape[:-1], -(-y.shape[-1] // block_size))
    check_shape(where, "scale", scale, blocks, f"{list(blocks)}, one for each block")
    return torch.ops.lowdnn.block_scale_dequantize(y, scale, block_size, dtype)


def _check_type(where: str, name: str, dtype: Any, known: tuple[Any, ...]) -> None:
    if dtype not in known:
        expected = " or ".join(str(own) for own in known)
        raise BadParamError.at(f"torch.ops.{where}.{name}", expected=expected, got=dtype)


def _check_size(where: str, block_size: int) -> None:
    if block_size < 1:
        raise BadParamError.at(f"torch.ops.{where}.block_size", expected="1 or more", got=block_size)


def _read(x: Any, block_size: int, dtype: Any, scale_dtype: Any) -> Arguments:
    return (x,), (block_size, dtype, scale_dtype)


def _sketched(sketch: Sketch, block_size: int, dtype: Any, scale_dtype: Any) -> Result:
    (x,) = sketch.tensors
    y = sketch.allocate(x.shape, dtype)
    scale = sketch.allocate((*x.shape[:-1], -(-x.shape[-1] // block_size)), scale_dtype)
    source, blocks = matrix(sketch, _X, tuple(x.shape[-1:])), _blocks(sketch, scale)
    sketch.add(BlockScaleQuantize(source, sketch.at(y, source.dims), blocks, DataType.FLOAT, block_size))
    sketch.end_step()
    return y, scale


def _blocks(sketch: Sketch, place: int) -> Tensor:
    return matrix(sketch, place, sketch.shape_at(place)[-1:])


def _plain(x: Any, block_size: int, dtype: Any, scale_dtype: Any) -> tuple[Any, Any]:
    size, largest = x.shape[-1], LARGEST[data_type_of(dtype)]
    blocks = F.pad(x.float(), (0, -size % block_size)).unflatten(-1, (-1, block_size))
    scale = blocks.abs().amax(-1) / largest
    scale = _rounded_up(scale) if scale_dtype == torch.float8_e8m0fnu else scale.to(scale_dtype)
    divisor = scale.float()[..., None]
    quotient = torch.where(divisor == 0, 0.0, blocks / divisor).flatten(-2)[..., :size]
    return quotient.clamp(-largest, largest).to(dtype).contiguous(), scale.contiguous()


def _rounded_up(scale: Any) -> Any:
    """The next power of two from 2^-127 to 2^127."""
    mantissa, exponent = torch.frexp(scale.double())
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(-127, 127)
    power = torch.where(scale == 0, 2.0**-127, torch.ldexp(torch.ones_like(mantissa), exponent))
    power = torch.where(scale == torch.inf, 2.0**127, power)
    return torch.where(scale.isnan(), scale.double(), power).float().to(torch.float8_e8m0fnu)


def _read_back(y: Any, scale: Any, block_size: int, dtype: Any) -> Arguments:
    return (y, scale), (block_size, dtype)


def _sketched_back(sketch: Sketch, block_size: int, dtype: Any) -> Result:
    y, _ = sketch.tensors
    place = sketch.allocate(y.shape, dtype)
    source = matrix(sketch, _X, tuple(y.shape[-1:]))
    operands = (source, _blocks(sketch, _SCALE), sketch.at(place, source.dims))
    sketch.add(BlockScaleDequantize(*operands, DataType.FLOAT, block_size, False))
    sketch.end_step()
    return place


def _plain_back(y: Any, scale: Any, block_size: int, dtype: Any) -> Any:
    factors = scale.float().repeat_interleave(block_size, -1)[..., : y.shape[-1]]
    return (y.float() * factors).to(dtype).contiguous()


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """There is nothing to keep."""


def _no_gradient(ctx: Any, *gradients: Any) -> Any:
    raise NotSupportedError.at(
        "torch.ops.block_scale_quantize",
        expected="no gradient asked for",
        got="one",
        hint="detach the tensor before it",
    )


def _overload(name: str, read: Any, sketched: Any) -> Overload:
    return Overload(f"lowdnn::{name}", "block_scale", read, sketched, keys=("CPU",))


DEFINITIONS = (
    Definition(
        "block_scale_quantize",
        "(Tensor x, int block_size, ScalarType dtype, ScalarType scale_dtype) -> (Tensor, Tensor)",
        _plain, _overload("block_scale_quantize", _read, _sketched), _save, _no_gradient,
    ),
    Definition(
        "block_scale_dequantize", "(Tensor y, Tensor scale, int block_size, ScalarType dtype) -> Tensor", _plain_back,
        _overload("block_scale_dequantize", _read_back, _sketched_back), _save, _no_gradient,
    ),
)  # fmt: skip
