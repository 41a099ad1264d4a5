"""The plan of ``conv_depthwise_lines.cu``: forward pass and data gradient with taps along one axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.conv.depthwise.line_axes import CHUNK, Staged, class_room, lanes_reason, whole_chunks
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
from lowdnn.engines.conv.depthwise.line_pass import MAX_RUN, BlockShape, LinePass
from lowdnn.engines.indices import INT32_MAX
from lowdnn.engines.launch import ceil_div, divider, i32, i64, macros, target_label
from lowdnn.enums import KnobType
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer

#: Targets of a thread: odd multiples of a chunk, so that neighbouring threads read different banks of shared memory.
STRIPS = (4, 12, 20, 28)
UNITS = tuple(range(1, MAX_THREADS + 1))


#: Measured time as a multiple of the estimate.
_SLOWER = 1.3
#: That multiple with lanes of 16-bit elements.
_SLOWER_LANES = 1.6
#: Most targets of a thread with ``_REGISTERS`` registers.
_FEW_TARGETS = 20
#: Registers of a thread by the kernel's launch bounds.
_REGISTERS = 64
#: Registers of a thread with more than ``_FEW_TARGETS`` targets.
_MORE_REGISTERS = 96


@dataclass(frozen=True)
class Params:
    """The macros of ``conv_depthwise_lines.cu``, described there."""

    X_TYPE: str
    W_TYPE: str
    LANES: int
    STRIP: int
    VECTOR: int
    RUN: int
    CLASSES: int


@dataclass(frozen=True)
class LinesTile:
    """A block's work: ``strips`` threads of ``strip`` targets each along a line, for ``channels`` channels and
    ``batches`` batches.

    lanes: channels in neighbouring threads; if it is more than 1, ``channels`` is 1.
    """

    lanes: int
    strip: int
    strips: int
    channels: int
    batches: int

    @property
    def targets(self) -> int:
        """Targets of a block along a line."""
        return self.strip * self.strips

    @property
    def shape(self) -> BlockShape:
        return BlockShape(self.lanes, self.targets, self.channels, self.batches)

    @property
    def rows(self) -> int:
        return self.channels * self.batches

    @property
    def threads(self) -> int:
        """Threads of a block, in whole warps."""
        return whole_warps(self.lanes * self.strips * self.rows)


@dataclass(frozen=True)
class LineCorrelation(LinePass):
    """A correlation from lines of sources to lines of targets."""

    @cached_property
    def taps(self) -> int:
        """The most taps of any phase."""
        return ceil_div(self.axis.taps, self.axis.step)

    @cached_property
    def vector(self) -> int:
        """Elements of the source in one access of the widest block."""
        spacing = self.axis.step * self.axis.spacing
        return min(self.lines.vector(self.source, lanes, spacing) for lanes in self.lines.lanes(self.source))

    def refuse(self) -> str:
        """Why the kernel cannot take the shape, or an empty string."""
        reason = self.lines.refuse(self.axis, (self.source,)) or refuse_elements(self.lines.axis.taps, self.vector)
        if reason:
            return reason
        least = self.least_tile
        if self.shared_bytes(least) > MAX_SHARED_BYTES:
            return f"expected a filter that fits shared memory, got {self.axis.taps} taps"
        if prod(self.digits(least.shape)) > INT32_MAX:
            return f"expected at most {INT32_MAX} blocks, got more"
        return ""

    @property
    def least_tile(self) -> LinesTile:
        lanes = self.lines.lanes(self.source)[0]
        return LinesTile(lanes, STRIPS[0], 8 if lanes == 1 else 1, 1, 1)

    def staged(self, tile: LinesTile) -> Staged:
        """The source's rows: up to the last chunk of the last target's window, which may begin inside a chunk."""
        slack = CHUNK + (self.vector - 1 if tile.lanes == 1 else 0)
        return Staged.of(tile.targets, whole_chunks(self.taps + slack), tile.lanes, self.vector)

    def weights_pitch(self, tile: LinesTile) -> int:
        """Words from one channel's weights to the next one's, without lanes."""
        return whole_chunks(self.taps + CHUNK - 1)

    def places(self, tile: LinesTile) -> tuple[int, int, int]:
        """Offsets in shared memory of weights and of the rows' offsets, and the end, in words."""
        weights = tile.rows * self.staged(tile).pitch
        own = tile.lanes * self.taps if tile.lanes > 1 else tile.channels * self.weights_pitch(tile)
        offsets = weights + own + own % 2
        return weights, offsets, offsets + 2 * tile.rows

    def shared_bytes(self, tile: LinesTile) -> int:
        return 4 * self.places(tile)[2]

    def work(self, tile: LinesTile) -> LineWork:
        """The cost of a block's work."""
        staged, phases = self.staged(tile), min(self.axis.step, self.axis.taps)
        vectors = staged.vectors * tile.rows
        own = add_instructions(tile.strip, self.taps, tile.lanes)
        copied = ceil_div(vectors, tile.threads) * copy_instructions(staged.vector)
        finished = self.epilogue_instructions(tile.shape, tile.threads)
        return LineWork(
            blocks=prod(self.digits(tile.shape)),
            threads=tile.threads,
            instructions=phases * (own + copied) + finished,
            stages=phases,
            registers=_REGISTERS if tile.strip <= _FEW_TARGETS else _MORE_REGISTERS,
            shared_bytes=self.shared_bytes(tile),
        )

    def fits(self, tile: LinesTile) -> bool:
        is_whole = tile.lanes > 1 or tile.targets % MAX_RUN == 0
        return is_whole and tile.threads <= MAX_THREADS and self.shared_bytes(tile) <= MAX_SHARED_BYTES

    def tiles(self) -> Iterator[LinesTile]:
        """Candidates: even parts of a line, with as many rows as a block has room for."""
        for lanes in self.lines.lanes(self.source):
            for strip in (s for s in STRIPS if s < 2 * self.axis.count or s == STRIPS[0]):
                for strips in parts_of(ceil_div(self.axis.count, strip), MAX_THREADS // lanes, 5):
                    one = LinesTile(lanes, strip, strips + (strips % 2 if lanes == 1 else 0), 1, 1)
                    yield from (tile for tile in self._with_rows(one) if self.fits(tile))

    def _with_rows(self, one: LinesTile) -> Iterator[LinesTile]:
        room = max(1, MAX_THREADS // (one.lanes * one.strips))
        channels = parts_of(self.geometry.channels, room, 3) if one.lanes == 1 else (1,)
        for count in channels:
            for batches in parts_of(self.lines.batch_count, room // count, 2):
                yield replace(one, channels=count, batches=batches)


def kernel(correlation: LineCorrelation, tile: LinesTile, functor: Functor, target: str) -> KernelRef:
    """The kernel for ``target`` (``dependent_target``)."""
    w = correlation.geometry.operation.filter
    params = Params(
        X_TYPE=dtypes.info(correlation.source.data_type).c_type,
        W_TYPE=dtypes.info(w.data_type).c_type,
        LANES=tile.lanes,
        STRIP=tile.strip,
        VECTOR=correlation.vector,
        RUN=correlation.run(tile.lanes),
        CLASSES=class_room(correlation.axis),
    )
    types = "_".join(dtypes.info(t.data_type).short_name for t in (correlation.source, w))
    shape = f"l{tile.lanes}w{tile.strip}v{params.VECTOR}r{params.RUN}_k{params.CLASSES}"
    return KernelRef(
        name=f"conv_depthwise_lines_{types}_{shape}_{target_label(target)}_{functor.digest}",
        source="conv/depthwise/conv_depthwise_lines.cu",
        target=target,
        parameters=macros(params),
        generated=functor.text,
    )


def launch(correlation: LineCorrelation, tile: LinesTile, functor: Functor) -> Launch:
    lines, source, w = correlation.lines, correlation.source, correlation.geometry.operation.filter
    weights_place, offsets_place, _ = correlation.places(tile)
    arguments = Struct(
        (
            TensorPointer(source.uid),
            TensorPointer(w.uid),
            *i64((w.strides[0], lines.stride(w))),
            lines.lines(source, correlation.axis.extent),
            correlation.staged(tile).struct(),
            Struct(divider(tile.strips)),
            *i32((correlation.weights_pitch(tile), weights_place, offsets_place)),
            correlation.targets(tile.shape, functor),
        )
    )
    return Launch(
        kernel=0,
        grid=(prod(correlation.digits(tile.shape)), 1, 1),
        block=(tile.threads, 1, 1),
        arguments=(arguments,),
        shared_bytes=correlation.shared_bytes(tile),
        work=correlation.launch_work,
    )


def functor_of(correlation: LineCorrelation, tile: LinesTile) -> Functor:
    return correlation.functor(tile.lanes)


def knobs(correlation: LineCorrelation, arch: ArchSpec) -> tuple[Knob, ...]:
    best, lanes = best_tile(correlation, arch), correlation.lines.lanes(correlation.source)
    return (
        Knob("lanes", KnobType.CHANNEL_LANES, lanes, best.lanes, "channels of a warp"),
        Knob("strip", KnobType.TILE_COLS, STRIPS, best.strip, "neighbouring targets of a thread"),
        Knob("strips", KnobType.BLOCK_COLS, UNITS, best.strips, "threads of a block along a line"),
        Knob("channels", KnobType.BLOCK_CHANNELS, UNITS, best.channels, "rows of a block along the channels"),
        Knob("batches", KnobType.BLOCK_BATCHES, UNITS, best.batches, "rows of a block along the batches"),
    )


def tile_of(correlation: LineCorrelation, chosen: Choices) -> LinesTile | str:
    """The tile of resolved knobs, or why there is none."""
    tile = LinesTile(
        lanes=chosen[KnobType.CHANNEL_LANES],
        strip=chosen[KnobType.TILE_COLS],
        strips=chosen[KnobType.BLOCK_COLS],
        channels=chosen[KnobType.BLOCK_CHANNELS],
        batches=chosen[KnobType.BLOCK_BATCHES],
    )
    if (reason := lanes_reason(tile.lanes, tile.channels)) is not None:
        return reason
    if correlation.fits(tile):
        return tile
    got = f"{tile.threads} threads, {tile.targets} targets, {correlation.shared_bytes(tile)} bytes"
    return f"knob_choices: expected a block that fits threads, whole runs and shared memory, got {got}"


@lru_cache(maxsize=128)
def best_tile(correlation: LineCorrelation, arch: ArchSpec) -> LinesTile:
    """The fastest tile by ``estimated_s``."""
    return min(
        correlation.tiles(), key=lambda tile: estimated_s(correlation, tile, arch), default=correlation.least_tile
    )


def estimated_s(correlation: LineCorrelation, tile: LinesTile, arch: ArchSpec) -> float:
    slower = _SLOWER_LANES if tile.lanes > 1 and correlation.source.element_bytes == 2 else _SLOWER
    return slower * correlation.work(tile).seconds(correlation.moved_bytes, arch)
