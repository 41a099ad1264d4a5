"""Loads and stores of ragged tensors: formulas and checks."""

from __future__ import annotations

import numpy as np

from lowdnn.enums import DataType
from lowdnn.ops.ragged import RaggedLoad, RaggedMove, RaggedStore
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError
from tests.support.data import fresh_seed
from tests.support.errors import raises

PACKED, PADDED = (1, 2, 9, 3), (3, 2, 4, 3)


def move(
    cls: type[RaggedMove] = RaggedLoad,
    packed: tuple[int, ...] = PACKED,
    padded: tuple[int, ...] = PADDED,
    offsets: tuple[int, ...] = (4, 1, 1, 1),
    kind: DataType = DataType.INT64,
    multiplier: int = 2,
) -> RaggedMove:
    tensors = [
        Tensor(1, DataType.HALF, packed, packed_strides(packed, (0, 2, 1, 3)), 16, name="packed"),
        Tensor(2, DataType.HALF, padded, packed_strides(padded), 16, name="padded"),
    ]
    x, y = tensors if cls is RaggedLoad else reversed(tensors)
    return cls(x, y, Tensor(3, kind, offsets, packed_strides(offsets), 16), multiplier)


def test_the_formulas() -> None:
    """A row has 6 elements; the first sequence is longer than a padded one can be, the second has no row."""
    first = np.array([0, 5, 5, 8])
    offsets = (first * 3).reshape(4, 1, 1, 1)
    packed = np.random.default_rng(fresh_seed()).standard_normal(PACKED)
    padded = move().reference({"x": packed, "offsets": offsets})["y"]
    back = move(RaggedStore).reference({"x": padded, "offsets": offsets})["y"]
    for b, h, s, d in np.ndindex(*PADDED):
        exists = s < first[b + 1] - first[b]
        assert padded[b, h, s, d] == (packed[0, h, first[b] + s, d] if exists else 0)
    stays = np.isin(np.arange(9), (4, 8))
    np.testing.assert_array_equal(back, np.where(stays[:, np.newaxis], 0, packed))


def test_the_checks() -> None:
    where = "tensor 'padded' (uid 2).ragged_offset"
    with raises(ShapeMismatchError, where, expected="rows packed as [1, 2, T, 3]", got="[1, 2, 9, 4]"):
        move(packed=(1, 2, 9, 4))
    with raises(ShapeMismatchError, f"{where}.dims", expected="[4, 1, 1, 1]", got="[3, 1, 1, 1]"):
        move(offsets=(3, 1, 1, 1))
    with raises(UnsupportedDataTypeError, f"{where}.data_type", expected="INT32 or INT64", got="INT8"):
        move(kind=DataType.INT8)
    with raises(BadParamError, f"{where}_multiplier", expected="at least 1", got="0"):
        move(multiplier=0)
    for offsets in ([0, 3, 7, 9], [0, 6, 3, 9]):
        values = {"x": np.zeros(PACKED), "offsets": np.array(offsets)}
        with raises(BadParamError, where, expected="multiples of 6 elements that do not descend"):
            move().reference(values)
