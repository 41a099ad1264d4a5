"""Programmatic dependent launch: what a grid may do before its predecessor has ended.

The device runs grids one after the other. A grid launched with programmatic serialization could have run beside its
predecessor on a GPU, up to where each of its threads has executed ``griddepcontrol.wait``; here that is recorded, for
checks. ``griddepcontrol.launch_dependents`` lets the next grid start and orders nothing. PTX ISA manual,
"griddepcontrol".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.batch import Group


class GridDependency:
    """``overlaps``: the grid may run beside its predecessor. ``waited`` [lanes] bool: which lanes see all that the
    predecessor has done; all of them where nothing overlaps."""

    def __init__(self, lane_count: int, overlaps: bool) -> None:
        self.overlaps = overlaps
        self.waited = np.full(lane_count, not overlaps)

    def wait(self, group: Group) -> None:
        self.waited[group.lanes] = True
        if group.batch.races is not None:
            group.batch.races.order.previous_launch_ended(group.lanes)
