"""Loads of a paged cache: the formula and the checks."""

from __future__ import annotations

import numpy as np

from lowdnn.enums import DataType
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError
from tests.support.data import fresh_seed
from tests.support.errors import raises


def load(
    container: tuple[int, ...] = (6, 2, 4, 3),
    y: tuple[int, ...] = (2, 2, 10, 3),
    lengths: tuple[int, ...] = (2, 1, 1, 1),
    table: tuple[int, ...] = (2, 1, 3, 1),
    table_type: DataType = DataType.INT32,
) -> PagedCacheLoad:
    kinds = ((container, DataType.HALF), (y, DataType.HALF), (lengths, DataType.INT64), (table, table_type))
    return PagedCacheLoad(*(Tensor(n, kind, dims, packed_strides(dims), 16) for n, (dims, kind) in enumerate(kinds)))


def test_the_formula() -> None:
    """Entries beyond a sequence name no page, and are not read."""
    container = np.random.default_rng(fresh_seed()).standard_normal((6, 2, 4, 3))
    table, lengths = np.array([[5, 0, 3], [2, -1, 99]]), np.array([9, 3])
    inputs = {"container": container, "page_table": table.reshape(2, 1, 3, 1), "sequence": lengths.reshape(2, 1, 1, 1)}
    y = load().reference(inputs)["y"]
    for b, h, s, d in np.ndindex(2, 2, 10, 3):
        assert y[b, h, s, d] == (container[table[b, s // 4], h, s % 4, d] if s < lengths[b] else 0)
    inputs["sequence"] = np.full((2, 1, 1, 1), 5)
    with raises(BadParamError, "paged_cache_load.page_table", expected="pages from 0 to 5", got="-1"):
        load().reference(inputs)


def test_the_checks() -> None:
    with raises(BadParamError, "paged_cache_load.container.dims[2]", expected="a power of two", got="6"):
        load(container=(6, 2, 6, 3))
    with raises(ShapeMismatchError, "paged_cache_load.y.dims", expected="[B, 2, S, 3]", got="[2, 2, 10, 4]"):
        load(y=(2, 2, 10, 4))
    with raises(ShapeMismatchError, "paged_cache_load.page_table.dims", expected="[2, 1, at least 3, 1]", got="2, 1]"):
        load(table=(2, 1, 2, 1))
    with raises(ShapeMismatchError, "paged_cache_load.sequence.dims", expected="[2, 1, 1, 1]", got="[1, 1, 1, 1]"):
        load(lengths=(1, 1, 1, 1))
    with raises(UnsupportedDataTypeError, "paged_cache_load.page_table.data_type", expected="INT32", got="INT64"):
        load(table_type=DataType.INT64)
