"""Tiles of the mma.sync engines: the work of a thread block, and the choice of a tile for a product.

A tile is TILE_M x TILE_N accumulators, spread over a grid of warps, and a ring of STAGES shared-memory stages, each
TILE_K deep (see ``include/tile/tile_mma.cuh``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Knob
from lowdnn.engines.gemm.instructions import MMA_ACCUMULATORS, MMA_UNITS, TRUE_FP32_TERMS
from lowdnn.engines.indices import MAX_INDEX
from lowdnn.engines.launch import MAX_GRID_X, ceil_div, is_dependent
from lowdnn.engines.model.clock import moving_s, stage_latency_s, waves
from lowdnn.engines.model.occupancy import no_tile_fits, shared_room
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.plan import Launch, Struct, Work
from lowdnn.status import BadParamError

#: Numerical notes of an engine with these tiles; those of one plan are ``numerical_notes(data_type)``.
NUMERICAL_NOTES: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE, NumericalNote.TF32_INPUTS)
#: Numerical notes of an engine with these tiles that multiplies FLOAT as accurately as fp32 does.
TRUE_FP32_NOTES: tuple[NumericalNote, ...] = (NumericalNote.TF32X3,)

#: Bytes of a sum.
_ACCUMULATOR_BYTES = 4
#: Accumulators that pad a row of the staging area, so that rows begin in different banks.
_STAGING_PADDING = 8
#: The most stages that the knob offers.
_MAX_STAGES = 5
#: Stages of the default tiles at most.
_DEFAULT_STAGES = 4
#: Stages of the small shape at most: all of a shallow product is in flight at once.
_MAX_SMALL_STAGES = 9
#: Most parts of k.
_MAX_SPLITS = 32
#: Rows and columns of the smallest tile, except the small shape.
_SMALLEST = 64
#: Least bytes of an element for the small shape, whose rows are whole chunks of a swizzle.
_MIN_SMALL_ELEMENT_BYTES = 2
#: Most bytes along k for the small shape: beyond, its short latency no longer matters.
_MAX_SMALL_DEPTH_BYTES = 2048
#: Most accumulators of a thread in any shape.
_ALL_ACCUMULATORS = 128
#: Most accumulators of a thread where operands come in pieces under 16 bytes, by the terms of a product.
_MAX_ACCUMULATORS_WITH_SMALL_PIECES = {1: 64, TRUE_FP32_TERMS: 16}
#: Seconds of a wave before its first multiplication and after its last one; measured on an H200.
_OVERHEAD_S = 2.5e-6
#: Share of that time which the launch's own overhead hides for the first wave.
_LAUNCH_HIDES = 0.7
#: Seconds before the first copy of a kernel that gathers.
_PLACES_S = 0.25e-6
#: Share of the device's copy latency that the 16-byte copies of these kernels take.
_COPY_LATENCY = 0.955
#: Share of the L2 cache's rate at which a multiprocessor copies and stores.
_L2_REACH = 0.48
#: Bytes per second that the epilogues of one multiprocessor load.
_OPERAND_BYTES_PER_S = 7e9
#: Share of the device memory's time that nothing hides.
_EXPOSED = 0.2


@dataclass(frozen=True)
class TileShape:
    """Accumulators of a block and the warps that share them.

    efficiency: throughput of a multiprocessor full of such blocks, relative to the best shape.
    blocks_per_sm: blocks for which a multiprocessor has registers.
    """

    m: int
    n: int
    warps_m: int
    warps_n: int
    efficiency: float
    blocks_per_sm: int

    @cached_property
    def threads(self) -> int:
        return WARP_SIZE * self.warps_m * self.warps_n

    @cached_property
    def accumulators(self) -> int:
        """Accumulators of a thread."""
        return self.m * self.n // self.threads

    @cached_property
    def staging_bytes(self) -> int:
        """Bytes of shared memory in which the epilogue transposes the accumulators
        (``include/epilogue/epilogue_tile.cuh``).
        """
        warp_n = self.n // self.warps_n
        return self.m * self.warps_n * (warp_n + _STAGING_PADDING) * _ACCUMULATOR_BYTES


#: The shape for products that leave most multiprocessors idle: more blocks with shorter chains of latencies.
_SMALL_SHAPE = TileShape(32, 32, 2, 2, 0.3, 3)
_SHAPES = {
    (shape.m, shape.n): shape
    for shape in (
        TileShape(256, 128, 4, 2, 1.0, 1),
        TileShape(128, 256, 2, 4, 1.0, 1),
        TileShape(128, 128, 2, 2, 0.95, 2),
        TileShape(256, 64, 4, 2, 0.72, 1),
        TileShape(64, 256, 2, 4, 0.72, 1),
        TileShape(128, 64, 2, 2, 0.85, 3),
        TileShape(64, 128, 2, 2, 0.85, 3),
        TileShape(64, 64, 2, 2, 0.68, 4),
        _SMALL_SHAPE,
    )
}
#: Shapes for products of several terms: the parts of operands take twice the registers of operands, so that a thread
#: has fewer accumulators.
_TRUE_FP32_SHAPES = {
    (shape.m, shape.n): shape
    for shape in (
        TileShape(128, 64, 4, 2, 1.0, 1),
        TileShape(64, 128, 2, 4, 1.0, 1),
        TileShape(64, 64, 2, 4, 0.85, 1),
        _SMALL_SHAPE,
    )
}


@dataclass(frozen=True)
class MmaTile:
    """A tile shape with the depth (elements) and number of its stages, for operands of ``element_bytes``."""

    shape: TileShape
    k: int
    stages: int
    element_bytes: int

    @cached_property
    def shared_bytes(self) -> int:
        return max(self.stages * self.stage_bytes, self.shape.staging_bytes)

    @cached_property
    def stage_bytes(self) -> int:
        return (self.shape.m + self.shape.n) * self.k * self.element_bytes

    @cached_property
    def label(self) -> str:
        """The tile's part of kernel names."""
        return f"{self.shape.m}x{self.shape.n}x{self.k}_{self.stages}"


@dataclass(frozen=True)
class Product:
    """Extents of ``batches`` products m x n x k of one data type.

    allows_split: whether the kernel can cut k into parts that are summed later.
    allows_small_shape: whether its warps' parts can be 16 x 16, which reductions do not allow.
    has_small_pieces: operands are copied in pieces under 16 bytes, whose addresses take registers that the largest warp
    tiles do not leave.  gathers: a piece's address depends on its tap and its pixel.
    operands: tensors of the output's size that the epilogue loads.
    terms: TF32 products that make one product of FLOAT; ``TRUE_FP32_TERMS`` for the accuracy of fp32.
    """

    data_type: DataType
    batches: int
    m: int
    n: int
    k: int
    allows_split: bool = True
    allows_small_shape: bool = False
    has_small_pieces: bool = False
    gathers: bool = False
    operands: int = 0
    terms: int = 1

    @cached_property
    def element_bytes(self) -> int:
        return dtypes.info(self.data_type).size_bytes

    @property
    def c_type(self) -> str:
        """The type of the operands in the kernel, which says how they are multiplied."""
        return dtypes.info(self.data_type).c_type if self.terms == 1 else "tf32x3"

    @property
    def type_label(self) -> str:
        """The type's part of kernel names."""
        return dtypes.info(self.data_type).short_name if self.terms == 1 else "tf32x3"

    @property
    def most_accumulators(self) -> int:
        """Accumulators of a thread at most."""
        return _MAX_ACCUMULATORS_WITH_SMALL_PIECES[self.terms] if self.has_small_pieces else _ALL_ACCUMULATORS

    def slowdown(self, k_tiles: int) -> float:
        """The factor by which small pieces slow a block of ``k_tiles`` down, measured on an H200."""
        if not self.has_small_pieces:
            return 1.0
        return 3.0 + 5.0 / k_tiles if self.gathers else 2.0

    @property
    def smallest_tiles(self) -> int:
        """Blocks of an unsplit product with the smallest tile."""
        return self.batches * ceil_div(self.m, _SMALLEST) * ceil_div(self.n, _SMALLEST)

    @property
    def shapes(self) -> tuple[TileShape, ...]:
        """Shapes that the kernel can compute."""
        allows_small_shape = self.allows_small_shape and self.element_bytes >= _MIN_SMALL_ELEMENT_BYTES
        shapes = _shapes_by_extents(self.terms).values()
        return tuple(shape for shape in shapes if allows_small_shape or shape is not _SMALL_SHAPE)

    def suits_small_shape(self, arch: ArchSpec) -> bool:
        """Whether even four times its smallest tiles would each have their own multiprocessor, and k is not deep."""
        has_room = _SMALL_SHAPE in self.shapes and 4 * self.smallest_tiles <= arch.sm_count
        return has_room and self.k * self.element_bytes <= _MAX_SMALL_DEPTH_BYTES

    @property
    def may_split(self) -> bool:
        """Whether k may be split: the slice sum counts outputs in 32 bits, and so does the grid its blocks."""
        fits = self.batches * self.m * self.n <= MAX_INDEX
        return self.allows_split and fits and self.smallest_tiles * _MAX_SPLITS <= MAX_GRID_X


@dataclass(frozen=True)
class Tiling:
    """How a product is cut: the tile, tiles along m and n, parts of k, and k tiles of each part."""

    tile: MmaTile
    rows: int
    columns: int
    splits: int
    split_tiles: int

    @classmethod
    def of(cls, product: Product, tile: MmaTile, splits: int) -> Tiling:
        """``splits`` is cut down so that no part is empty."""
        k_tiles = max(ceil_div(product.k, tile.k), 1)
        split_tiles = ceil_div(k_tiles, min(splits, k_tiles))
        rows, columns = ceil_div(product.m, tile.shape.m), ceil_div(product.n, tile.shape.n)
        return cls(tile, rows, columns, ceil_div(k_tiles, split_tiles), split_tiles)

    def block_count(self, product: Product) -> int:
        return self.rows * self.columns * product.batches * self.splits

    def launch(self, kernel: int, product: Product, arguments: Struct, moved_bytes: int, arch: ArchSpec) -> Launch:
        """The launch of a product's kernel, which moves ``moved_bytes`` of device memory."""
        return Launch(
            kernel,
            grid=(self.block_count(product), 1, 1),
            block=(self.tile.shape.threads, 1, 1),
            arguments=(arguments,),
            shared_bytes=self.tile.shared_bytes,
            work=Work(
                flops=round(self.flops(product) * product.slowdown(self.split_tiles)),
                bytes=moved_bytes,
                unit=MMA_UNITS[product.data_type],
                busy_s=self._busy_s(product, arch) + _EXPOSED * moved_bytes / arch.copy_bytes_per_s,
            ),
            overlaps_previous=is_dependent(arch),
        )

    def _busy_s(self, product: Product, arch: ArchSpec) -> float:
        """Seconds of the launch's work. Blocks of a multiprocessor share its copy rate; a copy's latency overlaps other
        stages'.

        The launch hides the overhead of a wave that leaves room for more blocks.
        """
        tile, shape, blocks = self.tile, self.tile.shape, self.block_count(product)
        bytes_per_s = _L2_REACH * arch.timings.l2_bytes_per_s
        together = min(shape.blocks_per_sm, ceil_div(blocks, arch.sm_count))
        stage_s = max(_COPY_LATENCY * stage_latency_s(arch, tile.stages - 1), together * tile.stage_bytes / bytes_per_s)
        tile_bytes = together * shape.m * shape.n * product.element_bytes
        stored_s = tile_bytes / bytes_per_s + product.operands * tile_bytes / _OPERAND_BYTES_PER_S
        full_waves = blocks / (arch.sm_count * shape.blocks_per_sm)
        exposed = max(full_waves, together / shape.blocks_per_sm) - _LAUNCH_HIDES
        wave_s = self.split_tiles * stage_s + stored_s
        return max(exposed, 0.0) * _OVERHEAD_S + max(full_waves, 1.0) * wave_s + product.gathers * _PLACES_S

    def flops(self, product: Product) -> int:
        """Operations, with partial tiles counted in full."""
        shape = self.tile.shape
        return 2 * product.terms * self.block_count(product) * shape.m * shape.n * self.split_tiles * self.tile.k


def numerical_notes(data_type: DataType, terms: int = 1) -> tuple[NumericalNote, ...]:
    """Notes of a plan for operands of ``data_type``: only FLOAT is converted down, to TF32, or multiplied in terms."""
    if terms == TRUE_FP32_TERMS:
        return TRUE_FP32_NOTES
    return NUMERICAL_NOTES if data_type is DataType.FLOAT else (NumericalNote.TENSOR_CORE,)


def padding(extent: int) -> float:
    """Rows or columns that the smallest tiles cover, as a multiple of ``extent``."""
    return ceil_div(extent, _SMALLEST) * _SMALLEST / max(extent, 1)


def refuse_types(operands: Mapping[str, DataType], compute: tuple[str, DataType], terms: int = 1) -> str:
    """Why there is no mma.sync instruction for the types of two operands, or an empty string.

    operands: data types by field name.  compute: name and value of the field for the type of the sums.
    terms: see ``Product``.
    """
    taken = tuple(MMA_ACCUMULATORS) if terms == 1 else (DataType.FLOAT,)
    (first, first_type), (second, second_type) = operands.items()
    if first_type is not second_type:
        return f"{second}.data_type: expected {first_type.name} as {first}, got {second_type.name}"
    if first_type not in taken:
        known = ", ".join(t.name for t in taken)
        return f"{first}.data_type: expected one of {known}, got {first_type.name}"
    where, compute_type = compute
    if compute_type is DataType.DOUBLE:
        return f"{where}: expected FLOAT, HALF or INT32, got DOUBLE"
    return ""


def knobs(product: Product, arch: ArchSpec) -> tuple[Knob, ...]:
    """TILE_M, TILE_N, TILEK, STAGES and SPLIT_K_SLC; the defaults have the least time by a model of waves."""
    best = best_tiling(product, arch)
    depths = tuple(row_bytes // product.element_bytes for row_bytes in (64, 128))
    splits = (1, 2, 4, 8, 16, _MAX_SPLITS) if product.may_split else (1,)
    values = tuple(sorted({*splits, best.splits}))
    sides = tuple(sorted({shape.m for shape in product.shapes}))
    most_stages = _MAX_SMALL_STAGES if _SMALL_SHAPE in product.shapes else _MAX_STAGES
    return (
        Knob("tile_m", KnobType.TILE_M, sides, best.tile.shape.m, "rows of the product a block computes"),
        Knob("tile_n", KnobType.TILE_N, sides, best.tile.shape.n, "columns of the product a block computes"),
        Knob("tile_k", KnobType.TILEK, depths, best.tile.k, "depth of one pipeline stage, elements"),
        Knob("stages", KnobType.STAGES, tuple(range(2, most_stages + 1)), best.tile.stages, "pipeline stages"),
        Knob("split_k", KnobType.SPLIT_K_SLC, values, best.splits, "parts of k, summed in a second launch"),
    )


def reduction_problem(product: Product, arch: ArchSpec) -> str:
    """Why the output of ``product`` is better reduced by a launch of its own: with fused reductions k is not split."""
    splits = best_tiling(product, arch).splits
    return f"operations: expected a product that is not faster in parts of k, got {splits} parts" if splits > 1 else ""


def tiling_of(engine: str, product: Product, arch: ArchSpec, chosen: Mapping[KnobType, int]) -> Tiling:
    """The tiling of resolved knobs; raises BadParamError for a tile that does not exist or exceeds shared memory."""
    shape = _shapes_by_extents(product.terms).get((chosen[KnobType.TILE_M], chosen[KnobType.TILE_N]))
    if shape is None:
        got = f"{chosen[KnobType.TILE_M]} x {chosen[KnobType.TILE_N]}"
        known = ", ".join(f"{shape.m} x {shape.n}" for shape in product.shapes)
        raise BadParamError.at(f"{engine}.TILE_M, TILE_N", expected=f"one of {known}", got=got)
    tile = MmaTile(shape, chosen[KnobType.TILEK], chosen[KnobType.STAGES], product.element_bytes)
    if tile.shared_bytes > arch.shared_bytes_per_block:
        raise BadParamError.at(
            f"{engine}.STAGES",
            expected=f"at most {arch.shared_bytes_per_block} bytes of shared memory on {arch.name}",
            got=f"{tile.shared_bytes} bytes",
            hint="take fewer stages or a smaller tile",
        )
    return Tiling.of(product, tile, chosen[KnobType.SPLIT_K_SLC])


def busy_launch(product: Product, arch: ArchSpec) -> Launch:
    """A launch no longer than that of the product's kernel with its default tiling, whatever bytes that moves."""
    return best_tiling(product, arch).launch(0, product, Struct(()), 0, arch)


def _shapes_by_extents(terms: int) -> Mapping[tuple[int, int], TileShape]:
    """The shapes by (m, n) of products of so many terms."""
    return _SHAPES if terms == 1 else _TRUE_FP32_SHAPES


@lru_cache(maxsize=1024)
def best_tiling(product: Product, arch: ArchSpec) -> Tiling:
    """The tiling with the least modelled time; raises SharedMemoryInsufficientError where no tile fits."""
    row_bytes = 128 if product.k * product.element_bytes > 64 else 64
    # More stages than k can fill would only take shared memory.
    filled = max(2, ceil_div(product.k * product.element_bytes, row_bytes) + 1)
    suits_small_shape = product.suits_small_shape(arch)
    large_shapes = tuple(shape for shape in _shapes_by_extents(product.terms).values() if shape is not _SMALL_SHAPE)
    shapes = (_SMALL_SHAPE,) if suits_small_shape else large_shapes
    stages = min(filled, _MAX_SMALL_STAGES if suits_small_shape else _DEFAULT_STAGES)
    tiles = _default_tiles(shapes, row_bytes, product.element_bytes, stages, product.most_accumulators, arch)
    rate = arch.attained_rate(MMA_UNITS[product.data_type]) / arch.sm_count
    if not tiles:
        raise no_tile_fits(arch)
    candidates = (tiling for tile in tiles for tiling in _splittings(product, tile, arch))
    return min(candidates, key=lambda tiling: _seconds(product, tiling, rate, arch))


@lru_cache(maxsize=256)
def _default_tiles(
    shapes: tuple[TileShape, ...],
    row_bytes: int,
    element_bytes: int,
    most_stages: int,
    most_accumulators: int,
    arch: ArchSpec,
) -> tuple[MmaTile, ...]:
    """Each of ``shapes`` with stages of ``row_bytes`` along k, as many as let its blocks share a multiprocessor."""
    tiles: list[MmaTile] = []
    for shape in shapes:
        if shape.accumulators > most_accumulators:
            continue
        budget = shared_room(arch, shape.blocks_per_sm)
        stages = min(budget // ((shape.m + shape.n) * row_bytes), most_stages)
        if stages >= 2 and shape.staging_bytes <= budget:
            tiles.append(MmaTile(shape, row_bytes // element_bytes, stages, element_bytes))
    return tuple(tiles)


def _splittings(product: Product, tile: MmaTile, arch: ArchSpec) -> Iterator[Tiling]:
    whole = Tiling.of(product, tile, 1)
    yield whole
    free = arch.sm_count * tile.shape.blocks_per_sm // max(whole.block_count(product), 1)
    if free >= 2 and whole.split_tiles >= 8 and product.may_split:
        yield Tiling.of(product, tile, min(free, whole.split_tiles // 4, _MAX_SPLITS))


def _seconds(product: Product, tiling: Tiling, rate: float, arch: ArchSpec) -> float:
    """Seconds of the waves of blocks: blocks on one multiprocessor share its tensor cores and hide each other's
    overhead.

    rate: operations per second of the best shape on one multiprocessor.
    A split adds a write and a read of its slices, and a launch.
    """
    shape = tiling.tile.shape
    flops = 2 * product.terms * shape.m * shape.n * tiling.tile.k * tiling.split_tiles
    block_s = flops / (rate * shape.efficiency)

    def wave_s(blocks: int) -> float:
        return max(blocks * block_s, block_s + _OVERHEAD_S)

    seconds = waves(ceil_div(tiling.block_count(product), arch.sm_count), shape.blocks_per_sm, wave_s)
    if tiling.splits > 1:
        outputs = product.batches * product.m * product.n
        seconds += moving_s(arch, 2 * tiling.splits * outputs * _ACCUMULATOR_BYTES)
    return seconds
