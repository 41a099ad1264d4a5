"""The plan of ``conv_depthwise_lines_mma.cu``: forward pass and data gradient along lines on tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.conv.depthwise.line_axes import class_room, lanes_reason
from lowdnn.engines.conv.depthwise.line_cost import MAX_SHARED_BYTES, LineWork, parts_of, refuse_elements
from lowdnn.engines.conv.depthwise.line_pass import BlockShape, LinePass
from lowdnn.engines.launch import ceil_div, divider, i32, i64, macros, target_label
from lowdnn.enums import DataType, KnobType
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer

#: Targets of a strip.
STRIP = 8
#: Strips of one matrix product.
ROWS = 16
#: Samples of one matrix product.
DEPTH = 16

#: Choices of the tiles of strips of a warp's task.
TILES = (1, 2, 3, 4)
#: Choices of the threads of a block.
BLOCK_SIZES = (128, 256)
#: Choices of the strips of a block along a line.
STRIPS = tuple(range(1, 257))
#: Choices of the rows of a block.
UNITS = tuple(range(1, 65))

#: Warps of the smallest block, each of which needs a line.
_WARPS = 4
#: Lanes of a group that writes to the same banks as others without a skew.
_SKEWED_LANES = 8
#: Elements of shared memory that separate such groups.
_SKEW = 16
#: Elements of 16 bytes, within which a line's first access may begin before its samples.
_MAX_VECTOR = 8
#: Strips of a whole block that the search tries.
_WANTED_STRIPS = (128, 256, 512, 1024)

#: Instructions of a task.
_TASK = 50
#: Instructions of a step of a task.
_STEP = 12
#: Instructions of each tile in a step.
_TILE_STEP = 5
#: Instructions for the sums of a tile.
_TILE_SUMS = 32
#: Instructions of a copy.
_COPY = 20
#: Measured time as a multiple of the estimate.
_SLOWER = 1.1
#: That multiple with lanes, whose samples are transposed.
_SLOWER_LANES = 1.75
#: Registers of a thread, by the kernel's launch bounds.
_REGISTERS = 64


@dataclass(frozen=True)
class Params:
    """The macros of ``conv_depthwise_lines_mma.cu``, described there."""

    X_TYPE: str
    LANES: int
    VECTOR: int
    RUN: int
    CLASSES: int
    TILES: int
    THREADS: int


@dataclass(frozen=True)
class MmaLinesTile:
    """A block's work: ``strips`` strips along a line, for ``channels`` channels and ``batches`` batches, in tasks of
    ``tiles`` tiles.

    lanes: channels in neighbouring threads; if it is more than 1, ``channels`` is 1.
    """

    lanes: int
    strips: int
    channels: int
    batches: int
    tiles: int
    threads: int

    @property
    def shape(self) -> BlockShape:
        return BlockShape(self.lanes, self.strips * STRIP, self.channels, self.batches)

    @property
    def block_channels(self) -> int:
        return self.lanes * self.channels

    @property
    def task_radices(self) -> tuple[int, int, int]:
        """Groups of tiles of a line, channels, batches."""
        return ceil_div(self.strips, self.tiles * ROWS), self.block_channels, self.batches


@dataclass(frozen=True)
class LineProduct(LinePass):
    """A pass from lines of sources to lines of targets, by products with bands of weights."""

    @cached_property
    def vector(self) -> int:
        """Elements of the source in one access of the widest block."""
        return min(self.lines.vector(self.source, n, self.axis.spacing) for n in self.lines.lanes(self.source))

    @cached_property
    def depth(self) -> int:
        """Steps over the samples that a strip reads, from the beginning of an access on."""
        return ceil_div(self.axis.taps + (STRIP - 1) * self.axis.step + _MAX_VECTOR - 1, DEPTH)

    @cached_property
    def zeros(self) -> int:
        """Zeros in front of a channel's weights."""
        return (STRIP - 1) * self.axis.step + _MAX_VECTOR

    def refuse(self) -> str:
        """Why the kernel cannot take the shape, or an empty string."""
        reason = self.lines.refuse(self.axis, (self.source,)) or refuse_elements(self.lines.axis.taps, self.vector)
        if reason:
            return reason
        types = {self.source.data_type, self.geometry.operation.filter.data_type}
        if types not in ({DataType.HALF}, {DataType.BFLOAT16}):
            return "expected operands of one type of 16 bits"
        if not any(True for _ in self.tiles()):
            return f"expected a filter that fits shared memory, got {self.axis.taps} taps"
        return ""

    def samples(self, tile: MmaLinesTile) -> int:
        """Samples of a line in shared memory."""
        count = (tile.strips - 1) * STRIP * self.axis.step + self.depth * DEPTH
        return ceil_div(count, _MAX_VECTOR) * _MAX_VECTOR

    def pitches(self, tile: MmaLinesTile) -> tuple[int, int]:
        """Elements from one batch's samples to the next batch's, and from one channel's to the next channel's."""
        samples = self.samples(tile)
        skews = tile.lanes // _SKEWED_LANES if tile.lanes > 1 else 0
        return tile.block_channels * samples + skews * _SKEW, samples

    @property
    def weights_pitch(self) -> int:
        return self.zeros + self.depth * DEPTH

    def places(self, tile: MmaLinesTile) -> tuple[int, int, int, int]:
        """Offsets in shared memory of weights, sums and the rows' offsets, and the end, in words."""
        shape = tile.shape
        weights = tile.batches * self.pitches(tile)[0] // 2
        sums = ceil_div(weights + tile.block_channels * self.weights_pitch // 2, 4) * 4
        padding = shape.targets * tile.batches if tile.lanes > 1 else 0
        offsets = ceil_div(sums + shape.all_targets + padding, 2) * 2
        return weights, sums, offsets, offsets + 2 * tile.channels * tile.batches

    def shared_bytes(self, tile: MmaLinesTile) -> int:
        return 4 * self.places(tile)[3]

    def work(self, tile: MmaLinesTile) -> LineWork:
        """The cost of a block's work."""
        task = _TASK + self.depth * (_STEP + _TILE_STEP * tile.tiles) + _TILE_SUMS * tile.tiles
        tasks = ceil_div(prod(tile.task_radices), tile.threads // WARP_SIZE)
        vectors = self.samples(tile) * tile.block_channels * tile.batches // self.vector
        copied = ceil_div(vectors, tile.threads) * _COPY
        weights = ceil_div(tile.block_channels * self.weights_pitch, tile.threads) * 30
        return LineWork(
            blocks=prod(self.digits(tile.shape)),
            threads=tile.threads,
            instructions=tasks * task + copied + weights + self.epilogue_instructions(tile.shape, tile.threads),
            stages=1,
            registers=_REGISTERS,
            shared_bytes=self.shared_bytes(tile),
        )

    def fits(self, tile: MmaLinesTile) -> bool:
        return self.shared_bytes(tile) <= MAX_SHARED_BYTES

    def tiles(self) -> Iterator[MmaLinesTile]:
        """Candidates: even parts of a line, and as many rows as make up the wanted strips."""
        for wanted in _WANTED_STRIPS:
            for shape in self._shapes(wanted):
                for tiles in TILES:
                    for threads in BLOCK_SIZES:
                        tile = MmaLinesTile(*shape, tiles, threads)
                        if self.fits(tile) and prod(tile.task_radices) * WARP_SIZE >= threads:
                            yield tile

    def _shapes(self, wanted: int) -> Iterator[tuple[int, int, int, int]]:
        """Shapes of a block: lanes, strips, channels, batches."""
        strips = ceil_div(self.axis.count, STRIP)
        for lanes in self.lines.lanes(self.source):
            for part in parts_of(strips, min(wanted // lanes, STRIPS[-1]), 2):
                rows = max(1, wanted // (lanes * part))
                rows -= rows % _WARPS if rows > _WARPS else 0
                for channels in (n for n in (1, 2, 4, 8, 16) if n <= rows) if lanes == 1 else (1,):
                    if channels < 2 * self.geometry.channels:
                        yield lanes, part, channels, min(ceil_div(rows, channels), self.lines.batch_count, UNITS[-1])


def kernel(product: LineProduct, tile: MmaLinesTile, functor: Functor, target: str) -> KernelRef:
    """The kernel for ``target`` (``dependent_target``)."""
    info = dtypes.info(product.source.data_type)
    params = Params(
        X_TYPE=info.c_type,
        LANES=tile.lanes,
        VECTOR=product.vector,
        RUN=product.run(tile.lanes),
        CLASSES=class_room(product.axis),
        TILES=tile.tiles,
        THREADS=tile.threads,
    )
    shape = f"l{tile.lanes}v{params.VECTOR}r{params.RUN}_k{params.CLASSES}_m{tile.tiles}b{tile.threads}"
    return KernelRef(
        name=f"conv_depthwise_lines_mma_{info.short_name}_{shape}_{target_label(target)}_{functor.digest}",
        source="conv/depthwise/conv_depthwise_lines_mma.cu",
        target=target,
        parameters=macros(params),
        generated=functor.text,
    )


def launch(product: LineProduct, tile: MmaLinesTile, functor: Functor) -> Launch:
    lines, source, w = product.lines, product.source, product.geometry.operation.filter
    weights_place, sums_place, offsets_place, _ = product.places(tile)
    arguments = Struct(
        (
            TensorPointer(source.uid),
            TensorPointer(w.uid),
            *i64((w.strides[0], lines.stride(w))),
            lines.lines(source, product.axis.extent),
            *i32((*product.pitches(tile), product.weights_pitch, product.zeros, product.depth)),
            *(Struct(divider(radix)) for radix in tile.task_radices),
            *i32((prod(tile.task_radices), weights_place, sums_place, offsets_place)),
            product.targets(tile.shape, functor),
        )
    )
    return Launch(
        kernel=0,
        grid=(prod(product.digits(tile.shape)), 1, 1),
        block=(tile.threads, 1, 1),
        arguments=(arguments,),
        shared_bytes=product.shared_bytes(tile),
        work=product.launch_work,
    )


def functor_of(product: LineProduct, tile: MmaLinesTile) -> Functor:
    return product.functor(tile.lanes)


def knobs(product: LineProduct, arch: ArchSpec) -> tuple[Knob, ...]:
    best = best_tile(product, arch)
    return (
        Knob("lanes", KnobType.CHANNEL_LANES, product.lines.lanes(product.source), best.lanes, "channels of a row"),
        Knob("strips", KnobType.BLOCK_COLS, STRIPS, best.strips, "strips of eight targets of a block along a line"),
        Knob("channels", KnobType.BLOCK_CHANNELS, UNITS, best.channels, "rows of a block along the channels"),
        Knob("batches", KnobType.BLOCK_BATCHES, UNITS, best.batches, "rows of a block along the batches"),
        Knob("tiles", KnobType.WARP_TILES, TILES, best.tiles, "tiles of 16 strips of a warp's task"),
        Knob("block_size", KnobType.BLOCK_SIZE, BLOCK_SIZES, best.threads, "threads of a block"),
    )


def tile_of(product: LineProduct, chosen: Choices) -> MmaLinesTile | str:
    """The tile of resolved knobs, or why there is none."""
    tile = MmaLinesTile(
        lanes=chosen[KnobType.CHANNEL_LANES],
        strips=chosen[KnobType.BLOCK_COLS],
        channels=chosen[KnobType.BLOCK_CHANNELS],
        batches=chosen[KnobType.BLOCK_BATCHES],
        tiles=chosen[KnobType.WARP_TILES],
        threads=chosen[KnobType.BLOCK_SIZE],
    )
    if (reason := lanes_reason(tile.lanes, tile.channels)) is not None:
        return reason
    if product.fits(tile):
        return tile
    return f"knob_choices: expected a block of at most {MAX_SHARED_BYTES} bytes, got {product.shared_bytes(tile)}"


@lru_cache(maxsize=128)
def best_tile(product: LineProduct, arch: ArchSpec) -> MmaLinesTile:
    """The fastest tile by ``estimated_s``."""
    return min(product.tiles(), key=lambda tile: estimated_s(product, tile, arch))


def estimated_s(product: LineProduct, tile: MmaLinesTile, arch: ArchSpec) -> float:
    slower = _SLOWER_LANES if tile.lanes > 1 else _SLOWER
    return slower * product.work(tile).seconds(product.moved_bytes, arch)
