"""Paged caches of cases: containers with more pages than are used, tables that are permutations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType
from lowdnn.graph.layouts import Layout
from lowdnn.ops.tensor import Tensor

#: Number of unused pages in a container.
_OTHER_PAGES = 3
#: The end of tables' names.
_TABLE = "page_table"


def container_dims(dims: tuple[int, ...], page: int) -> tuple[int, ...]:
    """The dims of the pages, with ``page`` rows each, of a tensor of ``dims`` (batch, heads, rows, size)."""
    batch, heads, rows, size = dims
    return (batch * -(-rows // page) + _OTHER_PAGES, heads, page, size)


def load(
    builder: CaseBuilder,
    container: Tensor,
    lengths: Tensor,
    rows: int,
    *,
    store: DataType | None = None,
    layout: Layout | None = None,
) -> Tensor:
    """Sequences of up to ``rows`` rows from the pages in ``container``."""
    batch = lengths.dims[0]
    table = builder.tensor((batch, 1, -(-rows // container.dims[2]), 1), DataType.INT32, name=container.name + _TABLE)
    return builder.paged_cache_load(container, table, lengths, rows, store=store, layout=layout)


def is_table(tensor: Tensor) -> bool:
    return tensor.name.endswith(_TABLE)


def table_values(rng: np.random.Generator, tensor: Tensor) -> NDArray[Any]:
    """The entries of a page table, with each page once."""
    count = tensor.element_count
    return rng.permutation(count + _OTHER_PAGES)[:count].reshape(tensor.dims).astype(np.int32)
