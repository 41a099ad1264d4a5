"""Which wgmma tile suits a product: a menu of tiles, a model of their time, and the knobs that go through the menu."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Knob
from lowdnn.engines.gemm.wgmma_tiles import (
    MN_MAJOR_BOX,
    STAGE_ROW_BYTES,
    WARPGROUP_ROWS,
    Schedule,
    TapWindow,
    TileStore,
    WgmmaTile,
    WgmmaType,
)
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.plan import MathUnit
from lowdnn.status import BadParamError

#: WARP_SPEC_CFG -> (teams, warpgroups of a team, blocks on a multiprocessor): two warpgroups on one tile, two that
#: take turns at tiles, one in each of two blocks, three on one tile.
WARP_CONFIGS = ((1, 2, 1), (2, 1, 1), (1, 1, 2), (1, 3, 1))
_COOPERATIVE, _PING_PONG, _TWO_BLOCKS, _COOPERATIVE_3 = range(4)

#: Of a tile.
SMALLEST_COLUMNS = 8
#: Accumulators of a thread beside which no epilogue spills; none that loads no operand of the output's size itself; one
#: that only converts.
MAX_ACCUMULATORS, MAX_COMPUTED_ACCUMULATORS, MAX_PLAIN_ACCUMULATORS = 128, 160, 192

_MAX_STAGES = 12
_MAX_SPLITS = 32
#: Blocks of a cluster on every device.
_MAX_CLUSTER = 8
#: Elements of a tile that two blocks are tried on.
_MOST_DIVIDED_TILE = 64 * 64
#: Columns of a tile that blocks sharing its k store together.
_SHARE_UNIT = 8
#: Choices that leave k in one part.
WHOLE_K: Mapping[KnobType, int] = {KnobType.SPLIT_K_SLC: 1, KnobType.SPLIT_K_BUF: 1, KnobType.STREAM_K: 0}
_DEFAULT_GROUP = 8
#: Columns of tiles up to which a row of them is no more than what the blocks in flight share.
_MAX_OWN_COLUMNS = 12
_ACCUMULATOR_BYTES = 4
#: Shared memory that the device keeps for itself, for each block.
_RESERVED_SHARED_BYTES = 1024
#: The registers that ptxas needs beside accumulators: of those that threads are launched with, or, where there are more
#: than MAX_ACCUMULATORS of a thread, of those that their warpgroup has taken since.
_OTHER_REGISTERS = 26
#: Accumulators where A goes through registers.
_MAX_CONVERTED_ACCUMULATORS = 96
#: What a thread needs beside them to convert an operand of a convolution: where its pixels and taps stand.
_CONVERTING_REGISTERS = 112
#: Chunks of an operand of the output's size on their way: as many as leave that many stages, or the least.
_OPERAND_BUFFERS, _LEAST_OPERAND_BUFFERS = 4, 2
_STAGES_BESIDE_OPERAND = 3
#: Stages for which a tile gives up its second staging buffer.
_ENOUGH_STAGES = 4

#: Estimates that differ by less do not tell which of two tilings is faster. Where memory bounds a product of matrices,
#: it is, as measured, the one with a ring of so many stages, and of those the one that stays in one block.
TELLING_RATIO = 1.015
_DEEP_RING = 8

#: What follows was fitted to 8,300 variants of 480 products and convolutions that an H200 ran: the tile that the model
#: takes is 2.5 % slower in the mean than the best one of those tried.
#: Of the rate that the tensor cores sustain: what one multiprocessor reaches while others leave it their power. Seen
#: with matrices only, not with pixels.
_BURST = 1.05
#: Of one multiprocessor: bytes of shared memory that wgmma reads and copies write, bytes from the L2 cache.
_SHARED_BYTES_PER_S = 276e9
_L2_BYTES_PER_S = 114e9
#: Of the cost of a stage's row of 128 bytes: one of 64 bytes, and what is added where it lies in two lines.
_HALF_ROW_COST = 0.82
_ASKEW_ROW_COST = 0.9
#: Of that cost, where both operands are MN-major: blocks read the lines of the same k side by side.
_LINES_OF_K_COST = 0.85
#: Of a row of an operand, where all blocks load the same few that are no whole lines for each of many tiles.
_SHARED_ROW_S = 12e-9
_MANY_ROWS, _FEW_ROWS, _FEW_BYTES = 1 << 17, 256, 48 << 10
#: Of a multiprocessor from device memory.
_READ_BYTES_PER_S = 40e9
#: What a multiprocessor gets whose neighbour has no block, of the rates from L2 cache and memory: they share their way.
_LONE_L2, _LONE_READ = 1.5, 2
#: Added for a stage's row that lies past its operand's end, which a copy fills with zeros.
_EMPTY_ROW_S = 2.4e-9
#: Of a stage's row that comes by im2col map, and of one that is mostly padding.
_PIXEL_S, _NARROW_PIXEL_S = 1.8e-9, 16e-9
#: Of the steps from one stage to the next; what it takes beside them to add up the sums of each.
_STAGE_S, _PROMOTED_STAGE_S = 16e-9, 70e-9
#: Clock of blocks that do not wait for the tensor cores: those draw the power that lowers it.
_LIGHT_CLOCK_HZ = 1.75e9
#: Elements of A that go through a functor in registers.
_CONVERTED_PER_CLOCK = 12
#: What each function in it adds, counted: 15 instructions of 128 lanes a clock.
_FUNCTION_CLOCKS = 15 / 128
#: From a copy's start to its bytes in shared memory.
_COPY_LATENCY_S = 0.89e-6
#: From a kernel's start to its first multiplication and from its last one to the end; what blocks save that start while
#: those of the kernel before them leave them room.
_START_S = 1.7e-6
_EARLY_START_S = 0.8e-6
#: From one tile of a multiprocessor to the next.
_TURN_S = 0.53e-6
#: Of the accumulators' way out: before the first byte, and bytes of a warpgroup per second.
_STORE_LATENCY_S = 0.42e-6
_STORE_BYTES_PER_S = 55e9
#: Until the blocks of a cluster that share an operand have met, and those that share a sum have exchanged it.
_CLUSTER_START_S = 0.7e-6
_MEETING_S = 1.8e-6
#: For 64 rows of a chunk of columns: by tensor map, as pixels of a part, with an operand of that size.
_CHUNK_S, _PIXELS_CHUNK_S, _OPERAND_CHUNK_S = 0.08e-6, 0.35e-6, 1.2e-6
_CHUNK_COLUMNS = 64
#: Share of the stores that copies do not hide where no other warpgroup multiplies meanwhile.
_LONE_STORE_LOSS = 0.27
#: Of an element that leaves across the tile's rows.
_TURNED_ELEMENT_S = 0.1e-9
#: Blocks of k from which on copies matter more than that.
_DEEP_BLOCKS = 12
#: The model's error: tiles across an output of many rows and columns must look better by that much.
TURN_MARGIN = 1.04
#: Of a warpgroup whose functor stores at coordinates that it has to divide for, one warp on each part of the processor.
_LOCATED_ELEMENTS_PER_S = 4.2e9
#: Share of the shorter one of arithmetic and copies that the longer one does not hide.
_OVERLAP_LOSS = 0.31
#: Bytes of a product per second, most of which are read, relative to those of a copy.
_COPY_RATE = 1.18
#: Of an operand that half of the L2 cache keeps; of a larger one, the share that is read anew where several clusters
#: read it.
_KEPT_BYTES = 30 << 20
_REREAD_LOSS = 0.15


Counts = NDArray[np.int64]
Times = NDArray[np.float64]


class Conversion(Enum):
    """Where an operand becomes what a functor makes of it."""

    NONE = "none"
    REGISTERS = "registers"  #: ``register_operand.cuh``
    IN_PLACE = "in place"  #: a window of pixels, ``converted_pixels.cuh``


@dataclass(frozen=True)
class WgmmaProduct:
    """``batches`` products of m x n x (k_blocks stages), all extents at least 1.

    a_bytes, b_bytes, output_bytes: of device memory that operands and epilogue move, each counted once.
    is_a_mn_major, is_b_mn_major: operands that come in boxes of MN_MAJOR_BOX elements of m or n, and of k.
    allows_clusters: whether operands may be shared in a cluster; tries_clusters: whether that may pay.
    allows_split: whether k may be cut into parts.
    is_a_resident, is_b_resident: whether all of A or B stays in shared memory, in tiles that have all rows or columns.
    column_unit: a tile's columns are a multiple of it.
    is_promoted, window, row_bytes, table_bytes: see ``WgmmaTile``.
    has_operand: the epilogue loads an operand of the output's size by tensor map.
    is_a_askew, is_b_askew: operands whose rows do not begin at multiples of STAGE_ROW_BYTES, so that a row of a stage
    lies in two lines of the cache.
    is_a_pixels, is_b_pixels: operands that come by im2col map.  has_narrow_pixels: each fills less than half of a row.
    rows_continue: past the last row of a product's operand lies the next product's first one.
    is_turned: the tiles' rows are the output's columns.
    is_located: the functor stores, each group of elements at coordinates of its own.
    classes: (m, n, k_blocks) of parts that are computed one after the other, the deepest first; empty if one.
    conversion: of an operand on its way to the tensor cores; in registers of A, in 64 rows of each warpgroup.
    functions, epilogue_functions: operations of its functor, and of the epilogue's, that take more than an instruction
    or two.
    most_accumulators: of a thread, as the epilogue allows.
    sums_columns: warpgroups keep totals of the columns of their tiles for as long as those stay the same.
    """

    type: WgmmaType
    batches: int
    m: int
    n: int
    k_blocks: int
    a_bytes: int
    b_bytes: int
    output_bytes: int
    is_a_mn_major: bool = False
    is_b_mn_major: bool = False
    allows_clusters: bool = True
    tries_clusters: bool = True
    allows_split: bool = True
    column_unit: int = 8
    is_promoted: bool = False
    has_operand: bool = False
    is_a_askew: bool = False
    is_b_askew: bool = False
    is_a_pixels: bool = False
    is_b_pixels: bool = False
    has_narrow_pixels: bool = False
    rows_continue: bool = False
    is_turned: bool = False
    is_located: bool = False
    window: TapWindow | None = None
    is_a_resident: bool = False
    is_b_resident: bool = False
    row_bytes: int = STAGE_ROW_BYTES
    classes: tuple[tuple[int, int, int], ...] = ()
    conversion: Conversion = Conversion.NONE
    functions: int = 0
    epilogue_functions: int = 0
    most_accumulators: int = MAX_ACCUMULATORS
    sums_columns: bool = False
    table_bytes: int = 0

    @property
    def resident_blocks(self) -> int:
        """See ``WgmmaTile``."""
        return self.k_blocks if self.is_a_resident or self.is_b_resident else 0

    @property
    def moved_bytes(self) -> int:
        return self.a_bytes + self.b_bytes + self.output_bytes

    @property
    def shares_askew(self) -> tuple[bool, bool]:
        """Of A and B: whether all blocks load the same rows again and again, none of them whole lines of the cache."""
        is_small_a = self.m <= _FEW_ROWS and self.a_bytes <= _FEW_BYTES and not self.is_a_resident
        is_small_b = self.n <= _FEW_ROWS and self.b_bytes <= _FEW_BYTES and not self.is_b_resident
        a = self.is_a_askew and is_small_a and self.n >= _MANY_ROWS
        b = self.is_b_askew and is_small_b and self.m >= _MANY_ROWS
        return a and self.batches == 1, b and self.batches == 1


@dataclass(frozen=True)
class WgmmaTiling:
    """A tile and the parts into which k is cut; ``group``: rows of clusters that are walked together.

    resident: see ``Schedule.of``.
    """

    tile: WgmmaTile
    splits: int
    group: int
    resident: int = 0

    def schedule(self, product: WgmmaProduct) -> Schedule:
        return self.schedule_of(product.m, product.n, product.k_blocks, product.batches)

    def schedule_of(self, m: int, n: int, k_blocks: int, batches: int) -> Schedule:
        """Of a product, or of one class of its pixels."""
        return Schedule.of(self.tile, m, n, k_blocks, batches, self.splits, self.group, self.resident)


def best(product: WgmmaProduct, arch: ArchSpec) -> WgmmaTiling:
    """The tiling with the least modelled time, as far as the model can tell."""
    return _best(product, _Machine.of(product.type, arch))[1]


def least_seconds(product: WgmmaProduct, arch: ArchSpec) -> float:
    """The modelled time of one product with its ``best`` tiling."""
    return _best(product, _Machine.of(product.type, arch))[0]


def busy_seconds(product: WgmmaProduct, tiling: WgmmaTiling, arch: ArchSpec) -> float:
    """The modelled time of the product's own launch with this tiling, without its start; not with STREAM_K (0)."""
    return 0.0 if tiling.resident else _tiling_seconds(product, tiling, _Machine.of(product.type, arch))


def exit_problem(product: WgmmaProduct, arch: ArchSpec) -> str:
    """Why its output is better reduced by itself than on the way out of ``product``, which is not split for that."""
    apart = replace(product, allows_split=not product.classes)
    reread_s = arch.launch_overhead_s + product.output_bytes / arch.copy_bytes_per_s
    if least_seconds(apart, arch) + reread_s < least_seconds(product, arch):
        return f"operations: expected a product that is not faster in parts of k, got {best(apart, arch).splits} parts"
    return ""


def may_turn(product: WgmmaProduct) -> bool:
    """Whether it may be faster with its columns as the rows of the tiles, however many there are of both: tiles have
    whole boxes of rows, and of a K-major operand as many columns as suit."""
    return product.is_b_mn_major and not product.is_a_mn_major and product.k_blocks >= _DEEP_BLOCKS


def knobs(product: WgmmaProduct, chosen: WgmmaTiling) -> tuple[Knob, ...]:
    """The tile, its ring, warps and cluster, the parts of k and the raster; defaults are those of ``chosen``."""
    tile = chosen.tile
    rows = sorted({shape.m for shape in _MENU})
    columns = sorted({shape.n for shape in _MENU})
    clusters = (1, 2) if product.allows_clusters else (1,)
    splits = range(1, _MAX_SPLITS + 1) if product.allows_split else (1,)
    sharers, streams = (range(1, _MAX_CLUSTER + 1), (0, 1)) if product.allows_split else ((1,), (0,))
    config = WARP_CONFIGS.index((tile.teams, tile.warpgroups, tile.blocks_per_sm))
    return (
        Knob("tile_m", KnobType.TILE_M, tuple(rows), tile.m, "rows of the product that a block computes"),
        Knob("tile_n", KnobType.TILE_N, tuple(columns), tile.n, "columns of the product that a block computes"),
        Knob("stages", KnobType.STAGES, tuple(range(2, _MAX_STAGES + 1)), tile.stages, "stages of the ring"),
        Knob(
            "warps",
            KnobType.WARP_SPEC_CFG,
            tuple(range(len(WARP_CONFIGS))),
            config,
            "0: two warpgroups on one tile, 1: two take turns at tiles, 2: one in each of two blocks, 3: three on one",
        ),
        Knob("cluster_m", KnobType.TILE_CGA_M, clusters, tile.cluster_m, "blocks of a cluster along m"),
        Knob("cluster_n", KnobType.TILE_CGA_N, clusters, tile.cluster_n, "blocks of a cluster along n"),
        Knob(
            "split_k",
            KnobType.SPLIT_K_SLC,
            tuple(splits),
            chosen.splits,
            "parts of k, summed in a second launch",
        ),
        Knob(
            "cluster_k",
            KnobType.SPLIT_K_BUF,
            tuple(sharers),
            tile.cluster_k,
            "blocks of a cluster that share a part of k and sum what they have through their shared memory",
        ),
        Knob(
            "stream_k",
            KnobType.STREAM_K,
            streams,
            int(chosen.resident > 0),
            "1: they share only the last tiles, of which there is not one for every block",
        ),
        Knob("raster", KnobType.SWIZZLE, (1, 2, 4, 8, 16, 32), chosen.group, "rows of tiles walked together"),
    )


def promotion_knobs(kind: WgmmaType, compute_type: DataType) -> tuple[Knob, ...]:
    """REDUCTION_MODE where ``kind`` keeps fewer bits of a sum than fp32 has; FAST_FLOAT_FOR_FP8 asks for no more."""
    if not kind.is_fp8:
        return ()
    help_text = "1: the sums of stages are added up in full fp32"
    return (Knob("promotion", KnobType.REDUCTION_MODE, (0, 1), int(is_promoted(kind, compute_type)), help_text),)


def is_promoted(kind: WgmmaType, compute_type: DataType) -> bool:
    """Whether sums are to be more precise than the tensor cores'."""
    return kind.is_fp8 and compute_type is not DataType.FAST_FLOAT_FOR_FP8


def sum_notes(kind: WgmmaType, chosen: Mapping[KnobType, int]) -> tuple[NumericalNote, ...]:
    """Of a plan with resolved knobs."""
    is_reduced = chosen.get(KnobType.REDUCTION_MODE) == 0
    return (
        NumericalNote.TENSOR_CORE,
        *((NumericalNote.DOWN_CONVERT_INPUTS,) if kind.unit is MathUnit.WGMMA_TF32 else ()),
        *((NumericalNote.REDUCED_PRECISION_REDUCTION,) if is_reduced else ()),
    )


def tiling_of(engine: str, product: WgmmaProduct, arch: ArchSpec, chosen: Mapping[KnobType, int]) -> WgmmaTiling:
    """The tiling of resolved knobs.

    Raises BadParamError for a tile that the warps or operands cannot be cut into or that exceeds shared memory.
    """
    tile = _tile(
        product,
        chosen[KnobType.TILE_M],
        chosen[KnobType.TILE_N],
        chosen[KnobType.STAGES],
        WARP_CONFIGS[chosen[KnobType.WARP_SPEC_CFG]],
        (chosen[KnobType.TILE_CGA_M], chosen[KnobType.TILE_CGA_N]),
    )
    tile = replace(tile, cluster_k=chosen[KnobType.SPLIT_K_BUF])
    machine = _Machine.of(product.type, arch)
    if product.has_operand:
        tile = _with_operand_buffers(tile, machine)
    if not product.sums_columns and tile.stages > _stages(tile, machine):
        tile = replace(tile, staging_buffers=1)
    resident = machine.clusters(tile) if chosen[KnobType.STREAM_K] else 0
    tiling = WgmmaTiling(tile, chosen[KnobType.SPLIT_K_SLC], chosen[KnobType.SWIZZLE], resident)
    problem = _problem(product, tile, machine) or tiling.schedule(product).sharing_problem()
    if resident and tile.cluster_k == 1:
        problem = "SPLIT_K_BUF above 1 beside STREAM_K"
    if problem:
        raise BadParamError.at(f"{engine}.knob_choices", expected=problem, got=tile.label)
    return tiling


@dataclass(frozen=True)
class _Shape:
    m: int
    n: int
    config: int


#: Tiles that are worth trying, by the warps that suit them.
_MENU = (
    *(_Shape(128, n, _COOPERATIVE) for n in (256, 224, 192, 160, 144, 128)),
    *(_Shape(256, n, _COOPERATIVE) for n in (192, 160, 128, 96, 64)),
    *(_Shape(512, n, _COOPERATIVE) for n in (64, 32, 16)),
    *(_Shape(192, n, _COOPERATIVE_3) for n in (192, 176, 160, 128)),
    *(_Shape(384, n, _COOPERATIVE_3) for n in (96, 64, 32)),
    *(_Shape(256, n, _PING_PONG) for n in (64, 48, 32, 16)),
    *(_Shape(128, n, _PING_PONG) for n in (192, 160, 128, 112, 96, 80, 64, 48, 32, 16)),
    *(_Shape(64, n, _PING_PONG) for n in (256, 224, 192, 128, 96, 64, 48, 32, 24, 16, 8)),
    *(_Shape(128, n, _TWO_BLOCKS) for n in (96, 64, 32)),
    *(_Shape(64, n, _TWO_BLOCKS) for n in (192, 128, 96, 64, 32)),
)


@dataclass(frozen=True)
class _Machine:
    """What the architecture gives products of one type.

    flops: of one multiprocessor, operations per second.  copy_bytes_per_s: of the device.  launch_s: of a launch.
    """

    sm_count: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    flops: float
    copy_bytes_per_s: float
    launch_s: float

    @classmethod
    def of(cls, kind: WgmmaType, arch: ArchSpec) -> _Machine:
        return cls(
            arch.sm_count,
            arch.shared_bytes_per_block,
            arch.shared_bytes_per_sm,
            arch.attained_rate(kind.unit) / arch.sm_count,
            arch.copy_bytes_per_s,
            arch.launch_overhead_s,
        )

    def shared_budget(self, tile: WgmmaTile) -> int:
        """Bytes that a block may have."""
        return min(self.shared_bytes_per_block, self.shared_bytes_per_sm // tile.blocks_per_sm - _RESERVED_SHARED_BYTES)

    def clusters(self, tile: WgmmaTile) -> int:
        """That are resident at once."""
        return max(self.sm_count * tile.blocks_per_sm // tile.cluster, 1)


@dataclass(frozen=True, eq=False)
class _Rates:
    """What is known of the menu's tiles whatever the extents of a product are: of each tile an element of the arrays.

    own_rows, own_columns: of a block.  rows, columns: of a cluster.  cluster: its blocks.  clusters: that are resident
    at once.  stages: of the ring.
    sustained_s: of a stage's multiplications while all multiprocessors are busy.
    multiply_s, copy_s: of a stage its multiplications and its copies, of one block on a multiprocessor and of as many
    as fit.  lone_copy_s: of one whose neighbour has none.
    a_lines, b_lines: rows of the operands that a block loads for a stage.
    elements: accumulators of a warpgroup.  leaving_s: of their way out, beside their bytes; slices have none.
    sharers: blocks and teams that store while others multiply.  store_loss: share of the stores that nothing hides.
    exposed_s: of the epilogue's functions, where nothing hides them.
    parts: blocks that share the k of a tile.  leaves_room: whether blocks of the next kernel fit beside one.
    """

    tiles: tuple[WgmmaTile, ...]
    own_rows: Counts
    own_columns: Counts
    rows: Counts
    columns: Counts
    cluster: Counts
    clusters: Counts
    stages: Counts
    sustained_s: Times
    multiply_s: tuple[Times, Times]
    copy_s: tuple[Times, Times]
    lone_copy_s: Times
    a_lines: Times
    b_lines: Times
    elements: Times
    leaving_s: Times
    sharers: Counts
    store_loss: Times
    exposed_s: Times
    parts: Counts
    leaves_room: NDArray[np.bool_]

    @classmethod
    def of(cls, traits: WgmmaProduct, tiles: tuple[WgmmaTile, ...], machine: _Machine) -> _Rates:
        one = [_stage_seconds(traits, tile, 1, machine) for tile in tiles]
        full = [_stage_seconds(traits, tile, tile.blocks_per_sm, machine) for tile in tiles]
        sharers = np.array([tile.teams * tile.blocks_per_sm for tile in tiles])
        return cls(
            tiles,
            np.array([tile.m for tile in tiles]),
            np.array([tile.n for tile in tiles]),
            np.array([tile.m * tile.cluster_m for tile in tiles]),
            np.array([tile.n * tile.cluster_n for tile in tiles]),
            np.array([tile.cluster for tile in tiles]),
            np.array([machine.clusters(tile) for tile in tiles]),
            np.array([tile.stages for tile in tiles]),
            np.array([_arithmetic_seconds(tile, machine) + _STAGE_S for tile in tiles]),
            (np.array([multiply for multiply, _ in one]), np.array([multiply for multiply, _ in full])),
            (np.array([copy for _, copy in one]), np.array([copy for _, copy in full])),
            np.array([_copy_seconds(traits, tile, 1, _LONE_L2 * _L2_BYTES_PER_S) for tile in tiles]),
            np.array([tile.loaded_a_lines / tile.cluster_n for tile in tiles]),
            np.array([tile.loaded_b_lines / tile.cluster_m for tile in tiles]),
            np.array([tile.m * tile.n / tile.warpgroups for tile in tiles]),
            np.array([_leaving_seconds(traits, tile) for tile in tiles]),
            sharers,
            _LONE_STORE_LOSS * (sharers == 1),
            np.array([_function_seconds(traits, tile) for tile in tiles]) * (sharers == 1),
            np.array([tile.cluster_k for tile in tiles]),
            np.array([tile.blocks_per_sm > 1 for tile in tiles]),
        )

    def items(self, m: int, n: int, batches: int) -> Counts:
        """Tiles of all products, in clusters."""
        return -(-m // self.rows) * -(-n // self.columns) * batches


@lru_cache(maxsize=4096)
def _best(product: WgmmaProduct, machine: _Machine) -> tuple[float, WgmmaTiling]:
    rates = _menu_rates(_traits(product), machine)
    splits = _splittings(product, rates)
    seconds = _seconds(product, rates, splits, machine).T
    at, row = _first(seconds, rates, TELLING_RATIO if _waits_for_memory(product, machine) else 1)
    tile = rates.tiles[at]
    return float(seconds[at, row]), WgmmaTiling(tile, int(splits[row, at]), _group(product, tile, machine))


def _waits_for_memory(product: WgmmaProduct, machine: _Machine) -> bool:
    """Whether the bytes of a product of matrices take longer than its arithmetic."""
    k = product.k_blocks * product.type.stage_k
    arithmetic_s = 2 * product.batches * product.m * product.n * k / (machine.flops * machine.sm_count)
    has_pixels = product.is_a_pixels or product.is_b_pixels
    return not has_pixels and product.moved_bytes / machine.copy_bytes_per_s > arithmetic_s


def _first(seconds: Times, rates: _Rates, telling_ratio: float) -> tuple[int, int]:
    """Index of the tile and its splitting: of the least times one with a deep ring that does not share k, if any.

    Of equal times it is the one that copies least.
    """
    count = seconds.shape[1]
    times = seconds.ravel()
    is_shallow, parts, copies = (
        np.repeat(of_tile, count) for of_tile in (rates.stages < _DEEP_RING, rates.parts, rates.copy_s[1])
    )
    is_slower = times > telling_ratio * np.min(times)
    at, row = divmod(int(np.lexsort((copies, times, parts, is_shallow, is_slower))[0]), count)
    return at, row


@lru_cache(maxsize=1024)
def _tiling_seconds(product: WgmmaProduct, tiling: WgmmaTiling, machine: _Machine) -> float:
    rates = _tile_rates(_traits(product), tiling.tile, machine)
    return float(np.max(_busy_seconds(product, rates, np.array([[tiling.splits]]), machine)))


@lru_cache(maxsize=1024)
def _tile_rates(traits: WgmmaProduct, tile: WgmmaTile, machine: _Machine) -> _Rates:
    return _Rates.of(traits, (tile,), machine)


def _traits(product: WgmmaProduct) -> WgmmaProduct:
    """The product without its extents; but what stays in shared memory is of all k blocks."""
    k_blocks = product.resident_blocks or 1
    classes = ((1, 1, 1),) if product.classes else ()
    return replace(
        product, batches=1, m=1, n=1, k_blocks=k_blocks, a_bytes=0, b_bytes=0, output_bytes=0, classes=classes
    )


@lru_cache(maxsize=1024)
def _menu_rates(traits: WgmmaProduct, machine: _Machine) -> _Rates:
    return _Rates.of(traits, _tiles(traits, machine), machine)


def _tiles(traits: WgmmaProduct, machine: _Machine) -> tuple[WgmmaTile, ...]:
    """The menu with as many stages as fit, for single blocks and for two that share an operand; for more there is not
    room on every part of the device. Small tiles also for two blocks that share their k.

    traits: a product without its extents.
    """
    found: list[WgmmaTile] = []
    for shape in _MENU:
        tile = _tile(traits, shape.m, shape.n, 1, WARP_CONFIGS[shape.config], (1, 1))
        choices = [tile]
        if traits.allows_clusters and traits.tries_clusters:
            choices += [replace(tile, cluster_m=2), replace(tile, cluster_n=2)]
            if traits.allows_split and shape.m * shape.n <= _MOST_DIVIDED_TILE and shape.n % (2 * _SHARE_UNIT) == 0:
                choices.append(replace(tile, cluster_k=2))
        for choice in choices:
            if shape.n % traits.column_unit or not _divides(traits, choice):
                continue
            if traits.has_operand:
                choice = _with_operand_buffers(choice, machine)
            single = replace(choice, staging_buffers=1)
            if not traits.sums_columns and _stages(choice, machine) < _ENOUGH_STAGES <= _stages(single, machine):
                choice = single
            stages = _stages(choice, machine)
            if stages >= 2:
                found.append(replace(choice, stages=stages))
    return tuple(found)


def _tile(
    traits: WgmmaProduct, m: int, n: int, stages: int, config: tuple[int, int, int], cluster: tuple[int, int]
) -> WgmmaTile:
    teams, warpgroups, blocks_per_sm = config
    return WgmmaTile(
        m,
        n,
        stages,
        teams,
        warpgroups,
        *cluster,
        blocks_per_sm,
        traits.type.element_bytes,
        traits.is_promoted,
        window=traits.window,
        resident_blocks=traits.resident_blocks,
        keeps_b=traits.is_b_resident,
        row_bytes=traits.row_bytes,
        table_bytes=traits.table_bytes,
        column_box=MN_MAJOR_BOX if traits.is_b_mn_major else 1,
    )


def _stages(tile: WgmmaTile, machine: _Machine) -> int:
    """As many as fit beside the staging areas and the operand that stays."""
    return min(tile.stages_in(machine.shared_budget(tile), TileStore.MAP), _MAX_STAGES)


def _with_operand_buffers(tile: WgmmaTile, machine: _Machine) -> WgmmaTile:
    most = replace(tile, operand_buffers=_OPERAND_BUFFERS)
    if _stages(most, machine) >= _STAGES_BESIDE_OPERAND:
        return most
    return replace(tile, operand_buffers=_LEAST_OPERAND_BUFFERS)


def _divides(traits: WgmmaProduct, tile: WgmmaTile) -> bool:
    """Whether warpgroups get whole parts, and blocks of a cluster whole boxes and swizzle patterns."""
    # Blocks share K-major operands by lines, MN-major ones by their k.
    unit_m = tile.line_unit * (1 if traits.is_a_mn_major else tile.cluster_n)
    unit_n = tile.line_unit * (1 if traits.is_b_mn_major else tile.cluster_m)
    most = min(MAX_ACCUMULATORS, tile.launched_registers - _OTHER_REGISTERS)
    if traits.most_accumulators > MAX_ACCUMULATORS:
        most = min(traits.most_accumulators, tile.registers.consumer - _OTHER_REGISTERS)
    if traits.conversion is not Conversion.NONE and (traits.is_a_pixels or traits.is_b_pixels):
        most = min(most, tile.registers.consumer - _CONVERTING_REGISTERS)
    if traits.conversion is Conversion.REGISTERS:
        most = min(most, _MAX_CONVERTED_ACCUMULATORS // tile.blocks_per_sm) if tile.m == 64 * tile.warpgroups else 0
    fits = tile.m % (64 * tile.warpgroups) == 0 and tile.accumulators <= most
    return fits and tile.m % unit_m == 0 and tile.n % unit_n == 0


def conversion_clocks(functions: int) -> float:
    """Of a multiprocessor, for an element that goes through a functor with so many functions."""
    return 1 / _CONVERTED_PER_CLOCK + functions * _FUNCTION_CLOCKS


def _converted_elements(product: WgmmaProduct, tile: WgmmaTile) -> int:
    """Of one stage."""
    if product.conversion is Conversion.REGISTERS:
        return tile.m * tile.k
    lines = tile.a_lines if product.is_a_pixels else tile.b_lines
    return lines * tile.row_bytes // tile.element_bytes if product.conversion is Conversion.IN_PLACE else 0


def _problem(product: WgmmaProduct, tile: WgmmaTile, machine: _Machine) -> str:
    if tile.n % product.column_unit:
        return f"TILE_N a multiple of {product.column_unit}"
    if not _divides(product, tile):
        return (
            f"TILE_M a multiple of 64 for each warpgroup, at most {product.most_accumulators} accumulators of a thread "
            f"and {_OTHER_REGISTERS} registers beside them, whole groups of {tile.line_unit} rows of a K-major operand "
            f"for each block that shares it; one such multiple, {_MAX_CONVERTED_ACCUMULATORS} accumulators where A "
            "goes through registers"
        )
    if product.is_a_resident and (tile.cluster > 1 or tile.m < product.m):
        return f"one block of at least {product.m} rows, of which A stays in shared memory"
    if product.is_b_resident and (tile.cluster > 1 or tile.n < product.n):
        return f"one block of at least {product.n} columns, of which B stays in shared memory"
    budget = machine.shared_budget(tile)
    if tile.shared_bytes(TileStore.MAP) > budget:
        return f"at most {budget} bytes of shared memory (take fewer stages or a smaller tile)"
    return ""


def _splittings(product: WgmmaProduct, rates: _Rates) -> Counts:
    """In rows: whole, and in as many parts as fill the device about once or twice (whole where none do).

    Blocks that share operands or k have no parts: as measured, waiting for each other costs them more than that saves.
    """
    most = min(product.k_blocks // 4, _MAX_SPLITS) if product.allows_split else 0
    whole = np.ones_like(rates.rows)
    if most < 2:
        return whole[np.newaxis]
    items = rates.items(product.m, product.n, product.batches)
    free = rates.clusters // items
    splits = np.minimum(np.stack((whole, free, 2 * free + 1)), most)
    return np.where((splits >= 2) & (items * splits <= 2 * rates.clusters) & (rates.cluster == 1), splits, 1)


def _group(product: WgmmaProduct, tile: WgmmaTile, machine: _Machine) -> int:
    """Rows of clusters walked together: one where that leaves every cluster the same columns in all of its tiles."""
    if not product.sums_columns:
        return _DEFAULT_GROUP
    columns = WgmmaTiling(tile, 1, 1).schedule(product).columns
    stays = machine.clusters(tile) % columns == 0 and columns <= _MAX_OWN_COLUMNS
    return 1 if stays else _DEFAULT_GROUP


def _seconds(product: WgmmaProduct, rates: _Rates, splits: Counts, machine: _Machine) -> Times:
    """From the start to the end of all launches; splits pay for the one that sums their slices."""
    slice_bytes = _slice_bytes(product, _filled(product, splits))
    reduce_s = machine.launch_s + (slice_bytes + product.output_bytes) / machine.copy_bytes_per_s
    return _START_S + (slice_bytes > 0) * reduce_s + _busy_seconds(product, rates, splits, machine)


def _busy_seconds(product: WgmmaProduct, rates: _Rates, splits: Counts, machine: _Machine) -> Times:
    """Tiles of the busiest multiprocessor, but no less than the bytes take."""
    outputs = product.batches * product.m * product.n
    splits = _filled(product, splits)
    if product.classes:
        turns, stages = _first_in_turn(product, rates, machine)
    else:
        items = rates.items(product.m, product.n, product.batches) * splits
        turns = -(-items * rates.cluster // machine.sm_count)
        stages = turns * -(-product.k_blocks // (splits * rates.parts))
    is_split, is_shared = splits > 1, rates.parts > 1
    multiply, copy = (np.where(turns > 1, full, one) for one, full in (rates.multiply_s, rates.copy_s))
    if not product.classes:
        copy = np.where(2 * items * rates.cluster <= machine.sm_count, rates.lone_copy_s, copy)
    shifted = _shifted_rows(product, rates) * (1 + 1 / turns) / 2
    copy = copy + shifted * (_ASKEW_ROW_COST * STAGE_ROW_BYTES / _L2_BYTES_PER_S)
    stage = np.maximum(multiply, copy + _empty_rows(product, rates) * _EMPTY_ROW_S)
    slice_s = rates.elements * _ACCUMULATOR_BYTES / _STORE_BYTES_PER_S
    stored_s = rates.elements * product.output_bytes / outputs / _STORE_BYTES_PER_S + rates.leaving_s
    turned_s = rates.elements * (_TURNED_ELEMENT_S * product.is_turned)
    store = _STORE_LATENCY_S + np.where(is_split | is_shared, slice_s, stored_s) + turned_s + is_shared * _MEETING_S
    # Blocks on one multiprocessor, and teams in turn, multiply while the others store; copies go on all the time.
    shares_a, shares_b = product.shares_askew
    contention = stages * _SHARED_ROW_S * (rates.a_lines * shares_a + rates.b_lines * shares_b)
    mean_stages = stages if product.classes else stages / turns * items * rates.cluster / machine.sm_count
    multiplied = np.maximum(stages * stage, mean_stages * rates.sustained_s)
    shared = multiplied + contention + turns * _TURN_S + store
    shared = shared + (turns - 1) * (rates.store_loss * store + rates.exposed_s)
    alone = -(-turns // rates.sharers) * (stages / turns * multiply + store)
    busy = np.maximum(shared, alone)
    slice_bytes = _slice_bytes(product, splits)
    reread = (product.a_bytes > _KEPT_BYTES) * product.a_bytes * (rates.columns < product.n)
    reread = reread + (product.b_bytes > _KEPT_BYTES) * product.b_bytes * (rates.rows < product.m)
    moved = product.a_bytes + product.b_bytes + _REREAD_LOSS * reread
    moved = moved + np.where(is_split, slice_bytes, product.output_bytes)
    rate = machine.copy_bytes_per_s * _COPY_RATE
    copied = moved / rate
    if not product.classes:
        # Multiprocessors that have no tile in the last turn leave the others more of the memory than they can read.
        blocks = items * rates.cluster
        last = blocks - (turns - 1) * machine.sm_count
        last_rate = last * np.where(2 * last <= machine.sm_count, _LONE_READ, 1) * _READ_BYTES_PER_S
        copied = np.maximum(copied, moved * (1 - last / blocks) / rate + moved * last / blocks / last_rate)
    times = np.maximum(busy, copied) + _OVERLAP_LOSS * np.minimum(busy, copied)
    times = (
        times - _EARLY_START_S * (rates.leaves_room & (turns == 1)) + _CLUSTER_START_S * (rates.cluster > rates.parts)
    )
    has_all = rates.columns >= product.n if product.is_b_resident else True
    return np.where((product.k_blocks >= rates.parts) & has_all, times, np.inf)


def _empty_rows(product: WgmmaProduct, rates: _Rates) -> Times:
    """Of a block's stage, in the mean: those past the end of an operand, of MN-major ones in whole boxes."""
    empty = np.zeros_like(rates.leaving_s)
    if product.classes or product.rows_continue:
        return empty
    is_a_loaded, is_b_loaded = (
        not (is_pixels or is_resident)
        for is_pixels, is_resident in (
            (product.is_a_pixels, product.is_a_resident),
            (product.is_b_pixels, product.is_b_resident),
        )
    )
    operands = (
        (is_a_loaded, product.is_a_mn_major, product.m, rates.own_rows),
        (is_b_loaded, product.is_b_mn_major, product.n, rates.own_columns),
    )
    for is_loaded, is_mn_major, extent, own in operands:
        if is_loaded:
            box, tiles = MN_MAJOR_BOX if is_mn_major else 1, -(-extent // own)
            last = extent - (tiles - 1) * own
            empty += (-(-own // box) - -(-last // box)) * box / tiles
    return empty


def _shifted_rows(product: WgmmaProduct, rates: _Rates) -> Times:
    """Of a block's stage, those of MN-major boxes that begin amid lines, as those of every other tile do whose columns
    are no whole boxes."""
    lies_in_lines = product.is_b_mn_major and not (product.is_b_askew or product.is_b_resident)
    shifts = lies_in_lines * (rates.own_columns % MN_MAJOR_BOX > 0) * (rates.own_columns < product.n)
    found: Times = rates.b_lines * shifts
    return found


def _filled(product: WgmmaProduct, splits: Counts) -> Counts:
    """``splits`` without those that would be empty."""
    found: Counts = -(-product.k_blocks // -(-product.k_blocks // np.minimum(splits, product.k_blocks)))
    return found


def _slice_bytes(product: WgmmaProduct, splits: Counts) -> Counts:
    """Of a split product's partial sums."""
    return (splits > 1) * splits * (product.batches * product.m * product.n * _ACCUMULATOR_BYTES)


def _first_in_turn(product: WgmmaProduct, rates: _Rates, machine: _Machine) -> tuple[Counts, Counts]:
    """Tiles of the first multiprocessor and their stages: of each turn it has the deepest."""
    step = np.maximum(machine.sm_count // rates.cluster, 1)
    items, turns, stages = np.zeros_like(step), np.zeros_like(step), np.zeros_like(step)
    for m, n, k_blocks in product.classes:
        items = items + rates.items(m, n, product.batches)
        before, turns = turns, -(-items // step)
        stages = stages + (turns - before) * k_blocks
    return turns[np.newaxis], stages[np.newaxis]


def _leaving_seconds(traits: WgmmaProduct, tile: WgmmaTile) -> float:
    """Of a tile's accumulators on their way out, beside their bytes."""
    elements, computed_s = tile.m * tile.n / tile.warpgroups, _function_seconds(traits, tile)
    if traits.is_located:
        return elements / _LOCATED_ELEMENTS_PER_S + computed_s
    chunk_s = _OPERAND_CHUNK_S if traits.has_operand else _PIXELS_CHUNK_S if traits.classes else _CHUNK_S
    chunks = tile.m // (WARPGROUP_ROWS * tile.warpgroups) * (tile.n // gcd(tile.n, _CHUNK_COLUMNS))
    return chunks * chunk_s + computed_s


def _function_seconds(traits: WgmmaProduct, tile: WgmmaTile) -> float:
    """Of the epilogue's functions, for the accumulators of a warpgroup."""
    return tile.m * tile.n / tile.warpgroups * traits.epilogue_functions * _FUNCTION_CLOCKS / _LIGHT_CLOCK_HZ


def _arithmetic_seconds(tile: WgmmaTile, machine: _Machine) -> float:
    """Of one stage, at the rate that the tensor cores sustain, and what they wait for its sums to be added up."""
    return 2 * tile.m * tile.n * tile.k / machine.flops + _PROMOTED_STAGE_S * tile.is_promoted


def _stage_seconds(traits: WgmmaProduct, tile: WgmmaTile, blocks: int, machine: _Machine) -> tuple[float, float]:
    """Of one stage of one tile, ``blocks`` on a multiprocessor: its multiplications; its copies."""
    burst = 1 if traits.is_a_pixels or traits.is_b_pixels else _BURST
    arithmetic = _arithmetic_seconds(tile, machine) / burst
    # Each 64 rows read all of B again; the copies write both operands.
    read = (tile.m // 64) * (64 + tile.n) * tile.row_bytes * tile.taps
    if traits.conversion is Conversion.IN_PLACE:
        read += 2 * _converted_elements(traits, tile) * tile.element_bytes
    shared = (read + tile.stage_bytes) / _SHARED_BYTES_PER_S
    convert = _converted_elements(traits, tile) * conversion_clocks(traits.functions) / _LIGHT_CLOCK_HZ
    return max(arithmetic, shared, convert) + _STAGE_S, _copy_seconds(traits, tile, blocks, _L2_BYTES_PER_S)


def _copy_seconds(traits: WgmmaProduct, tile: WgmmaTile, blocks: int, l2_bytes_per_s: float) -> float:
    """Of one stage's copies."""
    rows, columns = tile.loaded_a_lines / tile.cluster_n, tile.loaded_b_lines / tile.cluster_m
    lines = rows + columns + _ASKEW_ROW_COST * (rows * traits.is_a_askew + columns * traits.is_b_askew)
    line_bytes = max(tile.row_bytes, _HALF_ROW_COST * STAGE_ROW_BYTES)
    if traits.is_a_mn_major and traits.is_b_mn_major:
        line_bytes *= _LINES_OF_K_COST
    pixels = rows * traits.is_a_pixels + columns * traits.is_b_pixels
    pixel_s = _NARROW_PIXEL_S if traits.has_narrow_pixels else _PIXEL_S
    l2 = max(lines * line_bytes / l2_bytes_per_s, pixels * pixel_s)
    # One stage is multiplied while the copies of the others are on their way.
    arrival = _COPY_LATENCY_S + tile.stage_bytes / l2_bytes_per_s
    in_turn = arrival / ((tile.stages - 1) * blocks)
    return max(l2, in_turn)
