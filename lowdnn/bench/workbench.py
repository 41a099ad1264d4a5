"""Cases on a device, ready to be timed in turns. As a program: a process that times them for another process.

    python workbench.py DEVICE     one JSON object a line: asked on standard input, answered on standard output
    {"prepare": [case, ...]}   ->  {"prepared": [{"engine": ..., "error": ...}, ...]}
    {"round": null}            ->  {"us": [time or null, ...]}

The program is run by its path with whatever ``lowdnn`` is on the path of modules, so that one version of it measures
each version of the library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self, TextIO

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cases.data import real_values
from lowdnn.cases.roles import values_by_role
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate
from lowdnn.ops.memory import to_memory
from lowdnn.ops.rnn_operation import RecurrentOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.timing import event_clock, launches_for, slots_for
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import LowdnnError, NotSupportedError

#: Numbers that are drawn for a tensor; they are repeated over all of it.
_DRAWN = 1 << 18
_SEED = 1


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
        self._counts = handle.runtime.driver.kind == "emulated"
        self._kept = ExitStack()
        self._stream = self._kept.enter_context(Stream.create(handle.runtime.context))
        self._clock = self._kept.enter_context(event_clock(handle.runtime.context, self._stream))
        self._held = ExitStack()
        self._replays: list[tuple[int, int] | None] = []

    def prepare(self, cases: Sequence[str]) -> list[Prepared]:
        """Puts the cases in the place of those before: planned, compiled side by side, with data in device memory."""
        self._held.close()
        self._replays = []
        candidates: list[Candidate | LowdnnError] = [*map(self._chosen, cases)]
        for candidate in candidates:
            if isinstance(candidate, Candidate):
                self._handle.begin(candidate.plan)
        return [*map(self._prepared, candidates)]

    def round(self) -> list[float | None]:
        """The microseconds of one launch of each case, taken in turn; None for one that has an error.

        On the emulated device they count instructions, and are no times.
        """
        return [self._time_us(*replay) if replay else None for replay in self._replays]

    def close(self) -> None:
        self._held.close()
        self._kept.close()

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
            with ExitStack() as stack:
                replay = self._captured(candidate, stack)
                self._held.push(stack.pop_all())
        except LowdnnError as error:
            self._replays.append(None)
            return Prepared(error=str(error).splitlines()[0])
        self._replays.append(replay)
        plan = candidate.plan
        knobs = " ".join(f"{knob.name}={value}" for knob, value in plan.choices) or " + ".join(plan.parts)
        return Prepared(plan.engine, knobs)

    def _captured(self, candidate: Candidate, held: ExitStack) -> tuple[int, int]:
        """(an executable CUDA graph, its launches), replayed once; each launch works on the next copy of the data."""
        context, driver = self._handle.runtime.context, self._handle.runtime.driver
        loaded = self._handle.load(candidate.plan)
        slots = self._slots(candidate.graph, loaded, held)
        workspace = held.enter_context(Workspace(context, loaded.plan.workspace_bytes))

        def execute(launch: int) -> None:
            loaded.execute(slots[launch % len(slots)], workspace.address, self._stream.handle)

        execute(0)
        once_us = self._clock(lambda: execute(0))
        launches = 1 if self._counts else launches_for(once_us, len(slots))
        with context.activated():
            self._stream.begin_capture()
            for launch in range(launches):
                execute(launch)
            graph = self._stream.end_capture()
            held.callback(driver.graph_destroy, graph)
            replay = driver.graph_instantiate(graph)
            held.callback(driver.graph_exec_destroy, replay)
        self._time_us(replay, launches)
        return replay, launches

    def _time_us(self, replay: int, launches: int) -> float:
        driver, stream = self._handle.runtime.driver, self._stream.handle
        with self._handle.runtime.context.activated():
            return self._clock(lambda: driver.graph_launch(replay, stream)) / launches

    def _slots(self, graph: OperationGraph, loaded: LoadedPlan, held: ExitStack) -> list[tuple[int, ...]]:
        """The addresses of each copy of the data, in the order of the plan's tensors."""
        data = _data(graph, loaded)
        in_memory = [tensor for tensor in loaded.plan.tensors if not tensor.is_by_value]
        steps = sum(op.rnn.max_length for op in graph.operations if isinstance(op, RecurrentOperation))
        count = 1 if self._counts else slots_for(sum(tensor.size_bytes for tensor in in_memory), steps)
        passed = [data[tensor.uid] for tensor in loaded.plan.tensors if tensor.is_by_value]
        held.callback(passed.clear)  # until then these arrays stay where they are
        slots: list[dict[int, int]] = [{} for _ in range(count)]
        for planned in loaded.plan.tensors:
            if planned.is_by_value:
                copies = [int(data[planned.uid].ctypes.data)] * count
            else:
                copies = list(self._copies(data[planned.uid], count, planned.name, held))
            for slot, address in zip(slots, copies, strict=True):
                slot[planned.uid] = address
        return [tuple(slot[uid] for uid in loaded.uids) for slot in slots]

    def _copies(self, values: NDArray[Any], count: int, name: str, held: ExitStack) -> Iterator[int]:
        context = self._handle.runtime.context
        first = held.enter_context(DeviceBuffer.allocate(context, values.nbytes, label=name))
        first.copy_from_host(values)
        yield first.address
        for _ in range(count - 1):
            buffer = held.enter_context(DeviceBuffer.allocate(context, values.nbytes, label=name))
            buffer.copy_from(first, self._stream)
            yield buffer.address
        self._stream.synchronize()


def _data(graph: OperationGraph, loaded: LoadedPlan) -> dict[int, NDArray[Any]]:
    """The memory of each tensor of the plan by uid: random numbers, and what may not be any (``values_by_role``)."""
    rng, given = np.random.default_rng(_SEED), values_by_role(graph, _SEED)
    return {
        planned.uid: _memory(rng, graph.tensors[planned.uid], given.get(planned.uid)) for planned in loaded.plan.tensors
    }


def _memory(rng: np.random.Generator, tensor: Tensor, values: NDArray[Any] | None) -> NDArray[Any]:
    count = tensor.span_bytes // tensor.element_bytes
    memory = np.resize(real_values(rng, (min(count, _DRAWN),), tensor.data_type), count)
    if values is None:
        return memory
    return to_memory(values, tensor, np.zeros(count, dtypes.info(tensor.data_type).storage))


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


@contextmanager
def _own_output() -> Iterator[TextIO]:
    """Standard output for answers alone: what else is printed goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    try:
        yield answers
    finally:
        sys.stdout = answers


if __name__ == "__main__":
    with _own_output() as output:
        serve(sys.argv[1], sys.stdin, output)
