"""Forward pass and data gradient of depthwise convolutions down the rows: the problem, and a thread's work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd, lcm, prod

from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.codegen.space import IndexSpace, space_of, with_axis
from lowdnn.engines.conv.depthwise.axes import Axis
from lowdnn.engines.conv.depthwise.geometry import DataPass
from lowdnn.engines.conv.depthwise.row_walk import (
    MAX_CLASSES,
    MAX_WINDOW,
    PREFETCHES,
    ROWS,
    THREADS,
    Step,
    row_instructions,
    sectors,
)
from lowdnn.engines.gemm.epilogue_reductions import NO_REDUCTIONS, EpilogueReductions, ReductionSlices
from lowdnn.engines.indices import MAX_TILED_EXTENT
from lowdnn.engines.launch import bytes_of, ceil_div, moved_bytes

#: Choices of the threads of a block.
BLOCK_SIZES = (64, 128, 256)

#: Most registers for a thread's sums, weights and windows, with which ptxas needs no more than 255.
MAX_REGISTERS = 175
_MAX_SHARED_BYTES = 48 << 10

#: Bytes of an access to weights that each thread loads for itself.
_VECTOR_BYTES = 16
#: Most accesses to such weights.
_MAX_OWN_LOADS = 25

#: Most multiply-adds of an unrolled loop's body.
_MAX_UNROLLED = 1024


#: Most source rows of the loop's body in the search.
_MAX_BODY_ROWS = 20


@dataclass(frozen=True)
class RowsTile:
    """A thread's work: neighbouring channels, columns of a strip, rows of a segment, source rows read ahead.

    threads: threads of a block.
    """

    channels: int
    strip: int
    segment: int
    prefetch: int
    threads: int


@dataclass(frozen=True)
class Thread:
    """The facts about threads with equally many channels and columns, independent of their segments and rows ahead.

    lines: threads for one segment.  window: source positions of a row.  weights: weights of the channels.
    products: multiply-adds for one row of targets.
    registers: registers for sums, weights and one widened window.  coming: registers for each row in flight.
    step: the costs of one row of targets, without moves of sums, read one source row ahead.
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
    """The walk down the rows, and the reductions of a value of the epilogue."""

    reductions: EpilogueReductions = NO_REDUCTIONS

    @property
    def sources(self) -> int:
        """Channels of the source that are summed into one channel of the target."""
        return self.geometry.multiplier if self.is_backward else 1

    @property
    def fan(self) -> int:
        """Channels of the target that read one channel of the source."""
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
        """Rows of targets that one source row is added to."""
        rows = self.axes[1]
        return ceil_div(rows.taps, rows.step)

    @cached_property
    def tap_count(self) -> int:
        """Taps of the largest class, over all sources of a channel."""
        return prod(axis.taps for axis in self.axes) * self.sources

    @cached_property
    def subrows(self) -> int:
        """Source rows of a step."""
        return self.axes[1].step * self.axes[0].taps * self.sources

    @cached_property
    def segments(self) -> tuple[int, ...]:
        """Choices of the rows of targets in a segment."""
        count = self.axes[1].count
        return tuple(sorted({ceil_div(count, parts) for parts in (1, 2, 3, 4, 6, 8, 16, 32, 64)}))

    @cached_property
    def most_channels(self) -> int:
        """Neighbouring channels that one access of the source reads."""
        return self.geometry.neighbours(self.source)

    @cached_property
    def element_bytes(self) -> int:
        """Bytes of an element of the source."""
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
        """Bytes of the source, and of the tensors that the epilogue reads and writes."""
        return bytes_of((self.source,)), moved_bytes(self.geometry.dag)

    @cached_property
    def filter_taps(self) -> int:
        """Taps of one filter."""
        return prod(axis.taps for axis in self.geometry.axes)

    @cached_property
    def prefetches(self) -> tuple[int, ...]:
        """Choices of source rows read ahead."""
        return tuple(p for p in PREFETCHES if p == 1 or lcm(p, self.subrows) <= _MAX_BODY_ROWS)

    def unrolled(self, prefetch: int) -> int:
        """Steps of the loop's body."""
        return prefetch // gcd(prefetch, self.subrows)

    def thread(self, channels: int, strip: int) -> Thread:
        """The facts about such threads, computed once."""
        if (channels, strip) not in self._threads:
            self._threads[channels, strip] = self._thread(channels, strip)
        return self._threads[channels, strip]

    @cached_property
    def weight_order(self) -> int:
        """1 or -1 if a thread's taps are whole filters, in the order of memory or reversed; 0 otherwise."""
        w, filters, strides = self.geometry.operation.filter, self.weight_digits, self.weight_strides
        meets_all = self.class_count == 1 and all(
            axis.classes[0].taps == own.taps for axis, own in zip(self.axes, self.geometry.axes, strict=True)
        )
        is_whole = meets_all and is_dense(filters, strides) and w.alignment_bytes >= w.element_bytes
        steps = {axis.tap_step for axis in self.axes if axis.taps > 1} or {1}
        return next(iter(steps)) if is_whole and len(steps) == 1 and steps <= {1, -1} else 0

    def weight_vector(self, channels: int) -> int:
        """Weights in one access of a thread that loads its own; 1 if it loads none."""
        w, own = self.geometry.operation.filter, channels * self.sources * self.filter_taps
        return gcd(own, min(_VECTOR_BYTES, w.alignment_bytes) // w.element_bytes)

    def loads_own(self, tile: RowsTile) -> bool:
        """Whether each thread loads its own weights, which pays for few accesses."""
        own = tile.channels * self.sources * self.filter_taps
        return self.weight_order != 0 and own // self.weight_vector(tile.channels) <= _MAX_OWN_LOADS

    @cached_property
    def weight_digits(self) -> tuple[int, ...]:
        """The numbering of weights, the fastest axis first."""
        return (*(axis.taps for axis in reversed(self.geometry.axes)), self.geometry.filters)

    @cached_property
    def weight_strides(self) -> tuple[int, ...]:
        """Strides of the weights along the numbering's axes."""
        w = self.geometry.operation.filter
        return (*reversed(self.geometry.spatial_strides(w)), w.strides[0])

    def weights_bytes(self, tile: RowsTile) -> int:
        """Bytes of shared memory for the groups' weights, at odd pitches."""
        if self.loads_own(tile):
            return 0
        return self.weight_groups(tile) * (self.thread(tile.channels, tile.strip).weights | 1) * 4

    def registers(self, tile: RowsTile) -> int:
        """A thread's registers, roughly: sums, weights, one widened window and the windows in flight."""
        thread = self.thread(tile.channels, tile.strip)
        return thread.registers + thread.coming * tile.prefetch

    def fits(self, tile: RowsTile) -> bool:
        """Whether registers, window, shared memory and the instruction caches suffice."""
        thread = self.thread(tile.channels, tile.strip)
        return (
            self.fits_ahead(thread, tile.prefetch)
            and thread.window <= MAX_WINDOW
            and self.weights_bytes(tile) <= _MAX_SHARED_BYTES
        )

    def fits_ahead(self, thread: Thread, prefetch: int) -> bool:
        """Whether registers and the instruction caches suffice for ``prefetch`` rows ahead."""
        unrolled = self.unrolled(prefetch)
        fits_cache = unrolled == 1 or unrolled * thread.products <= _MAX_UNROLLED
        return fits_cache and thread.registers + thread.coming * prefetch <= MAX_REGISTERS

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
            source_pitch, target_pitch = strip * columns.step * columns.spacing, strip * columns.target_step
        else:
            source_pitch = target_pitch = channels
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
                instructions=row_instructions(positions, channels) + products + epilogue + ROWS.step_instructions,
                sectors_read=positions * sectors(source_pitch * self.element_bytes),
                sectors_written=strip // run * sectors(target_pitch * self.element_bytes),
                steps_ahead=1 / self.subrows,
            ),
        )

    def weight_groups(self, tile: RowsTile) -> int:
        """The most groups of channels in a block."""
        group_threads = prod(self.digits(tile)[:3]) if self.columns_first else 1
        return min(self.groups(tile), (tile.threads - 2) // group_threads + 2)

    def block_count(self, tile: RowsTile) -> int:
        segments = ceil_div(self.axes[1].count, tile.segment)
        threads = self.thread(tile.channels, tile.strip).lines * segments
        return ceil_div(threads, tile.threads) * self.class_count

    def reduction_slices(self, tile: RowsTile) -> ReductionSlices:
        """The totals of the reductions: one of each channel from a thread, and one of everything from a warp."""
        return ReductionSlices(
            columns=prod(self.digits(tile)) // self.groups(tile) * self.class_count,
            whole=self.block_count(tile) * tile.threads // WARP_SIZE,
        )

    def refuse(self) -> str:
        """Why the kernel cannot take the shape, or an empty string."""
        label = self.geometry.operation.label
        classes = max(len(axis.classes) for axis in self.axes)
        if classes > MAX_CLASSES:
            rule = f"expected strides and dilations with at most {MAX_CLASSES} residue classes"
            return f"convolution.strides: {rule} along an axis, got {classes}"
        least = RowsTile(1, 1, self.axes[1].count, 1, THREADS)
        if not self.fits(least):
            return f"{label}.w.dims: expected a filter that fits a thread's registers, got {self.tap_count} taps"
        if self.block_count(least) * least.threads > MAX_TILED_EXTENT:
            return f"{label}.{self.target.label}: expected at most {MAX_TILED_EXTENT} threads, got more"
        weights = self.geometry.operation.filter.element_count
        if weights > MAX_TILED_EXTENT:
            return f"{label}.w.dims: expected at most {MAX_TILED_EXTENT} weights, got {weights}"
        return ""


def run_of(correlation: Correlation, channels: int, strip: int) -> int:
    """Columns that the epilogue gets at a time: a power of two if targets are contiguous along them."""
    columns = correlation.axes[2]
    if not correlation.columns_first or channels > 1 or columns.target_step > 1:
        return 1
    return strip & -strip


def is_dense(dims: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements are contiguous in memory, the first axis fastest."""
    return all(dims[i] == 1 or strides[i] == prod(dims[:i]) for i in range(len(dims)))
