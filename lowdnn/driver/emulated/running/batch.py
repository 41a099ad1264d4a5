"""A batch: all lanes of some CTAs, their registers, shared and local memory; and a group: the lanes that run together.

Each CTA takes a whole number of warps; lanes beyond its last thread exist but never run. Lanes are numbered by warp,
then CTA: the first warps of all CTAs, the second ones, and so on, so that warps with one role lie side by side. CTAs
have slots; those of a cluster are consecutive, in the order of their ranks, and a batch holds whole clusters. A
group's ``index`` selects its lanes from an array over the batch: None for all, a slice where they are contiguous,
else an array of lane numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import numpy as np

from lowdnn.driver.emulated.checking.launch import LaunchHistory
from lowdnn.driver.emulated.checking.races import Races
from lowdnn.driver.emulated.copying.async_work import AsyncWork
from lowdnn.driver.emulated.copying.copies import AsyncCopies
from lowdnn.driver.emulated.faults import Dim3, FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import WARP, Geometry, Lanes
from lowdnn.driver.emulated.memory.arena import DTYPES, Arena, Array, Bytes
from lowdnn.driver.emulated.running.accumulators import (
    CommitGroups,
    Element,
    Held,
    Source,
    elements_outside,
    holds_elements,
    merged_elements,
)
from lowdnn.driver.emulated.running.clock import DeviceClock
from lowdnn.driver.emulated.running.fragments import Chains
from lowdnn.driver.emulated.running.mbarriers import Mbarriers

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.policy import Picker

#: Offset of the first user byte of shared and local memory. It is not 0, so that null pointers and assumed offsets are
#: found.
SHARED_START = 1024
LOCAL_START = 64
_POISON = 0xFFFF_BAD1_FFFF_BAD1


class Unwritten:
    """The content of a register that nothing has written.

    Any use of it is a fault, unless an earlier branch may have written it (``dtype``): a compiler reads such a register
    without the branch where its value then counts for nothing. It has a conspicuous value.
    """

    __slots__ = ("_content", "_register")

    def __init__(self, register: str, dtype: Any = None) -> None:
        self._register = register
        self._content = None if dtype is None else np.asarray(poison(np.dtype(dtype)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._value(), name)

    def __array__(self, *_: Any, **__: Any) -> Array:
        return self._value()

    def __bool__(self) -> bool:
        return bool(self._value())

    def _value(self) -> Array:
        if self._content is None:
            message = f"register {self._register} is read, but nothing has written it"
            raise LaneFault(FaultKind.UNWRITTEN_REGISTER, message, 0)
        return self._content


@dataclass
class Batch:
    """State of the CTAs that run together. ``checks``: report reads of never-written bytes. ``picker`` makes the
    choices that a GPU leaves open. ``history``: what data races are looked for with; None where they are not.
    ``grid_workspace``: an address for a cooperative launch, 0 for others. ``polled``: by lane, the address in global
    memory that it last read strongly, or 0; None before the first."""

    geometry: Geometry
    arena: Arena
    registers: list[Any]
    shared_bytes: int
    local_bytes: int
    dynamic_shared_bytes: int
    parameters: Array
    parameter_address: np.uint64
    checks: bool
    picker: Picker
    history: LaunchHistory | None = None
    grid_workspace: int = 0
    stores: int = 0
    clock: DeviceClock = field(default_factory=DeviceClock)
    polled: Array | None = field(default=None, init=False)
    shared: Bytes = field(init=False)
    local: Bytes = field(init=False)
    specials: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        geometry = self.geometry
        self.cta_count = len(geometry.ctas)
        self.cluster_size = geometry.cluster_size
        self.lane_count = self.cta_count * geometry.cta_lanes
        self.shared_start, self.shared_end = SHARED_START, SHARED_START + self.shared_bytes
        self.shared_stride = -(-self.shared_end // 128) * 128
        self.shared_single = self.cta_count == 1
        self.shared = _bytes(self.cta_count * self.shared_stride, "shared memory", SHARED_START)
        self.local_start, self.local_end = LOCAL_START, LOCAL_START + self.local_bytes
        self.local_stride = -(-self.local_end // 16) * 16 if self.local_bytes else 0
        self.local = _bytes(self.lane_count * self.local_stride, "local memory", LOCAL_START)
        self.lanes = np.arange(self.lane_count, dtype=np.int64)
        by_warp = (geometry.cta_lanes // WARP, self.cta_count, WARP)
        threads = np.arange(geometry.cta_lanes, dtype=np.int64).reshape(-1, 1, WARP)
        slots = np.arange(self.cta_count, dtype=np.int64)[:, np.newaxis]
        self.slot = np.broadcast_to(slots, by_warp).reshape(-1)
        self.rank = np.broadcast_to(slots % self.cluster_size, by_warp).reshape(-1)
        self.thread = np.broadcast_to(threads, by_warp).reshape(-1)
        self.shared_base = self.slot * self.shared_stride
        self.local_base = self.lanes * self.local_stride
        self.alive = self.thread < geometry.threads
        self.chains = Chains()
        self.commit_groups = CommitGroups(self.lane_count // WARP)
        self.copies = AsyncCopies(self.lane_count, self.shared, self.arena, self.picker.lands_at_once)
        self.races = Races(self, self.history) if self.history is not None else None
        self.parameter_views = {code: self.parameters.view(dtype) for code, dtype in DTYPES.items()}

    def running_ctas(self) -> Array:
        """[CTAs] bool: which CTAs have a thread that has not exited."""
        return np.asarray(self.alive.reshape(-1, self.cta_count, WARP).any(axis=(0, 2)))

    def note_polled(self, group: Lanes[object], addresses: Any) -> None:
        """The group has read global memory by a strong load or an atomic; reports of a deadlock name the place."""
        if self.polled is None:
            self.polled = np.zeros(self.lane_count, dtype=np.int64)
        self.polled[slice(None) if group.index is None else group.index] = addresses

    @cached_property
    def mbarriers(self) -> Mbarriers:
        return Mbarriers(self)

    @cached_property
    def async_work(self) -> AsyncWork:
        return AsyncWork(self)

    def place(self, lane: int) -> tuple[Dim3, Dim3, int, int]:
        """(block, thread, warp, lane in the warp) of a lane of the batch."""
        thread = int(self.thread[lane])
        return (
            self.block_of(int(self.geometry.ctas[int(self.slot[lane])])),
            _coordinates(thread, self.geometry.block),
            thread // 32,
            thread % 32,
        )

    def block_of(self, cta: int) -> Dim3:
        """The coordinates of a CTA that is given by its linear number."""
        return _coordinates(cta, self.geometry.grid)


class Group:
    """Lanes that execute a block together. Arrays derived from the lanes are made once."""

    def __init__(self, batch: Batch, index: slice | Array | None) -> None:
        self.batch = batch
        self.index = index
        if index is None:
            self.count = batch.lane_count
        elif isinstance(index, slice):
            self.count = index.stop - index.start
        else:
            self.count = index.size
        self._derived: dict[str, Any] = {}
        self.kept_fragments: dict[tuple[Any, ...], tuple[tuple[Any, ...], Array]] = {}
        self.kept_meetings: dict[Source, bool] = {}

    def pick(self, full: Array) -> Array:
        """The group's part of an array over the batch."""
        return full if self.index is None else full[self.index]

    @property
    def lanes(self) -> Array:
        return self._derive("lanes", self.batch.lanes)

    @cached_property
    def first_lane(self) -> int:
        return int(self.lanes[0])

    @property
    def slots(self) -> Array:
        return self._derive("slot", self.batch.slot)

    @property
    def shared_base(self) -> Array:
        return self._derive("shared_base", self.batch.shared_base)

    @property
    def local_base(self) -> Array:
        return self._derive("local_base", self.batch.local_base)

    def special(self, name: str, make: Any) -> Any:
        """A special register: a scalar, or this group's part of an array over the batch."""
        batch = self.batch
        value = batch.specials.get(name)
        if value is None:
            value = batch.specials[name] = make(batch)
        return value if value.ndim == 0 else self._derive(name, value)

    def subset(self, mask: Array) -> Group:
        return Group(self.batch, self.lanes[mask])

    def spread(self, value: Any) -> Array:
        """A value as an array over the group's lanes."""
        return value if value.ndim else np.full(self.count, value)

    # -- warps ------------------------------------------------------------------------------------------------------
    @property
    def whole(self) -> bool:
        """Whether the group consists of whole warps."""
        if self.index is None:
            return True
        known = self._derived.get("whole")
        if known is None:
            first = self.lanes[::WARP]
            fits = self.count % WARP == 0 and bool((first % WARP == 0).all())
            known = self._derived["whole"] = fits and bool((self.lanes[WARP - 1 :: WARP] - first == WARP - 1).all())
        return bool(known)

    def in_warps(self, value: Any) -> Array:
        """A value as [warps, 32]; places of lanes that are not in the group hold zero."""
        if self.whole:
            return self.spread(value).reshape(-1, WARP)
        place, warps = self._warp_places()
        full = np.zeros(warps * WARP, dtype=value.dtype)
        full[place] = value
        return full.reshape(-1, WARP)

    def from_warps(self, grid: Array) -> Array:
        """The inverse of ``in_warps``: from [warps, 32] to the group's lanes."""
        flat = grid.reshape(-1)
        return flat if self.whole else flat[self._warp_places()[0]]

    @property
    def active(self) -> Array:
        """[warps, 32] bool: which lanes of its warps are in the group."""
        known = self._derived.get("active")
        if known is None:
            known = self._derived["active"] = self.in_warps(np.bool_(True))
        return known

    def _warp_places(self) -> tuple[Array, int]:
        known = self._derived.get("places")
        if known is None:
            warps, inverse = np.unique(self.lanes // WARP, return_inverse=True)
            known = self._derived["places"] = (inverse * WARP + self.lanes % WARP, len(warps))
        return known

    def _derive(self, name: str, full: Array) -> Array:
        if self.index is None:
            return full
        known = self._derived.get(name)
        if known is None:
            known = self._derived[name] = full[self.index]
        return known


def select(guard: Any, new: Any, old: Any) -> Any:
    """new where guard, else old; a never-written old value becomes poison."""
    if guard.ndim == 0:
        return new if guard else old
    if old.__class__ is Unwritten:
        old = poison(new.dtype)
    return np.where(guard, new, old)


def poison(dtype: Any) -> Any:
    """A conspicuous value for unwritten registers: a NaN with a pattern, or a large odd number."""
    size = np.dtype(dtype).itemsize
    if size == 1:
        return dtype.type(1)
    bits = _POISON & ((1 << 8 * size) - 1)
    return np.frombuffer(bits.to_bytes(size, "little"), dtype=dtype)[0]


def merged(old: Any, new: Any, group: Group) -> Any:
    """The register ``old`` with the group's lanes set to ``new``."""
    if new.ndim == 0 and old.__class__ is not Unwritten and old.ndim == 0 and old.tobytes() == new.tobytes():
        return old
    full = np.empty(group.batch.lane_count, dtype=new.dtype)
    full[:] = poison(new.dtype) if old.__class__ is Unwritten else old
    full[group.index] = new
    return full


def merge_into(registers: list[Any], slot: int, new: Any, group: Group) -> None:
    """Writes a register's lanes of a group; in place where nobody else holds the array."""
    old = registers[slot]
    if holds_elements(new) or holds_elements(old):
        registers[slot] = _merged_elements(old, new, group)
        return
    if old.__class__ is np.ndarray and old.ndim and old.base is None and old.flags.writeable:
        del old
        if getrefcount(registers[slot]) <= _ALONE:
            registers[slot][group.index] = new
            return
        old = registers[slot]
    registers[slot] = merged(old, new, group)


def _merged_elements(old: Any, new: Any, group: Group) -> Any:
    """The merged value of registers that hold accumulators."""
    if new.__class__ is Element:
        return merged_elements(old, new, group)
    elements, rest = elements_outside(old, group)
    rest = merged(Unwritten("an accumulator") if rest is None else rest, new, group)
    return Held(elements, rest) if elements else rest


def _alone() -> int:
    """The ``sys.getrefcount`` of an object that only one list holds; it differs between CPython versions."""
    holder = [object()]
    return getrefcount(holder[0])


_ALONE = _alone()


def _bytes(size: int, name: str, first: int) -> Bytes:
    size = -(-size // 16) * 16 + 16
    return Bytes(np.full(size, 0xA5, dtype=np.uint8), np.zeros(size, dtype=np.uint8), name, first)


def _coordinates(linear: int, extents: Dim3) -> Dim3:
    x, y, _ = extents
    return linear % x, linear // x % y, linear // (x * y)
