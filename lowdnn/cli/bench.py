"""``lowdnn bench``: times of cases on a device, saved, drawn, and compared with those of another version."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from lowdnn.backend.handle import Handle
from lowdnn.bench.alternation import alternated, root_of
from lowdnn.bench.floor import Card
from lowdnn.bench.networks import network_cases
from lowdnn.bench.report import case_head, case_line, class_table, head, verdict_table
from lowdnn.bench.runs import Run, batches, card_of, measured, run_json, saved_runs
from lowdnn.bench.suites import SuiteCase, of_classes, sampled, suite_cases
from lowdnn.bench.verdicts import Verdict, Word, against_saved
from lowdnn.cli.bench_arguments import add_bench_arguments
from lowdnn.cli.bench_files import BenchFiles
from lowdnn.cli.options import Options, check_ranges
from lowdnn.cli.output import OutputError
from lowdnn.cli.reading import check_values, read_cases
from lowdnn.status import BadParamError

Cases = list[tuple[int, SuiteCase]]

#: The share of the device's memory that each of two alternating processes may use.
_SHARE_OF_EACH = 0.3


def bench(arguments: argparse.Namespace) -> int:
    """Times the cases; 1 if one has an error or is slower, otherwise 0.

    Raises BadParamError before the first one runs where an option or a case is wrong.
    """
    check_ranges("bench", arguments, {"rounds": (1, 10**4), "pairs": (3, 100), "sample": (1, 10**6)})
    given = Options("bench", arguments, add_bench_arguments)
    given.refuse_without("sample", ["seed"])
    cases = _cases(arguments)
    base = None if arguments.compare is None else Path(arguments.compare)
    if base is not None and (base.is_dir() or base.suffix == ".whl"):
        given.refuse(("csv", "save", "plot", "commit"), "none beside a checkout or wheel")
        return _alternate(cases, base, arguments)
    given.refuse(("pairs",), "none without a checkout or wheel")
    saved = [] if base is None else _base_runs(base)
    files = BenchFiles.checked(arguments.csv, arguments.save, arguments.plot, saved)
    run, card, end = _measure(cases, files, arguments)
    verdicts = None if base is None else against_saved(saved, run)
    try:
        written = files.write(run, verdicts, card)
    finally:
        if arguments.json:
            print(run_json(run) if verdicts is None else _verdicts_json(verdicts))
        elif verdicts is not None:
            print(f"\nagainst {len(saved)} saved runs\n{verdict_table(verdicts)}")
    if not arguments.json:
        print("".join(f"{path}\n" for path in written), end="")
    if end is not None:
        kept = f", and are in {', '.join(map(str, written))}" if written else ""
        raise _with_text(end, f"{len(run.times)} of {len(cases)} cases were timed{kept}")
    return _status(verdicts or [], any(times.error for times in run.times))


def _cases(arguments: argparse.Namespace) -> Cases:
    """(count, case) of each case that was asked for, without duplicates."""
    listed = [case for suite in arguments.suite for case in suite_cases(suite)]
    if arguments.networks:
        listed += network_cases()
    found = {case.text: (1, case) for case in listed}
    asked = list(read_cases(arguments.cases))
    check_values(asked)
    for read in asked:
        text = str(read.case)
        known, listing = found.get(text, (0, SuiteCase(read.case.family, text)))
        found[text] = (known + read.count, listing)
    chosen = of_classes((case for _, case in found.values()), arguments.only)
    if arguments.sample is not None:
        chosen = sampled(chosen, arguments.sample, arguments.seed)
    if not chosen:
        raise BadParamError.at("bench.cases", expected="at least one case", got="none")
    return [found[case.text] for case in chosen]


def _base_runs(base: Path) -> list[Run]:
    """The runs of a file to compare with. Raises BadParamError for a file without one."""
    saved = saved_runs(base)
    if not saved:
        raise BadParamError.at("bench.compare", expected="a file of saved runs", got=f"{base}, which has none")
    return saved


def _measure(
    cases: Cases, files: BenchFiles, arguments: argparse.Namespace
) -> tuple[Run, Card | None, BaseException | None]:
    """The run, its lines printed as they are known; the facts of the card; and what ended the run before its time:
    Ctrl-C, or an output that cannot be written. Raises that where nothing is timed until then."""
    run, known, end = None, 0, None
    with Handle.open(arguments.device) as handle:
        card = card_of(handle)
        files.check_pictures(card)
        try:
            for run in measured(handle, cases, arguments.rounds, arguments.commit):
                if not arguments.json:
                    if not known:
                        print(f"{head(run)}\n\n{case_head()}")
                    for times in run.times[known:]:
                        print(case_line(times), flush=True)
                known = len(run.times)
        except (KeyboardInterrupt, OutputError) as error:
            if run is None:
                raise _with_text(error, "nothing was timed") from None
            end = error
    assert run is not None
    if not arguments.json:
        print(f"\n{class_table(run)}")
    return run, card, end


def _with_text(error: BaseException, text: str) -> BaseException:
    return type(error)("; ".join(filter(None, (str(error), text))))


def _alternate(cases: Cases, base: Path, arguments: argparse.Namespace) -> int:
    """Times this lowdnn and the one at ``base`` alternately."""
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


def _verdicts_json(verdicts: list[Verdict]) -> str:
    return json.dumps({"verdicts": [asdict(verdict) | {"word": verdict.word.value} for verdict in verdicts]})


def _status(verdicts: list[Verdict], has_errors: bool) -> int:
    return int(has_errors or any(verdict.word is Word.SLOWER for verdict in verdicts))
