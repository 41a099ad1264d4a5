"""The plan of ``conv_depthwise_filter_lines.cu``: filter gradients with taps along one axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.conv.depthwise.axes import Axis
from lowdnn.engines.conv.depthwise.geometry import DepthwiseGeometry
from lowdnn.engines.conv.depthwise.line_axes import CHUNK, LineGeometry, Staged, class_room, lanes_reason, whole_chunks
from lowdnn.engines.conv.depthwise.line_cost import (
    MAX_SHARED_BYTES,
    MAX_THREADS,
    LineWork,
    add_instructions,
    copy_instructions,
    parts_of,
    refuse_elements,
    whole_warps,
)
from lowdnn.engines.launch import bytes_of, ceil_div, divider, i32, macros, target_label
from lowdnn.enums import KnobType
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, TensorPointer, Work, WorkspacePointer

#: Taps of a thread.
STRIPS = (4, 8, 12, 16, 20, 24, 28, 32)
#: Positions of a thread: odd multiples of a chunk, so that neighbouring threads read different banks of shared memory.
SEGMENTS = (12, 20, 28, 36, 44, 52, 60)
UNITS = tuple(range(1, MAX_THREADS + 1))
SHARES = tuple(range(1, 65))
_MAX_VECTOR = 8

#: Blocks on each multiprocessor that the search tries.
_WANTED_BLOCKS = (1, 2, 3, 4)
#: Instructions of a thread to combine one sum at a block's end.
_SUM = 40
#: Instructions for each unit's part of the sum.
_PART = 6
#: Measured time as a multiple of the estimate.
_SLOWER = 1.7
#: Registers of a thread in addition to its sums and its window.
_OTHER_REGISTERS = 32


@dataclass(frozen=True)
class Params:
    """The macros of ``conv_depthwise_filter_lines.cu``, described there."""

    X_TYPE: str
    DY_TYPE: str
    LANES: int
    STRIP: int
    X_VECTOR: int
    DY_VECTOR: int
    CLASSES: int


@dataclass(frozen=True)
class FilterLinesTile:
    """A block's work: threads of ``strip`` taps and ``segment`` positions, ``segments`` of them along a line, for
    ``channels`` channels and ``batches`` batches.

    lanes: channels in neighbouring threads; if it is more than 1, ``channels`` is 1.  shares: parts of all items.
    """

    lanes: int
    strip: int
    segment: int
    segments: int
    channels: int
    batches: int
    shares: int

    @property
    def positions(self) -> int:
        """Positions of a block along a line."""
        return self.segment * self.segments

    @property
    def rows(self) -> int:
        return self.channels * self.batches

    @property
    def units(self) -> int:
        """Threads with the same taps."""
        return self.segments * self.rows


@dataclass(frozen=True)
class LineFilterGradient:
    """The gradient dw from x and dy; the kernel defines phases, items and shares."""

    geometry: DepthwiseGeometry
    lines: LineGeometry

    @cached_property
    def axis(self) -> Axis:
        return self.lines.axis.forward()

    @property
    def image(self) -> Tensor:
        return self.geometry.operation.image

    @property
    def response(self) -> Tensor:
        return self.geometry.operation.response

    @cached_property
    def taps(self) -> int:
        """The most taps of any phase."""
        return ceil_div(self.axis.taps, self.axis.step)

    @cached_property
    def phases(self) -> int:
        return min(self.axis.step, self.axis.taps)

    @cached_property
    def vectors(self) -> tuple[int, int]:
        """Elements of x and of dy in one access."""
        axis, lanes = self.axis, self.lines.lanes(self.image)
        return (
            min(self.lines.vector(self.image, n, axis.step * axis.spacing) for n in lanes),
            min(self.lines.vector(self.response, n, axis.target_step) for n in lanes),
        )

    @property
    def read_bytes(self) -> int:
        return bytes_of((self.image, self.response))

    @property
    def elements(self) -> int:
        return self.geometry.operation.filter.element_count

    def refuse(self) -> str:
        """Why the kernel cannot take the shape, or an empty string."""
        reason = self.lines.refuse(self.axis, (self.image, self.response))
        reason = reason or refuse_elements(self.lines.axis.taps, min(self.vectors))
        if reason:
            return reason
        if not any(True for _ in self.tiles()):
            return f"expected a filter that fits a block's threads, got {self.axis.taps} taps"
        return ""

    def strips(self, tile: FilterLinesTile) -> int:
        """Threads along the taps. The first tap may lie inside a chunk, which adds up to a chunk of unused taps."""
        return ceil_div(self.taps + self._most_shift(tile.lanes), tile.strip)

    def threads(self, tile: FilterLinesTile) -> int:
        return whole_warps(tile.lanes * tile.units * self.strips(tile))

    def staged(self, tile: FilterLinesTile) -> tuple[Staged, Staged]:
        """Rows of x and of dy in shared memory."""
        x_vector, dy_vector = self.vectors
        halo = self.strips(tile) * tile.strip + (x_vector - 1 if tile.lanes == 1 else 0)
        x = Staged.of(tile.positions, whole_chunks(halo), tile.lanes, x_vector)
        return x, Staged.of(tile.positions, 0, tile.lanes, dy_vector)

    def places(self, tile: FilterLinesTile) -> tuple[int, int, int]:
        """Offsets in shared memory of dy's rows and of the rows' offsets, and the size of shared memory; in words."""
        x, dy = self.staged(tile)
        dy_place = tile.rows * x.pitch
        sums = tile.units * self.strips(tile) * (tile.strip * tile.lanes if tile.lanes > 1 else tile.strip + 1)
        offsets = max(dy_place + tile.rows * dy.pitch, sums + sums % 2)
        return dy_place, offsets, offsets + 4 * tile.rows

    def shared_bytes(self, tile: FilterLinesTile) -> int:
        return 4 * self.places(tile)[2]

    def fits(self, tile: FilterLinesTile) -> bool:
        is_whole = tile.lanes > 1 or tile.positions % _MAX_VECTOR == 0
        return is_whole and self.threads(tile) <= MAX_THREADS and self.shared_bytes(tile) <= MAX_SHARED_BYTES

    def items(self, tile: FilterLinesTile) -> tuple[int, int, int]:
        """The numbers of classes, of tiles along a line, and of blocks of batches; an item's number counts over them,
        classes fastest."""
        tiles = ceil_div(self.axis.count, tile.positions)
        return len(self.axis.classes), tiles, ceil_div(self.lines.batch_count, tile.batches)

    def digits(self, tile: FilterLinesTile) -> tuple[int, int, int]:
        """The radices of a block's number, the fastest first."""
        return self.phases, ceil_div(self.geometry.channels, tile.lanes * tile.channels), tile.shares

    def work(self, tile: FilterLinesTile) -> LineWork:
        """The cost of a block's work."""
        threads, stages = self.threads(tile), ceil_div(prod(self.items(tile)), tile.shares)
        copied = sum(
            ceil_div(one.vectors * tile.rows, threads) * copy_instructions(one.vector) for one in self.staged(tile)
        )
        sums = ceil_div(self.taps * tile.lanes * tile.channels, threads)
        added = sums * (_SUM + _PART * tile.units // tile.channels) + 3 * tile.strip
        return LineWork(
            blocks=prod(self.digits(tile)),
            threads=threads,
            instructions=stages * (add_instructions(tile.strip, tile.segment, tile.lanes) + copied) + added,
            stages=stages,
            registers=2 * tile.strip + _OTHER_REGISTERS,
            shared_bytes=self.shared_bytes(tile),
        )

    def tiles(self) -> Iterator[FilterLinesTile]:
        """Candidate tiles with one share: a line is cut into even parts, and a block has as many rows as fit."""
        for lanes in self.lines.lanes(self.image):
            for strip in (s for s in STRIPS if s < 2 * self.taps or s == STRIPS[0]):
                for segment in (s for s in SEGMENTS if s < 2 * self.axis.count or s == SEGMENTS[0]):
                    one = FilterLinesTile(lanes, strip, segment, 1, 1, 1, 1)
                    room = MAX_THREADS // (lanes * self.strips(one))
                    for segments in parts_of(ceil_div(self.axis.count, segment), room, 2) if room else ():
                        whole = segments + (segments % 2 if lanes == 1 else 0)
                        yield from (t for t in self._with_rows(replace(one, segments=whole), room) if self.fits(t))

    def sharing(self, tile: FilterLinesTile, arch: ArchSpec) -> Iterator[FilterLinesTile]:
        """The tile with the numbers of shares that give ``_WANTED_BLOCKS`` blocks on each multiprocessor."""
        most = min(prod(self.items(tile)), SHARES[-1])
        counts = {wanted * arch.sm_count // prod(self.digits(tile)) for wanted in _WANTED_BLOCKS}
        yield from (replace(tile, shares=min(max(count, 1), most)) for count in sorted(counts))

    def _with_rows(self, one: FilterLinesTile, room: int) -> Iterator[FilterLinesTile]:
        rows = max(1, room // one.segments)
        for channels in parts_of(self.geometry.channels, rows, 2) if one.lanes == 1 else (1,):
            for batches in parts_of(self.lines.batch_count, rows // channels, 1):
                yield replace(one, channels=channels, batches=batches)

    def _most_shift(self, lanes: int) -> int:
        """The most samples, over all classes, from the beginning of a chunk to the sample that tap 0 reads."""
        if lanes > 1:
            return 0
        return max(one.source % self.vectors[0] % CHUNK for one in self.axis.classes)


def filter_kernel(gradient: LineFilterGradient, tile: FilterLinesTile, target: str) -> KernelRef:
    """The kernel for ``target`` (``dependent_target``)."""
    x_vector, dy_vector = gradient.vectors
    params = Params(
        X_TYPE=dtypes.info(gradient.image.data_type).c_type,
        DY_TYPE=dtypes.info(gradient.response.data_type).c_type,
        LANES=tile.lanes,
        STRIP=tile.strip,
        X_VECTOR=x_vector,
        DY_VECTOR=dy_vector,
        CLASSES=class_room(gradient.axis),
    )
    types = "_".join(dtypes.info(t.data_type).short_name for t in (gradient.image, gradient.response))
    shape = f"l{tile.lanes}w{tile.strip}v{x_vector}x{dy_vector}_k{params.CLASSES}"
    return KernelRef(
        name=f"conv_depthwise_filter_lines_{types}_{shape}_{target_label(target)}",
        source="conv/depthwise/conv_depthwise_filter_lines.cu",
        target=target,
        parameters=macros(params),
    )


def filter_launch(gradient: LineFilterGradient, tile: FilterLinesTile, offset_bytes: int) -> Launch:
    """The launch that writes the slices at ``offset_bytes`` of the workspace."""
    lines, image, response = gradient.lines, gradient.image, gradient.response
    digits, items = gradient.digits(tile), gradient.items(tile)
    dy_place, offsets_place, _ = gradient.places(tile)
    arguments = Struct(
        (
            TensorPointer(image.uid),
            TensorPointer(response.uid),
            WorkspacePointer(offset_bytes),
            lines.lines(image, lines.axis.image),
            lines.lines(response, lines.axis.response),
            gradient.axis.struct(class_room(gradient.axis)),
            lines.rows(tile.channels, tile.batches),
            *(one.struct() for one in gradient.staged(tile)),
            *i32((dy_place, offsets_place, gradient.axis.taps, tile.segment)),
            Struct(divider(tile.segments)),
            Struct(divider(tile.units)),
            *i32((gradient.strips(tile),)),
            *(Struct(divider(radix)) for radix in (*digits, *items)),
            *i32((prod(items), tile.shares)),
        )
    )
    products = 2 * response.element_count * gradient.geometry.tap_count
    return Launch(
        kernel=0,
        grid=(prod(digits), 1, 1),
        block=(gradient.threads(tile), 1, 1),
        arguments=(arguments,),
        shared_bytes=gradient.shared_bytes(tile),
        work=Work(products, gradient.read_bytes, MathUnit.FMA_F32),  # the slices stay in the L2 cache
    )


def slice_count(gradient: LineFilterGradient, tile: FilterLinesTile) -> int:
    """Slices of dw in the workspace, one for each share."""
    return tile.shares


def knobs(gradient: LineFilterGradient, arch: ArchSpec) -> tuple[Knob, ...]:
    best = best_tile(gradient, arch)
    return (
        Knob("lanes", KnobType.CHANNEL_LANES, gradient.lines.lanes(gradient.image), best.lanes, "channels of a warp"),
        Knob("strip", KnobType.TILE_COLS, STRIPS, best.strip, "neighbouring taps of a thread"),
        Knob("segment", KnobType.TILEK, SEGMENTS, best.segment, "neighbouring positions of a thread"),
        Knob("segments", KnobType.BLOCK_COLS, UNITS, best.segments, "threads of a block along a line"),
        Knob("channels", KnobType.BLOCK_CHANNELS, UNITS, best.channels, "rows of a block along the channels"),
        Knob("batches", KnobType.BLOCK_BATCHES, UNITS, best.batches, "rows of a block along the batches"),
        Knob("shares", KnobType.SPLIT_K_SLC, SHARES, best.shares, "blocks that share the sum of one filter"),
    )


def tile_of(gradient: LineFilterGradient, chosen: Choices) -> FilterLinesTile | str:
    """The tile of resolved knobs, or why there is none."""
    tile = FilterLinesTile(
        lanes=chosen[KnobType.CHANNEL_LANES],
        strip=chosen[KnobType.TILE_COLS],
        segment=chosen[KnobType.TILEK],
        segments=chosen[KnobType.BLOCK_COLS],
        channels=chosen[KnobType.BLOCK_CHANNELS],
        batches=chosen[KnobType.BLOCK_BATCHES],
        shares=chosen[KnobType.SPLIT_K_SLC],
    )
    if (reason := lanes_reason(tile.lanes, tile.channels)) is not None:
        return reason
    if gradient.fits(tile):
        return tile
    got = f"{gradient.threads(tile)} threads, {tile.positions} positions, {gradient.shared_bytes(tile)} bytes"
    return f"knob_choices: expected a block that fits threads, whole vectors and shared memory, got {got}"


@lru_cache(maxsize=128)
def best_tile(gradient: LineFilterGradient, arch: ArchSpec) -> FilterLinesTile:
    """The fastest tile by ``estimated_s``."""
    shared = (tile for one in gradient.tiles() for tile in gradient.sharing(one, arch))
    return min(shared, key=lambda tile: estimated_s(gradient, tile, arch))


def estimated_s(gradient: LineFilterGradient, tile: FilterLinesTile, arch: ArchSpec) -> float:
    moved = gradient.read_bytes + 8 * tile.shares * gradient.elements
    return _SLOWER * gradient.work(tile).seconds(moved, arch)
