"""One text case on an open handle: planned, executed, and compared with the float64 reference."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from lowdnn.backend.handle import Handle
from lowdnn.cases.base import Case
from lowdnn.cases.compare import (
    EXACT,
    Expected,
    differences,
    expected_outputs,
    largest_error,
    largest_share,
    sums_exactly,
)
from lowdnn.cli.execution import Arrays, run_graph
from lowdnn.documents import shown
from lowdnn.driver.base import DriverError
from lowdnn.engines.base import Choices
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import HeurMode, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate, candidate_for
from lowdnn.plan import Plan
from lowdnn.status import BadParamError, LowdnnError, NotSupportedError

_PLAN_NAME = re.compile(r"eng(\d{1,6})_(\w+?)((?:_k\d{1,9}=-?\d{1,18})*)")
_KNOB = re.compile(r"_k(\d+)=(-?\d+)")


@dataclass(frozen=True)
class Request:
    """The actions for each case. ``engine``: None for the heuristics' first choice, ``all`` for each that can.

    ``choices``: values of the engine's knobs, which have their defaults otherwise.  ``is_checked``: compare with the
    reference.  ``is_exact``: integer-filled data, compared bit for bit if the plan sums exactly.  ``repeats``:
    times are medians of so many executes; 0: nothing is timed.
    """

    engine: str | None
    is_checked: bool
    is_exact: bool
    repeats: int
    seed: int
    choices: Choices = field(default_factory=dict)


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


class Source(Protocol):
    """The data of a case, and the outputs to expect for them, by uid."""

    def inputs(self, case: Case, seed: int, exact: bool) -> Arrays:
        """Storage arrays in logical dims; integers whose sums are exact if ``exact``."""

    def expected(self, case: Case, graph: OperationGraph, inputs: Arrays, plan: Plan) -> Mapping[int, Expected]:
        """The outputs, and what a result of ``plan`` may differ from them."""


class Reference:
    """Random data, and the float64 reference's outputs."""

    def inputs(self, case: Case, seed: int, exact: bool) -> Arrays:
        return case.inputs(seed, exact=exact)

    def expected(self, case: Case, graph: OperationGraph, inputs: Arrays, plan: Plan) -> Mapping[int, Expected]:
        return expected_outputs(graph, inputs, plan.numerical_notes, case.length)


@dataclass(frozen=True)
class Judged:
    """A result with its arrays by uid, which are empty where nothing was run or compared.

    share: the greatest difference as a share of what is allowed, as ``compare.largest_share`` has it.
    """

    result: Result
    inputs: Arrays = field(default_factory=dict)
    expected: Mapping[int, Expected] = field(default_factory=dict)
    outputs: Arrays = field(default_factory=dict)
    share: float | None = None


def results(handle: Handle, case: Case, request: Request) -> Iterator[Result]:
    """One result for each engine that is asked for."""
    return (judged.result for judged in judged_results(handle, case, request, Reference()))


def judged_results(handle: Handle, case: Case, request: Request, source: Source) -> Iterator[Judged]:
    """One for each engine that is asked for; data and outputs to compare with come from ``source``."""
    driver = handle.runtime.driver
    policy = handle.runtime.config.emulated_policy if driver.kind == "emulated" else ""
    blank = Result(str(case), driver.kind, policy, "", "", "", 0.0, 0.0, 0, request.seed)
    try:
        graph = case.graph()
        candidates = _candidates(handle, graph, request.engine, request.choices)
    except LowdnnError as error:
        status = "refused" if isinstance(error, NotSupportedError) else "error"
        yield Judged(replace(blank, status=status, detail=str(error)))
        return
    for candidate in candidates:
        started = replace(blank, engine=candidate.engine.name)
        yield _judged(handle, case, graph, candidate, request, source, started)


def check_engine(handle: Handle, engine: str | None) -> None:
    """Raises BadParamError for the name of an engine that there is not."""
    names = ["all", *(entry.name for entry in handle.engines.entries)]
    if engine is not None and engine not in names:
        raise BadParamError.at("run.engine", expected="one of " + ", ".join(names), got=repr(engine))


def engines_of(handle: Handle, case: Case, engine: str | None) -> tuple[str, ...]:
    """The engines that ``results`` would run, by name. Raises NotSupportedError where none takes the case."""
    return tuple(candidate.engine.name for candidate in _candidates(handle, case.graph(), engine, {}))


def plan_named(name: str) -> tuple[str, Choices]:
    """The engine and the choices of ``Plan.name``. Raises BadParamError for another text."""
    found = _PLAN_NAME.fullmatch(name)
    engine = ENGINES.named(found[2]) if found else None
    knobs = {int(knob): int(value) for knob, value in _KNOB.findall(found[3])} if found else {}
    if found is None or engine is None or engine.index != int(found[1]) or not knobs.keys() <= set(KnobType):
        expected = "the name of a plan, such as eng3_matmul_simt_k40=32"
        raise BadParamError.at("run.plan", expected=expected, got=shown(name))
    return engine.name, {KnobType(knob): value for knob, value in knobs.items()}


def _candidates(handle: Handle, graph: OperationGraph, engine: str | None, choices: Choices) -> list[Candidate]:
    if engine in (None, "all"):
        ranking = handle.rank(graph, HeurMode.A)
        if ranking.best is None:
            raise NotSupportedError("graph: no engine takes it\n" + ranking.explain())
        return list(ranking.candidates) if engine == "all" else [ranking.best]
    named = engine_named(engine)
    refusal = named.refuse(graph, handle.arch)
    if refusal is not None:
        raise NotSupportedError(str(refusal))
    return [candidate_for(named, graph, handle.arch, choices)]


def _judged(
    handle: Handle,
    case: Case,
    graph: OperationGraph,
    candidate: Candidate,
    request: Request,
    source: Source,
    blank: Result,
) -> Judged:
    found = blank
    try:
        plan = candidate.plan
        notes = tuple(note.name for note in plan.numerical_notes)
        found = replace(blank, plan=plan.name, workspace_bytes=plan.workspace_bytes, notes=notes)
        is_exact = request.is_exact and sums_exactly(plan)
        inputs = source.inputs(case, request.seed, is_exact)
        handle.load_candidate(candidate)
        outcome = run_graph(handle, graph, plan, inputs, request.repeats)
    except LowdnnError as error:
        fault = error.report if isinstance(error, DriverError) else {}
        return Judged(replace(found, status="error", detail=str(error), fault=fault))
    found = replace(found, status="ok", device_us=outcome.device_us, host_us=outcome.host_us)
    if not (request.is_checked or request.is_exact):
        return Judged(found)
    expected = source.expected(case, graph, inputs, candidate.plan)
    if is_exact and case.is_exact:
        expected = {uid: replace(wanted, allowed=EXACT) for uid, wanted in expected.items()}
    judged = _compared(graph, found, inputs, expected, outcome.outputs)
    if judged.result.status == "FAILED" and handle.dumper is not None:
        handle.dumper.keep_check(candidate, inputs, outcome.outputs, judged.result.detail)
    return judged


def _compared(
    graph: OperationGraph, found: Result, inputs: Arrays, expected: Mapping[int, Expected], outputs: Arrays
) -> Judged:
    reports, errors, shares = [], [0.0], [0.0]
    for tensor in graph.outputs:
        wanted, got = expected[tensor.uid], outputs[tensor.uid]
        report = differences(got, wanted.values, tensor.data_type, wanted.allowed)
        reports += [f"{tensor.label}: {report}"] if report else []
        errors.append(largest_error(got, wanted.values, tensor.data_type))
        shares.append(largest_share(got, wanted.values, tensor.data_type, wanted.allowed))
    status = "FAILED" if reports else "ok"
    result = replace(found, status=status, detail="\n".join(reports), error=max(errors))
    return Judged(result, inputs, expected, outputs, max(shares))
