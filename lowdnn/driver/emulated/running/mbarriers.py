"""The mbarriers of a batch. PTX ISA manual, "Parallel Synchronization and Communication Instructions: mbarrier".

The state lies outside of the bytes: arrays over (row, CTA slot), where a row is an offset in shared memory at which
some CTA has initialised a barrier. The eight bytes themselves hold a tag, so that overwriting a barrier shows at its
next use. A phase is complete when no arrival and no byte is outstanding.

``place`` is a byte number in ``batch.shared`` for each lane, from ``shared_bytes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowdnn.driver.emulated.faults import Dim3, FaultKind, LaneFault
from lowdnn.driver.emulated.memory.address import Address, shared_bytes
from lowdnn.driver.emulated.memory.arena import WINDOW_BYTES, Array

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.batch import Batch, Group

#: Largest arrival count and transaction count of a barrier.
MOST = (1 << 20) - 1
SIZE_BYTES = 8
_TAG = np.uint64(0x6D62_6172_7269_6572)
#: A state token: phase (24 bits), row (20 bits), pending count (20 bits).
_FIELD = 20
_PHASES = (1 << 24) - 1


@dataclass(frozen=True)
class Outstanding:
    """The arrivals that a barrier still waits for: ``offset`` in the shared memory of ``block``."""

    block: Dim3
    offset: int
    phase: int
    pending: int
    expected: int
    tx_bytes: int

    @property
    def counts(self) -> str:
        return (
            f"phase {self.phase} (parity {self.phase & 1}): {self.pending} of {self.expected} arrivals pending, "
            f"{self.tx_bytes} bytes outstanding"
        )

    def __str__(self) -> str:
        return f"mbarrier at shared offset {self.offset} of block {self.block}, {self.counts}"


class Mbarriers:
    """The mbarriers of a batch, and the lanes whose last test of one failed."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._rows = np.full(batch.shared_stride // SIZE_BYTES, -1, dtype=np.int64)
        self._offsets: list[int] = []
        self._expected = np.zeros(0, dtype=np.int64)
        self._pending = np.zeros(0, dtype=np.int64)
        self._tx = np.zeros(0, dtype=np.int64)
        self._phase = np.zeros(0, dtype=np.int64)
        self._live = np.zeros(0, dtype=np.bool_)
        self._watched = np.full(batch.lane_count, -1, dtype=np.int64)
        self._watched_phase = np.zeros(batch.lane_count, dtype=np.int64)
        self._watched_line = np.zeros(batch.lane_count, dtype=np.int64)

    # -- life -------------------------------------------------------------------------------------------------------
    def init(self, place: Array, count: Any) -> None:
        """``mbarrier.init``: phase 0 expects ``count`` arrivals."""
        self._refuse(np.atleast_1d((count < 1) | (count > MOST)), f"a count is not in 1 to {MOST}", place)
        self._add_rows(place)
        index = self._index(place)
        live = self._live[index]
        if live.any():
            position = int(np.argmax(live))
            self._fail(
                position, place, f"initialised again while live, {self._outstanding(int(index[position])).counts}"
            )
        if np.unique(index).size != index.size:
            self._refuse(_repeated(index), "initialised by two threads at once", place)
        self._expected[index] = self._pending[index] = count
        self._tx[index] = self._phase[index] = 0
        self._live[index] = True
        self._write(place, _TAG)
        self.batch.stores += 1

    def invalidate(self, place: Array) -> None:
        """``mbarrier.inval``: the bytes are plain memory again, with undefined content."""
        index = self._find(place)
        waited_for = np.isin(index, self._watched[self.batch.alive])
        self._refuse(waited_for, "invalidated while threads wait for it", place)
        self._live[index] = False
        self._write(place, np.uint64(0))

    # -- arrivals ---------------------------------------------------------------------------------------------------
    def arrive(
        self,
        place: Array,
        count: Any,
        tx: Any,
        drop: bool = False,
        partial: bool = False,
        silent: bool = False,
        releasing: Array | None = None,
    ) -> Array | None:
        """``mbarrier.arrive`` and ``arrive_drop`` by ``count`` (None: 1), after ``tx`` bytes (None: 0) are expected.

        ``drop``: later phases expect ``count`` arrivals less. ``partial`` (``.noComplete``): it is a fault to complete
        the phase. Returns the state (uint64) before each lane's arrival, unless ``silent``. ``releasing``: the lanes,
        where they release what they know.
        """
        counts = np.broadcast_to(np.int64(1) if count is None else np.asarray(count).astype(np.int64), place.shape)
        self._refuse((counts < 1) | (counts > MOST), f"an arrival with a count that is not in 1 to {MOST}", place)
        index = self._find(place)
        if tx is not None:
            self._expect(index, place, tx)
        return self._arrive(index, place, counts, drop, partial, silent, releasing)

    def expect_tx(self, place: Array, tx: Any) -> None:
        """``mbarrier.expect_tx``: the phase waits for ``tx`` bytes more."""
        index = self._find(place)
        self._expect(index, place, tx)
        self._complete(index)

    def complete_tx(self, place: Array, tx: Any) -> None:
        """``mbarrier.complete_tx``, and what asynchronous copies do when they land: ``tx`` bytes have come."""
        index = self._find(place)
        self._add_tx(index, place, -np.broadcast_to(tx, place.shape).astype(np.int64))
        self._complete(index)

    def landed_arrival(self, lanes: Array, place: Array) -> None:
        """One arrival for each lane whose ``cp.async`` copies have landed."""
        self._arrive(self._find(place), place, np.ones(place.shape, dtype=np.int64), releasing=lanes)

    def promise(self, place: Array) -> None:
        """``cp.async.mbarrier.arrive`` without ``.noinc``: the current phase waits for one arrival more."""
        index = self._find(place)
        np.add.at(self._pending, index, 1)
        self._refuse(self._pending[index] > MOST, f"more than {MOST} arrivals pending", place)

    # -- waiting ----------------------------------------------------------------------------------------------------
    def test_state(
        self, group: Group, address: Address, offset: int, state: Any, line: int, acquires: bool = True
    ) -> Array:
        """``test_wait`` and ``try_wait``: whether the phase of the state, which is the current one or the one before,
        is complete."""
        place = self._own_place(group, address, offset)
        index = self._find(place)
        phase = self._phase[index]
        states = np.broadcast_to(state, place.shape).astype(np.uint64)
        rows = ((states >> np.uint64(_FIELD)) & np.uint64(MOST)).astype(np.int64)
        self._refuse(rows != index // self.batch.cta_count, "waited for with a state that another barrier gave", place)
        age = (phase - (states >> np.uint64(2 * _FIELD)).astype(np.int64)) & _PHASES
        if (age > 1).any():
            position = int(np.argmax(age > 1))
            what = f"waited for with the state of {int(age[position])} phases ago; only the last two can be waited for"
            self._fail(position, place, what)
        return self._watch(group, index, phase, age == 1, line, acquires)

    def test_parity(
        self, group: Group, address: Address, offset: int, parity: Any, line: int, acquires: bool = True
    ) -> Array:
        """``.parity`` forms: has the phase of that parity, the current or the one before, been completed."""
        if (parity > 1).any():
            what = "waited for with a parity that is neither 0 nor 1"
            self._fail(int(np.argmax(parity > 1)), self._own_place(group, address, offset), what)
        common = self._common(address, offset)
        index = self._find(self._own_place(group, address, offset)) if common is None else common[group.slots]
        phase = self._phase[index]
        return self._watch(group, index, phase, (phase & 1) != parity, line, acquires)

    def polling(self, lanes: Array) -> Array:
        """For each lane, whether its last test of an mbarrier failed (bool)."""
        return np.asarray(self._watched[lanes] >= 0)

    def passable(self, lanes: Array) -> Array:
        """For each of some polling lanes, whether its phase is complete by now (bool)."""
        return np.asarray(self._phase[self._watched[lanes]] != self._watched_phase[lanes])

    def waited_for(self, lanes: Array) -> list[tuple[Outstanding, int, Array]]:
        """The last failed test of some polling lanes: the mbarrier, the PTX line of the test, the lanes."""
        watched = self._watched[lanes]
        parts = [lanes[watched == index] for index in np.unique(watched) if index >= 0]
        return [(self._outstanding(int(self._watched[p[0]])), int(self._watched_line[p[0]]), p) for p in parts]

    # -- state ------------------------------------------------------------------------------------------------------
    def _arrive(
        self,
        index: Array,
        place: Array,
        counts: Array,
        drop: bool = False,
        partial: bool = False,
        silent: bool = True,
        releasing: Array | None = None,
    ) -> Array | None:
        before = self._pending[index]
        total = np.bincount(index, weights=counts, minlength=self._pending.size).astype(np.int64)
        if (total[index] > before).any():
            return self._arrive_in_turns(index, place, counts, drop, partial, releasing)
        if releasing is not None and self.batch.races is not None:
            self.batch.races.work.mbarrier_arrives(releasing, index)
        states = None if silent else self._states(index, before - _running_before(index, counts))
        self._pending -= total
        if drop:
            self._expected -= total
        if partial:
            self._refuse((self._pending + np.abs(self._tx))[index] == 0, "completed by an arrival .noComplete", place)
        self._complete(index)
        return states

    def _arrive_in_turns(
        self, index: Array, place: Array, counts: Array, drop: bool, partial: bool, releasing: Array | None
    ) -> Array:
        """Applies the lanes' arrivals one by one, if some of them complete a phase and others belong to the next
        one."""
        states = np.empty(index.size, dtype=np.uint64)
        for position in range(index.size):
            one = index[position : position + 1]
            if counts[position] > self._pending[one[0]]:
                what = f"{int(counts[position])} arrivals come in {self._outstanding(int(one[0])).counts}"
                self._fail(position, place, what)
            spot = place[position : position + 1]
            states[position] = self._states(one, self._pending[one])[0]
            lanes = None if releasing is None else releasing[position : position + 1]
            self._arrive(one, spot, counts[position : position + 1], drop, partial, releasing=lanes)
        return states

    def _expect(self, index: Array, place: Array, tx: Any) -> None:
        wide = np.broadcast_to(np.asarray(tx).astype(np.int64), place.shape)
        self._refuse(wide > MOST, f"expects more than {MOST} bytes at once", place)
        self._add_tx(index, place, wide)

    def _add_tx(self, index: Array, place: Array, tx: Array) -> None:
        np.add.at(self._tx, index, tx)
        over = np.abs(self._tx[index]) > MOST
        if over.any():
            position = int(np.argmax(over))
            count = int(self._tx[index[position]])
            self._fail(position, place, f"its tx-count becomes {count}, which is not in -{MOST} to {MOST}")

    def _complete(self, index: Array) -> None:
        """Begins the next phase of those barriers that wait for nothing more."""
        done = index[(self._pending[index] == 0) & (self._tx[index] == 0)]
        if done.size:
            done = np.unique(done)
            self._phase[done] += 1
            self._pending[done] = self._expected[done]
            if self.batch.races is not None:
                self.batch.races.work.mbarrier_completes(done, self._phase[done])
            self.batch.stores += 1

    def _states(self, index: Array, pending: Array) -> Array:
        phase = self._phase[index] & _PHASES
        rows = index // self.batch.cta_count
        return np.asarray(phase << 2 * _FIELD | rows << _FIELD | pending).astype(np.uint64)

    def _watch(self, group: Group, index: Array, phase: Array, complete: Array, line: int, acquires: bool) -> Array:
        if self.batch.races is not None:
            self.batch.races.work.mbarrier_passed(group, index, complete, acquires)
        lanes = slice(None) if group.index is None else group.index
        if complete.all():
            self._watched[lanes] = -1
        else:
            self._watched[lanes] = np.where(complete, -1, index)
            self._watched_phase[lanes] = phase
            self._watched_line[lanes] = line
        return complete

    def check(self, place: Array) -> None:
        """Raises LaneFault where there is no live barrier."""
        self._find(place)

    # -- for the race detector ------------------------------------------------------------------------------------
    @property
    def count(self) -> int:
        """The count of the numbers that ``numbers`` gives."""
        return self._phase.size

    def numbers(self, place: Array) -> Array:
        """A number for each barrier, row * CTAs + slot. Raises LaneFault where there is no live barrier."""
        return self._find(place)

    def places(self, numbers: Array) -> Array:
        """Byte numbers in ``batch.shared``, from numbers."""
        rows, slots = np.divmod(numbers, self.batch.cta_count)
        return np.asarray(np.asarray(self._offsets)[rows] + slots * self.batch.shared_stride)

    def phases(self, numbers: Array) -> Array:
        """How many phases the barriers have completed."""
        return self._phase[numbers]

    # -- finding ----------------------------------------------------------------------------------------------------
    def _find(self, place: Array) -> Array:
        """Flat numbers in the state arrays of live barriers."""
        rows = self._rows[place % self.batch.shared_stride // SIZE_BYTES]
        self._refuse(rows < 0, "used before mbarrier.init", place)
        index = self._index(place)
        self._refuse(~self._live[index], "used before mbarrier.init or after mbarrier.inval", place)
        intact = self.batch.shared.views["u8"][place // SIZE_BYTES] == _TAG
        self._refuse(~intact, "its bytes have been overwritten since mbarrier.init", place)
        return index

    def _own_place(self, group: Group, address: Address, offset: int) -> Array:
        """Byte numbers in the shared memory of each lane's own CTA."""
        place = shared_bytes(group, address, offset, SIZE_BYTES)
        others = place // self.batch.shared_stride != group.slots
        self._refuse(others, "waited for from another CTA; only its own CTA may wait", place)
        return place

    def _common(self, address: Address, offset: int) -> Array | None:
        """The numbers in the state arrays, one for each CTA slot, of a barrier that all CTAs have at one offset; None
        where lanes name several, or where anything may be wrong with it."""
        word, rest = divmod((address.low + offset) % WINDOW_BYTES, SIZE_BYTES)
        if address.low != address.high or rest or word >= self._rows.size or self._rows[word] < 0:
            return None
        ctas = self.batch.cta_count
        index = self._rows[word] * ctas + np.arange(ctas)
        words = np.arange(ctas) * self._rows.size + word
        fine = self._live[index].all() and (self.batch.shared.views["u8"][words] == _TAG).all()
        return np.asarray(index) if fine else None

    def _index(self, place: Array) -> Array:
        stride = self.batch.shared_stride
        return np.asarray(self._rows[place % stride // SIZE_BYTES] * self.batch.cta_count + place // stride)

    def _add_rows(self, place: Array) -> None:
        words = np.unique(place % self.batch.shared_stride // SIZE_BYTES)
        new = words[self._rows[words] < 0]
        if not new.size:
            return
        first = len(self._offsets)
        self._rows[new] = np.arange(first, first + new.size)
        self._offsets += [int(word) * SIZE_BYTES for word in new]
        more = np.zeros(new.size * self.batch.cta_count, dtype=np.int64)
        self._expected = np.concatenate([self._expected, more])
        self._pending = np.concatenate([self._pending, more])
        self._tx = np.concatenate([self._tx, more])
        self._phase = np.concatenate([self._phase, more])
        self._live = np.concatenate([self._live, more.astype(np.bool_)])

    def _write(self, place: Array, word: np.uint64) -> None:
        """Writes the tag. The bytes count as never written, so that a load from them is a fault."""
        shared = self.batch.shared
        shared.views["u8"][place // SIZE_BYTES] = word
        shared.shadows[SIZE_BYTES][place // SIZE_BYTES] = np.uint64(0)

    # -- faults -----------------------------------------------------------------------------------------------------
    def _outstanding(self, index: int) -> Outstanding:
        row, slot = divmod(index, self.batch.cta_count)
        return Outstanding(
            self._block(slot),
            self._offsets[row] - self.batch.shared_start,
            int(self._phase[index]),
            int(self._pending[index]),
            int(self._expected[index]),
            int(self._tx[index]),
        )

    def _refuse(self, wrong: Array, what: str, place: Array) -> None:
        if wrong.any():
            self._fail(int(np.argmax(wrong)), place, what)

    def _fail(self, position: int, place: Array, what: str) -> None:
        slot, offset = divmod(int(place[position]), self.batch.shared_stride)
        inside = offset - self.batch.shared_start
        message = f"mbarrier at shared offset {inside} of block {self._block(slot)}: {what}"
        raise LaneFault(FaultKind.BARRIER_MISUSE, message, position, offset, "shared memory", inside)

    def _block(self, slot: int) -> Dim3:
        return self.batch.place(int(np.flatnonzero(self.batch.slot == slot)[0]))[0]


def pending_count(state: Any) -> Any:
    """``mbarrier.pending_count``: the count (uint32) that a state holds."""
    return (state & np.uint64(MOST)).astype(np.uint32)


def _running_before(index: Array, counts: Array) -> Array:
    """For each lane, the sum of the counts of earlier lanes that name the same barrier."""
    if index.size == 1:
        return np.zeros(1, dtype=np.int64)
    order = np.argsort(index, kind="stable")
    sorted_index, sorted_counts = index[order], counts[order]
    running = np.cumsum(sorted_counts) - sorted_counts
    starts = np.flatnonzero(np.concatenate([[True], sorted_index[1:] != sorted_index[:-1]]))
    lengths = np.diff(np.append(starts, index.size))
    earlier = np.empty_like(running)
    earlier[order] = running - np.repeat(running[starts], lengths)
    return earlier


def _repeated(index: Array) -> Array:
    """Which lanes name a barrier that an earlier lane names, too."""
    repeated = np.ones(index.shape, dtype=np.bool_)
    repeated[np.unique(index, return_index=True)[1]] = False
    return repeated
