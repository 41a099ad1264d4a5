"""Tiles, data types and work lists of the wgmma engines (``include/tile/tile_wgmma.cuh``, ``tile_schedule.cuh``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import accumulate

from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES
from lowdnn.engines.launch import BARRIER_BYTES, MAX_EXTENT, ceil_div, divider, i32
from lowdnn.engines.model.occupancy import clustered_sms, consumer_registers, launched_registers
from lowdnn.plan import Struct
from lowdnn.tensor_map import TensorMapSwizzle

#: Swizzles by the bytes of a stage's row.
ROW_SWIZZLES = {128: TensorMapSwizzle.BYTES_128, 64: TensorMapSwizzle.BYTES_64}
#: Bytes after which a swizzle's pattern repeats.
SWIZZLE_PATTERN_BYTES = 1024
#: Elements of m or n in a box of an MN-major operand.
MN_MAJOR_BOX = 64
#: Most rows of a box in a tensor map.
_MAX_BOX_ROWS = 256
#: Rows of one wgmma instruction.
WARPGROUP_ROWS = 64

WARPGROUP_THREADS = 128
#: Registers that a thread of the producer warpgroup keeps.
_PRODUCER_REGISTERS = 40
#: Bytes of a consumer warp's staging buffer.
_STAGING_BUFFER_BYTES = 2048
#: Bytes of a chunk of the epilogue's operand, with its barrier.
_OPERAND_BUFFER_BYTES = 2048 + 8
#: Bytes of a sum.
ACCUMULATOR_BYTES = 4


def box_rows(own: int) -> int:
    """Rows of a K-major operand in one of the copies by which a block loads ``own`` rows."""
    return own if own <= _MAX_BOX_ROWS else own // 2


class TileStore(IntEnum):
    """How a block stores its accumulators, the macro STORE.

    FUNCTOR: the functor stores them.  MAP: a tensor map does, in rows.  SLICE: they are a slice of a split sum.
    PIXELS: an im2col map stores them, in pixels.
    """

    FUNCTOR = 0
    MAP = 1
    SLICE = 2
    PIXELS = 3


@dataclass(frozen=True)
class Registers:
    """Registers of a thread of the producer warpgroup, and of a consumer warpgroup."""

    producer: int
    consumer: int


@dataclass(frozen=True)
class TapWindow:
    """The taps of a filter whose k makes up one stage, with the pixels that they share.

    distance: pixels from the one that a tap reads to the next tap's.  pixels_are_rows: pixels are the tile's rows, not
    its columns.
    """

    taps: int
    distance: int
    pixels_are_rows: bool

    def pixels(self, extent: int, unit: int) -> int:
        """Pixels that the taps of a tile of ``extent`` pixels read, rounded up to a multiple of ``unit``."""
        return ceil_div(extent + (self.taps - 1) * self.distance, unit) * unit


@dataclass(frozen=True)
class WgmmaTile:
    """``m`` x ``n`` accumulators of one block, for operands of ``element_bytes``.

    stages: stages of the ring.
    teams, warpgroups: teams of consumer warpgroups, and warpgroups of a team. Two teams alternate between tiles
    (ping-pong); one team works on every tile, each warpgroup on its own rows (cooperative).
    cluster_m, cluster_n: blocks of a cluster along m and n, which share B and A.
    blocks_per_sm: blocks on a multiprocessor for which registers are budgeted.
    is_promoted: each stage is summed separately and then added to the tile's sum, in twice the registers.
    staging_buffers: buffers of each consumer warp through which accumulators are stored; while one of two is stored,
    the other is written.
    operand_buffers: chunks of an operand of the output's size that each consumer warp has in flight.
    window: a stage has several taps of a filter, which read one window of pixels.
    resident_blocks: the k blocks of A or, with keeps_b, of B that stay in shared memory outside the ring (all there
    are), or 0.
    row_bytes: bytes along k of one tap, STAGE_ROW_BYTES or half of that.
    table_bytes: further shared memory of the kernel, after everything else.
    cluster_k: blocks of a cluster that share the k of a tile and store part of its columns each; if above 1, the
    cluster has no others.
    column_box: the unit in which columns of B are loaded.
    b_parts: parts of B's elements in a stage: 2 where products are split into terms.
    """

    m: int
    n: int
    stages: int
    teams: int
    warpgroups: int
    cluster_m: int
    cluster_n: int
    blocks_per_sm: int
    element_bytes: int
    is_promoted: bool = False
    staging_buffers: int = 2
    operand_buffers: int = 0
    window: TapWindow | None = None
    resident_blocks: int = 0
    keeps_b: bool = False
    row_bytes: int = STAGE_ROW_BYTES
    table_bytes: int = 0
    cluster_k: int = 1
    column_box: int = 1
    b_parts: int = 1

    @property
    def taps(self) -> int:
        """Taps of a filter in one stage."""
        return self.window.taps if self.window else 1

    @property
    def k(self) -> int:
        """Elements of k in one stage."""
        return self.row_bytes // self.element_bytes * self.taps

    @property
    def line_unit(self) -> int:
        """Lines of a stage in one period of the swizzle."""
        return SWIZZLE_PATTERN_BYTES // self.row_bytes

    @property
    def a_lines(self) -> int:
        """Lines of row_bytes in a stage's part of A."""
        if self.window and self.window.pixels_are_rows:
            return self.window.pixels(self.m, self.line_unit * self.cluster_n)
        return self.m * self.taps

    @property
    def b_lines(self) -> int:
        """Lines of row_bytes in a stage's part of B."""
        if self.window and not self.window.pixels_are_rows:
            return self.window.pixels(self.n, self.line_unit * self.cluster_m)
        return ceil_div(self.n, self.column_box) * self.column_box * self.taps * self.b_parts

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n * self.cluster_k

    def resident_clusters(self, sm_count: int) -> int:
        """Clusters that are resident at once; at least one."""
        return max(clustered_sms(sm_count, self.cluster) * self.blocks_per_sm // self.cluster, 1)

    @property
    def stored_columns(self) -> int:
        """Columns of the tile that one block stores."""
        return self.n // self.cluster_k

    @property
    def consumers(self) -> int:
        """Consumer warpgroups."""
        return self.teams * self.warpgroups

    @property
    def accumulators(self) -> int:
        """Registers of each consumer thread that hold sums."""
        return self.m * self.n // (self.warpgroups * WARPGROUP_THREADS) * (1 + self.is_promoted)

    @property
    def threads(self) -> int:
        return (1 + self.consumers) * WARPGROUP_THREADS

    @property
    def label(self) -> str:
        """The tile's part of kernel names."""
        cluster = f"_c{self.cluster_m}x{self.cluster_n}" if self.cluster_m * self.cluster_n > 1 else ""
        cluster += f"_k{self.cluster_k}" if self.cluster_k > 1 else ""
        warps = f"t{self.teams}w{self.warpgroups}b{self.blocks_per_sm}"
        resident = f"_{'ab'[self.keeps_b]}{self.resident_blocks}" if self.resident_blocks else ""
        return f"{self.m}x{self.n}x{self.k}_{self.stages}_{warps}{cluster}{'_p' * self.is_promoted}{resident}"

    @property
    def stage_bytes(self) -> int:
        return (self.loaded_a_lines + self.loaded_b_lines) * self.row_bytes

    @property
    def loaded_a_lines(self) -> int:
        """Lines of A in a stage of the ring."""
        return 0 if self.resident_blocks and not self.keeps_b else self.a_lines

    @property
    def loaded_b_lines(self) -> int:
        """Lines of B in a stage of the ring."""
        return 0 if self.resident_blocks and self.keeps_b else self.b_lines

    @property
    def resident_bytes(self) -> int:
        """Bytes of the resident operand, with its barrier."""
        lines = self.b_lines if self.keeps_b else self.a_lines
        return self.resident_blocks * lines * self.row_bytes + bool(self.resident_blocks) * BARRIER_BYTES

    @property
    def ring_bytes(self) -> int:
        return self.stages * self.stage_bytes

    def shared_bytes(self, store: TileStore) -> int:
        """Bytes of the resident operand, the ring, a cluster's sum, a store's staging areas, the barriers and the
        table.
        """
        return self._fixed_bytes(store) + self.ring_bytes + 2 * self.stages * BARRIER_BYTES

    @property
    def sum_bytes(self) -> int:
        """Bytes that a block receives from the others that share its k, and of two barriers of each consumer warp."""
        if self.cluster_k == 1:
            return 0
        received = self.m * (self.n - self.stored_columns) * ACCUMULATOR_BYTES
        return self.teams * received + self.consumers * 4 * 2 * BARRIER_BYTES

    def stages_in(self, budget_bytes: int, store: TileStore) -> int:
        """The most stages within ``budget_bytes``; negative if not even the rest fits."""
        return (budget_bytes - self._fixed_bytes(store)) // (self.stage_bytes + 2 * BARRIER_BYTES)

    def _fixed_bytes(self, store: TileStore) -> int:
        """Bytes of shared memory except the ring and its barriers."""
        return self.resident_bytes + self.sum_bytes + self.staging_bytes(store) + self.table_bytes

    def staging_bytes(self, store: TileStore) -> int:
        """Bytes of the buffers of all consumer warps."""
        warp_bytes = self.staging_buffers * _STAGING_BUFFER_BYTES + self.operand_buffers * _OPERAND_BUFFER_BYTES
        return 0 if store is TileStore.SLICE else self.consumers * 4 * warp_bytes

    @property
    def launched_registers(self) -> int:
        """Registers of each thread at launch, which are the most that ptxas assigns."""
        return launched_registers(self.threads, self.blocks_per_sm)

    @cached_property
    def registers(self) -> Registers:
        """Registers of the warpgroups after they have been redistributed."""
        consumer = consumer_registers(self.launched_registers, self.consumers, _PRODUCER_REGISTERS)
        return Registers(_PRODUCER_REGISTERS, consumer)

    @property
    def macros(self) -> tuple[tuple[str, int | str], ...]:
        """Macros of ``TileWgmma`` and of a kernel's launch bounds."""
        return (
            ("TILE_M", self.m),
            ("TILE_N", self.n),
            ("STAGES", self.stages),
            ("CONSUMER_TEAMS", self.teams),
            ("CONSUMER_WARPGROUPS", self.warpgroups),
            ("CLUSTER_M", self.cluster_m),
            ("CLUSTER_N", self.cluster_n),
            ("CLUSTER_K", self.cluster_k),
            ("BLOCKS_PER_SM", self.blocks_per_sm),
            ("PRODUCER_REGISTERS", self.registers.producer),
            ("CONSUMER_REGISTERS", self.registers.consumer),
            ("PROMOTED", int(self.is_promoted)),
            ("STAGING_BUFFERS", self.staging_buffers),
        )


@dataclass(frozen=True)
class Schedule:
    """The tiles of ``batches`` products of m x n x (k_blocks stages) that the clusters of a grid compute, and their
    order.

    rows, columns: tiles of one product, in clusters.  splits: parts of k, none of them empty.  group: see ``argument``.
    whole: items in which each block of a cluster along k has its own tile; in other items the blocks share a tile.
    """

    tile: WgmmaTile
    rows: int
    columns: int
    batches: int
    k_blocks: int
    split_blocks: int
    group: int
    whole: int = 0

    @classmethod
    def of(
        cls,
        tile: WgmmaTile,
        m: int,
        n: int,
        k_blocks: int,
        batches: int = 1,
        splits: int = 1,
        group: int = 8,
        resident: int = 0,
    ) -> Schedule:
        """``splits`` is cut down so that no part is empty, ``group`` to the rows that exist; all extents are at least
        1.

        resident: clusters along k that take whole tiles while all their blocks have one; 0 if they share all tiles.
        """
        rows = ceil_div(m, tile.m * tile.cluster_m)
        columns = ceil_div(n, tile.n * tile.cluster_n)
        group = max(1, min(group, rows, MAX_EXTENT // columns))
        split_blocks = ceil_div(k_blocks, min(splits, k_blocks))
        schedule = cls(tile, rows, columns, batches, k_blocks, split_blocks, group)
        if not resident:
            return schedule
        waves = schedule.items // (resident * tile.cluster_k)
        return replace(schedule, whole=waves * resident)

    @property
    def splits(self) -> int:
        return ceil_div(self.k_blocks, self.split_blocks)

    @property
    def tiles(self) -> int:
        """Tiles of one product, in clusters."""
        return self.rows * self.columns

    @property
    def items(self) -> int:
        """Work items: tiles of all products and parts, in clusters."""
        return self.tiles * self.batches * self.splits - self.whole * (self.tile.cluster_k - 1)

    def sharing_problem(self, unit: int = 8) -> str:
        """The rule that keeps the blocks of a cluster along k from sharing a tile; empty if they can.

        unit: columns that are stored together.
        """
        tile = self.tile
        if tile.cluster_k == 1:
            return ""
        if tile.cluster > tile.cluster_k:
            return "a cluster along k only, or along m and n"
        if tile.n % (unit * tile.cluster_k):
            return f"TILE_N a multiple of {unit * tile.cluster_k}, groups of {unit} columns for each block along k"
        last = self.k_blocks - (self.splits - 1) * self.split_blocks
        if last < tile.cluster_k:
            return f"a k block for each block of a cluster along k, of the {last} in the last part"
        return ""

    def grid(self, sm_count: int) -> int:
        """Blocks of the grid: as many as are resident at once, in whole clusters, at most one cluster for an item."""
        return min(self.items, self.tile.resident_clusters(sm_count)) * self.tile.cluster

    @property
    def argument(self) -> Struct:
        """The kernel's ``TileSchedule``; ``group`` rows of clusters are walked together, column by column."""
        return Struct(
            (
                Struct(divider(self.tiles)),
                Struct(divider(self.group * self.columns)),
                *i32((self.items, self.batches, self.rows, self.group, self.k_blocks, self.split_blocks, self.whole)),
            )
        )

    @property
    def flops(self) -> int:
        """Operations, with partial tiles counted in full."""
        block = 2 * self.tile.m * self.tile.n * self.tile.k * self.k_blocks
        return self.tiles * self.tile.cluster // self.tile.cluster_k * self.batches * block

    def occupied_flops(self, grid: int) -> int:
        """Operations that ``grid`` blocks could compute while the busiest of them works."""
        whole, waves = (ceil_div(items * self.tile.cluster, grid) for items in (self.whole, self.items))
        stages = whole * self.split_blocks + (waves - whole) * ceil_div(self.split_blocks, self.tile.cluster_k)
        return 2 * self.tile.m * self.tile.n * self.tile.k * stages * grid


@dataclass(frozen=True)
class ClassSchedule:
    """The schedules of several classes of products, one after the other, with tiles of one kind."""

    schedules: tuple[Schedule, ...]

    @property
    def splits(self) -> int:
        """Parts of the class with most parts."""
        return max(schedule.splits for schedule in self.schedules)

    @property
    def items(self) -> int:
        return sum(schedule.items for schedule in self.schedules)

    @property
    def flops(self) -> int:
        return sum(schedule.flops for schedule in self.schedules)

    def grid(self, sm_count: int) -> int:
        """See ``Schedule.grid``."""
        return self._clusters(sm_count) * self.schedules[0].tile.cluster

    def _clusters(self, sm_count: int) -> int:
        return min(self.items, self.schedules[0].tile.resident_clusters(sm_count))

    def sharing_problem(self, unit: int = 8) -> str:
        """See ``Schedule.sharing_problem``."""
        return next(filter(None, (schedule.sharing_problem(unit) for schedule in self.schedules)), "")

    def argument(self, sm_count: int) -> Struct:
        """``ClassSchedule`` of ``include/tile/tile_schedule.cuh``."""
        firsts, clusters = (0, *accumulate(schedule.items for schedule in self.schedules)), self._clusters(sm_count)
        schedules = (schedule.argument for schedule in self.schedules)
        return Struct((*schedules, *i32(firsts), Struct(divider(clusters)), *i32(((self.items - 1) // clusters,))))
