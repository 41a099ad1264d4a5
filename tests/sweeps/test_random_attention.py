"""Random attention and gradients: a sample on the emulated device, a sweep of thousands on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from tests.support.data import fresh_seed
from tests.sweeps.checking import failures
from tests.sweeps.random_attention import (
    draw,
    draw_backward,
    draw_backward_shared_alike,
    draw_decode,
    draw_fp8,
    draw_fp8_backward,
    draw_mapped,
)

Draw = Callable[[np.random.Generator, np.random.Generator, int], str]

#: Kernels of the sweep on a GPU, where compiling takes longer than running.
_SWEEPS = 16
#: Cases of each kernel.
_CASES_OF_A_SWEEP = 24
#: The longest sequences of every sixth case and of the others: the reference's time grows with their square.
_MOST = (800, 250, 250, 250, 250, 250)
#: Kernels of the sample on the emulated device, where compiling takes most of the time.
_SAMPLED = 8
_KINDS = pytest.mark.parametrize(
    ("drawn", "engine"),
    [
        (draw, "attention_mma"),
        (draw_mapped, "attention_wgmma"),
        (draw_fp8, "attention_wgmma"),
        (draw_decode, "attention_decode"),
        (draw_backward, "attention_backward_mma"),
        (draw_backward_shared_alike, "attention_backward_wgmma"),
        (draw_fp8_backward, "attention_backward_mma"),
    ],
    ids=["mma", "wgmma", "fp8", "decode", "backward_mma", "backward_wgmma", "backward_fp8"],
)


@_KINDS
def test_drawn_lines_are_graphs(drawn: Draw, engine: str) -> None:
    rng = np.random.default_rng(fresh_seed())
    assert all(parse_case(drawn(rng, rng, 300)).graph().operations for _ in range(50))


@_KINDS
@pytest.mark.parametrize("number", range(_SAMPLED))
def test_sample_under_the_race_detector(drawn: Draw, engine: str, number: int) -> None:
    """Lines are the same in each run, so that their kernels are; the data are drawn afresh."""
    line = drawn(np.random.default_rng(number), np.random.default_rng([number]), 80)
    with Handle.open("emulated", policy="fuzz(7),early,races") as handle:
        wrong = failures(handle, line, fresh_seed(), engine)
    assert not wrong, "\n".join(wrong)


@pytest.mark.gpu
@_KINDS
@pytest.mark.parametrize("sweep", range(_SWEEPS))
def test_sweep_on_a_gpu(drawn: Draw, engine: str, sweep: int) -> None:
    seed = fresh_seed()
    numbers = np.random.default_rng(seed)
    with Handle.open("cuda") as handle:
        lines = [
            drawn(np.random.default_rng([seed, sweep]), numbers, _MOST[case % len(_MOST)])
            for case in range(_CASES_OF_A_SWEEP)
        ]
        wrong = [report for line in lines for report in failures(handle, line, seed, engine)]
    assert not wrong, f"seed {seed}: " + "\n".join(wrong)
