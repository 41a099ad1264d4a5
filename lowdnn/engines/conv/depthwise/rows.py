"""The plan of ``conv_depthwise.cu``: forward pass and data gradient of depthwise convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, lcm, prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor, generate
from lowdnn.codegen.space import IndexSpace, space_of, with_axis
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.conv.depthwise.axes import Axis
from lowdnn.engines.conv.depthwise.cost import (
    LATENCY_S,
    Step,
    busy_cycles,
    estimated_blocks,
    row_instructions,
    sectors,
    step_cycles,
    together,
    warps_of,
    waves_s,
)
from lowdnn.engines.conv.depthwise.geometry import DataPass
from lowdnn.engines.gemm.exits import NO_EXITS, ExitSlices, OutputExits
from lowdnn.engines.launch import bytes_of, ceil_div, ceil_power, divider, i32, i64, macros, moved_bytes, target_label
from lowdnn.engines.model.search import first_of_least
from lowdnn.enums import DataType, KnobType
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, TensorPointer, Work, WorkspacePointer

#: Choices of a thread's work; see ``RowsTile``.
CHANNELS = (1, 2, 4, 8)
STRIPS = (1, 2, 4, 7, 8, 14, 16)
PREFETCHES = (1, 2, 3, 4, 6, 8)
BLOCK_SIZES = (64, 128, 256)
_THREADS = 128
_WARP_SIZE = 32

#: What a thread's sums, weights and windows may take, so that ptxas needs no more than 255 registers.
_MAX_REGISTERS = 175
_OTHER_REGISTERS = 30
_MAX_WINDOW = 64
_MAX_SHARED_BYTES = 48 << 10

#: Of weights that each thread loads for itself: bytes of an access, and accesses.
_VECTOR_BYTES = 16
_MAX_OWN_LOADS = 25

#: Multiply-adds of an unrolled loop's body.
_MAX_UNROLLED = 1024

#: Classes of one axis: they travel as kernel arguments.
_MAX_CLASSES = 32
_MAX_THREADS = 2**31 - 1024

#: Of the search: source rows of the loop's body; the time that rows on their way should cover; blocks of a
#: multiprocessor past which segments are not cut.
_MAX_BODY_ROWS = 20
_HIDDEN_S = 1e-6
_ENOUGH_BLOCKS = 6


@dataclass(frozen=True)
class Params:
    """The macros of ``conv_depthwise.cu``, described there."""

    X_TYPE: str
    W_TYPE: str
    CHANNELS: int
    STRIP: int
    PLANE_TAPS: int
    ROW_TAPS: int
    COLUMN_TAPS: int
    ROW_STEP: int
    COLUMN_STEP: int
    SOURCES: int
    CLASSES: int
    IS_UNEVEN: int
    CLIP_FRONT: int
    CLIP_BACK: int
    COLUMNS_FIRST: int
    RUN: int
    PREFETCH: int
    UNROLL: int
    THREADS: int
    WEIGHT_ORDER: int
    WEIGHT_VECTOR: int


@dataclass(frozen=True)
class RowsTile:
    """A thread's work: neighbouring channels, columns of a strip, rows of a segment, source rows read ahead.

    threads: of a block.
    """

    channels: int
    strip: int
    segment: int
    prefetch: int
    threads: int


@dataclass(frozen=True)
class Thread:
    """What threads of so many channels and columns have in common, whatever their segments and rows ahead.

    lines: threads for one segment.  window: source positions of a row.  weights: of the channels.
    products: multiply-adds for one row of targets.
    registers: of sums, weights and one widened window.  coming: of each row on its way.
    step: one row of targets, without moves of sums, read one source row ahead.
    """

    lines: int
    window: int
    weights: int
    products: int
    registers: int
    coming: int
    step: Step


@dataclass(frozen=True)
class Correlation(DataPass):
    """Walking down the rows; and the reductions of a value of the epilogue on its way."""

    exits: OutputExits = NO_EXITS

    @property
    def sources(self) -> int:
        """Channels of the source that add to one of the target."""
        return self.geometry.multiplier if self.is_backward else 1

    @property
    def fan(self) -> int:
        """Channels of the target that one of the source adds to."""
        return 1 if self.is_backward else self.geometry.multiplier

    @cached_property
    def axes(self) -> tuple[Axis, Axis, Axis]:
        planes, rows, columns = (axis.backward() if self.is_backward else axis.forward() for axis in self.geometry.axes)
        return planes, rows, columns

    @cached_property
    def class_count(self) -> int:
        return prod(len(axis.classes) for axis in self.axes)

    @cached_property
    def depth(self) -> int:
        """Rows of targets that one row of sources adds to."""
        rows = self.axes[1]
        return ceil_div(rows.taps, rows.step)

    @cached_property
    def tap_count(self) -> int:
        """Of the greatest class, over all sources of a channel."""
        return prod(axis.taps for axis in self.axes) * self.sources

    @cached_property
    def subrows(self) -> int:
        """Source rows of a step."""
        return self.axes[1].step * self.axes[0].taps * self.sources

    @cached_property
    def segments(self) -> tuple[int, ...]:
        """Choices of rows of targets."""
        count = self.axes[1].count
        return tuple(sorted({ceil_div(count, parts) for parts in (1, 2, 3, 4, 6, 8, 16, 32, 64)}))

    @cached_property
    def most_channels(self) -> int:
        """Neighbouring channels that one access of the source reads."""
        return self.geometry.neighbours(self.source)

    @cached_property
    def element_bytes(self) -> int:
        """Of the source."""
        return self.source.element_bytes

    @cached_property
    def columns_first(self) -> bool:
        """Whether neighbouring threads take neighbouring columns."""
        return self.source.strides[1] != 1 and self.geometry.spatial_strides(self.source)[2] == 1

    @cached_property
    def space(self) -> IndexSpace:
        """The targets' index space: n, c, planes where the tensors have them, rows, columns."""
        space = space_of(self.geometry.dag)
        for position, axis in zip((2, 3), self.geometry.placed[1:], strict=True):
            space = with_axis(space, position) if axis is None else space
        return space

    @cached_property
    def moved(self) -> tuple[int, int]:
        """Bytes of the source, and of all that the epilogue reads and writes."""
        return bytes_of((self.source,)), moved_bytes(self.geometry.dag)

    @cached_property
    def filter_taps(self) -> int:
        """Of one filter."""
        return prod(axis.taps for axis in self.geometry.axes)

    @cached_property
    def prefetches(self) -> tuple[int, ...]:
        """Choices of source rows read ahead."""
        return tuple(p for p in PREFETCHES if p == 1 or lcm(p, self.subrows) <= _MAX_BODY_ROWS)

    def unrolled(self, prefetch: int) -> int:
        """Steps of the loop's body."""
        return prefetch // gcd(prefetch, self.subrows)

    def thread(self, channels: int, strip: int) -> Thread:
        """Worked out once."""
        if (channels, strip) not in self._threads:
            self._threads[channels, strip] = self._thread(channels, strip)
        return self._threads[channels, strip]

    @cached_property
    def weight_order(self) -> int:
        """1 or -1 where a thread's taps are whole filters, in the order of memory or backwards; 0 otherwise."""
        w, filters, strides = self.geometry.operation.filter, self.weight_digits, self.weight_strides
        meets_all = self.class_count == 1 and all(
            axis.classes[0].taps == own.taps for axis, own in zip(self.axes, self.geometry.axes, strict=True)
        )
        is_whole = meets_all and _is_dense(filters, strides) and w.alignment_bytes >= w.element_bytes
        steps = {axis.tap_step for axis in self.axes if axis.taps > 1} or {1}
        return next(iter(steps)) if is_whole and len(steps) == 1 and steps <= {1, -1} else 0

    def weight_vector(self, channels: int) -> int:
        """Weights of one access of a thread's own: 1 if there are none."""
        w, own = self.geometry.operation.filter, channels * self.sources * self.filter_taps
        return gcd(own, min(_VECTOR_BYTES, w.alignment_bytes) // w.element_bytes)

    def loads_own(self, tile: RowsTile) -> bool:
        """Whether each thread loads its own weights, as pays for few accesses."""
        own = tile.channels * self.sources * self.filter_taps
        return self.weight_order != 0 and own // self.weight_vector(tile.channels) <= _MAX_OWN_LOADS

    @cached_property
    def weight_digits(self) -> tuple[int, ...]:
        """The numbering of weights, the fastest axis first."""
        return (*(axis.taps for axis in reversed(self.geometry.axes)), self.geometry.filters)

    @cached_property
    def weight_strides(self) -> tuple[int, ...]:
        """Of the numbering's axes."""
        w = self.geometry.operation.filter
        return (*reversed(self.geometry.spatial_strides(w)), w.strides[0])

    def weights_bytes(self, tile: RowsTile) -> int:
        """Of shared memory: the groups' weights to odd pitches."""
        if self.loads_own(tile):
            return 0
        return self.weight_groups(tile) * (self.thread(tile.channels, tile.strip).weights | 1) * 4

    def registers(self, tile: RowsTile) -> int:
        """Roughly what a thread holds: sums, weights, one widened window and those on their way."""
        thread = self.thread(tile.channels, tile.strip)
        return thread.registers + thread.coming * tile.prefetch

    def fits(self, tile: RowsTile) -> bool:
        """Whether registers, window, shared memory and the caches for instructions suffice."""
        thread = self.thread(tile.channels, tile.strip)
        return (
            self.fits_ahead(thread, tile.prefetch)
            and thread.window <= _MAX_WINDOW
            and self.weights_bytes(tile) <= _MAX_SHARED_BYTES
        )

    def fits_ahead(self, thread: Thread, prefetch: int) -> bool:
        """Whether registers and the caches for instructions suffice for so many rows ahead."""
        unrolled = self.unrolled(prefetch)
        fits_cache = unrolled == 1 or unrolled * thread.products <= _MAX_UNROLLED
        return fits_cache and thread.registers + thread.coming * prefetch <= _MAX_REGISTERS

    def groups(self, tile: RowsTile) -> int:
        """Threads side by side along the target's channels."""
        return self.target.dims[1] // tile.channels

    def digits(self, tile: RowsTile) -> tuple[int, ...]:
        """The radices of a thread's number, the fastest first."""
        planes, rows, columns = self.axes
        strips, segments = ceil_div(columns.count, tile.strip), ceil_div(rows.count, tile.segment)
        if self.columns_first:
            return strips, segments, planes.count, self.groups(tile), self.geometry.images
        return self.groups(tile), strips, segments, planes.count, self.geometry.images

    @cached_property
    def _threads(self) -> dict[tuple[int, int], Thread]:
        return {}

    def _thread(self, channels: int, strip: int) -> Thread:
        columns = self.axes[2]
        window = columns.window(strip)
        positions, products = self.subrows * window, self.tap_count * channels * strip
        run = run_of(self, channels, strip)
        if self.columns_first:
            apart, apart_written = strip * columns.step * columns.spacing, strip * columns.target_step
        else:
            apart = apart_written = channels
        epilogue = strip * channels + 6 * (strip // run)
        widened = min(window, 4 * columns.taps) * channels
        groups, strips = self.target.dims[1] // channels, ceil_div(columns.count, strip)
        return Thread(
            lines=groups * strips * self.axes[0].count * self.geometry.images,
            window=window,
            weights=channels * self.sources * self.filter_taps,
            products=products,
            registers=self.depth * strip * channels + self.tap_count * channels + widened,
            coming=window * ceil_div(channels * self.element_bytes, 4),
            step=Step(
                instructions=row_instructions(positions, channels) + products + epilogue + 30,
                sectors_read=positions * sectors(apart * self.element_bytes),
                sectors_written=strip // run * sectors(apart_written * self.element_bytes),
                steps_ahead=1 / self.subrows,
            ),
        )

    def weight_groups(self, tile: RowsTile) -> int:
        """How many groups of channels the threads of a block may meet."""
        apart = prod(self.digits(tile)[:3]) if self.columns_first else 1
        return min(self.groups(tile), (tile.threads - 2) // apart + 2)

    def block_count(self, tile: RowsTile) -> int:
        segments = ceil_div(self.axes[1].count, tile.segment)
        threads = self.thread(tile.channels, tile.strip).lines * segments
        return ceil_div(threads, tile.threads) * self.class_count

    def exit_slices(self, tile: RowsTile) -> ExitSlices:
        """A thread leaves totals of its channels, a warp one of everything."""
        return ExitSlices(
            columns=prod(self.digits(tile)) // self.groups(tile) * self.class_count,
            whole=self.block_count(tile) * tile.threads // _WARP_SIZE,
        )

    def refuse(self) -> str:
        """Why the kernel cannot take the shape, or an empty string."""
        label = self.geometry.operation.label
        classes = max(len(axis.classes) for axis in self.axes)
        if classes > _MAX_CLASSES:
            rule = f"expected strides and dilations with at most {_MAX_CLASSES} residue classes"
            return f"convolution.strides: {rule} along an axis, got {classes}"
        least = RowsTile(1, 1, self.axes[1].count, 1, _THREADS)
        if not self.fits(least):
            return f"{label}.w.dims: expected a filter that fits a thread's registers, got {self.tap_count} taps"
        if self.block_count(least) * least.threads > _MAX_THREADS:
            return f"{label}.{self.target.label}: expected at most {_MAX_THREADS} threads, got more"
        weights = self.geometry.operation.filter.element_count
        if weights > _MAX_THREADS:
            return f"{label}.w.dims: expected at most {_MAX_THREADS} weights, got {weights}"
        return ""


def kernel(correlation: Correlation, tile: RowsTile, functor: Functor, target: str) -> KernelRef:
    """target: the kernel's, ``dependent_target``."""
    planes, rows, columns = correlation.axes
    front, back = columns.clips(tile.strip)
    params = Params(
        X_TYPE=dtypes.info(correlation.source.data_type).c_type,
        W_TYPE=dtypes.info(correlation.geometry.operation.filter.data_type).c_type,
        CHANNELS=tile.channels,
        STRIP=tile.strip,
        PLANE_TAPS=planes.taps,
        ROW_TAPS=rows.taps,
        COLUMN_TAPS=columns.taps,
        ROW_STEP=rows.step,
        COLUMN_STEP=columns.step,
        SOURCES=correlation.sources,
        CLASSES=_class_room(correlation),
        IS_UNEVEN=int(rows.is_uneven or columns.is_uneven),
        CLIP_FRONT=front,
        CLIP_BACK=back,
        COLUMNS_FIRST=int(correlation.columns_first),
        RUN=run_of(correlation, tile.channels, tile.strip),
        PREFETCH=tile.prefetch,
        UNROLL=correlation.unrolled(tile.prefetch),
        THREADS=tile.threads,
        WEIGHT_ORDER=correlation.weight_order if correlation.loads_own(tile) else 0,
        WEIGHT_VECTOR=correlation.weight_vector(tile.channels),
    )
    types = "_".join(
        dtypes.info(t.data_type).short_name for t in (correlation.source, correlation.geometry.operation.filter)
    )
    taps = f"{planes.taps}x{rows.taps}x{columns.taps}{'u' if params.IS_UNEVEN else ''}"
    walk = f"{taps}_s{rows.step}x{columns.step}_m{params.SOURCES}_k{params.CLASSES}"
    shape = f"c{tile.channels}w{tile.strip}{'t' if params.COLUMNS_FIRST else ''}r{params.RUN}_p{tile.prefetch}"
    shape += f"_x{front}x{back}"
    if params.WEIGHT_ORDER:
        shape += f"_o{params.WEIGHT_VECTOR}{'r' if params.WEIGHT_ORDER < 0 else ''}"
    label = target_label(target)
    return KernelRef(
        name=f"conv_depthwise_{types}_{walk}_{shape}_b{tile.threads}{correlation.exits.label}_{label}_{functor.digest}",
        source="conv/depthwise/conv_depthwise.cu",
        target=target,
        parameters=(*macros(params), *correlation.exits.macros),
        generated=functor.text,
    )


def launch(correlation: Correlation, tile: RowsTile, functor: Functor, totals: Sequence[WorkspacePointer]) -> Launch:
    """totals: of the exits."""
    geometry, w = correlation.geometry, correlation.geometry.operation.filter
    _, rows, columns = correlation.axes
    digits, groups = correlation.digits(tile), correlation.weight_groups(tile)
    thread = correlation.thread(tile.channels, tile.strip)
    filters, strides = correlation.weight_digits, correlation.weight_strides
    arguments = Struct(
        (
            *correlation.exits.arguments(totals),
            TensorPointer(correlation.source.uid),
            TensorPointer(w.uid),
            *i64(geometry.strides(correlation.source)),
            *i64(strides),
            *(Struct(divider(radix)) for radix in filters),
            Struct(divider(thread.weights)),
            *i32((prod(filters), int(_is_dense(filters, strides)))),
            *(axis.struct(_class_room(correlation)) for axis in correlation.axes),
            Struct(divider(correlation.class_count)),
            Struct(divider(len(columns.classes))),
            Struct(divider(len(rows.classes))),
            *(Struct(divider(radix)) for radix in digits),
            *i32((prod(digits), tile.segment, groups, correlation.fan)),
            functor.arguments,
        )
    )
    work = Work(
        flops=2 * prod(digits) * correlation.class_count * tile.segment * thread.products,
        bytes=bytes_of((correlation.source, w, *geometry.dag.loads, *geometry.dag.stores))
        + correlation.exits.totals_bytes(correlation.exit_slices(tile)),
        unit=MathUnit.FMA_F32,
    )
    return Launch(
        kernel=0,
        grid=(correlation.block_count(tile), 1, 1),
        block=(tile.threads, 1, 1),
        arguments=(arguments,),
        shared_bytes=correlation.weights_bytes(tile),
        work=work,
    )


def functor_of(correlation: Correlation, tile: RowsTile) -> Functor:
    """The epilogue's functor, along the channels or along a run of columns."""
    axis = 1 if run_of(correlation, tile.channels, tile.strip) == 1 else correlation.space.rank - 1
    return generate(
        replace(correlation.geometry.dag, result=None),
        accumulator=DataType.FLOAT,
        vector_axis=axis,
        exit=correlation.exits.reduced,
        space=correlation.space,
    )


def run_of(correlation: Correlation, channels: int, strip: int) -> int:
    """Columns that the epilogue gets at a time: a power of two where targets are contiguous along them."""
    columns = correlation.axes[2]
    if not correlation.columns_first or channels > 1 or columns.target_step > 1:
        return 1
    return strip & -strip


def knobs(correlation: Correlation, arch: ArchSpec) -> tuple[Knob, ...]:
    best = best_tile(correlation, arch)
    channels = tuple(c for c in CHANNELS if c <= correlation.most_channels)
    strips = tuple(s for s in STRIPS if correlation.fits(replace(best, channels=1, strip=s, prefetch=1)))
    return (
        Knob("channels", KnobType.LOAD_SIZE, channels, best.channels, "neighbouring channels of a thread"),
        Knob("strip", KnobType.TILE_COLS, strips, best.strip, "neighbouring columns of a thread"),
        Knob("segment", KnobType.TILE_ROWS, correlation.segments, best.segment, "rows that a thread finishes"),
        Knob("prefetch", KnobType.STAGES, PREFETCHES, best.prefetch, "source rows that a thread reads ahead"),
        Knob("block_size", KnobType.BLOCK_SIZE, BLOCK_SIZES, best.threads, "threads of a block"),
    )


def tile_of(correlation: Correlation, chosen: Choices) -> RowsTile | str:
    """The tile of resolved knobs, or why there is none."""
    tile = RowsTile(
        channels=chosen[KnobType.LOAD_SIZE],
        strip=chosen[KnobType.TILE_COLS],
        segment=chosen[KnobType.TILE_ROWS],
        prefetch=chosen[KnobType.STAGES],
        threads=chosen[KnobType.BLOCK_SIZE],
    )
    if correlation.fits(tile):
        return tile
    needed = correlation.registers(tile)
    return f"knob_choices: expected at most {_MAX_REGISTERS} registers of a thread's own data, got {needed}"


def best_tile(correlation: Correlation, arch: ArchSpec) -> RowsTile:
    """The fastest tile by ``estimated_s``."""

    def cost(tile: RowsTile) -> float:
        return estimated_s(correlation, _reading_ahead(correlation, tile, arch), arch)

    best = first_of_least(_bounded_tiles(correlation, arch), cost)
    return _reading_ahead(correlation, best, arch) if best else RowsTile(1, 1, correlation.axes[1].count, 1, _THREADS)


def estimated_s(correlation: Correlation, tile: RowsTile, arch: ArchSpec) -> float:
    """Seconds: a multiprocessor's blocks in waves, against the bytes moved."""
    step, steps = _step(correlation, tile), _steps(correlation, tile.segment)
    weights = correlation.thread(tile.channels, tile.strip).weights

    def wave_cycles(blocks: int) -> float:
        warps = warps_of(blocks * tile.threads)
        return _start_cycles(weights, warps, arch) + steps * step_cycles(step, warps, arch)

    blocks = ceil_div(correlation.block_count(tile), arch.sm_count)
    walk_s = waves_s(blocks, _resident(correlation, tile, arch), wave_cycles, arch)
    return together(walk_s, sum(correlation.moved) / arch.copy_bytes_per_s)


def _start_cycles(weights: int, warps: float, arch: ArchSpec) -> float:
    """Until all the ``warps`` of a scheduler have their weights and first rows."""
    return 3 * LATENCY_S * arch.clock_hz + warps * _weight_cycles(weights)


def _weight_cycles(weights: int) -> int:
    """Of a warp."""
    return 300 + 20 * weights


def _steps(correlation: Correlation, segment: int) -> int:
    """Rows of sources that a thread walks along."""
    rows = correlation.axes[1]
    edges = rows.classes[0].first_step if segment >= rows.count else 0
    return max(1, segment + correlation.depth - 1 - 2 * edges)


def _step(correlation: Correlation, tile: RowsTile) -> Step:
    """Rows of sources, multiply-adds, moves of sums, the epilogue."""
    step = correlation.thread(tile.channels, tile.strip).step
    stays = correlation.unrolled(tile.prefetch) % correlation.depth == 0
    moves = 0 if stays else correlation.depth * tile.strip * tile.channels
    ahead = tile.prefetch / correlation.subrows
    return Step(step.instructions + moves, step.sectors_read, step.sectors_written, ahead)


def _resident(correlation: Correlation, tile: RowsTile, arch: ArchSpec) -> int:
    return estimated_blocks(arch, tile.threads, correlation.registers(tile) + _OTHER_REGISTERS)


def _bounded_tiles(correlation: Correlation, arch: ArchSpec) -> Iterator[tuple[float, RowsTile]]:
    """Tiles worth a look, before they read ahead: segments that give each multiprocessor a block, no more than plenty.

    Each with a time that it does not go below: that of ``estimated_s`` with rows that are never waited for.
    """
    copy_s = sum(correlation.moved) / arch.copy_bytes_per_s
    start, warps_of_block = _start_cycles(0, 0.0, arch), warps_of(_THREADS)
    counts = [
        (segment, _steps(correlation, segment), ceil_div(correlation.axes[1].count, segment))
        for segment in reversed(correlation.segments)
    ]
    for channels in (c for c in CHANNELS if c <= correlation.most_channels):
        for strip in correlation.axes[2].useful_strips(STRIPS):
            one = RowsTile(channels, strip, 1, 1, _THREADS)
            if not correlation.fits(one):
                continue
            thread, resident = correlation.thread(channels, strip), _resident(correlation, one, arch)
            weight_cycles = _weight_cycles(thread.weights)
            for segment, steps, count in counts:
                blocks = ceil_div(thread.lines * count, _THREADS) * correlation.class_count
                if blocks >= arch.sm_count or segment == correlation.segments[0]:
                    own = ceil_div(blocks, arch.sm_count)
                    waves, warps = ceil_div(own, resident), own * warps_of_block
                    cycles = waves * start + warps * weight_cycles + steps * busy_cycles(thread.step, warps, waves)
                    least_s = together(cycles / arch.clock_hz, copy_s)
                    yield least_s, RowsTile(channels, strip, segment, 1, _THREADS)
                if blocks >= _ENOUGH_BLOCKS * arch.sm_count:
                    break


def _reading_ahead(correlation: Correlation, tile: RowsTile, arch: ArchSpec) -> RowsTile:
    """The tile with as many rows on their way as hide the latency, more where that saves the moves of sums."""
    thread, blocks = (
        correlation.thread(tile.channels, tile.strip),
        ceil_div(correlation.block_count(tile), arch.sm_count),
    )
    warps = warps_of(min(blocks, _resident(correlation, tile, arch)) * tile.threads)
    row_s = warps * _step(correlation, tile).instructions / (correlation.subrows * arch.clock_hz)
    rows = min(tile.segment + correlation.depth - 1, correlation.axes[1].classes[0].end_step) * correlation.subrows
    possible = [p for p in correlation.prefetches if p == 1 or p <= rows]
    fitting = [p for p in possible if correlation.fits_ahead(thread, p)]
    enough = max(p for p in fitting if (p - 1) * row_s < _HIDDEN_S)
    still = (p for p in fitting if p >= enough and correlation.unrolled(p) % correlation.depth == 0)
    return replace(tile, prefetch=next(still, enough))


def _is_dense(dims: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements follow each other without gaps, the first axis fastest."""
    return all(dims[i] == 1 or strides[i] == prod(dims[:i]) for i in range(len(dims)))


def _class_room(correlation: Correlation) -> int:
    """A power of two, so that few kernels serve all shapes."""
    return ceil_power(max(len(axis.classes) for axis in correlation.axes))
