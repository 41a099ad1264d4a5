"""``lowdnn doctor``: whether this machine and this installation are fit to run lowdnn, and what to do where not."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict

from lowdnn.cli.doctor.arguments import add_doctor_arguments
from lowdnn.cli.doctor.execution import execution
from lowdnn.cli.doctor.facts import NAMES, Facts
from lowdnn.cli.doctor.findings import Finding, Verdict, worst
from lowdnn.cli.doctor.health import clocks, faults, memory, monitor
from lowdnn.cli.doctor.installation import files, packages, precompiled, settings
from lowdnn.cli.doctor.machine import cache, driver, gpus, nccl, nvrtc, temporary
from lowdnn.cli.doctor.requirements import Requirement, read_requirements, unmet
from lowdnn.cli.options import Options
from lowdnn.one_line import one_line

#: Every check, in the order in which they are told; each judges facts and touches nothing.
CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    packages,
    settings,
    files,
    precompiled,
    driver,
    gpus,
    temporary,
    nvrtc,
    nccl,
    cache,
    monitor,
    clocks,
    memory,
    execution,
    faults,
)


def doctor(arguments: argparse.Namespace) -> int:
    """Prints the findings; 1 if one is a failure, with ``--strict`` if one is not OK, otherwise 0.

    Raises BadParamError for a file of requirements that is none, before anything is checked.
    """
    Options("doctor", arguments, add_doctor_arguments)
    requirements = () if arguments.require is None else read_requirements(arguments.require)
    facts = Facts.collected(arguments.device)
    found = []
    for finding in _findings(facts, requirements):
        found.append(finding)
        if not arguments.json:
            print(_lines(finding), flush=True)
    verdict = worst(found)
    if arguments.json:
        versions = {name: facts.version_of(name) or None for name in NAMES}
        content = {"verdict": verdict, "versions": versions, "findings": [asdict(each) for each in found]}
        print(json.dumps(content, indent=1))
    else:
        counts = ", ".join(f"{sum(each.verdict is one for each in found)} {one}" for one in Verdict)
        print(f"\n{verdict}: {counts}")
    return int(verdict is Verdict.FAILURE or (arguments.strict and verdict is not Verdict.OK))


def _findings(facts: Facts, requirements: tuple[Requirement, ...]) -> Iterator[Finding]:
    for check in CHECKS:
        yield from check(facts)
    yield from unmet(facts, requirements)


def _lines(finding: Finding) -> str:
    text = f"{finding.verdict:8s} {finding.check:14s} {one_line(finding.reason)}"
    return text + (f"\n  -> {one_line(finding.remedy)}" if finding.remedy else "")
