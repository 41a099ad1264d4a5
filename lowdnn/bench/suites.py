"""Suites of benchmark cases by class, the targets of the classes, and the choice of a part.

A suite is a file of ``cases/``, or the lines that a module draws (``recurrent``). It has sections ``[class]`` of case
lines; ``{a,b}`` in a line stands for each of its values, as in a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

from lowdnn.bench import recurrent
from lowdnn.cases import parse_case

DEVICE_SUITES = ("gemm", "conv", "membound", "attention", "rnn")
NETWORK_LAYERS = "all layers of at least 12 real networks (2D, 3D, 1D), three directions, batch 32 to 128"

_CASES = Path(__file__).resolve().parent / "cases"
_BRACES = re.compile(r"\{([^}]*)\}")


@dataclass(frozen=True)
class Target:
    """The goal of the ratios peer / ours of a class: their geometric mean, and the worst of them.

    share: the goal of the geometric mean of floor / ours; for work bound by memory, a share of a copy's bandwidth.
    """

    mean: float
    worst: float
    share: float | None = None


@dataclass(frozen=True)
class SuiteCase:
    """One case of a suite; ``network``: the networks that it is a layer of, joined by ``+``, or empty."""

    class_: str
    text: str
    network: str = ""


#: By class, in the words of the table of targets.
TARGETS: Mapping[str, Target] = {
    NETWORK_LAYERS: Target(1.5, 0.9),
    "GEMM bf16/fp16, square and LLM": Target(1.0, 0.93),
    "GEMM awkward (odd sizes, few waves), skinny, batched small": Target(1.15, 0.95),
    "GEMM fp8, TF32, int8": Target(1.0, 0.9),
    "GEMM grouped by offsets (mixture of experts)": Target(1.2, 1.0),
    "conv fprop, dgrad stride 1, dense": Target(1.0, 0.92),
    "conv dgrad stride 2, wgrad": Target(1.1, 0.92),
    "stem and narrow 1x1": Target(1.3, 1.0),
    "grouped, depthwise (three directions)": Target(2.0, 1.2),
    "depthwise lines (three directions)": Target(2.0, 1.2),
    "conv/matmul + bias + activation (+ residual)": Target(1.05, 0.95),
    "pointwise chains": Target(1.05, 0.97, 0.95),
    "layer/RMS norm fwd": Target(1.10, 0.97, 0.92),
    "layer/RMS norm bwd": Target(1.10, 0.95, 0.85),
    "batch norm train fwd, bwd": Target(1.2, 0.97, 0.85),
    "group/instance norm": Target(3.0, 1.5, 0.80),
    "softmax fwd, bwd (rows up to 128 Ki)": Target(1.5, 1.0, 0.88),
    "pooling, resampling fwd": Target(3.0, 1.5, 0.85),
    "pooling, resampling bwd": Target(3.0, 1.5, 0.80),
    "transposes and layout changes": Target(1.2, 1.0, 0.85),
    "reductions": Target(1.2, 1.0, 0.90),
    "rotary position embedding": Target(1.05, 0.97, 0.90),
    "memory-bound work at the sizes of real networks": Target(1.8, 1.0),
    "forward d64, d128, d256, full and causal, S 512 to 16k": Target(1.0, 0.93),
    "forward fp8": Target(1.0, 0.93),
    "backward, same grid": Target(1.0, 0.93),
    "backward fp8": Target(1.0, 0.93),
    "backward d256, deterministic backward": Target(1.15, 1.0),
    "sliding window, varlen (16k tokens, uniform and skewed)": Target(1.15, 1.0),
    "decode and paged decode": Target(1.05, 0.97),
    "attention at ordinary sizes": Target(1.2, 0.0),
    **dict.fromkeys(recurrent.CLASSES, Target(2.0, 0.95)),
}


def suite_cases(suite: str) -> list[SuiteCase]:
    """The cases of a suite, each once, in the canonical text of ``lowdnn.cases``."""
    return list(dict.fromkeys(SuiteCase(class_, str(parse_case(text))) for class_, text in sections(_lines(suite))))


def sections(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(name of its section, line) for each line behind a ``[name]``, expanded and without its comment."""
    name = ""
    for line in lines:
        content = line.split("#")[0].strip()
        if content.startswith("["):
            name = content.strip("[]")
        elif content:
            yield from ((name, text) for text in expanded(content))


def of_classes(cases: Iterable[SuiteCase], wanted: Sequence[str]) -> list[SuiteCase]:
    """The cases whose class or network has one of the ``wanted`` texts in its name; all where none is wanted."""
    texts = [text.lower() for text in wanted]
    return [case for case in cases if not texts or any(t in f"{case.class_} {case.network}".lower() for t in texts)]


def sampled(cases: Sequence[SuiteCase], count: int, seed: int) -> list[SuiteCase]:
    """``count`` cases of each class by chance, in their order (all of a class that has no more)."""
    chosen: set[SuiteCase] = set()
    for members in _by_class(cases).values():
        chosen.update(Random(seed).sample(members, min(count, len(members))))
    return [case for case in cases if case in chosen]


def mixed(cases: Sequence[SuiteCase], seed: int) -> list[SuiteCase]:
    """The cases by chance, the classes in turns, so that any first part of them serves every class."""
    places: dict[SuiteCase, int] = {}
    for members in _by_class(cases).values():
        order = Random(seed).sample(members, len(members))
        places.update({case: number for number, case in enumerate(order)})
    return sorted(cases, key=places.__getitem__)


def expanded(text: str) -> Iterator[str]:
    """``text`` for every combination of the values in its braces."""
    parts = _BRACES.split(text)
    choices = [[part] if number % 2 == 0 else part.split(",") for number, part in enumerate(parts)]
    return map("".join, product(*choices))


def _lines(suite: str) -> Iterable[str]:
    if suite == "rnn":
        return recurrent.lines()
    return (_CASES / f"{suite}.txt").read_text(encoding="utf-8").splitlines()


def _by_class(cases: Iterable[SuiteCase]) -> dict[str, list[SuiteCase]]:
    groups: dict[str, list[SuiteCase]] = {}
    for case in cases:
        groups.setdefault(case.class_, []).append(case)
    return groups
