"""``lowdnn run``: text cases on a device, checked against the float64 reference."""

from __future__ import annotations

import argparse
import json
import secrets
from dataclasses import asdict

from lowdnn.backend.handle import Handle
from lowdnn.cases.base import Case
from lowdnn.cli.case_results import Request, Result, check_engine, plan_named, results
from lowdnn.cli.options import Options, check_ranges, opened
from lowdnn.cli.reading import check_cases, read_cases, short_text
from lowdnn.cli.run_arguments import add_run_arguments
from lowdnn.cli.sanitizing import sanitize
from lowdnn.enums import HeurMode
from lowdnn.heuristics.explanation import Explanation
from lowdnn.status import BadParamError, LowdnnError


def run(arguments: argparse.Namespace) -> int:
    """Runs the cases; 1 if one failed, was refused or raised, otherwise 0.

    Raises BadParamError before the first one runs where an option or a case is wrong.
    """
    given = Options("run", arguments, add_run_arguments)
    given.refuse_without("sanitize", ["schedules"])
    given.refuse_beside("sanitize", ["policy", "repeats", "explain", "plan"])
    given.refuse_beside("plan", ["engine"])
    cases = list(read_cases(arguments.cases))
    if not cases:
        raise BadParamError.at("run.cases", expected="at least one case", got="none")
    request = _request(arguments)
    if arguments.sanitize:
        check_cases(cases)
        return sanitize([read.case for read in cases], request, arguments)
    all_ok = True
    with opened(arguments, given) as handle:
        check_engine(handle, request.engine)
        check_cases(cases, handle.runtime.driver.device_total_memory_bytes(handle.runtime.context.device))
        for case in (read.case for read in cases):
            choice = _choice(handle, case) if arguments.explain else None
            if choice is not None and not arguments.json:
                print(f"{short_text(case)}\n{choice}\n", flush=True)
            for result in results(handle, case, request):
                print(_json(result, choice) if arguments.json else _line(result, request), flush=True)
                all_ok &= result.status == "ok"
    return 0 if all_ok else 1


def _request(arguments: argparse.Namespace) -> Request:
    check_ranges("run", arguments, {"repeats": (1, 10**6), "schedules": (0, 10**4), "seed": (0, 2**63 - 1)})
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    is_checked = arguments.check or arguments.engine == "all"
    engine, choices = (arguments.engine, {}) if arguments.plan is None else plan_named(arguments.plan)
    return Request(engine, is_checked, arguments.exact, arguments.repeats, seed, choices)


def _choice(handle: Handle, case: Case) -> Explanation | None:
    """The reason for the choice of the case's plan; None for a case whose graph cannot be built, which its result
    reports."""
    try:
        graph = case.graph()
    except LowdnnError:
        return None
    return Explanation.of(handle.rank(graph, HeurMode.A), handle.engines, graph)


def _json(result: Result, choice: Explanation | None) -> str:
    return json.dumps(asdict(result) | ({} if choice is None else {"choice": choice.sentence}))


def _line(result: Result, request: Request) -> str:
    # The emulated device counts instructions, which are no time.
    unit = "counted" if result.device == "emulated" else "device"
    times = f"{result.device_us:10.1f} us {unit} {result.host_us:8.1f} us host" if result.status == "ok" else ""
    text = f"{result.status:8s} {result.plan or result.engine or '-':32s} {times}  {short_text(result.case)}"
    if result.status == "FAILED":
        again = f"lowdnn run --device {result.device} --engine {result.engine} --check --seed {result.seed}"
        text += f"\n  {result.detail}\n  repeat: {again} '{result.case}'"
    elif result.detail:
        text += f"\n  {result.detail}"
    if request.engine == "all" and result.error is not None:
        notes = ", ".join(result.notes) or "none"
        text += f"\n  workspace {result.workspace_bytes} bytes, greatest error {result.error:.1e} of the results' size"
        text += f", notes: {notes}"
    return text
