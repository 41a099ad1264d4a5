"""Plans of the first choice for many cases, as a file, and the comparison of two such files.

    python -m tools.checks.plans write FILE [--random 500] [--seed 0] [--arch sm_80,sm_90a] [--like EARLIER]
    python -m tools.checks.plans compare BEFORE AFTER

``write`` plans the cases of the benchmarks and random ones of every family; with ``--like`` those of an earlier file.
A line is a case on one architecture:

    arch | case | engine | workspace bytes | kernels: name, macros, digest of the generated text | launches: kernel,
    grid, block, cluster, shared bytes, what is special of the launch, digest of the arguments

It names neither the sources nor the knobs, so that these may be moved and renamed. A chain of operations is written as
``graph seed=N``, with the graph's key in place of a text. ``compare`` prints how many lines are the same, and the
cases of the others with both plans; the exit code is 1 if any differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import cycle
from pathlib import Path

import numpy as np

from lowdnn.arch.specs import spec_named
from lowdnn.bench.networks import cases_of
from lowdnn.bench.suites import DEVICE_SUITES
from lowdnn.cases import parse_case
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.plan import KernelRef, Launch
from tests.support.random_graphs.steps import LISTED, random_graph
from tests.sweeps import random_attention, random_cases, random_moves, random_ragged, random_resamples, random_rows
from tests.sweeps import random_unfused_attention as unfused

_GRAPH = "graph seed="
#: The text instead of a plan if the seed gives a different graph than in the earlier file.
_OTHER_GRAPH = "the seed gives another graph"
#: Sizes as those of a real network, and of its first layers, which have few channels.
_LARGE = random_cases.Size(channels=1024, outputs=(4000, 100, 30), products=40_000_000_000, matrix=5000)
_FIRST = random_cases.Size(channels=128, outputs=(16000, 250, 40), products=20_000_000_000, matrix=5000)
_MOST_ROPE_POSITIONS = 3000


def main() -> int:
    options = _options()
    if options.command == "compare":
        return _compare(*(file.read_text(encoding="utf-8").splitlines() for file in (options.before, options.after)))
    earlier = options.like.read_text(encoding="utf-8").splitlines() if options.like else []
    wanted = [tuple(line.split(" | ")[:2]) for line in earlier]
    if not options.like:
        benches = [case.text for suite in DEVICE_SUITES for case in cases_of(suite)]
        cases = dict.fromkeys([*benches, *_random_lines(options.random, options.seed)])
        wanted = [(arch, case) for case in cases for arch in options.arch.split(",")]
    options.file.write_text("".join(f"{_line(arch, case)}\n" for arch, case in wanted), encoding="utf-8")
    return 0


def _line(arch: str, case: str) -> str:
    """The plan of ``case``, or the reason why no engine takes it."""
    graph = _graph(case)
    if case.startswith(_GRAPH) and not graph.key.startswith(case.rpartition("=")[2]):
        return f"{arch} | {case} | {_OTHER_GRAPH}"
    best = rank(graph, spec_named(arch), HeurMode.INSTANT, ENGINES).best
    if best is None:
        return f"{arch} | {case} | refused"
    plan = best.plan
    kernels, launches = "; ".join(map(_kernel, plan.kernels)), "; ".join(map(_launch, plan.launches))
    return f"{arch} | {case} | {plan.engine} | {plan.workspace_bytes} | {kernels} | {launches}"


def _graph(case: str) -> OperationGraph:
    if case.startswith(_GRAPH):
        return random_graph(int(case.removeprefix(_GRAPH).split()[0]), LISTED).graph
    return parse_case(case).graph()


def _kernel(kernel: KernelRef) -> str:
    macros = " ".join(f"{name}={value}" for name, value in kernel.parameters)
    return f"{kernel.name} {macros} generated={_digest(kernel.generated)}"


def _launch(launch: Launch) -> str:
    shape = " ".join("x".join(map(str, extents)) for extents in (launch.grid, launch.block, launch.cluster))
    special = " overlaps" * launch.overlaps_previous + " cooperative" * launch.cooperative
    return f"{launch.kernel} {shape} {launch.shared_bytes}{special} {_digest(repr(launch.arguments))}"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12] if text else "-"


def _random_lines(count: int, seed: int) -> Iterator[str]:
    """``count`` random cases: of four, two are of convolutions and products, one of other families, one a graph."""
    rng = np.random.default_rng(seed)
    products, others = _contractions(count, seed), _other_families(rng)
    for number in range(count):
        if number % 4 < 2:
            yield next(products)
        elif number % 4 == 2:
            yield next(others)
        else:
            yield f"{_GRAPH}{seed + number} key={random_graph(seed + number, LISTED).graph.key[:12]}"


def _contractions(count: int, seed: int) -> Iterator[str]:
    """Random cases of each form. One convolution in three has few channels or filters; one in three of the other cases
    is small."""
    rng = np.random.default_rng(seed)
    for form in random_cases.forms(count, seed):
        is_narrow = isinstance(form, random_cases.ConvolutionForm) and rng.integers(3) == 0
        form = replace(form, groups="narrow") if isinstance(form, random_cases.ConvolutionForm) and is_narrow else form
        size = _FIRST if is_narrow else (random_cases.SMALL, _LARGE, _LARGE)[rng.integers(3)]
        yield random_cases.draw(form, rng, size)


def _other_families(rng: np.random.Generator) -> Iterator[str]:
    attention = random_attention
    seeded = (attention.draw, attention.draw_mapped, attention.draw_fp8, attention.draw_decode, random_ragged.draw)
    gradients = (attention.draw_backward, attention.draw_backward_shared_alike, random_ragged.draw_backward)
    of_elements = (random_rows.draw_norm, random_rows.draw_softmax, random_rows.draw_reduction)
    draws: Iterable[Callable[[], str]] = (
        *(lambda draw=draw: draw(rng, rng, 4000) for draw in (*seeded, *gradients)),
        *(lambda draw=draw: draw(rng, 2000) for draw in (unfused.draw, unfused.draw_backward)),
        *(lambda draw=draw: draw(rng, 30_000_000) for draw in (*of_elements, random_rows.draw_pointwise)),
        *(lambda form=form: random_resamples.draw(form, rng, 100) for form in random_resamples.forms(6, 0)),
        *(lambda: random_moves.draw(rng, 30_000_000) for _ in range(4)),
        lambda: f"rope b=2 h=8 s={rng.integers(1, _MOST_ROPE_POSITIONS)} d=64 dtype=bf16",
    )
    yield from (draw() for draw in cycle(draws))


def _compare(before: list[str], after: list[str]) -> int:
    earlier, later = _plans(before), _plans(after)
    both = earlier.keys() & later.keys()
    changed = [case for case in earlier if case in both and earlier[case] != later[case]]
    for case in changed:
        print(*case, sep=" | ")
        for sign, line in (("-", earlier[case]), ("+", later[case])):
            print(f"  {sign} {' | '.join(line.split(' | ')[2:])}")
    alone = len(earlier) + len(later) - 2 * len(both)
    print(f"{len(both) - len(changed)} plans are the same, {len(changed)} differ, {alone} are in one of the files only")
    return 1 if changed or alone else 0


def _plans(lines: list[str]) -> dict[tuple[str, ...], str]:
    """The lines by architecture and case."""
    return {tuple(line.split(" | ")[:2]): line for line in lines if not line.endswith(_OTHER_GRAPH)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="plan the cases")
    write.add_argument("file", type=Path)
    write.add_argument("--random", type=int, default=500, help="random cases")
    write.add_argument("--seed", type=int, default=0, help="of the random cases")
    write.add_argument("--arch", default="sm_80,sm_90a", help="architectures, joined by commas")
    write.add_argument("--like", type=Path, help="plan the cases of this file")
    compare = commands.add_parser("compare", help="compare two files")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
