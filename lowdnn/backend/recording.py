"""The graphs that a program runs, written as text cases with counts into the file of LOWDNN_RECORD_CASES.

A graph is recorded when a plan of it is loaded. Its count is how often such plans were executed; an execute that a CUDA
graph captures counts once, whatever the replays. Counting costs an execute one call of a C function (some 25 ns), and
nothing where nothing is recorded. The file is written when the handle is closed or the process ends: the counts are
added to those that it has, so that several processes may share it.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from lowdnn.cases.counted import MAX_CASES, merged
from lowdnn.cases.naming import case_of
from lowdnn.events import emit, event_logger
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation
from lowdnn.runtime.execute_counts import ExecuteCount
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.shared_files import change_file
from lowdnn.status import BadParamError, LowdnnError, LowdnnWarning


class RecordingWarning(LowdnnWarning):
    """The file of LOWDNN_RECORD_CASES cannot be written."""


@dataclass
class _Recorded:
    """The operations of a graph, and a count for each of its plans."""

    operations: tuple[Operation, ...]
    counts: set[ExecuteCount] = field(default_factory=set)


class CaseRecorder:
    """The graphs of one handle, and the executes of their plans."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        self._recorded: dict[str, _Recorded] = {}
        self._is_full = False

    def watch(self, graph: OperationGraph, loaded: LoadedPlan) -> None:
        """Counts the executes of ``loaded``, a plan of ``graph``, from now on; handles that share it, together."""
        if graph.key not in self._recorded and len(self._recorded) == MAX_CASES:
            self._is_full = True
            return
        self._recorded.setdefault(graph.key, _Recorded(graph.operations)).counts.add(loaded.count_executes())

    def write(self) -> None:
        """Adds the counts to the file. A file that cannot be written gives a RecordingWarning."""
        if os.getpid() != self._process or not self._recorded:
            return  # a child of fork executes none of these plans
        counts: Counter[str] = Counter()
        remarks = [f"left out: more than {MAX_CASES} graphs of one handle"] if self._is_full else []
        for recorded in self._recorded.values():
            try:
                case = str(case_of(OperationGraph(recorded.operations)))
                counts[case] += sum(executes.take() for executes in recorded.counts)
            except LowdnnError as error:
                remarks.append(f"left out: {error}".splitlines()[0])
        try:
            change_file(self._path, lambda text: merged(text, counts, remarks))
        except (OSError, BadParamError) as error:
            warnings.warn(f"LOWDNN_RECORD_CASES: {error}", RecordingWarning, stacklevel=2)
        else:
            emit(event_logger("backend"), logging.INFO, "cases_recorded", {"file": self._path, "cases": len(counts)})
