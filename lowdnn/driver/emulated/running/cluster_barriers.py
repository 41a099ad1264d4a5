"""The barrier of a cluster: ``barrier.cluster.arrive`` and ``.wait``. PTX ISA manual, "barrier.cluster".

Each cluster has one barrier in phases. A phase ends when every thread of the cluster that has not exited has arrived;
a thread's wait holds until the phase that it has arrived for has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.running.batch import Batch, Group

_NOT_ARRIVED = -1


@dataclass(frozen=True)
class ClusterWait:
    """Lanes that wait, or waited, at PTX line ``line`` and go on at block ``next``."""

    next: int
    line: int
    lanes: Array


class ClusterBarriers:
    """Arrivals and waits of a batch, by lane; phases by cluster."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.waiting: list[ClusterWait] = []
        self._cluster = batch.slot // batch.cluster_size
        self._phase = np.zeros(batch.cta_count // batch.cluster_size, dtype=np.int64)
        self._arrived_for = np.full(batch.lane_count, _NOT_ARRIVED, dtype=np.int64)

    def arrive(self, group: Group, releases: bool = True) -> list[ClusterWait]:
        """The group arrives and does not wait. Returns the lanes that may go on.  releases: the arrival is not
        ``.relaxed``."""
        lanes = group.lanes
        again = self._arrived_for[lanes] != _NOT_ARRIVED
        if again.any():
            message = "barrier.cluster.arrive: the thread has arrived before and has not waited since"
            raise LaneFault(FaultKind.BARRIER_MISUSE, message, int(np.argmax(again)))
        self._arrived_for[lanes] = phases = self._phase[self._cluster[lanes]]
        if self.batch.races is not None:
            self.batch.races.cluster_arrives(lanes, phases, releases)
        return self._complete()

    def wait(self, group: Group, next_block: int, line: int) -> list[ClusterWait]:
        """The group waits for the phase that it has arrived for. Returns the lanes that may go on."""
        without = self._arrived_for[group.lanes] == _NOT_ARRIVED
        if without.any():
            message = "barrier.cluster.wait: the thread has not arrived"
            raise LaneFault(FaultKind.BARRIER_MISUSE, message, int(np.argmax(without)))
        self.waiting.append(ClusterWait(next_block, line, group.lanes))
        return self._release()

    def lanes_exited(self) -> list[ClusterWait]:
        """Exited threads are no longer waited for."""
        return self._complete() if self.waiting else []

    def missing(self, lane: int) -> Array:
        """The live lanes that the cluster of a waiting lane still waits for."""
        cluster = self._cluster[lane]
        late = self._arrived_for != self._phase[cluster]
        return np.flatnonzero((self._cluster == cluster) & self.batch.alive & late)

    def _complete(self) -> list[ClusterWait]:
        """Ends the phases that everybody has arrived for."""
        arrived = self._arrived_for == self._phase[self._cluster]
        late = self._clusters_with(self.batch.alive & ~arrived)
        done = ~late & self._clusters_with(arrived)
        if not done.any():
            return []
        self._phase[done] += 1
        return self._release()

    def _clusters_with(self, lanes: Any) -> Array:
        """[clusters] bool: which have one of the lanes of a mask."""
        return np.bincount(self._cluster[lanes], minlength=self._phase.size) > 0

    def _release(self) -> list[ClusterWait]:
        released, kept = [], []
        for one in self.waiting:
            ended = self._arrived_for[one.lanes] < self._phase[self._cluster[one.lanes]]
            if ended.any():
                going = replace(one, lanes=one.lanes[ended])
                if self.batch.races is not None:
                    self.batch.races.cluster_passes(going.lanes, self._arrived_for[going.lanes])
                self._arrived_for[going.lanes] = _NOT_ARRIVED
                released.append(going)
            if not ended.all():
                kept.append(replace(one, lanes=one.lanes[~ended]))
        self.waiting = kept
        return released
