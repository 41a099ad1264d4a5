"""``lowdnn verify``: whether every device of a node computes what the reference, or a validated baseline, says."""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path

from lowdnn.cases.base import Case
from lowdnn.cli.case_results import Judged, Reference, Request, Result, Source, judged_results
from lowdnn.cli.options import Options, check_ranges, opened
from lowdnn.cli.reading import Line, ReadCase, check_cases, read_cases, short_text
from lowdnn.cli.verify.arguments import add_verify_arguments
from lowdnn.cli.verify.baseline import SavedCase, SavedOutputs, read_baseline, saved_case, write_baseline
from lowdnn.cli.verify.metrics import CaseVerdict, check_metrics_place, write_metrics
from lowdnn.runtime.shared_files import check_place
from lowdnn.status import BadParamError, CudaDriverError, SublibraryLoadingFailedError

_CANARY = "data/canary.txt"


@dataclass(frozen=True)
class _Task:
    """A case, and where its data and expected outputs come from."""

    read: ReadCase
    source: Source

    @property
    def case(self) -> Case:
        return self.read.case


@dataclass(frozen=True)
class _Outcome:
    """A judged case on the device of a number and name."""

    task: _Task
    number: int
    device: str
    judged: Judged


def verify(arguments: argparse.Namespace) -> int:
    """Runs the cases on every device; 1 if one failed, was refused or raised, otherwise 0.

    A device that cannot be opened fails every case. Raises BadParamError before the first one runs where an option, a
    case, a baseline or a place is wrong.
    """
    given = Options("verify", arguments, add_verify_arguments)
    given.refuse_beside("baseline", ["save", "seed"])
    check_ranges("verify", arguments, {"seed": (0, 2**63 - 1)})
    tasks = _tasks(arguments)
    _check_places(arguments)
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    request = Request(None, is_checked=True, is_exact=arguments.exact and not arguments.baseline, repeats=0, seed=seed)
    outcomes = []
    for outcome in _outcomes(tasks, request, arguments, given):
        outcomes.append(outcome)
        print(_json(outcome) if arguments.json else _line(outcome, arguments.baseline), flush=True)
    is_right = all(outcome.judged.result.status == "ok" for outcome in outcomes)
    if arguments.metrics is not None:
        write_metrics(arguments.metrics, _verdicts(tasks, outcomes))
    if arguments.save is not None and is_right:
        first = [outcome for outcome in outcomes if outcome.number == 0]
        kept = [saved_case(outcome.task.case, outcome.judged) for outcome in first]
        write_baseline(arguments.save, first[0].device, kept)
    return 0 if is_right else 1


def _tasks(arguments: argparse.Namespace) -> list[_Task]:
    """The cases that were asked for, each once: of the command line, of the baseline, or the package's own."""
    if arguments.baseline is not None:
        saved = {str(each.case): each for each in read_baseline(arguments.baseline).cases}
        asked = [str(read.case) for read in _distinct(arguments.cases)] or list(saved)
        for text in asked:
            if text not in saved:
                got = f"none in {arguments.baseline}: {text}"
                raise BadParamError.at("verify.cases", expected="cases of the baseline", got=got)
        return [_task_of(saved[text], arguments) for text in asked]
    texts = arguments.cases or [f"@{files('lowdnn.cli') / _CANARY}"]
    cases = _distinct(texts)
    check_cases(cases)
    return [_Task(read, Reference()) for read in cases]


def _task_of(saved: SavedCase, arguments: argparse.Namespace) -> _Task:
    line = Line(str(saved.case), arguments.baseline)
    return _Task(ReadCase(saved.case, 1, line), SavedOutputs(saved, arguments.exact))


def _distinct(texts: Sequence[str]) -> list[ReadCase]:
    return list({str(read.case): read for read in read_cases(texts)}.values())


def _check_places(arguments: argparse.Namespace) -> None:
    if arguments.metrics is not None:
        check_metrics_place(arguments.metrics)
    if arguments.save is not None:
        try:
            check_place(Path(arguments.save))
        except (OSError, ValueError) as error:
            got = f"{arguments.save}: {error}"
            raise BadParamError.at("verify.save", expected="a file that can be written", got=got) from None


def _outcomes(
    tasks: Sequence[_Task], request: Request, arguments: argparse.Namespace, given: Options
) -> Iterator[_Outcome]:
    number, count = 0, 1
    while number < count:
        try:
            with opened(arguments, given, ordinal=number) as handle:
                driver = handle.runtime.driver
                count, name = driver.device_count(), driver.device_name(number)
                check_cases((task.read for task in tasks), driver.device_total_memory_bytes(number))
                for task in tasks:
                    (judged,) = judged_results(handle, task.case, request, task.source)
                    yield _Outcome(task, number, name, judged)
        except (CudaDriverError, SublibraryLoadingFailedError) as error:
            blank = Result("", str(arguments.device), "", "", "", "error", 0.0, 0.0, 0, request.seed, detail=str(error))
            for task in tasks:
                yield _Outcome(task, number, f"device {number}", Judged(replace(blank, case=str(task.case))))
        number += 1


def _verdicts(tasks: Sequence[_Task], outcomes: Sequence[_Outcome]) -> list[CaseVerdict]:
    found = []
    for task in tasks:
        of_case = [outcome.judged for outcome in outcomes if outcome.task is task]
        shares = [judged.share for judged in of_case if judged.share is not None]
        failures = sum(judged.result.status != "ok" for judged in of_case)
        found.append(CaseVerdict(str(task.case), failures, max(shares, default=None)))
    return found


def _json(outcome: _Outcome) -> str:
    result = asdict(outcome.judged.result) | {"number": outcome.number, "name": outcome.device}
    return json.dumps(result | {"share_of_tolerance": outcome.judged.share})


def _line(outcome: _Outcome, baseline: str | None) -> str:
    result, share = outcome.judged.result, outcome.judged.share
    error = "nothing compared" if share is None else f"error {share:8.2%} of what is allowed"
    text = f"{result.status:8s} {outcome.number} {error}  {short_text(result.case)}"
    if result.status == "ok":
        return text
    data = f"--baseline {baseline}" if baseline else f"--seed {result.seed}"
    return f"{text}\n  {outcome.device}: {result.detail}\n  repeat: lowdnn verify {data} '{result.case}'"
