"""Accumulators of ``wgmma`` as matrices, and the objects that represent them in registers.

A ``wgmma`` gives a ``Tile``; its accumulator registers hold ``Element`` objects, which turn into arrays when an
instruction reads them, so that a chain of products never leaves matrix form. The values are those at issue. A tile is
in flight until ``wgmma.wait_group`` has covered its commit group; reading an element earlier is a fault. ``mov``
passes elements on. Where a group is a part of the batch, the register file keeps a ``Held``.
"""

from __future__ import annotations

from functools import cached_property
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.values.wgmma import WarpgroupProduct

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.batch import Group

_WARP = 32
#: Products of a chain that are summed together.
_CHAIN = 8
#: Most sources for which a group remembers whether they share a lane with it.
_KEPT_MEETINGS = 64

Factors = tuple[Array, Array]


class CommitGroups:
    """``wgmma`` groups of each warp of a batch, numbered from 0; ``completed`` of them have been waited for.
    ``open``: there are products that no group covers yet. ``fenced``: the warp has come by a ``wgmma.fence``."""

    def __init__(self, warps: int) -> None:
        self.committed = np.zeros(warps, dtype=np.int32)
        self.completed = np.zeros(warps, dtype=np.int32)
        self.open = np.zeros(warps, dtype=np.bool_)
        self.fenced = np.zeros(warps, dtype=np.bool_)
        self._uses: dict[str, Array] = {}

    def note_use(self, group: Group, registers: str) -> None:
        """Notes that the tuple ``registers`` is A, or the accumulator, of a product in the open group."""
        warps = warps_of(group)
        numbers = self._uses.get(registers)
        if numbers is None:
            numbers = self._uses[registers] = np.full(self.committed.size, -1, dtype=np.int32)
        numbers[warps] = self.committed[warps]

    def check_unused(self, group: Group, registers: str, use: str) -> None:
        """Registers may be written only when the products that have them as A or accumulator (``use``) are complete."""
        numbers = self._uses.get(registers)
        if numbers is None or not group.batch.checks:
            return
        warps = group.lanes // _WARP
        waiting = self.completed[warps] <= numbers[warps]
        if waiting.any():
            message = f"the register is {use} of a wgmma.mma_async that no wgmma.wait_group has waited for"
            raise LaneFault(FaultKind.IN_FLIGHT_REGISTER, message, int(np.argmax(waiting)))

    def issue(self, warps: Array) -> Array:
        """Number of the group that a product of each warp belongs to."""
        self.open[warps] = True
        return self.committed[warps]

    def fence(self, group: Group) -> None:
        """``wgmma.fence``."""
        self.fenced[warps_of(group)] = True

    def commit(self, group: Group) -> None:
        """``wgmma.commit_group``."""
        warps = warps_of(group)
        self.committed[warps] += 1
        self.open[warps] = False

    def wait(self, group: Group, pending: int) -> None:
        """``wgmma.wait_group``: all but the last ``pending`` groups are complete."""
        warps = warps_of(group)
        self.completed[warps] = np.maximum(self.completed[warps], self.committed[warps] - pending)
        if group.batch.races is not None:
            group.batch.races.work.wgmma_waited(group)

    def lanes_exit(self, group: Group) -> None:
        """Raises LaneFault if a thread ends with products that no commit group covers."""
        unfinished = self.open[group.lanes // _WARP]
        if unfinished.any():
            message = "the thread exits, but no wgmma.commit_group covers its last wgmma.mma_async"
            raise LaneFault(FaultKind.IN_FLIGHT_REGISTER, message, int(np.argmax(unfinished)))


class Tile:
    """D [W, 64, N] of the warpgroups of one group of lanes: ``base`` (None is 0) and products to be added to it.

    ``order`` [W, 4] is each warp's place among the lanes' warps, ``numbers`` the commit group of each warp.
    """

    def __init__(
        self,
        group: Group,
        product: WarpgroupProduct,
        order: Array,
        numbers: Array,
        base: Array | None,
        factors: tuple[Factors, ...],
    ) -> None:
        self.index = group.index
        self.lanes = group.lanes
        self.first_lane = group.first_lane
        self.product = product
        self.order = order
        self.numbers = numbers
        self._base = base
        self._factors = factors

    @cached_property
    def elements(self) -> tuple[Element, ...]:
        """The elements that the accumulator registers hold."""
        return tuple(Element(self, place) for place in range(self.product.registers))

    def chain(self, product: WarpgroupProduct) -> tuple[Array | None, tuple[Factors, ...]]:
        """(base, earlier products) to which ``product`` is added."""
        if product.d == "f32" and product.chains_with(self.product) and len(self._factors) < _CHAIN:
            return self._base, self._factors
        return self.matrix, ()

    @property
    def matrix(self) -> Array:
        """D, summed."""
        if self._factors:
            lefts, rights = zip(*self._factors, strict=True)
            self._base, self._factors = self.product.accumulated(self._base, lefts, rights), ()
        if self._base is None:
            raise AssertionError("a tile has a base or products")
        return self._base

    @cached_property
    def _columns(self) -> Array:
        return self.product.columns_of(self.matrix, self.order)

    def column(self, place: int) -> Array:
        """The values of one register in the tile's lanes."""
        return np.asarray(self._columns[place])

    def in_flight(self, groups: CommitGroups) -> Array:
        """[lanes] bool: the lane's products are not complete."""
        warps = self.lanes[::_WARP] // _WARP
        waiting = groups.completed[warps] <= self.numbers
        return np.repeat(waiting, _WARP) if waiting.any() else np.zeros(1, dtype=np.bool_)

    def number_of_lanes(self) -> Array:
        return np.repeat(self.numbers, _WARP)


class Source(Protocol):
    """The owner of elements: the matrices of some lanes of the batch, which ``index`` selects."""

    index: slice | Array | None
    lanes: Array
    first_lane: int

    def column(self, place: int) -> Array:
        """The values of one register in the lanes."""

    def in_flight(self, groups: CommitGroups) -> Array:
        """[lanes] bool, or one for all: products of the lane are not complete."""

    def number_of_lanes(self) -> Array:
        """The commit group of each lane, -1 for none."""


class Column:
    """The values of one register in lanes that are not exactly one tile's, with the commit group of each lane (-1:
    none)."""

    def __init__(self, index: slice | Array | None, lanes: Array, values: Array, numbers: Array) -> None:
        self.index = index
        self.lanes = lanes
        self.first_lane = int(lanes[0])
        self._values = values
        self._numbers = numbers

    def column(self, place: int) -> Array:
        return self._values

    def in_flight(self, groups: CommitGroups) -> Array:
        return np.asarray(groups.completed[self.lanes // _WARP] <= self._numbers)

    def number_of_lanes(self) -> Array:
        return self._numbers


class Element:
    """Accumulator register number ``place`` of a source."""

    __slots__ = ("place", "source")

    def __init__(self, source: Source, place: int) -> None:
        self.source = source
        self.place = place

    def value(self) -> Array:
        """The value that the register will hold, in flight or not."""
        return self.source.column(self.place)

    def subset(self, mask: Array) -> Element:
        """The element restricted to some of its lanes."""
        source = self.source
        lanes = source.lanes[mask]
        return Element(Column(lanes, lanes, self.value()[mask], source.number_of_lanes()[mask]), 0)


class Held:
    """A register of the register file that holds elements in disjoint sets of lanes, and ``rest`` (a value, or None) in
    all other lanes. elements: by the first lane of each set.
    """

    __slots__ = ("elements", "rest")

    def __init__(self, elements: dict[int, Element], rest: Any) -> None:
        self.elements = elements
        self.rest = rest

    def part(self, group: Group) -> Any:
        """The register restricted to a group's lanes: an element, or an array if the lanes hold none."""
        own = self.element_of(group)
        if own is not None:
            return own
        touched = [element for element in self.elements.values() if _meets(element.source, group)]
        rest = self._rest_of(group)
        return self._joined(group, touched, rest) if touched else rest

    def element_of(self, group: Group) -> Element | None:
        """The element whose lanes are exactly the group's, if there is one; found without a search through all
        elements."""
        found = self.elements.get(group.first_lane)
        return found if found is not None and _same(found.source.index, group.index) else None

    def _rest_of(self, group: Group) -> Any:
        rest = self.rest
        return rest[group.index] if rest.__class__ is np.ndarray and rest.ndim and group.index is not None else rest

    def _joined(self, group: Group, touched: list[Element], rest: Any) -> Element:
        batch, lanes = group.batch, group.lanes
        first = touched[0].value()
        values = np.zeros(batch.lane_count, dtype=first.dtype)
        numbers = np.full(batch.lane_count, -1, dtype=np.int32)
        if isinstance(rest, np.ndarray | np.generic):
            values[lanes] = np.asarray(rest).view(first.dtype)
        for element in touched:
            values[element.source.lanes] = element.value()
            numbers[element.source.lanes] = element.source.number_of_lanes()
        return Element(Column(group.index, lanes, values[lanes], numbers[lanes]), 0)


def same_registers(registers: tuple[Any, ...], elements: tuple[Element, ...]) -> bool:
    """Whether the registers are all elements of one source, in order."""
    return len(registers) == len(elements) and all(map(is_, registers, elements))


def holds_elements(value: Any) -> bool:
    return value.__class__ is Element or value.__class__ is Held


def part_of(value: Any, group: Group) -> Any:
    """A group's part of a register of the file that holds elements."""
    return _held(value).part(group)


def merged_elements(old: Any, new: Element, group: Group) -> Held:
    """The register ``old`` with the group's lanes set to ``new``."""
    elements, rest = elements_outside(old, group)
    elements[new.source.first_lane] = new
    return Held(elements, rest)


def elements_outside(old: Any, group: Group) -> tuple[dict[int, Element], Any]:
    """(elements of the register ``old`` restricted to lanes outside the group, its value in lanes without elements)."""
    if not holds_elements(old):
        return {}, old
    held = _held(old)
    if held.element_of(group) is not None:
        others = held.elements.copy()
        del others[group.first_lane]
        return others, held.rest
    kept = {}
    for first, element in held.elements.items():
        if not _meets(element.source, group):
            kept[first] = element
        elif (outside := ~_among(element.source.lanes, group.lanes)).any():
            part = element.subset(outside)
            kept[part.source.first_lane] = part
    return kept, held.rest


def settled(group: Group, value: Any, dtype: Any) -> Any:
    """The value of a register that may hold an element, for an instruction that reads it. Raises LaneFault if its
    products are in flight."""
    if not holds_elements(value):
        return value
    if value.__class__ is Held:
        value = value.part(group)
        if value.__class__ is not Element:
            return value
    if group.batch.checks:
        waiting = value.source.in_flight(group.batch.commit_groups)
        if waiting.any():
            message = "the register belongs to a wgmma.mma_async that no wgmma.wait_group has waited for"
            raise LaneFault(FaultKind.IN_FLIGHT_REGISTER, message, int(np.argmax(waiting)))
    return value.value().view(dtype)


def retyped(value: Any, dtype: Any) -> Any:
    """A register as it is kept in the file: elements stay, an array is viewed as its home type."""
    return value if holds_elements(value) else value.view(dtype)


def warps_of(group: Group) -> Array:
    """The group's warps, numbered in the batch."""
    return group.lanes[::_WARP] // _WARP if group.whole else np.unique(group.lanes // _WARP)


def _held(value: Element | Held) -> Held:
    return Held({value.source.first_lane: value}, None) if isinstance(value, Element) else value


def _meets(source: Source, group: Group) -> bool:
    """Whether the source and the group have a lane in common. The last answer is kept, since the registers of a tile
    are asked about in succession."""
    kept = group.kept_meetings
    found = kept.get(source)
    if found is None:
        if len(kept) == _KEPT_MEETINGS:
            kept.clear()
        found = kept[source] = _meet(source.lanes, group.lanes)
    return found


def _same(one: slice | Array | None, other: slice | Array | None) -> bool:
    if one is other:
        return True
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.size == other.size and bool((one == other).all())
    return isinstance(one, slice) and isinstance(other, slice) and one == other


def _meet(one: Array, other: Array) -> bool:
    if one[-1] < other[0] or other[-1] < one[0]:
        return False
    return bool(_among(one, other).any())


def _among(lanes: Array, others: Array) -> Array:
    """For each of ``lanes``, whether it is one of ``others``; both ascend."""
    place = np.searchsorted(others, lanes)
    return np.asarray(others.take(place, mode="clip") == lanes)
