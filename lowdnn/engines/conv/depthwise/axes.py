"""Residue classes of a correlation's targets along an axis: the host side of ``depthwise.cuh``.

Forwards the sources are x and the targets y, backwards dy and dx. Target k of a class is at position ``target + k *
target_step``; its tap t, the filter's tap ``tap + t * tap_step``, reads the source at ``source + (k * step + t) *
spacing``. With stride u, dilation d and g = gcd(u, d):

    forwards   y[q] = sum over r of x[q * u + r * d - pad] * w[r]
               d / g classes: the q that are equal modulo d / g; step u / g, spacing d.
    backwards  dx[h] = sum over p, r with p * u + r * d - pad = h of dy[p] * w[r]
               u * d / g classes: the h that are equal modulo u * d / g; step 1, spacing d / g. If h + pad = g * m,
               the taps are every (u / g)-th one from the first that makes p whole; otherwise there are none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from lowdnn.engines.launch import ceil_div, i32
from lowdnn.plan import Argument, Struct

#: Most targets that a choice of strips may cover, relative to the choice that covers the fewest.
_MAX_COVERED = 1.1


@dataclass(frozen=True)
class AxisClass:
    """One class; positions may be negative. A class without taps has targets 0.

    first_step, end_step: the range of steps k in which one of taps 0 to step - 1 reads inside the tensor.
    """

    target: int
    source: int
    tap: int
    taps: int
    count: int
    first_step: int
    end_step: int


@dataclass(frozen=True)
class Axis:
    """An axis of a correlation; ``extent`` is the source's."""

    extent: int
    step: int
    spacing: int
    target_step: int
    tap_step: int
    classes: tuple[AxisClass, ...]

    @cached_property
    def taps(self) -> int:
        """The most taps of any class, at least 1."""
        return max((1, *(one.taps for one in self.classes)))

    @cached_property
    def is_uneven(self) -> bool:
        """Whether classes differ in their number of taps, not counting classes without taps."""
        return any(0 < one.taps < self.taps for one in self.classes)

    @cached_property
    def count(self) -> int:
        """The most targets of any class."""
        return max((one.count for one in self.classes), default=0)

    def clips(self, strip: int) -> tuple[int, int]:
        """Positions at the front and the back of every strip's window that lie outside the source."""
        if len(self.classes) > 1 or strip < self.count:
            return 0, 0
        first, positions = self.classes[0].source, self._window(strip)
        front = max(ceil_div(-first, self.spacing), 0)
        back = max(positions - max(ceil_div(self.extent - first, self.spacing), 0), 0)
        return (front, back) if front + back < positions else (0, 0)

    def window(self, strip: int) -> int:
        """Source positions that ``strip`` neighbouring targets of a class read."""
        return self._window(strip) - sum(self.clips(strip))

    def useful_strips(self, strips: tuple[int, ...]) -> tuple[int, ...]:
        """Choices of ``strips`` that use a window well, with few targets past the last one."""
        least = min(self.count, (self.taps + 1) // (2 * self.step))
        covered = {s: ceil_div(self.count, s) * s for s in strips if least <= s < 2 * self.count}
        most = _MAX_COVERED * min(covered.values(), default=0)
        return tuple(s for s, targets in covered.items() if targets <= most)

    def struct(self, class_count: int) -> Struct:
        """The kernel's ``Axis``, with room for ``class_count`` classes."""
        own = [tuple(vars(one).values()) for one in self.classes]
        blank = [(0,) * len(own[0])] * (class_count - len(own))
        head: tuple[Argument, ...] = i32((self.extent, self.step, self.spacing, self.target_step, self.tap_step))
        return Struct((*head, *(Struct(i32(values)) for values in own + blank)))

    def _window(self, strip: int) -> int:
        return (strip - 1) * self.step + self.taps


@dataclass(frozen=True)
class AxisGeometry:
    """One axis of a convolution: extents of image, filter and response, stride, dilation, padding at the front."""

    image: int
    taps: int
    response: int
    stride: int
    dilation: int
    padding: int
    is_flipped: bool

    def forward(self) -> Axis:
        """The axis of a forward pass: sources are the image's positions, targets the response's."""
        common = gcd(self.stride, self.dilation)
        walk = _Walk(self.image, self.response, self.stride // common, self.dilation, self.dilation // common)
        classes = (
            walk.axis_class(target, target * self.stride - self.padding, self._tap(0), self.taps)
            for target in range(min(walk.target_step, self.response))
        )
        return walk.axis(self._tap_step(1), tuple(classes))

    def backward(self) -> Axis:
        """The axis of a data gradient: sources are the response's positions, targets the image's. Tap 0 of a class is
        its last tap in the filter, which reads the lowest position."""
        common = gcd(self.stride, self.dilation)
        stride, spacing = self.stride // common, self.dilation // common
        walk = _Walk(self.response, self.image, 1, spacing, self.stride * spacing)
        classes = []
        for target in range(min(walk.target_step, self.image)):
            multiple, rest = divmod(target + self.padding, common)
            first = multiple * pow(spacing, -1, stride) % stride
            taps = range(first, self.taps, stride) if rest == 0 else range(0)
            last = taps[-1] if taps else 0
            source = (multiple - last * spacing) // stride
            classes.append(walk.axis_class(target, source, self._tap(last), len(taps)))
        return walk.axis(self._tap_step(-stride), tuple(classes))

    def _tap(self, tap: int) -> int:
        """The filter's position of ``tap``."""
        return self.taps - 1 - tap if self.is_flipped else tap

    def _tap_step(self, step: int) -> int:
        return -step if self.is_flipped else step


@dataclass(frozen=True)
class _Walk:
    """The values that the classes of an axis share: extents of source and targets, and steps as in ``Axis``."""

    extent: int
    targets: int
    step: int
    spacing: int
    target_step: int

    def axis(self, tap_step: int, classes: tuple[AxisClass, ...]) -> Axis:
        return Axis(self.extent, self.step, self.spacing, self.target_step, tap_step, classes)

    def axis_class(self, target: int, source: int, tap: int, taps: int) -> AxisClass:
        first = max(0, ceil_div(-source, self.spacing))
        last = (self.extent - 1 - source) // self.spacing
        return AxisClass(
            target,
            source,
            tap,
            taps,
            count=ceil_div(self.targets - target, self.target_step),
            first_step=first // self.step,
            end_step=last // self.step + 1,
        )
