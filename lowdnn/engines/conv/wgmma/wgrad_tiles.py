"""Tiles of a filter gradient, its parts of the pixels, and a block's shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.wgmma.wgrad_product import WgradProduct
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES
from lowdnn.engines.gemm.wgmma_menu import fits_instruction, most_split_accumulators
from lowdnn.engines.gemm.wgmma_tiles import (
    MN_MAJOR_BOX,
    WARPGROUP_ROWS,
    ClassSchedule,
    Schedule,
    TileStore,
    WgmmaTile,
)
from lowdnn.engines.launch import BARRIER_BYTES, i32
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.plan import Struct

#: Rows of tiles that are walked together.
_GROUP = 8
#: Accumulators of a thread beyond which ptxas has no registers left for addresses.
_MAX_ACCUMULATORS = 192
#: Most accumulators of a thread if x is converted.
_MAX_CONVERTED_ACCUMULATORS = 128
#: Registers of a thread at launch for each 64 rows of dy, if dy passes through registers.
_ROW_REGISTERS = 32
#: Further registers of a thread at launch, besides those and its accumulators.
_OTHER_REGISTERS = 8
#: Bytes of an element of types that the tensor cores take only along k.
_TRANSPOSED_ELEMENT_BYTES = 4


def barrier_bytes(tile: WgmmaTile) -> int:
    """Bytes of the barriers of a stage: full, empty and, of columns in parts, ready."""
    return (3 if tile.b_parts > 1 else 2) * BARRIER_BYTES


@dataclass(frozen=True)
class WgradTiling:
    """A tile, the product that it cuts (with windows or without), and the parts into which k is cut.

    splits: parts of all taps, or of each tap if taps walk over valid pixels only.
    """

    product: WgradProduct
    tile: WgmmaTile
    splits: tuple[int, ...]

    @cached_property
    def schedule(self) -> Schedule | ClassSchedule:
        """The schedule; taps with valid pixels have one each, that of the longest parts first."""
        return ClassSchedule(tuple(self._taps[tap] for tap in self._tap_order)) if self._taps else self._whole

    def schedule_argument(self, arch: ArchSpec) -> Struct:
        """The kernel's ``Schedule``."""
        if not isinstance(self.schedule, ClassSchedule):
            return self.schedule.argument
        first_columns = (tap * self.tap_chunks * MN_MAJOR_BOX for tap in self._tap_order)
        return Struct((self.schedule.argument(arch.sm_count), *i32(first_columns)))

    @property
    def tap_chunks(self) -> int:
        """Blocks of a tap's channels; whole tiles of them if each tap has a schedule."""
        if not self._taps:
            return self.product.chunks
        return self._taps[0].columns * self.tile.n * self.tile.cluster_n // MN_MAJOR_BOX

    @property
    def tap_splits(self) -> tuple[int, ...]:
        """Slices of each tap, if taps differ in their number."""
        return tuple(tap.splits for tap in self._taps)

    @cached_property
    def _whole(self) -> Schedule:
        product, (splits,) = self.product, self.splits
        extents = (max(product.filters, 1), max(product.columns, 1), max(product.k_blocks, 1))
        return Schedule.of(self.tile, *extents, product.groups, splits, _GROUP)

    @cached_property
    def _taps(self) -> tuple[Schedule, ...]:
        """The schedules of taps in the filter's order."""
        product = self.product
        if not product.is_valid_only:
            return ()
        extents = (product.filters, product.chunks * MN_MAJOR_BOX)
        return tuple(
            Schedule.of(self.tile, *extents, k_blocks, product.groups, splits, _GROUP)
            for k_blocks, splits in zip(product.tap_blocks, self.splits, strict=True)
        )

    @property
    def _tap_order(self) -> list[int]:
        return sorted(range(len(self._taps)), key=lambda tap: -self._taps[tap].split_blocks)

    @property
    def copied_bytes(self) -> int:
        """Bytes of a stage's copies."""
        return copied_bytes(self.tile, self.product.tap_run, self.product.window(self.tile.cluster_m))

    @property
    def stage_bytes(self) -> int:
        """Bytes of shared memory of a stage."""
        return self.copied_bytes + added_bytes(self.tile, self.product.tap_run)

    def shared_bytes(self, store: TileStore) -> int:
        """Bytes of the ring, a cluster's sum, the staging areas of a store that needs them, and the barriers."""
        ring = self.tile.stages * (self.stage_bytes + barrier_bytes(self.tile))
        return ring + self.tile.sum_bytes + self.tile.staging_bytes(store)

    def problem(self, arch: ArchSpec) -> str:
        """The rule that the tile breaks, or an empty string."""
        tile, run = self.tile, self.product.tap_run
        most = most_accumulators(tile, self.product.converted is not None)
        if tile.m % (WARPGROUP_ROWS * tile.warpgroups) or tile.accumulators > most:
            return f"whole parts of 64 rows for each warpgroup, at most {most} accumulators of a thread"
        if not fits_instruction(tile):
            return f"fewer columns for the {tile.launched_registers} registers of a thread"
        if self.product.converted is not None and tile.cluster > 1:
            return "clusters of one block where x is converted"
        if run > 1 and tile.n != run * MN_MAJOR_BOX:
            return f"TILE_N of {run * MN_MAJOR_BOX}, {run} taps of one window"
        budget = shared_room(arch, tile.blocks_per_sm)
        if self.shared_bytes(TileStore.FUNCTOR) > budget:
            return f"at most {budget} bytes of shared memory (take fewer stages or a smaller tile)"
        return self.schedule.sharing_problem(MN_MAJOR_BOX)


def most_accumulators(tile: WgmmaTile, is_converted: bool) -> int:
    """The most accumulators of a thread.  is_converted: x is converted."""
    if tile.b_parts > 1:
        return most_split_accumulators(tile)
    if tile.element_bytes == _TRANSPOSED_ELEMENT_BYTES:
        warpgroup_rows = tile.m // (WARPGROUP_ROWS * tile.warpgroups)
        return tile.launched_registers - _OTHER_REGISTERS - warpgroup_rows * _ROW_REGISTERS
    return _MAX_CONVERTED_ACCUMULATORS if is_converted else _MAX_ACCUMULATORS


def copied_bytes(tile: WgmmaTile, tap_run: int, window: int) -> int:
    """Bytes of a stage's boxes of dy, and of its boxes or windows of x."""
    return (tile.m + tile.n // (tile.k * tap_run) * window) * STAGE_ROW_BYTES


def added_bytes(tile: WgmmaTile, tap_run: int) -> int:
    """Bytes of a stage after the copies: transposed windows, or low parts. Other columns are transposed in place."""
    return transposed_bytes(tile, tap_run) if tap_run > 1 else (tile.b_parts - 1) * tile.n * STAGE_ROW_BYTES


def transposed_bytes(tile: WgmmaTile, tap_run: int) -> int:
    """Bytes of a stage's transposed columns, or of its windows, which have twice as many positions when transposed
    (``transposed_pixels.cuh``).
    """
    if tile.element_bytes == _TRANSPOSED_ELEMENT_BYTES:
        return tile.n // tap_run * STAGE_ROW_BYTES * min(tap_run, 2)
    return 0
