"""The plan of ``conv_depthwise_filter.cu``: filter gradients down the rows, in slices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf, lcm, prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.conv.depthwise.axes import Axis
from lowdnn.engines.conv.depthwise.cost import estimated_blocks, warps_of
from lowdnn.engines.conv.depthwise.geometry import DepthwiseGeometry
from lowdnn.engines.conv.depthwise.row_walk import (
    CHANNELS,
    HIDDEN_S,
    MAX_CLASSES,
    MAX_WINDOW,
    PREFETCHES,
    ROWS,
    STRIPS,
    THREADS,
    Step,
    latency_clocks,
    row_instructions,
    sectors,
    step_clocks,
)
from lowdnn.engines.indices import MAX_TILED_EXTENT
from lowdnn.engines.launch import (
    bytes_of,
    ceil_div,
    ceil_power,
    divider,
    i32,
    i64,
    macros,
    target_label,
)
from lowdnn.engines.model.clock import overlap, waves
from lowdnn.engines.model.search import first_of_least
from lowdnn.enums import KnobType
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, TensorPointer, Work, WorkspacePointer

_LANES = (32, 16, 8, 4, 2, 1)
#: Most lanes beyond the last channel, as a share of all: more of them outweigh wider accesses.
_MAX_IDLE = 0.13

#: Most registers for a thread's sums, rows of dy and windows.
_MAX_REGISTERS = 170
#: Further registers that ptxas gives a thread.
_OTHER_REGISTERS = 65
#: Most multiply-adds of an unrolled loop's body.
_MAX_UNROLLED = 1536
#: Number of tiles whose variants the search tries.
_VARIED = 5


@dataclass(frozen=True)
class Params:
    """The macros of ``conv_depthwise_filter.cu``, described there."""

    X_TYPE: str
    DY_TYPE: str
    CHANNELS: int
    STRIP: int
    ROW_TAPS: int
    COLUMN_TAPS: int
    ROW_STEP: int
    COLUMN_STEP: int
    CLASSES: int
    CLIP_FRONT: int
    CLIP_BACK: int
    PREFETCH: int
    UNROLL: int
    LANES: int
    THREADS: int


@dataclass(frozen=True)
class FilterTile:
    """A thread's work: neighbouring filters, columns of a strip, steps of a segment, rows of x read ahead.

    shares: blocks that share the items of one channel block, each with its own slice.
    """

    channels: int
    strip: int
    segment: int
    prefetch: int
    shares: int


@dataclass(frozen=True)
class Thread:
    """The facts about threads with equally many filters and columns, independent of their segments and rows ahead.

    window: positions of a row of x.  strips: strips of all columns.  products: multiply-adds of a step.
    registers: registers for sums, rows of dy and a window of x.  coming: registers for each row in flight.
    step: the costs of a step without moves of rows of dy and without waits for rows of x.
    """

    window: int
    strips: int
    products: int
    registers: int
    coming: int
    step: Step


@dataclass(frozen=True)
class FilterGradient:
    """The gradient dw from x and dy; ``conv_depthwise_filter.cu`` defines lanes, slots, items and shares."""

    geometry: DepthwiseGeometry

    @cached_property
    def axes(self) -> tuple[Axis, Axis, Axis]:
        planes, rows, columns = (axis.forward() for axis in self.geometry.axes)
        return planes, rows, columns

    @cached_property
    def depth(self) -> int:
        """Rows of dy that a row of x is multiplied with."""
        rows = self.axes[1]
        return ceil_div(rows.taps, rows.step)

    @cached_property
    def steps(self) -> int:
        """The most steps down the rows of any class; one if no tap reads a row of x, to write the zeros of dw."""
        return max(1, *(self._steps(one.first_step, one.end_step, one.count) for one in self.axes[1].classes))

    @cached_property
    def segments(self) -> tuple[int, ...]:
        """Choices of the steps of a segment."""
        return tuple(sorted({max(1, ceil_div(self.steps, parts)) for parts in (1, 2, 3, 4, 6, 8, 16, 32, 64)}))

    @cached_property
    def most_channels(self) -> int:
        """Neighbouring filters that one access of x and of dy reads."""
        operation = self.geometry.operation
        return min(self.geometry.neighbours(t) for t in (operation.image, operation.response))

    @cached_property
    def element_bytes(self) -> tuple[int, int]:
        """Bytes of an element of x and of dy."""
        operation = self.geometry.operation
        return operation.image.element_bytes, operation.response.element_bytes

    @cached_property
    def item_classes(self) -> tuple[int, ...]:
        """The radices of an item's number that do not depend on the tile: planes, images, classes of columns, rows,
        planes.
        """
        planes, rows, columns = self.axes
        classes = (len(columns.classes), len(rows.classes), len(planes.classes))
        return (planes.count, self.geometry.images, *classes)

    @cached_property
    def elements(self) -> int:
        return self.geometry.operation.filter.element_count

    @cached_property
    def read_bytes(self) -> int:
        """Bytes of x and dy, once for each tap along the planes."""
        return bytes_of((self.geometry.operation.image, self.geometry.operation.response)) * self.axes[0].taps

    def lanes(self, channels: int) -> int:
        """Neighbouring threads along the filters."""
        return self._lanes[channels]

    def channel_blocks(self, channels: int) -> int:
        return ceil_div(self.geometry.filters, channels * self.lanes(channels))

    def items(self, tile: FilterTile) -> tuple[int, ...]:
        """The radices of an item's number, the fastest first."""
        strips, segments = self.thread(tile.channels, tile.strip).strips, ceil_div(self.steps, tile.segment)
        return (strips, segments, *self.item_classes)

    def item_count(self, tile: FilterTile) -> int:
        strips, segments = self.thread(tile.channels, tile.strip).strips, ceil_div(self.steps, tile.segment)
        return strips * segments * self._items_of_classes

    def slots(self, channels: int) -> int:
        return THREADS // self.lanes(channels)

    def share_blocks(self, channels: int) -> int:
        """Blocks of one share."""
        return self.channel_blocks(channels) * self.axes[0].taps

    def block_count(self, tile: FilterTile) -> int:
        return self.share_blocks(tile.channels) * tile.shares

    def thread(self, channels: int, strip: int) -> Thread:
        """The facts about such threads, computed once."""
        if (channels, strip) not in self._threads:
            self._threads[channels, strip] = self._thread(channels, strip)
        return self._threads[channels, strip]

    def registers(self, tile: FilterTile) -> int:
        """A thread's registers, roughly: sums, rows of dy, a window of x, and the rows in flight."""
        thread = self.thread(tile.channels, tile.strip)
        return thread.registers + thread.coming * tile.prefetch

    def unrolled(self, thread: Thread, prefetch: int) -> int:
        """Steps of the loop's body; if it may be large, enough that no row of dy moves between registers."""
        named = lcm(self.depth, prefetch)
        return named if named * thread.products <= _MAX_UNROLLED else prefetch

    def fits(self, tile: FilterTile) -> bool:
        """Whether registers, window and the instruction caches suffice."""
        thread = self.thread(tile.channels, tile.strip)
        return thread.window <= MAX_WINDOW and self.fits_ahead(thread, tile.prefetch)

    def fits_ahead(self, thread: Thread, prefetch: int) -> bool:
        """Whether registers and the instruction caches suffice for ``prefetch`` rows ahead."""
        fits_cache = prefetch == 1 or prefetch * thread.products <= _MAX_UNROLLED
        return fits_cache and thread.registers + thread.coming * prefetch <= _MAX_REGISTERS

    def refuse(self) -> str:
        """Why the kernel cannot take the shape, or an empty string."""
        label = self.geometry.operation.label
        classes = max(len(axis.classes) for axis in self.axes)
        if classes > MAX_CLASSES:
            return f"convolution.dilations: expected at most {MAX_CLASSES} residue classes, got {classes}"
        least = FilterTile(1, 1, 1, 1, 1)
        if not self.fits(least):
            got = f"{self.axes[1].taps} x {self.axes[2].taps} taps"
            return f"{label}.dw.dims: expected a filter that fits a thread's registers, got {got}"
        if self.item_count(least) > MAX_TILED_EXTENT:
            return f"{label}.dy.dims: expected at most {MAX_TILED_EXTENT} pixels, got {self.item_count(least)}"
        return ""

    @cached_property
    def _items_of_classes(self) -> int:
        return prod(self.item_classes)

    @cached_property
    def _threads(self) -> dict[tuple[int, int], Thread]:
        return {}

    def _thread(self, channels: int, strip: int) -> Thread:
        _, rows, columns = self.axes
        x_bytes, dy_bytes = self.element_bytes
        window = columns.window(strip)
        products = rows.taps * columns.taps * strip * channels
        coming = rows.step * window * ceil_div(channels * x_bytes, 4) + strip * ceil_div(channels * dy_bytes, 4)
        if self.lanes(channels) > 1:
            x_pitch = dy_pitch = channels
        else:
            x_pitch, dy_pitch = strip * columns.step * columns.spacing, strip * columns.target_step
        arriving = row_instructions(rows.step * window + strip, channels)
        read = rows.step * window * sectors(x_pitch * x_bytes) + strip * sectors(dy_pitch * dy_bytes)
        return Thread(
            window=window,
            strips=ceil_div(columns.count, strip),
            products=products,
            registers=rows.taps * columns.taps * channels + self.depth * strip * channels + window * channels,
            coming=coming,
            step=Step(products + arriving + ROWS.step_instructions, read, 0, inf),
        )

    @cached_property
    def _lanes(self) -> dict[int, int]:
        """Lanes along channels: the most that leave few idle; 1 if columns are contiguous."""
        if self.geometry.operation.response.strides[1] != 1:
            return dict.fromkeys(CHANNELS, 1)
        return {channels: self._most_lanes(self.geometry.filters // channels) for channels in CHANNELS}

    def _most_lanes(self, groups: int) -> int:
        return next(n for n in _LANES if n == 1 or ceil_div(groups, n) * n <= groups * (1 + _MAX_IDLE))

    def _steps(self, first: int, end: int, count: int) -> int:
        return max(0, min(end, count + self.depth - 1) - first)


def knobs(gradient: FilterGradient, arch: ArchSpec) -> tuple[Knob, ...]:
    best = best_tile(gradient, arch)
    most = gradient.most_channels
    strips = tuple(s for s in STRIPS if gradient.fits(FilterTile(1, s, 1, 1, 1)))
    shares = tuple(sorted({best.shares, *(2**i for i in range(11))}))
    return (
        Knob(
            "channels",
            KnobType.LOAD_SIZE,
            tuple(c for c in CHANNELS if c <= most),
            best.channels,
            "filters of a thread",
        ),
        Knob("strip", KnobType.TILE_COLS, strips, best.strip, "neighbouring columns of a thread"),
        Knob("segment", KnobType.TILE_ROWS, gradient.segments, best.segment, "steps down the rows of an item"),
        Knob("prefetch", KnobType.STAGES, PREFETCHES, best.prefetch, "rows of x that a thread reads ahead"),
        Knob("shares", KnobType.SPLIT_K_SLC, shares, best.shares, "blocks that share the sum of one filter"),
    )


def tile_of(gradient: FilterGradient, chosen: Choices) -> FilterTile | str:
    """The tile of resolved knobs, or why there is none."""
    tile = FilterTile(
        channels=chosen[KnobType.LOAD_SIZE],
        strip=chosen[KnobType.TILE_COLS],
        segment=chosen[KnobType.TILE_ROWS],
        prefetch=chosen[KnobType.STAGES],
        shares=chosen[KnobType.SPLIT_K_SLC],
    )
    if gradient.fits(tile):
        return tile
    needed = gradient.registers(tile)
    return f"knob_choices: expected at most {_MAX_REGISTERS} registers of a thread's own data, got {needed}"


@lru_cache(maxsize=128)
def best_tile(gradient: FilterGradient, arch: ArchSpec) -> FilterTile:
    """The fastest tile by ``estimated_s``: first one tile for each of all channels and strips, then variants of the
    best.
    """

    def cost(tile: FilterTile) -> float:
        return estimated_s(gradient, _reading_ahead(gradient, tile, arch), arch)

    best = sorted(_tiles(gradient, arch), key=cost)[:_VARIED]
    variants = dict.fromkeys(variant for tile in best for variant in _variants(gradient, tile, arch))
    found = first_of_least(((_least_s(gradient, tile, arch), tile) for tile in variants), cost)
    least = found or _filling(gradient, FilterTile(1, 1, gradient.steps, 1, 1), arch)
    return _reading_ahead(gradient, least, arch)


def estimated_s(gradient: FilterGradient, tile: FilterTile, arch: ArchSpec) -> float:
    """Estimated seconds: waves of a multiprocessor's blocks, in which slots take their items in rounds, and the bytes
    moved.
    """
    return _seconds(gradient, tile, _step(gradient, tile), arch)


def _least_s(gradient: FilterGradient, tile: FilterTile, arch: ArchSpec) -> float:
    """A lower bound of the tile's seconds, for any number of rows read ahead."""
    return _seconds(gradient, tile, gradient.thread(tile.channels, tile.strip).step, arch)


def _seconds(gradient: FilterGradient, tile: FilterTile, step: Step, arch: ArchSpec) -> float:
    rounds = ceil_div(gradient.item_count(tile), tile.shares * gradient.slots(tile.channels))
    steps = min(tile.segment, gradient.steps)
    sums = gradient.thread(tile.channels, tile.strip).products // tile.strip
    start = ROWS.start_latencies * latency_clocks(arch)

    def wave_clocks(blocks: int) -> float:
        warps = warps_of(blocks * THREADS)
        item = start + ROWS.item_clocks * warps + steps * step_clocks(step, warps, arch)
        return rounds * item + start + ROWS.sum_clocks * sums * warps

    blocks = ceil_div(gradient.block_count(tile), arch.sm_count)
    walk_s = waves(blocks, _resident(gradient, tile, arch), wave_clocks) / arch.clock_hz
    slices_bytes = 8 * tile.shares * gradient.elements
    return overlap(walk_s, (gradient.read_bytes + slices_bytes) / arch.copy_bytes_per_s, ROWS.exposed)


def _step(gradient: FilterGradient, tile: FilterTile) -> Step:
    """The costs of rows of x and dy, of moves of rows of dy, and of multiply-adds."""
    thread = gradient.thread(tile.channels, tile.strip)
    stays = gradient.unrolled(thread, tile.prefetch) % gradient.depth == 0
    moves = 0 if stays else gradient.depth * tile.strip * tile.channels
    return Step(thread.step.instructions + moves, thread.step.sectors_read, 0, tile.prefetch)


def filter_kernel(gradient: FilterGradient, tile: FilterTile, target: str) -> KernelRef:
    """The kernel for ``target`` (``dependent_target``)."""
    operation, (_, rows, columns) = gradient.geometry.operation, gradient.axes
    front, back = columns.clips(tile.strip)
    params = Params(
        X_TYPE=dtypes.info(operation.image.data_type).c_type,
        DY_TYPE=dtypes.info(operation.response.data_type).c_type,
        CHANNELS=tile.channels,
        STRIP=tile.strip,
        ROW_TAPS=rows.taps,
        COLUMN_TAPS=columns.taps,
        ROW_STEP=rows.step,
        COLUMN_STEP=columns.step,
        CLASSES=_class_room(gradient),
        CLIP_FRONT=front,
        CLIP_BACK=back,
        PREFETCH=tile.prefetch,
        UNROLL=gradient.unrolled(gradient.thread(tile.channels, tile.strip), tile.prefetch),
        LANES=gradient.lanes(tile.channels),
        THREADS=THREADS,
    )
    types = "_".join(dtypes.info(t.data_type).short_name for t in (operation.image, operation.response))
    walk = f"{rows.taps}x{columns.taps}_s{rows.step}x{columns.step}_k{params.CLASSES}"
    shape = f"c{tile.channels}w{tile.strip}_p{tile.prefetch}u{params.UNROLL}_x{front}x{back}_l{params.LANES}b{THREADS}"
    return KernelRef(
        name=f"conv_depthwise_filter_{types}_{walk}_{shape}_{target_label(target)}",
        source="conv/depthwise/conv_depthwise_filter.cu",
        target=target,
        parameters=macros(params),
    )


def filter_launch(gradient: FilterGradient, tile: FilterTile, offset_bytes: int) -> Launch:
    """The launch that writes the slices at ``offset_bytes`` of the workspace."""
    geometry = gradient.geometry
    x, dy = geometry.operation.image, geometry.operation.response
    planes = gradient.axes[0]
    items = gradient.items(tile)
    arguments = Struct(
        (
            TensorPointer(x.uid),
            TensorPointer(dy.uid),
            WorkspacePointer(offset_bytes),
            *i64(geometry.strides(x)),
            *i64(geometry.strides(dy)),
            *i32(axis.response for axis in geometry.axes),
            *(axis.struct(_class_room(gradient)) for axis in gradient.axes),
            *(Struct(divider(radix)) for radix in items),
            *i32((prod(items), tile.segment, geometry.filters, geometry.multiplier)),
            Struct(divider(gradient.channel_blocks(tile.channels))),
            Struct(divider(planes.taps)),
            *i32((tile.shares,)),
        )
    )
    slots = gradient.slots(tile.channels)
    products = 2 * dy.element_count * geometry.tap_count
    taps = gradient.axes[1].taps * gradient.axes[2].taps
    return Launch(
        kernel=0,
        grid=(gradient.block_count(tile), 1, 1),
        block=(THREADS, 1, 1),
        arguments=(arguments,),
        shared_bytes=taps * tile.channels * THREADS // 2 * 4 if slots > 1 else 0,
        work=Work(products, bytes_of((x, dy)), MathUnit.FMA_F32),  # the slices stay in the L2 cache
    )


def slice_count(gradient: FilterGradient, tile: FilterTile) -> int:
    """Slices of dw in the workspace, one for each share."""
    return tile.shares


def _tiles(gradient: FilterGradient, arch: ArchSpec) -> Iterator[FilterTile]:
    """Candidate tiles: for each useful number of channels and strip, the longest segments that still give each slot an
    item."""
    for channels in (c for c in CHANNELS if c <= gradient.most_channels):
        for strip in gradient.axes[2].useful_strips(STRIPS):
            tile = FilterTile(channels, strip, 1, 1, 1)
            if gradient.fits(tile):
                blocks = _resident(gradient, tile, arch) * arch.sm_count / gradient.block_count(tile)
                longest = gradient.item_count(tile) / (blocks * gradient.slots(channels))
                segment = max((s for s in gradient.segments if s <= longest), default=gradient.segments[0])
                yield _filling(gradient, FilterTile(channels, strip, segment, 1, 1), arch)


def _variants(gradient: FilterGradient, tile: FilterTile, arch: ArchSpec) -> Iterator[FilterTile]:
    """The tile with shorter and longer segments, with as many blocks as fit and with fewer."""
    at = gradient.segments.index(tile.segment)
    for segment in gradient.segments[max(0, at - 2) : at + 2]:
        for fewer in range(2):
            yield _filling(gradient, FilterTile(tile.channels, tile.strip, segment, 1, 1), arch, fewer)


def _filling(gradient: FilterGradient, tile: FilterTile, arch: ArchSpec, fewer: int = 0) -> FilterTile:
    """The tile with as many shares as blocks fit the device, or ``fewer`` fewer on each multiprocessor."""
    blocks = max(1, _resident(gradient, tile, arch) - fewer) * arch.sm_count
    return FilterTile(tile.channels, tile.strip, tile.segment, 1, _shares(gradient, tile, blocks))


def _reading_ahead(gradient: FilterGradient, tile: FilterTile, arch: ArchSpec) -> FilterTile:
    """The tile with as many steps in flight as hide the latency, if they fit."""
    thread = gradient.thread(tile.channels, tile.strip)
    blocks = ceil_div(gradient.block_count(tile), arch.sm_count)
    step_s = warps_of(blocks * THREADS) * _step(gradient, tile).instructions / arch.clock_hz
    wanted = (p for p in reversed(PREFETCHES) if (p - 1) * step_s < HIDDEN_S and gradient.fits_ahead(thread, p))
    ahead = next(p for p in wanted if gradient.unrolled(thread, p) <= max(gradient.depth, p))
    return FilterTile(tile.channels, tile.strip, tile.segment, ahead, tile.shares)


def _shares(gradient: FilterGradient, tile: FilterTile, blocks: int) -> int:
    """The number of shares for which at most ``blocks`` blocks process all items in rounds of equal length."""
    most = max(1, blocks // gradient.share_blocks(tile.channels))
    items, slots = gradient.item_count(tile), gradient.slots(tile.channels)
    rounds = ceil_div(items, most * slots)
    return ceil_div(items, rounds * slots)


def _resident(gradient: FilterGradient, tile: FilterTile, arch: ArchSpec) -> int:
    return estimated_blocks(arch, THREADS, gradient.registers(tile) + _OTHER_REGISTERS)


def _class_room(gradient: FilterGradient) -> int:
    """Classes that the kernel has room for: a power of two, so that few kernels serve all shapes."""
    return ceil_power(max(len(axis.classes) for axis in gradient.axes))
