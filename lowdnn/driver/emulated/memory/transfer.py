"""What one asynchronous bulk copy moves, for all lanes that issue it together.

A row of a ``Transfer`` is one copy: between the shared memory of one CTA and memory outside of it. Both sides are
given unit by unit, as element numbers of a view of units (``UNITS``), so that swizzles, boxes and bounds cost nothing
here. Alignment and bounds have been checked by who made it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.memory.arena import WRITTEN, Array, Bytes

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.batch import Batch

#: Bytes of a unit -> value code of the view that its numbers count in.
UNITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "w16"}


@dataclass(frozen=True)
class Transfer:
    """``lanes`` [L]: the lane of the batch that issued each row. ``shared`` [L, n]: units in ``batch.shared``;
    ``outside`` [L, n]: units in the arena (any number where ``inside`` is False). ``inside`` [L, n] bool: which units
    exist outside; None where all do. ``fill``: the bytes of a unit that does not exist, zeros where empty. ``nbytes``
    [L]: what each row completes at an mbarrier. ``written``: the source is known to hold no never-written byte.
    """

    lanes: Array
    shared: Array
    outside: Array
    unit: int
    nbytes: Array
    inside: Array | None = None
    fill: bytes = b""
    written: bool = False

    def part(self, rows: Array) -> Transfer:
        """The rows that a mask or an index selects."""
        return replace(
            self,
            lanes=self.lanes[rows],
            shared=self.shared[rows],
            outside=self.outside[rows],
            nbytes=self.nbytes[rows],
            inside=None if self.inside is None else self.inside[rows],
        )

    def fetched(self, memory: Bytes, places: Array) -> Array:
        """The units at ``places`` [L, n] of a memory, with ``fill`` where there are none."""
        view = memory.views[UNITS[self.unit]]
        if self.inside is None:
            return np.asarray(view[places])
        content = view[np.where(self.inside, places, 0)]
        content[~self.inside] = np.frombuffer(self.fill or bytes(self.unit), dtype=view.dtype)[0]
        return np.asarray(content)

    def first_unwritten(self, memory: Bytes, places: Array) -> tuple[int, int] | None:
        """(row, byte number in the memory) of the first source unit with a never-written byte."""
        if self.written:
            return None
        good = memory.shadows[self.unit][places if self.inside is None else np.where(self.inside, places, 0)]
        good = good == WRITTEN[self.unit]
        if self.inside is not None:
            good |= ~self.inside
        if good.all():
            return None
        row, column = (int(i) for i in np.unravel_index(np.argmin(good), good.shape))
        return row, int(places[row, column]) * self.unit


def multicast(batch: Batch, transfer: Transfer, place: Array, masks: Array) -> tuple[Transfer, Array]:
    """A row for each CTA in the mask of each row (bit r: rank r of the cluster), and the barrier's place for each.

    Data and completion go to the same offsets in every CTA. Raises LaneFault (position: row) for a mask that is empty
    or names a CTA that is not in the cluster.
    """
    size = batch.cluster_size
    wrong = (masks >> size != 0) | (masks == 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        message = f"multicast: CTA mask {int(masks[row]):#x} in a cluster of {size} CTAs"
        raise LaneFault(FaultKind.SHARED_OUT_OF_BOUNDS, message, row)
    rows, ranks = np.nonzero(masks[:, None] >> np.arange(size) & 1)
    spread = transfer.part(rows)
    slots = batch.slot[spread.lanes] - batch.rank[spread.lanes] + ranks
    units = batch.shared_stride // transfer.unit
    shared = spread.shared % units + slots[:, None] * units
    return replace(spread, shared=shared), place[rows] % batch.shared_stride + slots * batch.shared_stride


def put(memory: Bytes, unit: int, places: Array, content: Any) -> None:
    """Writes units and says that they are written. Of rows that meet the last one wins."""
    memory.views[UNITS[unit]][places] = content
    memory.shadows[unit][places] = WRITTEN[unit]


def forget(memory: Bytes, unit: int, places: Array) -> None:
    """Says that units are not written: what lies there is about to be replaced."""
    memory.shadows[unit][places] = memory.shadows[unit].dtype.type(0)
