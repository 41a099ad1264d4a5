"""The index space of a matmul with its epilogue, as batches of products of rows and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

from lowdnn.engines.gemm.output_space import OutputSpace, contiguous_stores, output_space
from lowdnn.engines.indices import MAX_TILED_EXTENT
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.matmul import MatmulOperation

#: Key in the index space of the strides of the operand that gives the rows; uids of a graph are not negative.
_ROWS = -2
#: Key of the strides of the operand that gives the columns.
_COLUMNS = -3
#: Elements of the smallest tile.
_SMALLEST_TILE = 64 * 8


class Strided(Protocol):
    """An operand: its strides in elements between batches, and between rows or columns."""

    @property
    def batch_strides(self) -> tuple[int, ...]: ...

    @property
    def stride(self) -> int: ...


@dataclass(frozen=True)
class ProductSpace:
    """``batches`` products of ``rows`` x ``columns``.

    batch_axes: the number of the output's row axes that make up the batches; a further row axis counts the rows.
    row_strides, column_strides: strides over the row axes of the operands that give the rows and the columns.
    """

    output: OutputSpace
    batch_axes: int
    row_strides: tuple[int, ...]
    column_strides: tuple[int, ...]

    @classmethod
    def of(
        cls,
        dag: PointwiseDag,
        rows: Strided,
        columns: Strided,
        *,
        is_swapped: bool,
        carried: Mapping[int, tuple[int, ...]] | None = None,
    ) -> ProductSpace:
        """The space of a DAG. is_swapped: the output's columns, along which it is contiguous, are m, its rows n.

        Batches over which the columns' operand is broadcast become rows.
        carried: further strides over the DAG's axes that limit merging, under keys below -3; they are carried along in
        ``output.space.strides``.
        """
        last = len(dag.dims) - 1
        row_axis, column_axis = (last, last - 1) if is_swapped else (last - 1, last)
        along_rows = tuple(rows.stride if axis == row_axis else 0 for axis in (last - 1, last))
        output = output_space(
            dag,
            row_axes=(*range(last - 1), row_axis),
            column_axes=(column_axis,),
            kept=(column_axis,),
            operands={
                _ROWS: (*rows.batch_strides, *along_rows),
                _COLUMNS: (*columns.batch_strides, 0, 0),
                **(carried or {}),
            },
        )
        row_strides, column_strides = (output.space.strides[key][: output.row_axes] for key in (_ROWS, _COLUMNS))
        has_rows = column_strides[-1] == 0
        return cls(output, output.row_axes - has_rows, row_strides, column_strides)

    @property
    def batch_extents(self) -> tuple[int, ...]:
        return self.output.row_extents[: self.batch_axes]

    @property
    def batches(self) -> int:
        return prod(self.batch_extents)

    @property
    def rows(self) -> int:
        """Rows of one batch."""
        return self.output.row_extents[-1] if self._has_rows else 1

    @property
    def columns(self) -> int:
        return self.output.columns

    @property
    def row_stride(self) -> int:
        """The stride between two rows of the operand that gives the rows."""
        return self.row_strides[-1] if self._has_rows else 0

    def extent_problem(self, depth: int) -> str:
        """Why its rows, columns, tiles or ``depth`` exceed the wgmma kernels' indices; empty if they do not."""
        limits = (
            ("rows of all batches", self.output.rows),
            ("columns", self.columns),
            ("elements along k", depth),
            (f"tiles of {_SMALLEST_TILE} elements", self.batches * self.rows * self.columns // _SMALLEST_TILE),
        )
        for what, got in limits:
            if got > MAX_TILED_EXTENT:
                return f"matmul.c.dims: expected at most {MAX_TILED_EXTENT} {what}, got {got}"
        return ""

    @property
    def _has_rows(self) -> bool:
        return self.batch_axes < self.output.row_axes


def refuse_nothing(product: MatmulOperation, dims: tuple[int, ...]) -> str:
    """Why wgmma kernels do not take a product whose epilogue has ``dims``: it has no terms or no results. Otherwise
    empty.
    """
    if 0 not in (*dims, product.a.dims[-1]):
        return ""
    return f"matmul.a.dims, b.dims: expected no extent of 0, got {[list(product.a.dims), list(product.b.dims)]}"


def is_contiguous_along_m(dag: PointwiseDag) -> bool:
    """Whether more stored tensors are contiguous along m than along n."""
    last = len(dag.dims) - 1
    return contiguous_stores(dag, last - 1) > contiguous_stores(dag, last)
