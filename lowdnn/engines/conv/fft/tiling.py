"""Windows of a correlation: the part of the source that gives a part of the targets, in one transform.

Along each axis, window w of the target has the positions w * step and on. Filters that reach farther than a window has
room for are cut into pieces of one step, so that piece p of the filter meets window w + p of the source:

    target window w = sum over p of source window (w + p) correlated with piece p,    extent = step + piece - 1

One window alone may have its values elsewhere: source and taps in reverse order are convolved, from their first
elements on, and target o is at o + reach - 1 - offset.

This is the overlap-save method, with partitioned filters. Source: W. G. Gardner, "Efficient convolution without
input-output delay", JAES 1995.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from lowdnn.engines.conv.fft.correlation import CorrelationAxis, SpectralCorrelation
from lowdnn.engines.launch import ceil_div

#: Real values of a transform.
WINDOW_VALUES = tuple(1 << power for power in range(6, 16))
#: Bytes of a complex value.
COMPLEX_BYTES = 8
#: Choices of the windows along an axis, but the first one.
_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)


def butterfly_values(points: int) -> int:
    """Complex values of a butterfly in a transform of ``points`` (``real_transform.cuh``)."""
    return 32 if points >= 512 else 16


def line_bytes(values: int) -> int:
    """Bytes of shared memory of a line of ``values`` real values (``real_transform.cuh``)."""
    points = values // 2
    return (points + points // butterfly_values(points) + 1) * COMPLEX_BYTES


@dataclass(frozen=True)
class TiledAxis:
    """Windows along one axis.  step: positions of a window of the target.  piece: positions of a filter's piece."""

    axis: CorrelationAxis
    step: int
    piece: int

    @property
    def extent(self) -> int:
        """Positions of a window of the source."""
        return self.step + self.piece - 1

    @property
    def tiles(self) -> int:
        """Windows of the target."""
        return ceil_div(self.axis.extent, self.step)

    @property
    def pieces(self) -> int:
        return ceil_div(self.axis.reach, self.piece)

    @property
    def windows(self) -> int:
        """Windows of the source."""
        return self.tiles + self.pieces - 1


@dataclass(frozen=True)
class Tiling:
    """The windows of a correlation.  values: real values of a transform, a power of two."""

    values: int
    axes: tuple[TiledAxis, ...]

    @property
    def points(self) -> int:
        """Complex values of a transform."""
        return self.values // 2

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(axis.extent for axis in self.axes)

    @cached_property
    def convolves(self) -> bool:
        """Whether taps lie backwards and are convolved with the source from its first element on, which leaves second
        halves empty: those of a causal convolution."""
        if not self._is_line or self.tiles * self.pieces > 1:
            return False
        axis, first = self.axes[0].axis, self._first_target
        return first >= 0 and max(axis.sources, axis.reach, first + axis.extent) <= self.points

    @property
    def target_offset(self) -> int:
        """Coordinate of the first target of a window."""
        return self._first_target if self.convolves else 0

    @property
    def targets_are_half(self) -> bool:
        """Whether no target is in the second half of its line: ``HALF`` of ``conv_fft_targets.cu``."""
        if not self._is_line:
            return False
        (tiled,) = self.axes
        return self.target_offset + min(tiled.step, tiled.axis.extent) <= self.points

    @property
    def _is_line(self) -> bool:
        """Whether there is one axis, with a target at each position."""
        return len(self.axes) == 1 and self.axes[0].axis.target_spacing == 1

    @property
    def _first_target(self) -> int:
        axis = self.axes[0].axis
        return axis.reach - 1 - axis.offset

    @cached_property
    def tiles(self) -> int:
        return prod(axis.tiles for axis in self.axes)

    @cached_property
    def pieces(self) -> int:
        return prod(axis.pieces for axis in self.axes)

    @cached_property
    def windows(self) -> int:
        return prod(axis.windows for axis in self.axes)


def tilings(correlation: SpectralCorrelation, values: int) -> Iterator[Tiling]:
    """Candidates with transforms of ``values`` values, at least one: even parts of every axis, as few as there is room
    for along the first one.
    """
    yield from (Tiling(values, axes) for axes in _split(correlation.axes, values))


def _split(axes: tuple[CorrelationAxis, ...], room: int) -> Iterator[tuple[TiledAxis, ...]]:
    *outer, last = axes
    if not outer:
        yield (_widest(last, room),)
        return
    for tiled in _parts(last, room):
        yield from ((*others, tiled) for others in _split(tuple(outer), room // tiled.extent))


def _parts(axis: CorrelationAxis, room: int) -> Iterable[TiledAxis]:
    """The axis in each number of even parts that leaves extents within ``room``; the longest parts if none does."""
    steps = {ceil_div(axis.extent, parts) for parts in _PARTS}
    whole = [TiledAxis(axis, step, axis.reach) for step in sorted(steps) if step + axis.reach - 1 <= room]
    return whole or [_widest(axis, room)]


def _widest(axis: CorrelationAxis, room: int) -> TiledAxis:
    """The axis in the fewest even parts whose extents are within ``room``, with the filter whole, if one part is enough
    or leaves at least half of the room to targets; otherwise with the filter in pieces of half the room.
    """
    half, step = (room + 1) // 2, room - axis.reach + 1
    if step < min(half, axis.extent):
        return TiledAxis(axis, half, half)
    return TiledAxis(axis, ceil_div(axis.extent, ceil_div(axis.extent, step)), axis.reach)
