"""Tiles of a recurrent step, and how long a step takes with each.

A block reads k of its rows of weights and of its columns, the sequences: all of k, or a part where the blocks of a
cluster share it out. The larger its tile, the less comes from the L2 cache for each product.

    step = waves * latency of the first load and of each further group of k, and of a cluster that meets
           + blocks of the busiest multiprocessor * (slower of (bytes from L2, products) + sums of all warps)

The constants were measured on an H200, in fp16 with H of 64 to 2048 and 1 to 128 sequences: the times of 40 steps have
a root mean square error of 13 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.gemm.instructions import MMA_UNITS
from lowdnn.engines.launch import ACCESS_BYTES, ceil_div, fma_unit
from lowdnn.engines.model.occupancy import clustered_sms
from lowdnn.enums import DataType
from lowdnn.ops.rnn_saved import cell_type
from lowdnn.plan import MathUnit
from lowdnn.status import BadParamError

#: Rows of weights of a tile.
ROWS = (8, 16, 32, 64)
#: Sequences of a tile.
COLUMNS = (8, 16, 32, 64)
#: Warps of a block.
WARPS = (4, 8)
#: Blocks of a cluster, which share k out.
CLUSTERS = (1, 2, 4, 8)

#: The most blocks of 8 x 8 sums that a warp has in registers: of pairs, of single ones, and in fp64.
_MOST_SUMS = {MathUnit.MMA_F16: 64, MathUnit.MMA_TF32: 64, MathUnit.FMA_F32: 16, MathUnit.FMA_F64: 8}
#: The most sums of a tile whose units have one row each.
_MOST_SINGLE = 2048
#: The most bytes of a tile's sums with which a multiprocessor has registers for several blocks (``step.cuh``).
_FEW_SUM_BYTES = 2048
#: Blocks that a multiprocessor has registers for where a tile has at most _FEW_SUM_BYTES of sums; otherwise one.
_RESIDENT = 2
#: The share of a multiprocessor's rate from the L2 cache that is left where all of them read.
_SHARED_L2 = 0.87
#: Bytes of a piece of k that a lane reads for a product on tensor cores.
_WORDS_BYTES = 8
#: Time that a block waits for its first group of k, as a multiple of the load latency.
_FIRST_GROUP = 0.6
#: Time that a block waits for each further group of k, as a multiple of the load latency.
_FURTHER_GROUP = 1.2
#: Time in which the blocks of a cluster meet and exchange sums, as a multiple of the load latency.
_MEETING = 1.7
#: Bytes of sums that go through shared memory in a clock.
_SUM_BYTES_PER_CLOCK = 13


@dataclass(frozen=True)
class StepTile:
    """rows: rows of weights, about; a multiple of 8.  columns: sequences, a multiple of 8.  warps: warps of a block.
    cluster: blocks of a cluster."""

    rows: int
    columns: int
    warps: int
    cluster: int

    def units(self, rows_per_unit: int) -> int:
        """Units of a block, each with ``rows_per_unit`` rows."""
        return max(self.rows // rows_per_unit // 8, 1) * 8


@dataclass(frozen=True)
class StepProblem:
    """A product of (units * rows_per_unit, depth) and (depth, batch), and its cells, in each of ``directions``."""

    data_type: DataType
    rows_per_unit: int
    units: int
    depth: int
    batch: int
    directions: int
    uses_tf32: bool

    @property
    def unit(self) -> MathUnit:
        is_true = self.data_type is DataType.DOUBLE or (self.data_type is DataType.FLOAT and not self.uses_tf32)
        return fma_unit(self.data_type) if is_true else MMA_UNITS[self.data_type]

    @property
    def has_tensor_cores(self) -> bool:
        return self.unit in (MathUnit.MMA_F16, MathUnit.MMA_TF32)

    @property
    def element_bytes(self) -> int:
        return dtypes.info(self.data_type).size_bytes

    @property
    def value_bytes(self) -> int:
        """Bytes of a sum."""
        return dtypes.info(cell_type(self.data_type)).size_bytes

    @property
    def flops(self) -> int:
        return 2 * self.units * self.rows_per_unit * self.depth * self.batch * self.directions

    @property
    def row_bytes(self) -> int:
        """Bytes that the cells read and write, about; weights stay in the L2 cache."""
        return 2 * self.units * self.rows_per_unit * self.batch * self.directions * self.element_bytes

    def shared_bytes(self, tile: StepTile) -> int:
        """Shared memory of ``StepProduct`` (``step_product.cuh``)."""
        pitch = tile.columns if tile.columns % 32 == 8 else tile.columns + 8
        return tile.warps * self._rows(tile) * pitch * self.value_bytes

    def tiles(self, arch: ArchSpec) -> tuple[StepTile, ...]:
        """The tiles whose sums fit into registers and shared memory, the smallest first."""
        clusters = CLUSTERS if arch.has_clusters else CLUSTERS[:1]
        return tuple(
            tile
            for tile in (StepTile(*sizes) for sizes in product(ROWS, COLUMNS, WARPS, clusters))
            if self._rows(tile) * tile.columns <= self._most_sums
            and self.shared_bytes(tile) <= arch.shared_bytes_per_block
        )

    def best_tile(self, arch: ArchSpec, rows: int = 0, columns: int = 0, cluster: int = 0) -> StepTile:
        """The fastest tile, with those extents that are not 0; raises BadParamError where none has them."""
        wanted = (rows, columns, cluster)
        tiles = [
            tile
            for tile in self.tiles(arch)
            if all(size in (0, own) for size, own in zip(wanted, (tile.rows, tile.columns, tile.cluster), strict=True))
        ]
        if not tiles:
            expected = f"at most {self._most_sums} sums of a tile"
            raise BadParamError.at("rnn_stepwise.knob_choices", expected=expected, got=f"{rows} x {columns}")
        return min(tiles, key=lambda tile: busy_s(self, tile, arch))

    def blocks(self, tile: StepTile) -> int:
        units = ceil_div(self.units, tile.units(self.rows_per_unit))
        return units * ceil_div(self.batch, tile.columns) * self.directions * tile.cluster

    @property
    def _most_sums(self) -> int:
        """The most sums of a tile; fewer where each row is a unit of its own, whose cell takes registers."""
        most = 64 * _MOST_SUMS[self.unit]
        return min(most, _MOST_SINGLE) if self.rows_per_unit == 1 else most

    def _rows(self, tile: StepTile) -> int:
        return tile.units(self.rows_per_unit) * self.rows_per_unit


def busy_s(problem: StepProblem, tile: StepTile, arch: ArchSpec) -> float:
    """Seconds of a launch, its overhead aside."""
    rows = tile.units(problem.rows_per_unit) * problem.rows_per_unit
    stride = (4 * _WORDS_BYTES if problem.has_tensor_cores else ACCESS_BYTES) // problem.element_bytes
    groups = ceil_div(problem.depth, stride * tile.warps * tile.cluster * _pieces_ahead(problem, rows, tile.columns))
    latencies = _FIRST_GROUP + _FURTHER_GROUP * (groups - 1) + _MEETING * (tile.cluster > 1)
    latency_s = arch.timings.load_latency_s * latencies
    depth = ceil_div(problem.depth, tile.cluster)
    read_s = (rows + tile.columns) * depth * problem.element_bytes / (arch.timings.l2_bytes_per_s * _SHARED_L2)
    flops = 2 * rows * tile.columns * depth
    multiply_s = flops / (arch.attained_rate(problem.unit) / arch.sm_count)
    sms, blocks = clustered_sms(arch.sm_count, tile.cluster), problem.blocks(tile)
    sum_bytes = rows * tile.columns * problem.value_bytes
    resident = _RESIDENT if sum_bytes <= _FEW_SUM_BYTES else 1
    sums_s = (tile.warps + 1) * sum_bytes / (_SUM_BYTES_PER_CLOCK * arch.timings.light_clock_hz)
    return ceil_div(blocks, sms * resident) * latency_s + ceil_div(blocks, sms) * (max(read_s, multiply_s) + sums_s)


def _pieces_ahead(problem: StepProblem, rows: int, columns: int) -> int:
    """``AHEAD`` of ``step_product.cuh``."""
    lines = rows // 8 + columns // (8 if problem.has_tensor_cores else 4)
    return 4 if lines <= (5 if problem.has_tensor_cores else 4) else 2 if lines <= 8 else 1
