from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowdnn.enums import DataType, TensorReordering
from lowdnn.ops.memory import from_memory, to_memory
from lowdnn.ops.tensor import Tensor, channels_last_strides, packed_strides, span_elements
from lowdnn.status import BadParamError, LowdnnError, NotSupportedError, UnsupportedDataTypeError
from tests.support.errors import raises

GOOD: dict[str, Any] = {
    "uid": 7,
    "data_type": DataType.HALF,
    "dims": (2, 3, 4),
    "strides": (12, 4, 1),
    "alignment_bytes": 16,
    "name": "x",
}


def tensor(**changes: Any) -> Tensor:
    return Tensor(**(GOOD | changes))


@pytest.mark.parametrize(
    ("changes", "error", "field", "expected", "got"),
    [
        ({"dims": (), "strides": ()}, BadParamError, "dims", "1 to 8 dimensions", "[]"),
        ({"dims": (1,) * 9, "strides": (1,) * 9}, BadParamError, "dims", "1 to 8 dimensions", "[1, 1"),
        ({"strides": (4, 1)}, BadParamError, "strides", "3 strides", "[4, 1]"),
        ({"dims": (2, -3, 4)}, BadParamError, "dims", "extents >= 0", "[2, -3, 4]"),
        ({"strides": (12, -4, 1)}, BadParamError, "strides", "strides >= 0", "[12, -4, 1]"),
        ({"strides": (2**62, 4, 1)}, BadParamError, "strides", "at most 9223372036854775807 bytes", "bytes"),
        ({"alignment_bytes": 1}, BadParamError, "alignment_bytes", "at least the element size 2", "1"),
        ({"alignment_bytes": 24}, BadParamError, "alignment_bytes", "a power of two", "24"),
        ({"data_type": DataType.INT4}, UnsupportedDataTypeError, "", "one of", "INT4"),
        ({"is_by_value": True}, BadParamError, "dims", "one element", "[2, 3, 4]"),
        ({"constant_value": 1.0}, BadParamError, "dims", "one element", "[2, 3, 4]"),
        ({"is_virtual": True, "is_by_value": True}, BadParamError, "is_by_value", "false for a virtual", "True"),
        ({"vector_count": 4}, UnsupportedDataTypeError, "vector_count", "1", "4"),
        ({"reordering": TensorReordering.INT8x32}, NotSupportedError, "reordering", "NONE", "INT8x32"),
    ],
)
def test_checks_name_tensor_field_rule_and_value(
    changes: dict[str, Any], error: type[LowdnnError], field: str, expected: str, got: str
) -> None:
    where = f"tensor 'x' (uid 7).{field}" if field else "data_type"
    with raises(error, where, expected=expected, got=got):
        tensor(**changes)


def test_facts() -> None:
    x = tensor()
    assert (x.rank, x.element_count, x.element_bytes, x.span_bytes) == (3, 24, 2, 48)
    assert x.label == "tensor 'x' (uid 7)"
    assert tensor(name="").label == "tensor uid 7"
    assert not x.is_scalar_value
    assert tensor(dims=(1,), strides=(1,), constant_value=2.0).is_scalar_value


def test_span_counts_to_the_last_element() -> None:
    assert span_elements((2, 3), (10, 2)) == 15
    assert span_elements((2, 3), (0, 1)) == 3
    assert span_elements((2, 0), (10, 2)) == 0
    assert tensor(dims=(2**20, 2**20), strides=(2**20, 1)).span_bytes == 2**41


def test_strides() -> None:
    assert packed_strides((2, 3, 4)) == (12, 4, 1)
    assert packed_strides((2, 3, 4), (2, 0, 1)) == (3, 1, 6)
    assert channels_last_strides((2, 3, 4, 5)) == (60, 1, 15, 3)
    assert packed_strides((2, 0, 4)) == (4, 4, 1)


def scales(dims: tuple[int, ...], **changes: Any) -> Tensor:
    facts = {"uid": 1, "data_type": DataType.FP8_E8M0, "alignment_bytes": 16, "reordering": TensorReordering.F8_128x4}
    return Tensor(**{"dims": dims, "strides": packed_strides(dims)} | facts | changes)


def test_tiles_of_128_by_4() -> None:
    """Element by element, in the order in which cuBLAS takes scales."""
    tiled = scales((2, 256, 8))
    values = np.random.default_rng(1).integers(0, 256, tiled.dims, np.uint8)
    memory = to_memory(values, tiled)
    for n, r, c in np.ndindex(*tiled.dims):
        offset = n * 2048 + (r // 128 * 2 + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
        assert memory[offset] == values[n, r, c]
    np.testing.assert_array_equal(from_memory(memory, tiled), values)


def test_tiles_are_whole_and_packed() -> None:
    with raises(BadParamError, "tensor uid 1: F8_128x4.dims", expected="multiples of 128 and 4", got="[128, 6]"):
        scales((128, 6))
    with raises(BadParamError, "tensor uid 1: F8_128x4.strides", expected="row-major ones", got="[1, 128]"):
        scales((128, 4), strides=(1, 128))
    with raises(NotSupportedError, "tensor uid 1.reordering", expected="NONE or F8_128x4", got="F16x16"):
        scales((128, 4), reordering=TensorReordering.F16x16)
