"""Tiles of a recurrent step on wgmma, and how long a step takes with each.

    step = waves * (start + overlap(bytes from the L2 cache, products) + meeting of a cluster + sums + cells)

The constants were measured on an H200, with H of 512 to 2048 and 16 to 128 sequences. The times of 82 tiles have a
root mean square error of 8 %, and the tile that the model takes is 1 % slower than the fastest, by the geometric mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES
from lowdnn.engines.launch import BARRIER_BYTES, ceil_div
from lowdnn.engines.model.clock import launch_s, overlap
from lowdnn.engines.model.occupancy import blocks_by_registers, clustered_sms, shared_room
from lowdnn.status import BadParamError

#: Units of a tile.
UNITS = 64
#: Elements of k in a chunk.
CHUNK = 64
#: Sequences of a tile.
COLUMNS = (8, 16, 32, 64, 128)
#: Blocks of a cluster, which share k out.
DEPTHS = (1, 2, 3, 4, 6, 8)

_WARPGROUP = 4 * WARP_SIZE
#: Sequences from which on two warpgroups share a tile.
_SHARED_COLUMNS = 64
#: The most sums of a thread, each in a register.
_MOST_SUMS = 128
#: Registers that a thread needs beside its sums (so that no assembled kernel spills).
_OTHER_REGISTERS = 36
#: Registers of a thread for each of its cells.
_CELL_REGISTERS = 13
#: Registers that a thread needs beside its cells.
_WALK_REGISTERS = 20
#: The most cells of a thread.
_MOST_CELLS = 16
#: The fewest stages of a ring.
_LEAST_RING = 2
#: The most stages of a ring.
_MOST_RING = 12
#: Blocks of which a multiprocessor may have room, those of the next step included.
_RESIDENT = (1, 2)

#: Seconds from the end of the step before until states arrive.
_START_S = 0.95e-6
#: Further seconds until states arrive where blocks cannot wait for that end already, for lack of room beside the
#: blocks of the step before.
_LATE_S = 0.29e-6
#: Bytes from the L2 cache in a second, all multiprocessors together.
_L2_BYTES_PER_S = 12.6e12
#: Bytes of shared memory that a multiprocessor reads in a clock.
_SHARED_BYTES_PER_CLOCK = 128
#: Columns of a product of 64 rows and 16 of k that the tensor cores compute in a clock.
_COLUMNS_PER_CLOCK = 2
#: The share of the shorter one of copies and products that the longer one does not hide.
_EXPOSED = 0.23
#: Seconds in which the blocks of a cluster meet.
_MEETING_S = 0.81e-6
#: Further seconds of that meeting where the cluster has more than two blocks.
_FURTHER_S = 0.11e-6
#: Bytes of sums in a second, through shared memory and into the cells.
_SUM_BYTES_PER_S = 16.5e9
#: Seconds of each cell of a thread.
_CELL_S = 0.037e-6
#: How much longer blocks take where multiprocessors have room for two, and some have two.
_CROWDED = 0.46


@dataclass(frozen=True)
class WgmmaStepTile:
    """columns: sequences.  depth: blocks of a cluster.  ring: stages of the ring.  resident: blocks that a
    multiprocessor has room for."""

    columns: int
    depth: int
    ring: int = _LEAST_RING
    resident: int = 1

    @property
    def warpgroups(self) -> int:
        """Warpgroups that multiply, each a part of the columns."""
        return 2 if self.columns >= _SHARED_COLUMNS else 1

    @property
    def consumers(self) -> int:
        return self.warpgroups * _WARPGROUP

    @property
    def threads(self) -> int:
        return self.consumers + WARP_SIZE

    @property
    def cells(self) -> int:
        """Cells of a thread."""
        return ceil_div(ceil_div(self.columns, self.depth) * UNITS, self.consumers)


@dataclass(frozen=True)
class WgmmaStepProblem:
    """A product of (units * gates, depth) and (depth, batch), and its cells, in each of ``directions``."""

    gates: int
    units: int
    depth: int
    batch: int
    directions: int

    @property
    def chunks(self) -> int:
        return ceil_div(self.depth, CHUNK)

    @property
    def flops(self) -> int:
        return 2 * self.units * self.gates * self.depth * self.batch * self.directions

    def weight_bytes(self) -> int:
        """Bytes of the weights of a stage."""
        return self.gates * UNITS * STAGE_ROW_BYTES

    def stage_bytes(self, tile: WgmmaStepTile) -> int:
        return self.weight_bytes() + tile.columns * STAGE_ROW_BYTES

    def shared_bytes(self, tile: WgmmaStepTile) -> int:
        """Bytes of the memory map of ``step_wgmma.cuh``."""
        sums = self.gates * tile.columns * (UNITS + 4) * 4
        return max(tile.ring * self.stage_bytes(tile), sums) + 2 * tile.ring * BARRIER_BYTES

    def blocks(self, tile: WgmmaStepTile) -> int:
        return ceil_div(self.units, UNITS) * ceil_div(self.batch, tile.columns) * self.directions * tile.depth

    def tiles(self, arch: ArchSpec) -> tuple[WgmmaStepTile, ...]:
        """The tiles that fit registers and shared memory, each with the largest ring."""
        menu = product(COLUMNS, DEPTHS, _RESIDENT)
        sizes = (WgmmaStepTile(columns, depth, resident=resident) for columns, depth, resident in menu)
        fitting = (tile for tile in sizes if tile.depth <= self.chunks and self._has_registers(tile))
        return tuple(found for tile in fitting if (found := self._with_ring(tile, arch)) is not None)

    def best_tile(self, arch: ArchSpec, columns: int = 0, depth: int = 0) -> WgmmaStepTile:
        """The fastest tile, with those extents that are not 0; raises BadParamError where none has them."""
        tiles = [tile for tile in self.tiles(arch) if columns in (0, tile.columns) and depth in (0, tile.depth)]
        if not tiles:
            expected = f"at most {self.chunks} blocks of a cluster, and at most {_MOST_CELLS} cells of a thread"
            raise BadParamError.at("rnn_step_wgmma.knob_choices", expected=expected, got=f"{columns} x {depth}")
        return min(tiles, key=lambda tile: busy_s(self, tile, arch))

    def _has_registers(self, tile: WgmmaStepTile) -> bool:
        sums = self.gates * tile.columns // tile.warpgroups // 2
        registers = max(sums + _OTHER_REGISTERS, tile.cells * _CELL_REGISTERS + _WALK_REGISTERS)
        fits = blocks_by_registers(registers, tile.threads) >= tile.resident
        return fits and sums <= _MOST_SUMS and tile.cells <= _MOST_CELLS

    def _with_ring(self, tile: WgmmaStepTile, arch: ArchSpec) -> WgmmaStepTile | None:
        """``tile`` with as many stages as it has use and room for."""
        most = max(min(ceil_div(self.chunks, tile.depth), _MOST_RING), _LEAST_RING)
        rings = (replace(tile, ring=ring) for ring in range(most, _LEAST_RING - 1, -1))
        room = shared_room(arch, tile.resident)
        return next((found for found in rings if self.shared_bytes(found) <= room), None)


def busy_s(problem: WgmmaStepProblem, tile: WgmmaStepTile, arch: ArchSpec) -> float:
    """Seconds of a launch, the overhead of a dependent one aside."""
    blocks, sms = problem.blocks(tile), clustered_sms(arch.sm_count, tile.depth)
    places, chunks = sms * tile.resident, ceil_div(problem.chunks, tile.depth)
    together = min(blocks, places)
    crowded = 1 + _CROWDED if tile.resident > 1 and 2 * blocks > sms else 1.0
    shared = max(ceil_div(together, sms), crowded)
    own_bytes = chunks * problem.stage_bytes(tile)
    read_s = max(shared * own_bytes / arch.timings.l2_bytes_per_s, together * own_bytes / _L2_BYTES_PER_S)
    multiply_s = shared * chunks * _chunk_clocks(problem, tile) / arch.timings.light_clock_hz
    sums_s = shared * problem.gates * UNITS * tile.columns * 4 / _SUM_BYTES_PER_S
    meeting_s = _MEETING_S * (tile.depth > 1) + _FURTHER_S * (tile.depth > 2)
    start_s = _START_S + _LATE_S * (2 * blocks > places)
    step_s = start_s + overlap(read_s, multiply_s, _EXPOSED) + meeting_s + sums_s + _CELL_S * tile.cells
    return max(ceil_div(blocks, places) * step_s - launch_s(arch, 0.0, is_dependent=True), 0.0)


def _chunk_clocks(problem: WgmmaStepProblem, tile: WgmmaStepTile) -> float:
    """Clocks of the products of a chunk, which the warpgroups make in turns: each reads the weights and its states."""
    columns, row_bytes = tile.columns // tile.warpgroups, STAGE_ROW_BYTES // 4
    read = (UNITS + columns) * row_bytes / _SHARED_BYTES_PER_CLOCK
    return 4 * tile.warpgroups * problem.gates * max(read, columns / _COLUMNS_PER_CLOCK)
