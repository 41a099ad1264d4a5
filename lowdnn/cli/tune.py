"""``lowdnn tune``: the fastest plans of text cases, found by timing and kept as tuning records."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from lowdnn.backend.autotuning import follows_bundle, has_own_record, tuner
from lowdnn.backend.handle import Handle
from lowdnn.bench.networks import DIRECTIONS, networks
from lowdnn.cases.base import Case
from lowdnn.cli.options import Options, check_ranges, opened
from lowdnn.cli.reading import Line, ReadCase, check_cases, read_cases, short_text
from lowdnn.cli.tune_arguments import ALL_NETWORKS, add_tune_arguments
from lowdnn.cli.tune_files import diff, merge, prune
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.tuning.records import MOST_CASE, RecordClock, lines_of_other_versions
from lowdnn.heuristics.tuning.search import Scope
from lowdnn.heuristics.tuning.tuner import Tuned, Tuner, TuningOptions
from lowdnn.status import BadParamError, LowdnnError


def tune(arguments: argparse.Namespace) -> int:
    """Tunes the cases, or does what is asked with files of records; 1 if a case could not be tuned, otherwise 0.

    A record is written as soon as it is there, so that an interrupted run goes on where it was.
    Raises BadParamError before the first case where an option or a case is wrong.
    """
    given = Options("tune", arguments, add_tune_arguments)
    for mode, works in _FILE_MODES.items():
        if getattr(arguments, mode) is not None:
            given.refuse_beside(mode, vars(arguments).keys() - {"command", mode, *_OPTIONS_OF.get(mode, ())})
            return works(arguments)
    given.refuse_without("prune", ["least_gain"])
    given.refuse_without("networks", ["batch"])
    cases, options = _read_cases(arguments), _options(arguments)
    with opened(arguments, given) as handle:
        check_cases(cases, handle.runtime.driver.device_total_memory_bytes(handle.runtime.context.device))
        others = _check_records(handle)
        graphs, refused = _graphs(handle, cases)
        limit = options.scope.workspace_limit
        new = {t: graph for t, graph in graphs.items() if arguments.again or not has_own_record(handle, graph, limit)}
        report = _Report(arguments.json, len(new) + len(refused), len(graphs) - len(new))
        report.begin(others, [text for text, graph in graphs.items() if follows_bundle(handle, graph)])
        for text, error in refused.items():
            report.tell(text, error)
        try:
            with tuner(handle, options) as tuning:
                for text, found in zip(new, tuning.tune(new.values()), strict=False):
                    report.tell(text, _kept(handle, found, text) if isinstance(found, Tuned) else found, tuning)
        finally:
            report.end()
    return 1 if report.failed else 0


#: The work on files of records that is done in the place of tuning, by option.
_FILE_MODES: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "merge": lambda arguments: merge(arguments.merge),
    "prune": lambda arguments: prune(arguments.prune, arguments.least_gain),
    "diff": lambda arguments: diff(*arguments.diff),
}
#: The further options of those.
_OPTIONS_OF = {"prune": ("least_gain",)}


def _read_cases(arguments: argparse.Namespace) -> list[ReadCase]:
    """The cases of all options, each once, with the sum of its counts."""
    texts = [*arguments.cases, *([] if arguments.log is None else [f"@{arguments.log}"])]
    found: dict[Case, ReadCase] = {}
    for read in (*read_cases(texts), *_layers(arguments.networks, arguments.batch)):
        known = found.get(read.case)
        found[read.case] = read if known is None else replace(known, count=known.count + read.count)
    if not found:
        raise BadParamError.at("tune.cases", expected="cases, --log or --networks", got="none")
    return list(found.values())


def _layers(names: str | None, batch: int | None) -> Iterator[ReadCase]:
    known = networks()
    wanted = [] if names is None else list(known) if names == ALL_NETWORKS else names.split(",")
    for name in wanted:
        if name not in known:
            raise BadParamError.at("tune.networks", expected=f"some of {', '.join(known)}", got=name)
        for layer, count in known[name].items():
            for direction in DIRECTIONS:
                case = replace(layer, n=batch or layer.n, dir=direction)
                yield ReadCase(case, count, Line(str(case)))


def _options(arguments: argparse.Namespace) -> TuningOptions:
    ranges = {"kernels": (1, 1000), "processes": (0, 256), "workspace_limit": (0, 2**63 - 1), "batch": (1, 2**31 - 1)}
    check_ranges("tune", arguments, ranges)
    budget_s = math.inf if arguments.budget is None else arguments.budget
    if not budget_s > 0:
        raise BadParamError.at("tune.budget", expected="more than 0", got=budget_s)
    return TuningOptions(Scope(arguments.workspace_limit), budget_s, arguments.kernels, arguments.processes)


def _check_records(handle: Handle) -> int:
    """How many records of other versions the user's file has; raises BadParamError where none can be written there."""
    own = handle.records.own
    try:
        if own is None:
            raise OSError("none is known")
        own.check()
        return len(lines_of_other_versions(own.text()))
    except OSError as error:
        raise _unwritable(error) from None


def _graphs(handle: Handle, cases: Sequence[ReadCase]) -> tuple[dict[str, OperationGraph], dict[str, LowdnnError]]:
    """The graphs by their cases, those first in which most time is spent, by counts and estimates; and the errors of
    cases without one."""
    work: dict[str, tuple[float, OperationGraph]] = {}
    refused: dict[str, LowdnnError] = {}
    for read in cases:
        text = str(read.case)
        try:
            graph = read.case.graph()
            best = handle.rank(graph, HeurMode.INSTANT).best
        except LowdnnError as error:
            refused[text] = error
            continue
        work[text] = (read.count * best.estimated_us if best else 0.0), graph
    return {text: graph for text, (_, graph) in sorted(work.items(), key=lambda item: -item[1][0])}, refused


def _kept(handle: Handle, found: Tuned, text: str) -> Tuned:
    """The result, kept with the case's own text."""
    found = replace(found, record=replace(found.record, case=text if len(text) <= MOST_CASE else ""))
    try:
        handle.records.add((found.record,))
    except OSError as error:
        raise _unwritable(error) from None
    return found


def _unwritable(error: OSError) -> LowdnnError:
    return BadParamError.at("LOWDNN_TUNING_PATH", expected="a directory for records", got=error)


class _Report:
    """The lines of a run, one for each case, and its sums.

    count: cases to tune.  known: further cases, which have records already.
    """

    def __init__(self, is_json: bool, count: int, known: int) -> None:
        self._is_json, self._count, self._known = is_json, count, known
        self._begin_s = time.monotonic()
        self._tuned = self.failed = 0
        self._gains: list[float] = []
        self._is_estimated = False

    def begin(self, others: int, bundled: Sequence[str]) -> None:
        """others: records of other versions of lowdnn in the user's file.  bundled: cases that a bundle has plans of.

        Standard error has the latter, so that a program which reads JSON sees them too.
        """
        if bundled:
            print(
                f"lowdnn: {len(bundled)} of the cases follow a bundle, which comes before records until "
                f"lowdnn cache clear; the first is {short_text(bundled[0])}",
                file=sys.stderr,
            )
        if self._is_json:
            return
        if others:
            print(f"{others} records of other versions of lowdnn stay as they are", flush=True)
        if self._known:
            print(f"{self._known} cases have records already (--again tunes them anew)", flush=True)

    def tell(self, text: str, found: Tuned | LowdnnError, tuning: Tuner | None = None) -> None:
        """The line of a case."""
        if isinstance(found, LowdnnError):
            self.failed += 1
            fields: dict[str, object] = {"case": text, "error": str(found)}
            line = f"failed  {short_text(text)}\n  {found}"
        else:
            record = found.record
            self._tuned += 1
            self._is_estimated |= record.clock is RecordClock.MODEL
            if record.us and record.first_us:
                self._gains.append(record.first_us / record.us)
            fields = json.loads(record.text) | {"tried": len(found.trials)}
            line = f"{found}\n  {short_text(text)}"
        if self._is_json:
            print(json.dumps(fields), flush=True)
        else:
            print(f"[{self._progress(tuning)}] {line}", flush=True)

    def end(self) -> None:
        """The line of all cases together."""
        if self._is_json:
            return
        left = self._count - self._tuned - self.failed
        print(
            f"{self._tuned} tuned in {time.monotonic() - self._begin_s:.1f} s, {self.failed} failed, "
            f"{self._known} known before, {left} left{self._gain}"
        )

    @property
    def _gain(self) -> str:
        if not self._gains:
            return ""
        mean = math.exp(math.fsum(map(math.log, self._gains)) / len(self._gains))
        how = "by the cost model's estimates, since the device is emulated" if self._is_estimated else "measured"
        return f"; {mean:.3f}x the first choices in the mean of {len(self._gains)}, {how}"

    def _progress(self, tuning: Tuner | None) -> str:
        elapsed_s = time.monotonic() - self._begin_s
        kernels = f", {tuning.compilers.compiled}/{tuning.compilers.asked} kernels" if tuning else ""
        return f"{self._tuned + self.failed}/{self._count} {elapsed_s:.1f} s{kernels}"
