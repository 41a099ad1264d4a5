"""Random attention and gradients: a sample on the emulated device, a sweep of thousands on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.graph.cases import parse_case
from tests.support.data import fresh_seed
from tests.sweeps.checking import failures
from tests.sweeps.random_attention import draw, draw_backward, draw_backward_shared_alike

Draw = Callable[[np.random.Generator, int], str]

_SAMPLED, _SWEEPS, _CASES_OF_A_SWEEP = 16, 30, 100
_KINDS = pytest.mark.parametrize(
    ("drawn", "engine"),
    [
        (draw, "attention_mma"),
        (draw, "attention_wgmma"),
        (draw_backward, "attention_backward_mma"),
        (draw_backward_shared_alike, "attention_backward_wgmma"),
    ],
    ids=["mma", "wgmma", "backward-mma", "backward-wgmma"],
)


@_KINDS
def test_drawn_lines_are_graphs(drawn: Draw, engine: str) -> None:
    rng = np.random.default_rng(fresh_seed())
    assert all(parse_case(drawn(rng, 300)).graph().operations for _ in range(50))


@_KINDS
@pytest.mark.parametrize("number", range(_SAMPLED))
def test_sample_under_the_race_detector(drawn: Draw, engine: str, number: int) -> None:
    """The same lines in each run, so that their kernels are; the data are drawn afresh."""
    rng = np.random.default_rng(number)
    with Handle.open("emulated", policy="fuzz(7),early,races") as handle:
        wrong = failures(handle, drawn(rng, 80), fresh_seed(), engine)
    assert not wrong, "\n".join(wrong)


@pytest.mark.gpu
@_KINDS
@pytest.mark.parametrize("sweep", range(_SWEEPS))
def test_sweep_on_a_gpu(drawn: Draw, engine: str, sweep: int) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    with Handle.open("cuda") as handle:
        lines = [drawn(rng, 1500) for _ in range(_CASES_OF_A_SWEEP)]
        wrong = [report for line in lines for report in failures(handle, line, seed, engine)]
    assert not wrong, f"seed {seed}: " + "\n".join(wrong)
