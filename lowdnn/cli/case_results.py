"""One text case on an open handle: planned, executed, and compared with the float64 reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from lowdnn.backend.handle import Handle
from lowdnn.cases.base import Case
from lowdnn.cases.compare import EXACT, Expected, differences, expected_outputs, largest_error, sums_exactly
from lowdnn.cli.execution import run_graph
from lowdnn.driver.base import DriverError
from lowdnn.engines.registry import engine_named
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate, candidate_for
from lowdnn.status import BadParamError, LowdnnError, NotSupportedError


@dataclass(frozen=True)
class Request:
    """The actions for each case. ``engine``: None for the heuristics' first choice, ``all`` for each that can.

    ``is_checked``: compare with the reference. ``is_exact``: integer-filled data, compared bit for bit if the plan sums
    exactly. ``repeats``: times are medians of so many executes; 0: nothing is timed.
    """

    engine: str | None
    is_checked: bool
    is_exact: bool
    repeats: int
    seed: int


@dataclass(frozen=True)
class Result:
    """One case on one device.

    status: ``ok``, ``FAILED`` (numbers differ), ``refused`` (no plan) or ``error``.  detail: differences or reason.
    fault: the emulated device's facts about a kernel that did wrong, by name; otherwise empty.
    error: the greatest error of an output in units of its root mean square, where it was compared.
    notes: the plan's numerical notes.
    """

    case: str
    device: str
    policy: str
    engine: str
    plan: str
    status: str
    device_us: float
    host_us: float
    workspace_bytes: int
    seed: int
    detail: str = ""
    fault: Mapping[str, object] = field(default_factory=dict)
    error: float | None = None
    notes: tuple[str, ...] = ()


def results(handle: Handle, case: Case, request: Request) -> Iterator[Result]:
    """One result for each engine that is asked for."""
    driver = handle.runtime.driver
    policy = handle.runtime.config.emulated_policy if driver.kind == "emulated" else ""
    blank = Result(str(case), driver.kind, policy, "", "", "", 0.0, 0.0, 0, request.seed)
    try:
        graph = case.graph()
        candidates = _candidates(handle, graph, request.engine)
    except LowdnnError as error:
        status = "refused" if isinstance(error, NotSupportedError) else "error"
        yield replace(blank, status=status, detail=str(error))
        return
    for candidate in candidates:
        yield _result(handle, case, graph, candidate, request, replace(blank, engine=candidate.engine.name))


def check_engine(handle: Handle, engine: str | None) -> None:
    """Raises BadParamError for the name of an engine that there is not."""
    names = ["all", *(entry.name for entry in handle.engines.entries)]
    if engine is not None and engine not in names:
        raise BadParamError.at("run.engine", expected="one of " + ", ".join(names), got=repr(engine))


def engines_of(handle: Handle, case: Case, engine: str | None) -> tuple[str, ...]:
    """The engines that ``results`` would run, by name. Raises NotSupportedError where none takes the case."""
    return tuple(candidate.engine.name for candidate in _candidates(handle, case.graph(), engine))


def _candidates(handle: Handle, graph: OperationGraph, engine: str | None) -> list[Candidate]:
    if engine in (None, "all"):
        ranking = handle.rank(graph, HeurMode.A)
        if ranking.best is None:
            raise NotSupportedError("graph: no engine takes it\n" + ranking.explain())
        return list(ranking.candidates) if engine == "all" else [ranking.best]
    named = engine_named(engine)
    refusal = named.refuse(graph, handle.arch)
    if refusal is not None:
        raise NotSupportedError(str(refusal))
    return [candidate_for(named, graph, handle.arch, {})]


def _result(
    handle: Handle, case: Case, graph: OperationGraph, candidate: Candidate, request: Request, blank: Result
) -> Result:
    found = blank
    try:
        plan = candidate.plan
        notes = tuple(note.name for note in plan.numerical_notes)
        found = replace(blank, plan=plan.name, workspace_bytes=plan.workspace_bytes, notes=notes)
        is_exact = request.is_exact and sums_exactly(plan)
        inputs = case.inputs(request.seed, exact=is_exact)
        outcome = run_graph(handle, graph, plan, inputs, request.repeats)
    except LowdnnError as error:
        fault = error.report if isinstance(error, DriverError) else {}
        return replace(found, status="error", detail=str(error), fault=fault)
    found = replace(found, status="ok", device_us=outcome.device_us, host_us=outcome.host_us)
    if not (request.is_checked or request.is_exact):
        return found
    expected = expected_outputs(graph, inputs, candidate.plan.numerical_notes, case.length)
    wrong = _differences(case, graph, expected, outcome.outputs, is_exact)
    errors = (largest_error(outcome.outputs[t.uid], expected[t.uid].values, t.data_type) for t in graph.outputs)
    return replace(found, status="FAILED" if wrong else "ok", detail=wrong, error=max(errors, default=0.0))


def _differences(
    case: Case,
    graph: OperationGraph,
    expected: Mapping[int, Expected],
    outputs: dict[int, NDArray[Any]],
    is_exact: bool,
) -> str:
    reports = []
    for tensor in graph.outputs:
        wanted = expected[tensor.uid]
        allowed = EXACT if is_exact and case.is_exact else wanted.allowed
        report = differences(outputs[tensor.uid], wanted.values, tensor.data_type, allowed)
        if report:
            reports.append(f"{tensor.label}: {report}")
    return "\n".join(reports)
