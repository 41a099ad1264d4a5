"""Windows of a tensor as strided copies: folding, padding and im2col.

Along each axis, tap t of window w sees the place w * stride + t * dilation - padding of a tensor of places; those
outside of it see nothing. Each element of the tensor of windows is one tap of one window of each axis:

    windows[w..., t...] = places[w * stride + t * dilation - padding ...]

Folding has windows that touch: as many taps as the stride. Padding alone has windows of one tap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product


@dataclass(frozen=True)
class Axis:
    """One axis. extent: of the places.  count: windows.  taps: numbers of each window.

    The strides are in elements: of the places, of the windows and of the taps.
    """

    extent: int
    count: int
    place_stride: int
    window_stride: int
    taps: int = 1
    tap_stride: int = 0
    stride: int = 1
    dilation: int = 1
    padding: int = 0

    @property
    def runs(self) -> list[_Run]:
        """The parts of the image that the taps read, as few runs of taps as possible."""
        seen = ((tap, *self._windows(tap)) for tap in range(self.taps))
        runs = []
        for (first, count), taps in groupby(seen, key=lambda found: found[1:]):
            listed = [tap for tap, *_ in taps]
            if count > 0:
                runs.append(_Run(listed[0], len(listed), first, count))
        return runs

    def _windows(self, tap: int) -> tuple[int, int]:
        """(first window in which ``tap`` reads a place, number of such windows)."""
        behind = self.padding - tap * self.dilation
        first = max(0, -(-behind // self.stride))
        last = min(self.count - 1, (self.extent - 1 + behind) // self.stride)
        return first, last - first + 1


@dataclass(frozen=True)
class Layout:
    """offset and strides: in elements."""

    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A strided block of elements that both tensors have, with its layout in each."""

    dims: tuple[int, ...]
    places: Layout
    windows: Layout


def pieces(axes: Sequence[Axis]) -> Iterator[Piece]:
    """Strided copies that together cover each element which a window reads once."""
    for runs in product(*(axis.runs for axis in axes)):
        pairs = [*zip(axes, runs, strict=True)]
        extents = [run.count for run in runs] + [run.taps for run in runs]
        places = [axis.place_stride * axis.stride for axis in axes] + [
            axis.place_stride * axis.dilation for axis in axes
        ]
        windows = [axis.window_stride for axis in axes] + [axis.tap_stride for axis in axes]
        kept = [index for index, extent in enumerate(extents) if extent > 1] or [0]
        yield Piece(
            tuple(extents[index] for index in kept),
            Layout(sum(run.place(axis) for axis, run in pairs), tuple(places[index] for index in kept)),
            Layout(sum(run.window(axis) for axis, run in pairs), tuple(windows[index] for index in kept)),
        )


@dataclass(frozen=True)
class _Run:
    """A run of taps from ``tap`` on that read places in the same windows, from window ``first`` on."""

    tap: int
    taps: int
    first: int
    count: int

    def place(self, axis: Axis) -> int:
        """The offset of the first place."""
        return (self.first * axis.stride + self.tap * axis.dilation - axis.padding) * axis.place_stride

    def window(self, axis: Axis) -> int:
        """The offset of the first window's first tap."""
        return self.first * axis.window_stride + self.tap * axis.tap_stride
