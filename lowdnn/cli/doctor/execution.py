"""Check that each device computes: a small case, compared with its reference."""

from __future__ import annotations

from collections.abc import Iterator

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cli.case_results import Request, results
from lowdnn.cli.doctor.facts import Facts
from lowdnn.cli.doctor.findings import Finding, Verdict
from lowdnn.status import LowdnnError

#: Its kernel is precompiled, so that a missing compiler does not fail it.
_CASE = "pointwise dims=64x64 ops=add+relu dtype=fp32"
_REQUEST = Request(engine=None, is_checked=True, is_exact=True, repeats=0, seed=1)


def execution(facts: Facts) -> Iterator[Finding]:
    """A kernel gives the reference's bits on every device that programs may take."""
    kind = "cuda" if facts.gpus and facts.device != "emulated" else "emulated"
    if kind == "emulated" and facts.device == "cuda":
        return
    described = facts.gpus if kind == "cuda" else (facts.info["emulated"] or {"devices": []})["devices"]
    for device in described:
        yield _on(kind, device["number"])


def _on(kind: str, number: int) -> Finding:
    check = f"execution {number}"
    remedy = f"lowdnn verify --device {kind} '{_CASE}'; lowdnn guide hang, if it does not end"
    try:
        with Handle.open(kind, ordinal=number) as handle:
            name = handle.runtime.driver.device_name(number)
            (result,) = results(handle, parse_case(_CASE), _REQUEST)
    except LowdnnError as error:
        return Finding(check, Verdict.FAILURE, str(error), remedy)
    if result.status != "ok":
        return Finding(check, Verdict.FAILURE, f"{_CASE} on {name}: {result.detail}", remedy)
    return Finding(check, Verdict.OK, f"{_CASE} gives the reference's bits on {name}")
