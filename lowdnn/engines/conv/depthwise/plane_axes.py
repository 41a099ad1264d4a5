"""Axes of a walk along the planes: the host side of ``depthwise_planes.cuh``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd

from lowdnn.arch.multiprocessor import SECTOR_BYTES
from lowdnn.engines.conv.depthwise.axes import AxisGeometry
from lowdnn.engines.conv.depthwise.geometry import DepthwiseGeometry
from lowdnn.engines.launch import ceil_div, divider, i32
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Struct

#: Bytes of a word, which holds the channels of a thread.
WORD_BYTES = 4
_WIDEST_COPY = 16

#: Taps from which on a line is faster as columns of planes than walked along as rows (measured).
_LEAST_LINE_TAPS = 16

#: Least words of channels of a block that does not take all of them.
_LEAST_LANES = 12
#: Most words of channels of a block.
_MOST_LANES = 64
#: Words of channels of a block if the tensor has fewer than ``_LEAST_LANES``.
_FEW_LANES = 8


@dataclass(frozen=True)
class WindowAxis:
    """Target q reads the sources at (q * step - padding + tap) / up, if that is whole.

    sources, targets: extents.  is_reversed: tap 0 is the filter's last one.
    """

    sources: int
    targets: int
    taps: int
    step: int
    up: int
    padding: int
    is_reversed: bool

    @classmethod
    def forward(cls, axis: AxisGeometry) -> WindowAxis:
        """The axis of a forward pass: sources are the image's positions, targets the response's."""
        return cls(axis.image, axis.response, axis.taps, axis.stride, 1, axis.padding, axis.is_flipped)

    @classmethod
    def backward(cls, axis: AxisGeometry) -> WindowAxis:
        """The axis of a data gradient: sources are the response's positions, targets the image's."""
        padding = axis.taps - 1 - axis.padding
        return cls(axis.response, axis.image, axis.taps, 1, axis.stride, padding, not axis.is_flipped)

    @cached_property
    def first(self) -> int:
        """The first position that target 0 reads, inside the source or not."""
        return ceil_div(-self.padding, self.up)

    @cached_property
    def phase(self) -> int:
        """The tap with which target 0 reads that position."""
        return self.first * self.up + self.padding

    def thread(self, targets: int, threads: int = 1) -> ThreadAxis:
        """One of a block's ``threads``, with ``targets`` targets; a lone thread with all targets skips positions of
        padding.
        """
        return _thread(self, targets, threads == 1 and targets >= self.targets)

    def window(self, targets: int, threads: int = 1) -> int:
        """Positions that a block's ``threads`` with ``targets`` neighbouring targets each read, the first a multiple of
        ``up``.
        """
        return self.thread(targets, threads).window + self.moved((threads - 1) * targets)

    def moved(self, targets: int) -> int:
        """Positions from the window of target q to that of target q + ``targets``, where ``targets`` is a multiple of
        ``up``."""
        return targets * self.step // self.up

    def products(self, targets: int) -> int:
        """Multiply-adds of ``targets`` neighbouring targets: pairs of a target and a tap that reads a source for it."""
        return _products(self, targets)


@dataclass(frozen=True)
class ThreadAxis:
    """One axis of a thread's work.

    first: the first position of target 0's window.  phase: the tap that reads it.  window: positions of the window.
    """

    first: int
    phase: int
    window: int


def word_channels(tensor: Tensor) -> int:
    """Channels of a word."""
    return WORD_BYTES // tensor.element_bytes


def has_words(geometry: DepthwiseGeometry, tensor: Tensor) -> bool:
    """Whether the tensor's channels form aligned words."""
    words = word_channels(tensor)
    return tensor.strides[1] == 1 and words > 0 and geometry.neighbours(tensor) >= words


def refuse_walk(geometry: DepthwiseGeometry) -> str:
    """Why no kernel walks along planes of the operation, or an empty string."""
    planes, _, columns = geometry.axes
    is_line = geometry.placed[:2] == (None, None)
    if is_line and columns.taps < _LEAST_LINE_TAPS:
        return f"expected planes, or a line with at least {_LEAST_LINE_TAPS} taps"
    if any(axis.dilation > 1 for axis in geometry.axes) or planes.stride > 1:
        return "expected no dilations and no stride along the planes"
    if not 0 <= planes.padding < planes.taps:
        return "expected less padding than taps along the planes"
    if geometry.multiplier > 1:
        return "expected one filter of each channel"
    return ""


@dataclass(frozen=True)
class Staging:
    """How a block's threads copy a box of positions of a plane to shared memory: ``StagedPlanes``.

    row_copies: copies of a row.  copies: copies of a thread for a plane.  copy_bytes: bytes of a copy.
    touched_bytes: bytes of the L2 cache that they touch.
    """

    rows: int
    row_copies: int
    copies: int
    copy_bytes: int
    is_dense: bool
    threads: int
    touched_bytes: int

    @property
    def stage_bytes(self) -> int:
        return self.copies * self.threads * self.copy_bytes

    def box(self, strides: tuple[int, ...], extents: tuple[int, int], channels: int) -> Struct:
        """The kernel's ``StagedPlanes::Box``; strides and extents are those of rows and columns."""
        return Struct((*i32((self.rows,)), Struct(divider(self.row_copies)), *i32((*strides, *extents, channels))))


@dataclass(frozen=True)
class StagedTensor:
    """A tensor whose planes are copied to shared memory.

    pitch_bytes: bytes from one position to the next without gaps.  widest_copy: most bytes of a copy of one position.
    dense_lanes: words of a position if rows have no gaps and consist of whole copies; otherwise 0.
    """

    pitch_bytes: int
    widest_copy: int
    dense_lanes: int

    @classmethod
    def of(cls, geometry: DepthwiseGeometry, tensor: Tensor) -> StagedTensor:
        pitch_bytes = tensor.dims[1] * tensor.element_bytes
        widest = min(_WIDEST_COPY, geometry.neighbours(tensor) * tensor.element_bytes)
        return cls(pitch_bytes, widest, pitch_bytes // WORD_BYTES if _is_dense(tensor) else 0)

    def staging(self, shape: tuple[int, int], lanes: int, threads: int) -> Staging:
        """The staging of a box of ``shape`` rows and columns with ``lanes`` words of channels."""
        rows, columns = shape
        position_bytes, is_dense = lanes * WORD_BYTES, lanes == self.dense_lanes
        if is_dense:
            copied, touched = _WIDEST_COPY, position_bytes
        else:
            copied = gcd(self.widest_copy, position_bytes)
            is_aligned = position_bytes % SECTOR_BYTES == self.pitch_bytes % SECTOR_BYTES == 0
            touched = (ceil_div(position_bytes, SECTOR_BYTES) + (not is_aligned)) * SECTOR_BYTES
        before = copied - WORD_BYTES if position_bytes % copied else 0  # where a box begins inside a copy
        row_copies = ceil_div(columns * position_bytes + before, copied)
        count = ceil_div(rows * row_copies, threads)
        return Staging(rows, row_copies, count, copied, is_dense, threads, rows * columns * touched)


def lane_choices(channels: int, tensor: Tensor) -> tuple[int, ...]:
    """Choices of the number of a block's words of channels, the largest first: equal parts of all words, or powers of
    two that leave few lanes idle.
    """
    words = channels // word_channels(tensor)
    parts = {words // n for n in range(1, words + 1) if words % n == 0}
    powers = {n for n in (16, 32) if (ceil_div(words, n) * n - words) * 4 <= words}
    fitting = sorted((n for n in parts | powers if _LEAST_LANES <= n <= _MOST_LANES), reverse=True)
    return tuple(fitting) or (_FEW_LANES,)


def _is_dense(tensor: Tensor) -> bool:
    """Whether rows of positions have no gaps, and begin and end at the widest copies."""
    channels, width = tensor.dims[1], _WIDEST_COPY // tensor.element_bytes
    others = (*tensor.dims[:1], *tensor.dims[2:-1]), (*tensor.strides[:1], *tensor.strides[2:-1])
    return (
        channels == tensor.strides[-1]
        and tensor.alignment_bytes >= _WIDEST_COPY
        and channels * tensor.dims[-1] % width == 0
        and all(step % width == 0 for extent, step in zip(*others, strict=True) if extent > 1)
    )


@lru_cache(maxsize=1024)
def _products(axis: WindowAxis, targets: int) -> int:
    """Cached, since a search asks for the same few again and again."""
    thread = axis.thread(targets)
    taps = (j * axis.up + thread.phase - i * axis.step for i in range(targets) for j in range(thread.window))
    return sum(0 <= tap < axis.taps for tap in taps)


@lru_cache(maxsize=1024)
def _thread(axis: WindowAxis, targets: int, has_all: bool) -> ThreadAxis:
    """Cached like ``_products``."""
    window = ((targets - 1) * axis.step + axis.taps - 1 - axis.phase) // axis.up + 1
    if not has_all:
        return ThreadAxis(axis.first, axis.phase, window)
    front = max(0, -axis.first)
    inside = min(window, axis.sources - axis.first) - front
    return ThreadAxis(axis.first + front, axis.phase + front * axis.up, max(1, inside))
