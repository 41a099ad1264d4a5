"""Programmatic dependent launch: what a grid may do before its predecessor has ended.

The device runs grids one after the other. A grid launched with programmatic serialization could have run beside its
predecessor on a GPU, up to where each of its threads has executed ``griddepcontrol.wait``; here that is recorded, for
checks. PTX ISA manual, "griddepcontrol".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowdnn.driver.emulated.memory.arena import Array

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.batch import Group


class GridDependency:
    """By lane of a batch: ``waited``, and ``lets_dependents_launch``. ``overlaps``: the grid may run beside its
    predecessor; without it every wait is over at once."""

    def __init__(self, lane_count: int, overlaps: bool) -> None:
        self.overlaps = overlaps
        self.waited = np.full(lane_count, not overlaps)
        self.lets_dependents_launch = np.zeros(lane_count, dtype=np.bool_)

    def wait(self, group: Group) -> None:
        self.waited[group.lanes] = True

    def launch_dependents(self, group: Group) -> None:
        self.lets_dependents_launch[group.lanes] = True

    def is_ordered(self, group: Group) -> Array:
        """Which lanes of a group see all that the predecessor has done."""
        return group.pick(self.waited)
