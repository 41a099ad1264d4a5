"""Runs random convolutions on every engine that takes them, and compares with the float64 references.

    python -m tools.checks.random_convolutions [--count 2000] [--seconds 600] [--processes 16] [--device cuda]

Each convolution and its data follow from ``--seed`` and its number, whatever the number of processes. Most are cases of
the forms of ``tests/sweeps/random_cases.py``; one in five has stride 1 and a square filter, which Winograd's engines or
``conv_fft`` take. A line is printed for each run that is wrong or fails, with the case, its seed and its plan, which
``lowdnn run`` repeats; at the end are the runs of each engine. The exit status is 1 if something was wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

import numpy as np

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cli.case_results import Request, Result, results
from tests.sweeps.random_cases import SMALL, TINY, ConvolutionForm, Size, draw, forms, narrow_forms

#: One convolution in so many has a square filter and stride 1.
_CONVOLUTIONS_BETWEEN_SQUARES = 5
#: The forms' own seed: runs with other seeds draw other shapes of the same forms, whose kernels are then at hand.
_FORM_SEED = 4
_FORMS, _NARROW_FORMS = 120, 36
_SQUARES = (3, 3, 3, 5, 7, 11, 15)
_DIRECTIONS = ("fprop", "dgrad", "wgrad")
_LAYOUTS = ("nhwc", "nchw")
_TYPES = ("fp32", "fp16", "bf16")
_MOST_IMAGES = 3


@dataclass(frozen=True)
class Bounds:
    """The largest convolutions of a device: those of forms, and channels and pixels of those with square filters.

    pixels: an axis of the image has at most so many more than the filter.
    """

    size: Size
    channels: int
    pixels: int


_BOUNDS = {"cuda": Bounds(SMALL, channels=69, pixels=30), "emulated": Bounds(TINY, channels=9, pixels=5)}


@dataclass
class Tally:
    """The counts of a process: convolutions, those that no engine takes, right runs by engine, and wrong runs."""

    convolutions: int = 0
    refused: int = 0
    right: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.convolutions += other.convolutions
        self.refused += other.refused
        self.right += other.right
        self.wrong += other.wrong


def main() -> int:
    options = _options()
    print(f"seed {options.seed}", flush=True)
    tally = Tally()
    for part in _parts(options):
        tally.add(part)
    runs, wrong = tally.right.total() + tally.wrong.total(), tally.wrong.total()
    print(
        f"seed {options.seed}: {tally.convolutions} convolutions, {tally.refused} of them refused by all engines, "
        f"{runs} runs, {wrong} wrong"
    )
    for engine, count in (tally.right + tally.wrong).most_common():
        print(f"{engine:40}{count:7} runs{tally.wrong[engine]:7} wrong")
    return 1 if wrong else 0


def line_of(seed: int, number: int, known: Sequence[ConvolutionForm], bounds: Bounds) -> tuple[str, int]:
    """Convolution ``number`` as a case line, most of them of a known form, and the seed of its data."""
    rng = np.random.default_rng((seed, number))
    if rng.integers(_CONVOLUTIONS_BETWEEN_SQUARES) == 0:
        line = _square(rng, bounds)
    else:
        line = draw(known[int(rng.integers(len(known)))], rng, bounds.size)
    return line, int(rng.integers(2**31))


def _square(rng: np.random.Generator, bounds: Bounds) -> str:
    taps = int(rng.choice(_SQUARES))
    images, padding = int(rng.integers(1, _MOST_IMAGES + 1)), int(rng.integers(taps))
    channels, filters = (int(extent) for extent in rng.integers(1, bounds.channels + 1, 2))
    height, width = (taps + int(more) for more in rng.integers(bounds.pixels + 1, size=2))
    direction, layout, data_type = (rng.choice(words) for words in (_DIRECTIONS, _LAYOUTS, _TYPES))
    return (
        f"conv n={images} c={channels} hw={height}x{width} k={filters} rs={taps}x{taps} pad={padding} "
        f"dir={direction} layout={layout} dtype={data_type}"
    )


def _parts(options: argparse.Namespace) -> Iterator[Tally]:
    """The tally of each process; that of one is made in this process."""
    work = partial(_tally, options)
    if options.processes == 1:
        yield work(0)
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # processes started from here share the processor's cores
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        yield from pool.map(work, range(options.processes))


def _tally(options: argparse.Namespace, process: int) -> Tally:
    """Runs the convolutions of one process, each ``options.processes``-th from number ``process`` on."""
    end, tally = time.monotonic() + options.seconds, Tally()
    drawn = [*forms(_FORMS, _FORM_SEED), *narrow_forms(_NARROW_FORMS, _FORM_SEED)]
    known = [form for form in drawn if isinstance(form, ConvolutionForm)]
    numbers = range(process, options.count, options.processes)
    at = 0
    while at < len(numbers) and time.monotonic() < end:
        with Handle.open(options.device) as handle:
            is_sound = True
            while is_sound and at < len(numbers) and time.monotonic() < end:  # a failed launch spoils its device
                line, data_seed = line_of(options.seed, numbers[at], known, _BOUNDS[options.device])
                is_sound = _run(handle, line, data_seed, tally)
                at += 1
    return tally


def _run(handle: Handle, line: str, data_seed: int, tally: Tally) -> bool:
    """Runs a convolution on all engines and counts; whether every launch ended well."""
    tally.convolutions += 1
    is_sound = True
    try:
        for result in results(handle, parse_case(line), _request(data_seed)):
            _count(result, line, tally)
            is_sound &= result.status != "error"
    except Exception as error:
        _say_wrong(type(error).__name__, line, data_seed, str(error))
        tally.wrong["none"] += 1
        return False
    return is_sound


def _request(data_seed: int) -> Request:
    return Request(engine="all", is_checked=True, is_exact=False, repeats=0, seed=data_seed)


def _count(result: Result, line: str, tally: Tally) -> None:
    if result.status == "refused":
        tally.refused += 1
    elif result.status == "ok":
        tally.right[result.engine] += 1
    else:
        tally.wrong[result.engine or "none"] += 1
        _say_wrong(f"{result.status} {result.plan or result.engine}", line, result.seed, result.detail)


def _say_wrong(what: str, line: str, data_seed: int, detail: str) -> None:
    first = detail.splitlines()[0] if detail else ""
    print(f"{what}, seed {data_seed}, {line}: {first}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="convolutions (default 2000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no convolution after so long")
    most = min(16, os.cpu_count() or 1)
    parser.add_argument("--processes", type=int, default=most, help=f"side by side (here by default {most})")
    parser.add_argument("--device", default="emulated", choices=tuple(_BOUNDS), help="default: emulated")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(2**31), help="default: a new one, which is printed"
    )
    options = parser.parse_args()
    for name in ("count", "processes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: expected at least 1, got {getattr(options, name)}")
    if options.seed < 0:
        parser.error(f"--seed: expected at least 0, got {options.seed}")
    return options


if __name__ == "__main__":
    sys.exit(main())
