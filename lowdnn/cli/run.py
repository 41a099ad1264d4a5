"""``lowdnn run``: text cases on a device, checked against the float64 reference."""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from lowdnn.backend.handle import Handle
from lowdnn.cli.case_results import Request, Result, check_engine, results
from lowdnn.cli.sanitizing import sanitize
from lowdnn.graph.cases import parse_case, parse_cases
from lowdnn.graph.cases.base import Case
from lowdnn.status import BadParamError


def run(arguments: argparse.Namespace) -> int:
    """Runs the cases; 1 if one failed, was refused or raised, otherwise 0."""
    cases = list(read_cases(arguments.cases))
    if not cases:
        raise BadParamError.at("run.cases", expected="at least one case", got="none")
    request = _request(arguments)
    if arguments.sanitize:
        return sanitize(cases, request, arguments)
    all_ok = True
    with Handle.open(arguments.device, arch=arguments.arch, policy=arguments.policy) as handle:
        check_engine(handle, request.engine)
        for case in cases:
            for result in results(handle, case, request):
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


def _request(arguments: argparse.Namespace) -> Request:
    if arguments.repeats < 1:
        raise BadParamError.at("run.repeats", expected="1 or more", got=arguments.repeats)
    if arguments.seed is not None and arguments.seed < 0:
        raise BadParamError.at("run.seed", expected="0 or more", got=arguments.seed)
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    return Request(arguments.engine, arguments.check, arguments.exact, arguments.repeats, seed)


def _line(result: Result) -> str:
    times = f"{result.device_us:10.1f} us device {result.host_us:8.1f} us host" if result.status == "ok" else ""
    text = f"{result.status:8s} {result.plan or result.engine or '-':32s} {times}  {result.case}"
    if result.status == "FAILED":
        again = f"lowdnn run --device {result.device} --engine {result.engine} --check --seed {result.seed}"
        text += f"\n  {result.detail}\n  repeat: {again} '{result.case}'"
    elif result.detail:
        text += f"\n  {result.detail}"
    return text
