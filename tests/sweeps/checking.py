"""One case of a sweep: run, compared with the reference, and a failure that says how to repeat it."""

from __future__ import annotations

import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cli.case_results import Request, results
from tests.support.lost_context import fault_of


def failures(handle: Handle, line: str, seed: int, engine: str | None = None) -> list[str]:
    """The failures of the case on ``engine`` (None: the heuristics' first choice, ``all``: each that takes it).

    A kernel that takes the device's context with it ends the test at once, with its case alone: every case after it
    would fail too.
    """
    case = parse_case(line)
    request = Request(engine, is_checked=True, is_exact=case.is_exact, repeats=0, seed=seed)
    wrong = []
    for result in results(handle, case, request):
        if result.status == "ok":
            continue
        report = (
            f"{result.status}: {result.detail}\n  lowdnn run --device {result.device} --engine {result.engine}"
            f" {'--exact' if case.is_exact else '--check'} --seed {seed} '{case}'"
        )
        if fault := fault_of(handle.runtime.context):
            pytest.fail(f"{fault}: the context is lost to this case\n{report}", pytrace=False)
        wrong.append(report)
    return wrong
