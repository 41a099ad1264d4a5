from __future__ import annotations

from typing import Any

import numpy as np

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.ops import block_scale
from lowdnn.ops.block_scale_axes import BlockScaleDequantizeByAxes
from lowdnn.ops.block_scale_dequantize import BlockScaleDequantize
from lowdnn.ops.block_scale_quantize import BlockScaleQuantize
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, NotSupportedError, ShapeMismatchError, UnsupportedDataTypeError
from tests.support.data import fresh_seed
from tests.support.errors import raises

E4M3, E8M0, FLOAT = DataType.FP8_E4M3, DataType.FP8_E8M0, DataType.FLOAT


def tensor(uid: int, dims: tuple[int, ...], data_type: DataType = FLOAT) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16)


def quantize(dims: tuple[int, ...], scales: tuple[int, ...], size: int, **changes: Any) -> BlockScaleQuantize:
    ports: dict[str, Any] = {
        "x": tensor(1, dims),
        "y": tensor(2, dims, E4M3),
        "scale": tensor(3, scales, E8M0),
        "compute_type": FLOAT,
        "block_size": size,
    }
    return BlockScaleQuantize(**(ports | changes))


def test_the_largest_of_each_block_just_fits() -> None:
    """Element by element: the scale is the least power of two at which nothing is above 448."""
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((3, 10)) * 10.0 ** rng.integers(-8, 8, (3, 1))).astype(np.float32).astype(float)
    results = quantize((3, 10), (3, 3), 4).reference({"x": x})
    for row in range(3):
        for number, first in enumerate(range(0, 10, 4)):
            block, scale = x[row, first : first + 4], results["scale"][row, number]
            assert abs(block).max() / scale <= 448 < abs(block).max() / (scale / 2), seed
            assert (results["y"][row, first : first + 4] == block / scale).all(), seed


def test_there_and_back() -> None:
    """Within half a step of e4m3; a scale that is rounded to the nearest may cut a sixteenth off the largest."""
    x = 1000 * np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32).astype(float)
    largest = abs(x).reshape(4, 4, 16).max(-1).repeat(16).reshape(4, 64)
    for scale_type in block_scale.SCALE_TYPES:
        scale = tensor(3, (4, 4), scale_type)
        forward = quantize((4, 64), (4, 4), 16, scale=scale).reference({"x": x})
        y = dtypes.rounded(forward["y"], E4M3)
        backward = BlockScaleDequantize(tensor(2, (4, 64), E4M3), scale, tensor(4, (4, 64)), FLOAT, 16)
        error = abs(backward.reference({"x": y, "scale": forward["scale"]})["y"] - x)
        assert (error <= abs(x) / 16 + largest / 2**14).all()


def test_special_values() -> None:
    x = np.array([[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [1e-45, -0.0]])
    power = quantize((4, 2), (4, 1), 2).reference({"x": x})
    assert power["scale"][[0, 2, 3], 0].tolist() == [2.0**-127, 2.0**127, 2.0**-127]
    assert np.isnan(power["scale"][1, 0])
    assert np.isnan(power["y"][1]).all()
    assert power["y"][0].tolist() == [0, 0]
    float_scale = quantize((4, 2), (4, 1), 2, scale=tensor(3, (4, 1), FLOAT)).reference({"x": x})
    assert float_scale["scale"][0, 0] == 0
    assert float_scale["y"][0].tolist() == [0, 0]


def test_the_axis_is_where_the_extents_differ() -> None:
    assert quantize((64, 32), (2, 32), 32).axis == 0
    assert quantize((64, 32), (64, 1), 32).axis == 1
    assert quantize((1, 1), (1, 1), 32).axis == 1


def test_checks() -> None:
    with raises(ShapeMismatchError, "block_scale_quantize.scale.dims", expected="[4, 10] with one", got="[4, 4]"):
        quantize((4, 10), (4, 4), 4)
    with raises(ShapeMismatchError, "block_scale_quantize.y.dims", expected="[4, 8] as x", got="[4, 9]"):
        quantize((4, 8), (4, 2), 4, y=tensor(2, (4, 9), E4M3))
    with raises(BadParamError, "block_scale_quantize.block_size", expected="1 or more", got="0"):
        quantize((4, 8), (4, 2), 0)
    with raises(UnsupportedDataTypeError, "block_scale_quantize.y.data_type", expected="FP8_E4M3", got="FLOAT"):
        quantize((4, 8), (4, 2), 4, y=tensor(2, (4, 8)))
    with raises(UnsupportedDataTypeError, "block_scale_quantize.scale.data_type", expected="FP8_E8M0", got="HALF"):
        quantize((4, 8), (4, 2), 4, scale=tensor(3, (4, 2), DataType.HALF))
    with raises(UnsupportedDataTypeError, "block_scale_quantize.x.data_type", expected="a float type", got="INT8"):
        quantize((4, 8), (4, 2), 4, x=tensor(1, (4, 8), DataType.INT8))
    with raises(UnsupportedDataTypeError, "block_scale_quantize.compute_type", expected="FLOAT", got="DOUBLE"):
        quantize((4, 8), (4, 2), 4, compute_type=DataType.DOUBLE)
    tensors = tensor(1, (4, 8), E4M3), tensor(2, (4, 2), E8M0), tensor(3, (4, 8))
    with raises(NotSupportedError, "block_scale_dequantize.is_negative_scale", expected="False", got="True"):
        BlockScaleDequantize(*tensors, FLOAT, 4, is_negative_scale=True)


def test_sizes_of_axes() -> None:
    """Sizes are those of the last axes; all but one are 1."""
    x, y = tensor(1, (3, 4, 64), E4M3), tensor(3, (3, 4, 64))
    by_columns, by_rows = tensor(2, (3, 4, 4), FLOAT), tensor(2, (3, 1, 64), FLOAT)
    for scale, sizes, axis in ((by_columns, (1, 16), 2), (by_rows, (4, 1), 1), (by_rows, (1, 4, 1), 1)):
        operation = BlockScaleDequantizeByAxes(x, scale, y, FLOAT, sizes).operation
        assert (operation.block_size, operation.axis) == (max(sizes), axis)
    with raises(NotSupportedError, "block_scale_dequantize.block_size", expected="one size that", got="[4, 16]"):
        BlockScaleDequantizeByAxes(x, by_columns, y, FLOAT, (4, 16))
    with raises(ShapeMismatchError, "block_scale_dequantize.block_size", expected="for axis 2", got="[16, 1]"):
        BlockScaleDequantizeByAxes(x, by_columns, y, FLOAT, (16, 1))
    with raises(ShapeMismatchError, "block_scale_dequantize.block_size", expected="at most 3", got="[1, 1, 1, 16]"):
        BlockScaleDequantizeByAxes(x, by_columns, y, FLOAT, (1, 1, 1, 16))
