"""Walks the knobs of the engines that take a case on an NVIDIA GPU, and prints the ranking beside the estimates.

    python -m tools.tune CASE... [--engine NAME] [--sample N] [--top K] [--record FILE]

Every combination of knob values (or a sample of them, with the default always among them) is timed by graph replay, all
in turns on the same data. ``*`` marks an engine's default and ``**`` the cost model's first choice; results that differ
from the first choice's are marked WRONG. With --record, what is faster than the first choice becomes the graph's tuning
record in FILE (``lowdnn/heuristics/tuning_records.py``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from random import Random

import torch

from lowdnn.backend.handle import Handle
from lowdnn.bench.floor import card_named, data_bytes, floor_us
from lowdnn.bench.statistics import Timing
from lowdnn.cases.base import Case
from lowdnn.cli.reading import read_cases
from lowdnn.engines.base import Choices, Engine, Knob
from lowdnn.engines.registry import engine_named
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate, candidate_for, rank
from lowdnn.heuristics.tuning_records import TuningRecord, file_text, records_in, short_key
from lowdnn.plan import Plan
from lowdnn.runtime.timing import slots_for
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import LowdnnError, NotSupportedError
from tools.bench.capture import Timed, timed
from tools.bench.data import CaseData, disagreement

#: Least gain over the first choice for a plan to be recorded: about the difference of two timings of one plan.
RECORD_GAIN = 1.015


@dataclass(frozen=True)
class Variant:
    """One plan of an engine. mark: ``**``, ``*`` or empty, see the module's docstring."""

    candidate: Candidate
    mark: str

    @property
    def text(self) -> str:
        knobs = " ".join(f"{knob.name}={value}" for knob, value in self.candidate.plan.choices)
        return f"{self.candidate.engine.name} {knobs}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="CASE", help="case lines; @FILE for those of a file")
    parser.add_argument("--engine", action="append", default=[], help="these engines only (default: all but composite)")
    parser.add_argument("--sample", type=int, default=32, help="combinations of knobs for each engine (default 32)")
    parser.add_argument("--seed", type=int, default=4, help="of the sample (default 4)")
    parser.add_argument("--top", type=int, default=16, help="lines to print (default 16)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what is faster as tuning records into FILE")
    arguments = parser.parse_args()
    card = card_named(torch.cuda.get_device_name(0))
    with Handle.open("cuda") as handle:
        engines = [engine_named(name) for name in arguments.engine] or [
            engine for engine in handle.engines if engine.name != "composite"
        ]
        for case in read_cases(arguments.cases):
            graph = case.graph()
            variants = list(_variants(handle, graph, engines, arguments.sample, arguments.seed))
            timings, failed = _timed(handle, case, graph, variants)
            print(f"\n{case}  floor {floor_us(graph, card):.2f} us")
            for line in [*failed, *_lines(variants, timings)][: arguments.top]:
                print(line, flush=True)
            if arguments.record:
                record(arguments.record, case, graph, {v.candidate.plan: timings.get(v.text) for v in variants})
    return 0


def record(path: Path, case: Case, graph: OperationGraph, timings: Mapping[Plan, Timing | None]) -> None:
    """Makes the fastest plan the record of ``graph`` where it beats the first one of ``timings``, else drops one."""
    (first, *_), timed = timings, {plan: timing.us for plan, timing in timings.items() if timing}
    if first not in timed:
        return  # it failed: nothing is known against what was recorded
    kept = records_in(path.read_text(encoding="utf-8")) if path.exists() else {}
    fastest = min(timed, key=lambda plan: timed[plan])
    key = short_key(graph)
    kept.pop(key, None)
    if timed[fastest] * RECORD_GAIN < timed[first]:
        kept[key] = TuningRecord(str(case), fastest.engine, dict(fastest.choices), timed[fastest])
    path.write_text(file_text(kept), encoding="utf-8")


def combinations(knobs: Sequence[Knob], sample: int, seed: int) -> list[Choices]:
    """All choices of the knobs' values, or ``sample`` of them by chance; the defaults come first."""
    defaults = {knob.type: knob.default for knob in knobs}
    count = prod(len(knob.values) for knob in knobs)
    every = product(*(knob.values for knob in knobs))
    numbers = set(range(count)) if count <= sample else set(Random(seed).sample(range(count), sample - 1))
    types = [knob.type for knob in knobs]
    picked = [dict(zip(types, values, strict=True)) for number, values in enumerate(every) if number in numbers]
    return [defaults, *(choices for choices in picked if choices != defaults)]


def _variants(
    handle: Handle, graph: OperationGraph, engines: Sequence[Engine], sample: int, seed: int
) -> Iterator[Variant]:
    best = rank(graph, handle.arch, HeurMode.INSTANT, handle.engines).best
    if best is None:
        raise NotSupportedError(f"no engine takes the graph: {graph}")
    first = best.plan
    yield Variant(candidate_for(engine_named(first.engine), graph, handle.arch, dict(first.choices)), "**")
    for engine in engines:
        if engine.refuse(graph, handle.arch) is not None:
            continue
        for number, choices in enumerate(combinations(engine.knobs(graph, handle.arch), sample, seed)):
            candidate = candidate_for(engine, graph, handle.arch, choices)
            if candidate.plan != first:
                yield Variant(candidate, "" if number else "*")


def _timed(
    handle: Handle, case: Case, graph: OperationGraph, variants: Sequence[Variant]
) -> tuple[dict[str, Timing], list[str]]:
    """The timings by the variants' texts, and a line for each that fails."""
    data = CaseData(case, graph, slots_for(data_bytes(graph)))
    failed: list[str] = []
    running: dict[str, Timed] = {}
    expected: torch.Tensor | None = None
    with ExitStack() as stack:
        for variant in variants:
            data.forget_result()
            try:
                launch = _launcher(handle, variant.candidate.plan, data, stack)
                launch(0)
                torch.cuda.synchronize()
            except LowdnnError as error:
                failed.append(f"{'failed':>10} {variant.text}: {error}".splitlines()[0])
                continue
            result = data.results()[0].clone()
            expected = result if expected is None else expected
            wrong = disagreement(result, expected, data.unit)
            if wrong:
                failed.append(f"{'WRONG':>10} {variant.text}: {wrong}")
            else:
                running[variant.text] = launch
        return timed(running, data.slots), failed


def _lines(variants: Sequence[Variant], timings: Mapping[str, Timing]) -> list[str]:
    """A line for each variant that ran: time, estimate, name; the fastest first."""
    timed = sorted((v for v in variants if v.text in timings), key=lambda variant: timings[variant.text].us)
    return [
        f"{timings[v.text].us:10.2f} us  estimated {v.candidate.estimated_us:9.2f}  {v.mark:2} {v.text}" for v in timed
    ]


def _launcher(handle: Handle, plan: Plan, data: CaseData, stack: ExitStack) -> Timed:
    loaded = handle.load(plan)
    addresses = data.addresses(loaded.uids)
    workspace = stack.enter_context(Workspace(handle.runtime.context, plan.workspace_bytes))
    return lambda slot: loaded.execute(addresses[slot], workspace.address, torch.cuda.current_stream().cuda_stream)


if __name__ == "__main__":
    sys.exit(main())
