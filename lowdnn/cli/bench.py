"""``lowdnn bench``: times of cases on a device, saved, drawn, and compared with those of another version."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from lowdnn.backend.handle import Handle
from lowdnn.bench import plots
from lowdnn.bench.alternation import alternated, root_of
from lowdnn.bench.floor import card_named
from lowdnn.bench.networks import network_cases
from lowdnn.bench.report import case_head, case_line, class_table, head, verdict_table
from lowdnn.bench.runs import Run, batches, measured, run_json, save, saved_runs, write_csv
from lowdnn.bench.suites import SuiteCase, of_classes, sampled, suite_cases
from lowdnn.bench.verdicts import Verdict, Word, against_saved
from lowdnn.cli.reading import read_counted_cases
from lowdnn.status import BadParamError, NotSupportedError

Cases = list[tuple[int, SuiteCase]]

#: The share of the device's memory that each of two alternating processes may use.
_SHARE_OF_EACH = 0.3


def bench(arguments: argparse.Namespace) -> int:
    """Times the cases; 1 if one has an error or is slower, otherwise 0.

    Raises BadParamError before the first one runs where an option or a case is wrong.
    """
    for option, least, most in (("rounds", 1, 10**4), ("pairs", 3, 100), ("sample", 1, 10**6)):
        value = getattr(arguments, option)
        if value is not None and not least <= value <= most:
            raise BadParamError.at(f"bench.{option}", expected=f"{least} to {most}", got=value)
    if arguments.plot:
        plots.check_installed()
    cases = _cases(arguments)
    base = Path(arguments.compare) if arguments.compare else None
    if base is not None and (base.is_dir() or base.suffix == ".whl"):
        return _alternate(cases, base, arguments)
    saved = [] if base is None else saved_runs(base)
    run = _measure(cases, arguments)
    verdicts = None if base is None else against_saved(saved, run)
    if arguments.json:
        print(run_json(run) if verdicts is None else _verdicts_json(verdicts))
    elif verdicts is not None:
        print(f"\nagainst {len(saved)} saved runs\n{verdict_table(verdicts)}")
    _keep(run, verdicts, saved, arguments)
    return _status(verdicts or [], any(times.error for times in run.times))


def _cases(arguments: argparse.Namespace) -> Cases:
    """(count, case) of each case that was asked for, without duplicates."""
    listed = [case for suite in arguments.suite for case in suite_cases(suite)]
    if arguments.networks:
        listed += network_cases()
    found = {case.text: (1, case) for case in listed}
    for count, case in read_counted_cases(arguments.cases):
        text = str(case)
        known, listing = found.get(text, (0, SuiteCase(case.family, text)))
        found[text] = (known + count, listing)
    chosen = of_classes((case for _, case in found.values()), arguments.only)
    if arguments.sample is not None:
        chosen = sampled(chosen, arguments.sample, arguments.seed)
    if not chosen:
        raise BadParamError.at("bench.cases", expected="at least one case", got="none")
    return [found[case.text] for case in chosen]


def _measure(cases: Cases, arguments: argparse.Namespace) -> Run:
    """The run, its lines printed as they are known."""
    run, known = None, 0
    with Handle.open(arguments.device) as handle:
        for run in measured(handle, cases, arguments.rounds, arguments.commit):
            if not arguments.json:
                if not known:
                    print(f"{head(run)}\n\n{case_head()}")
                for times in run.times[known:]:
                    print(case_line(times), flush=True)
            known = len(run.times)
    assert run is not None
    if not arguments.json:
        print(f"\n{class_table(run)}")
    return run


def _alternate(cases: Cases, base: Path, arguments: argparse.Namespace) -> int:
    """Times this lowdnn and the one at ``base`` alternately."""
    for option in ("csv", "save", "plot"):
        if getattr(arguments, option):
            raise BadParamError.at(f"bench.{option}", expected="none beside a checkout or wheel", got="one")
    with Handle.open(arguments.device) as handle:
        context, driver = handle.runtime.context, handle.runtime.driver
        limit = int(driver.device_total_memory_bytes(context.device) * _SHARE_OF_EACH)
        device = driver.kind
    texts = [[case.text for _, case in batch] for batch in batches(cases, limit)]
    with root_of(base) as root:
        verdicts = alternated(root, texts, device, arguments.pairs, arguments.rounds)
    if arguments.json:
        print(_verdicts_json(verdicts))
    else:
        unit = "microseconds" if device == "cuda" else "instructions counted by the emulated device, no times"
        print(f"{arguments.pairs} pairs of processes, {unit}\n{verdict_table(verdicts)}")
    return _status(verdicts, has_errors=False)


def _keep(run: Run, verdicts: list[Verdict] | None, saved: list[Run], arguments: argparse.Namespace) -> None:
    """Writes the files that were asked for; raises BadParamError for a place where none can be written."""
    try:
        if arguments.csv:
            write_csv(run, Path(arguments.csv))
        if arguments.save:
            save(run, Path(arguments.save))
        if arguments.plot:
            earlier = saved or (saved_runs(Path(arguments.save))[:-1] if arguments.save else [])
            for name, figure in _pictures(run, verdicts, earlier):
                path = Path(arguments.plot) / f"{name}.svg"
                plots.write(figure, path)
                if not arguments.json:
                    print(path)
    except OSError as error:
        raise BadParamError.at("bench.file", expected="a place that can be written", got=str(error)) from None


def _pictures(run: Run, verdicts: list[Verdict] | None, earlier: list[Run]) -> Iterator[tuple[str, object]]:
    with suppress(NotSupportedError):  # a card whose rates are not known has no roofline
        yield "roofline", plots.roofline(run, card_named(run.device))
    if any(times.share for times in run.times):
        yield "shares", plots.shares(run)
    if verdicts is not None:
        yield "changes", plots.changes(run, verdicts)
    if earlier:
        yield "trend", plots.trend([*earlier, run])


def _verdicts_json(verdicts: list[Verdict]) -> str:
    return json.dumps({"verdicts": [asdict(verdict) | {"word": verdict.word.value} for verdict in verdicts]})


def _status(verdicts: list[Verdict], has_errors: bool) -> int:
    return int(has_errors or any(verdict.word is Word.SLOWER for verdict in verdicts))
