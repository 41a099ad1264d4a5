"""The tile of a product without tensor cores whose groups are known only on the device."""

from __future__ import annotations

from collections.abc import Callable

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Knob
from lowdnn.engines.gemm.simt_tile import SimtTile
from lowdnn.enums import DataType, KnobType

_TILES = (32, 64, 128)


def tile_of(rows: int, columns: int) -> SimtTile:
    return SimtTile(rows, columns, 8 if max(rows, columns) == _TILES[-1] else 16)


def knobs(accumulator: DataType, blocks: Callable[[SimtTile], int], arch: ArchSpec) -> tuple[Knob, ...]:
    """TILE_M and TILE_N; defaults have the least work on the busiest multiprocessor.  blocks: the blocks of a tile.

    fp64 accumulators of the largest tile would not fit the registers.
    """
    extents = _TILES[:2] if accumulator is DataType.DOUBLE else _TILES
    candidates = [tile_of(rows, columns) for rows in reversed(extents) for columns in reversed(extents)]
    best = min(candidates, key=lambda tile: tile.busiest(blocks(tile), arch))
    return (
        Knob("tile_m", KnobType.TILE_M, extents, best.rows, "rows of the product that one thread block computes"),
        Knob("tile_n", KnobType.TILE_N, extents, best.columns, "columns of it that one thread block computes"),
    )
