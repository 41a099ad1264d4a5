"""The ``lowdnn run`` line that repeats an execute: its device, its plan, and its graph as a text case."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from lowdnn.cases.naming import case_of
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate
from lowdnn.ops.base import Operation
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import LowdnnError

#: The most characters of a case in the line; LOWDNN_RECORD_CASES keeps longer ones.
MAX_CASE = 4096


@dataclass(frozen=True)
class RunCommand:
    """The plan ``plan_name`` of a graph with these operations; ``options``: those of its device."""

    operations: tuple[Operation, ...]
    plan_name: str
    options: tuple[str, ...]

    @classmethod
    def of(cls, candidate: Candidate, runtime: Runtime) -> Self:
        options: tuple[str, ...] = ("--device", runtime.driver.kind)
        if runtime.driver.kind == "emulated":  # the options by which a command opens the same device
            options += ("--arch", candidate.arch.name, "--policy", runtime.config.emulated_policy)
        return cls(candidate.graph.operations, candidate.plan.name, options)

    def line(self) -> str:
        """The command, quoted for a shell; made at the first call. Its data are drawn anew.

        A graph that is too large for a line, or that no case can say, has the reason in its place.
        """
        return self._line

    @cached_property
    def _line(self) -> str:
        try:
            case = str(case_of(OperationGraph(self.operations)))
        except LowdnnError as error:
            return f"no case: {error}"
        if len(case) > MAX_CASE:
            return f"no case: its text has {len(case)} characters; LOWDNN_RECORD_CASES keeps it"
        return shlex.join(("lowdnn", "run", "--check", *self.options, "--plan", self.plan_name, case))
