"""``lowdnn run``: text cases on a device, checked against the float64 reference."""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from lowdnn.backend.handle import Handle
from lowdnn.cli.execution import run_graph
from lowdnn.enums import HeurMode
from lowdnn.graph.cases import Case, parse_case, parse_cases
from lowdnn.graph.compare import EXACT, differences, tolerance_of
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.oracle import evaluate
from lowdnn.heuristics.ranking import Candidate, candidate_for, rank
from lowdnn.status import BadParamError, LowdnnError, NotSupportedError


@dataclass(frozen=True)
class Result:
    """One case on one device.

    status: ``ok``, ``FAILED`` (numbers differ), ``refused`` (no plan) or ``error``.  detail: differences or reason.
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


def run(arguments: argparse.Namespace) -> int:
    """Runs the cases; 1 if one failed, was refused or raised, otherwise 0."""
    cases = list(read_cases(arguments.cases))
    if not cases:
        raise BadParamError.at("run.cases", expected="at least one case", got="none")
    if arguments.repeats < 1:
        raise BadParamError.at("run.repeats", expected="1 or more", got=arguments.repeats)
    if arguments.seed is not None and arguments.seed < 0:
        raise BadParamError.at("run.seed", expected="0 or more", got=arguments.seed)
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    all_ok = True
    with Handle.open(arguments.device, arch=arguments.arch, policy=arguments.policy) as handle:
        _check_engine(handle, arguments.engine)
        for case in cases:
            for result in results(handle, case, arguments, seed):
                print(json.dumps(asdict(result)) if arguments.json else _line(result), flush=True)
                all_ok &= result.status == "ok"
    return 0 if all_ok else 1


def read_cases(texts: Sequence[str]) -> Iterator[Case]:
    """The cases of the command line; ``@FILE`` stands for the lines of a file."""
    for text in texts:
        if not text.startswith("@"):
            yield parse_case(text)
            continue
        try:
            lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadParamError.at("run.cases", expected="a readable file after @", got=str(error)) from None
        yield from parse_cases(lines)


def results(handle: Handle, case: Case, arguments: argparse.Namespace, seed: int) -> Iterator[Result]:
    """One result for each engine that ``--engine`` asks for."""
    driver = handle.runtime.driver
    policy = handle.runtime.config.emulated_policy if driver.kind == "emulated" else ""
    blank = Result(str(case), driver.kind, policy, "", "", "", 0.0, 0.0, 0, seed)
    try:
        graph = case.graph()
        candidates = _candidates(handle, graph, arguments.engine)
    except LowdnnError as error:
        status = "refused" if isinstance(error, NotSupportedError) else "error"
        yield Result(**asdict(blank) | {"status": status, "detail": str(error)})
        return
    for candidate in candidates:
        yield _result(handle, case, graph, candidate, arguments, blank)


def _candidates(handle: Handle, graph: OperationGraph, engine: str | None) -> list[Candidate]:
    if engine in (None, "all"):
        ranking = rank(graph, handle.arch, HeurMode.A, handle.engines)
        if not ranking.candidates:
            raise NotSupportedError("graph: no engine takes it\n" + ranking.explain())
        return list(ranking.candidates) if engine == "all" else [ranking.candidates[0]]
    named = next(one for one in handle.engines if one.name == engine)
    refusal = named.refuse(graph, handle.arch)
    if refusal is not None:
        raise NotSupportedError(str(refusal))
    return [candidate_for(named, graph, handle.arch, {})]


def _check_engine(handle: Handle, engine: str | None) -> None:
    names = ["all", *(one.name for one in handle.engines)]
    if engine is not None and engine not in names:
        raise BadParamError.at("run.engine", expected="one of " + ", ".join(names), got=repr(engine))


def _result(
    handle: Handle,
    case: Case,
    graph: OperationGraph,
    candidate: Candidate,
    arguments: argparse.Namespace,
    blank: Result,
) -> Result:
    found: dict[str, Any] = asdict(blank) | {"engine": candidate.engine.name}
    try:
        plan = candidate.plan
        found |= {"plan": plan.name, "workspace_bytes": plan.workspace_bytes}
        inputs = case.inputs(blank.seed, exact=arguments.exact)
        outcome = run_graph(handle, graph, plan, inputs, arguments.repeats)
    except LowdnnError as error:
        return Result(**found | {"status": "error", "detail": str(error)})
    found |= {"device_us": outcome.device_us, "host_us": outcome.host_us, "status": "ok"}
    if arguments.check or arguments.exact:
        wrong = _differences(case, graph, candidate, inputs, outcome.outputs, arguments.exact)
        found |= {"status": "FAILED" if wrong else "ok", "detail": wrong}
    return Result(**found)


def _differences(
    case: Case,
    graph: OperationGraph,
    candidate: Candidate,
    inputs: dict[int, NDArray[Any]],
    outputs: dict[int, NDArray[Any]],
    is_exact: bool,
) -> str:
    expected = evaluate(graph, inputs)
    reports = []
    for tensor in graph.outputs:
        allowed = tolerance_of(graph, tensor, candidate.plan.numerical_notes, case.length)
        if is_exact and case.is_exact:
            allowed = EXACT
        report = differences(outputs[tensor.uid], expected[tensor.uid], tensor.data_type, allowed)
        if report:
            reports.append(f"{tensor.label}: {report}")
    return "\n".join(reports)


def _line(result: Result) -> str:
    times = f"{result.device_us:10.1f} us device {result.host_us:8.1f} us host" if result.status == "ok" else ""
    text = f"{result.status:8s} {result.plan or result.engine or '-':32s} {times}  {result.case}"
    if result.status == "FAILED":
        again = f"lowdnn run --device {result.device} --engine {result.engine} --check --seed {result.seed}"
        text += f"\n  {result.detail}\n  repeat: {again} '{result.case}'"
    elif result.detail:
        text += f"\n  {result.detail}"
    return text
