"""``lowdnn run --sanitize``: text cases on the emulated device under many schedules, with every check.

A kernel that is right gives the reference's numbers and no fault whatever the order of its warps, and whenever its
asynchronous copies land; a wrong one is found by the schedule that hurts it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from lowdnn.backend.handle import Handle
from lowdnn.cases.base import Case
from lowdnn.cli.case_results import Request, Result, check_engine, engines_of, results
from lowdnn.status import BadParamError, LowdnnError

#: Seeds of policies are less than this.
_SEEDS = 10**9
_WORDS = {"ok": "clean", "error": "FAULT"}


def sanitize(cases: Sequence[Case], request: Request, arguments: argparse.Namespace) -> int:
    """Prints one verdict for each case, engine and schedule; 1 if one is not clean, otherwise 0.

    Raises BadParamError for options that do not go together.
    """
    _check(arguments)
    request = replace(request, is_checked=True, repeats=0)
    all_clean = True
    for case in cases:
        for result in verdicts(case, request, arguments.arch, schedules(request.seed, arguments.schedules)):
            print(json.dumps(asdict(result)) if arguments.json else _line(result), flush=True)
            all_clean &= result.status == "ok"
    return 0 if all_clean else 1


def schedules(seed: int, fuzzed: int) -> tuple[str, ...]:
    """Policies in the order of running, all with a look for data races: the fixed ones with late and early landing,
    then ``fuzzed`` drawn ones."""
    first, second = (f"warp-serial({(seed + place) % _SEEDS})" for place in range(2))
    fixed = ("lockstep,late", "lockstep,early", "cta-reverse,late", f"{first},late", f"{second},early")
    drawn = tuple(f"fuzz({(seed + place) % _SEEDS})" for place in range(fuzzed))
    return tuple(f"{policy},races" for policy in fixed + drawn)


def verdicts(case: Case, request: Request, arch: str | None, policies: Sequence[str]) -> Iterator[Result]:
    """The case under each policy, by each engine that is asked for. Each run has a device of its own, because a fault
    ends the context."""
    with Handle.open("emulated", arch=arch) as handle:
        check_engine(handle, request.engine)
        try:
            engines = engines_of(handle, case, request.engine)
        except LowdnnError:
            yield from results(handle, case, request)
            return
    for engine in engines:
        for policy in policies:
            with Handle.open("emulated", arch=arch, policy=policy) as handle:
                yield from results(handle, case, replace(request, engine=engine))


def _check(arguments: argparse.Namespace) -> None:
    if arguments.device == "cuda":
        raise BadParamError.at(
            "run.sanitize",
            expected="the emulated device",
            got="--device cuda",
            hint="on a GPU, compute-sanitizer checks kernels: python -m tools.checks.sanitize",
        )


def _line(result: Result) -> str:
    word = _WORDS.get(result.status, result.status)
    text = f"{word:8s} {result.policy:34s} {result.engine or '-':24s} {result.case}"
    if result.detail:
        text += "\n  " + result.detail.replace("\n", "\n  ")
    if result.status in ("FAILED", "error") and result.engine:
        again = f"--engine {result.engine} --policy '{result.policy}' --check --seed {result.seed}"
        text += f"\n  repeat: lowdnn run --device emulated {again} '{result.case}'"
    return text
