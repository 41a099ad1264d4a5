"""Tiles of the engines without tensor cores: the host side of ``include/tile/tile_simt.cuh``."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.indices import MAX_TILED_EXTENT
from lowdnn.engines.launch import ceil_div
from lowdnn.graph.pattern import PointwiseDag

_GROUP = 4
_LARGE = 128


@dataclass(frozen=True)
class SimtTile:
    """``SimtTile<T, rows, columns, depth>`` of ``tile_simt.cuh``: a block's accumulators and its step along k."""

    rows: int
    columns: int
    depth: int

    @property
    def thread_rows(self) -> int:
        return 8 if self.rows >= _LARGE else _GROUP

    @property
    def thread_columns(self) -> int:
        return 8 if self.columns >= _LARGE else _GROUP

    @property
    def threads(self) -> int:
        return self.rows * self.columns // (self.thread_rows * self.thread_columns)

    @property
    def efficiency(self) -> float:
        """The rough share of the multiply-add peak that the tile's shared-memory traffic allows."""
        return {64: 1.0, 32: 0.85, 16: 0.7}[self.thread_rows * self.thread_columns]

    def busiest(self, blocks: int, arch: ArchSpec, overhead: float = 0.0) -> float:
        """Multiply-adds at the full rate that take as long as a step along k of all blocks of one multiprocessor.

        overhead: multiply-adds that take as long as the rest of each block's step.
        """
        return ceil_div(blocks, arch.sm_count) * (self.rows * self.columns / self.efficiency + overhead)


def vector_axis(dag: PointwiseDag, candidates: tuple[int, ...]) -> int:
    """The axis of ``candidates`` with the smallest strides of the DAG's stored tensors; the first one on ties."""
    stored = [tensor for tensor in dag.stores if tensor.dims == dag.dims]

    def distance(axis: int) -> int:
        alone = dag.dims[axis] == 1
        return MAX_TILED_EXTENT if alone else sum(tensor.strides[axis] for tensor in stored)

    return min(candidates, key=distance)
