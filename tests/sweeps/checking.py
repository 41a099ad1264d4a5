"""One case of a sweep: run, compared with the reference, and a failure that says how to repeat it."""

from __future__ import annotations

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cli.case_results import Request, results


def failures(handle: Handle, line: str, seed: int, engine: str | None = None) -> list[str]:
    """What is wrong with the case on ``engine`` (None: the heuristics' first choice, ``all``: each that takes it)."""
    case = parse_case(line)
    request = Request(engine, is_checked=True, is_exact=case.is_exact, repeats=0, seed=seed)
    return [
        f"{result.status}: {result.detail}\n  lowdnn run --device {result.device} --engine {result.engine}"
        f" {'--exact' if case.is_exact else '--check'} --seed {seed} '{case}'"
        for result in results(handle, case, request)
        if result.status != "ok"
    ]
