"""``lowdnn tune``: the fastest plans of text cases, found by timing and kept as tuning records."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from lowdnn.backend.autotuning import has_own_record, tuner
from lowdnn.backend.handle import Handle
from lowdnn.bench.networks import DIRECTIONS, networks
from lowdnn.cases.base import Case
from lowdnn.cli.reading import check_cases, read_counted_cases, short_text
from lowdnn.cli.tune_files import diff, merge, prune
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.tuning.records import MOST_CASE, RecordClock
from lowdnn.heuristics.tuning.search import Scope
from lowdnn.heuristics.tuning.tuner import Tuned, Tuner, TuningOptions
from lowdnn.status import BadParamError, LowdnnError


def tune(arguments: argparse.Namespace) -> int:
    """Tunes the cases, or does what is asked with files of records; 1 if a case could not be tuned, otherwise 0.

    A record is written as soon as it is there, so that an interrupted run goes on where it was.
    Raises BadParamError before the first case where an option or a case is wrong.
    """
    if arguments.merge:
        return merge(arguments.merge)
    if arguments.prune:
        return prune(arguments.prune, arguments.least_gain)
    if arguments.diff:
        return diff(*arguments.diff)
    counted, options = _counted_cases(arguments), _options(arguments)
    with Handle.open(arguments.device, arch=arguments.arch) as handle:
        check_cases(counted, handle.runtime.driver.device_total_memory_bytes(handle.runtime.context.device))
        report = _Report(arguments.json)
        graphs = _graphs(handle, counted, report)
        limit = options.scope.workspace_limit
        new = {t: graph for t, graph in graphs.items() if arguments.again or not has_own_record(handle, graph, limit)}
        report.begin(len(new), known=len(graphs) - len(new))
        with tuner(handle, options) as tuning:
            for text, found in zip(new, tuning.tune(new.values()), strict=False):
                if isinstance(found, Tuned):
                    found = replace(found, record=replace(found.record, case=text if len(text) <= MOST_CASE else ""))
                    _keep(handle, found)
                report.tell(text, found, tuning)
        report.end()
    return 1 if report.failed else 0


def _counted_cases(arguments: argparse.Namespace) -> dict[Case, int]:
    """The cases of all options with their counts, each once."""
    texts = [*arguments.cases, *([] if arguments.log is None else [f"@{arguments.log}"])]
    found: dict[Case, int] = {}
    for count, case in (*read_counted_cases(texts), *_layers(arguments.networks, arguments.batch)):
        found[case] = found.get(case, 0) + count
    if not found:
        raise BadParamError.at("tune.cases", expected="cases, --log or --networks", got="none")
    return found


def _layers(names: str | None, batch: int | None) -> Iterator[tuple[int, Case]]:
    known = networks()
    wanted = [] if names is None else names.split(",") if names else list(known)
    for name in wanted:
        if name not in known:
            raise BadParamError.at("tune.networks", expected=f"some of {', '.join(known)}", got=name)
        for layer, count in known[name].items():
            yield from ((count, replace(layer, n=batch or layer.n, dir=direction)) for direction in DIRECTIONS)


def _options(arguments: argparse.Namespace) -> TuningOptions:
    limits = (("kernels", 1, 1000), ("processes", 0, 256), ("workspace_limit", 0, 2**63 - 1), ("batch", 1, 2**31 - 1))
    for name, least, most in limits:
        value = getattr(arguments, name)
        if value is not None and not least <= value <= most:
            raise BadParamError.at(f"tune.{name}", expected=f"{least} to {most}", got=value)
    budget_s = math.inf if arguments.budget is None else arguments.budget
    if not budget_s > 0:
        raise BadParamError.at("tune.budget", expected="more than 0", got=budget_s)
    return TuningOptions(Scope(arguments.workspace_limit), budget_s, arguments.kernels, arguments.processes)


def _graphs(handle: Handle, counted: Mapping[Case, int], report: _Report) -> dict[str, OperationGraph]:
    """The graphs by their cases: those first in which most time is spent, by counts and estimates."""
    work: dict[str, tuple[float, OperationGraph]] = {}
    for case, count in counted.items():
        try:
            graph = case.graph()
            best = handle.rank(graph, HeurMode.INSTANT).best
        except LowdnnError as error:
            report.tell(str(case), error)
            continue
        work[str(case)] = (count * best.estimated_us if best else 0.0), graph
    return {text: graph for text, (_, graph) in sorted(work.items(), key=lambda item: -item[1][0])}


def _keep(handle: Handle, found: Tuned) -> None:
    try:
        handle.records.add((found.record,))
    except OSError as error:
        raise BadParamError.at("LOWDNN_TUNING_PATH", expected="a directory for records", got=error) from None


class _Report:
    """The lines of a run, one for each case, and its sums."""

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._begin_s = time.monotonic()
        self._count = self._known = self._told = self.failed = 0
        self._gains: list[float] = []
        self._is_estimated = False

    def begin(self, count: int, known: int) -> None:
        """count: cases to tune.  known: further cases, which have records already."""
        self._count, self._known = count, known
        if known and not self._is_json:
            print(f"{known} cases have records already (--again tunes them anew)", flush=True)

    def tell(self, text: str, found: Tuned | LowdnnError, tuning: Tuner | None = None) -> None:
        """The line of a case."""
        self._told += 1
        if isinstance(found, LowdnnError):
            self.failed += 1
            fields: dict[str, object] = {"case": text, "error": str(found)}
            line = f"failed  {short_text(text)}\n  {found}"
        else:
            record = found.record
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
        left = self._count - (self._told - self.failed)
        mean = math.exp(math.fsum(map(math.log, self._gains)) / len(self._gains)) if self._gains else 1.0
        how = "by the cost model's estimates, since the device is emulated" if self._is_estimated else "measured"
        print(
            f"{len(self._gains)} tuned in {time.monotonic() - self._begin_s:.1f} s, {self.failed} failed, "
            f"{self._known} known before, {max(left, 0)} left; {mean:.3f}x the first choices in the mean, {how}"
        )

    def _progress(self, tuning: Tuner | None) -> str:
        elapsed_s = time.monotonic() - self._begin_s
        kernels = f", {tuning.compilers.compiled}/{tuning.compilers.asked} kernels" if tuning else ""
        return f"{self._told}/{self._count} {elapsed_s:.1f} s{kernels}"
