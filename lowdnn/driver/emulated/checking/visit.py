"""An access as the race detector takes it."""

from __future__ import annotations

from typing import NamedTuple

from lowdnn.driver.emulated.checking.accesses import Accesses
from lowdnn.driver.emulated.memory.arena import Array, Bytes


class Visit(NamedTuple):
    """One access by a group to ``places`` [n], units of ``1 << unit`` bytes. rows: the warp that accesses
    each.  positions: its lane in the group (None: all lanes in order).  write: whether it writes."""

    memory: Bytes
    accesses: Accesses
    places: Array
    unit: int
    rows: Array
    positions: Array | None
    scope: int
    write: bool
