"""Cases on a device, ready to be timed in turns. As a program: a process that times them for another process.

    python workbench.py DEVICE FD  one JSON object a line: asked on standard input, answered on the descriptor FD
    {"prepare": [case, ...]}   ->  {"prepared": [{"engine": ..., "error": ...}, ...]}
    {"round": null}            ->  {"us": [time or null, ...]}

The program is run by its path with whatever ``lowdnn`` is on the path of modules, so that one version of it measures
each version of the library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self, TextIO

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.enums import HeurMode
from lowdnn.heuristics.ranking import Candidate
from lowdnn.heuristics.tuning.tensors import TuningTensors
from lowdnn.heuristics.tuning.timers import DeviceTimer, TimedPlan
from lowdnn.runtime.stream import Stream
from lowdnn.status import LowdnnError, NotSupportedError


@dataclass(frozen=True)
class Prepared:
    """The plan of a case.  knobs: the plan's choices, or the names of its parts.  error: why there is none."""

    engine: str = ""
    knobs: str = ""
    error: str = ""


class Workbench:
    """The cases of one call of ``prepare`` on the device of a handle, in memory of their own."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._copies = 1 if handle.runtime.driver.kind == "emulated" else None
        self._stream = Stream.create(handle.runtime.context)
        self._held = ExitStack()
        self._work: list[TimedPlan | None] = []

    def prepare(self, cases: Sequence[str]) -> list[Prepared]:
        """Puts the cases in the place of those before: planned, compiled side by side, with data in device memory."""
        self._held.close()
        self._work = []
        candidates: list[Candidate | LowdnnError] = [*map(self._chosen, cases)]
        for candidate in candidates:
            if isinstance(candidate, Candidate):
                self._handle.begin(candidate.plan)
        return [*map(self._prepared, candidates)]

    def round(self) -> list[float | None]:
        """The microseconds of one launch of each case, taken in turn; None for one that has an error.

        On the emulated device they count instructions, and are no times.
        """
        return [work.cold_us() if work else None for work in self._work]

    def close(self) -> None:
        self._held.close()
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _chosen(self, case: str) -> Candidate | LowdnnError:
        try:
            ranking = self._handle.rank(parse_case(case).graph(), HeurMode.A)
            return ranking.best or NotSupportedError(f"no engine takes the graph: {ranking.explain()}")
        except LowdnnError as error:
            return error

    def _prepared(self, candidate: Candidate | LowdnnError) -> Prepared:
        try:
            if isinstance(candidate, LowdnnError):
                raise candidate
            timed = self._timed(candidate)
        except (LowdnnError, MemoryError) as error:
            self._work.append(None)
            return Prepared(error=next(iter(str(error).splitlines()), "the host's memory is not large enough"))
        self._work.append(timed)
        plan = candidate.plan
        knobs = " ".join(f"{knob.name}={value}" for knob, value in plan.choices) or " + ".join(plan.parts)
        return Prepared(plan.engine, knobs)

    def _timed(self, candidate: Candidate) -> TimedPlan:
        """The plan with its data; one launch on one copy of them suffices to count instructions."""
        runtime = self._handle.runtime
        tensors = TuningTensors(runtime.context, candidate.graph, self._stream, slots=self._copies)
        with ExitStack() as stack:
            timer = stack.enter_context(closing(DeviceTimer(runtime, self._stream, tensors, launches=self._copies)))
            timed = timer.timed(candidate)
            self._held.push(stack.pop_all())
        return timed


def serve(device: str, asked: TextIO, answers: TextIO) -> None:
    """Does what the lines of ``asked`` say until they end."""
    with Handle.open(device) as handle, Workbench(handle) as bench:
        for line in asked:
            request = json.loads(line)
            if "prepare" in request:
                answer: Mapping[str, object] = {"prepared": [asdict(one) for one in bench.prepare(request["prepare"])]}
            else:
                answer = {"us": bench.round()}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    with open(int(sys.argv[2]), "w", encoding="utf-8") as output:
        serve(sys.argv[1], sys.stdin, output)
