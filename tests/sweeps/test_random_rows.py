"""Random norms, softmax, reductions and pointwise chains: a sample on the emulated device, a sweep of thousands on a
GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from tests.support.data import fresh_seed
from tests.sweeps.checking import failures
from tests.sweeps.random_rows import draw_norm, draw_pointwise, draw_reduction, draw_softmax

Draw = Callable[[np.random.Generator, int], str]

_SWEEPS, _CASES_OF_A_SWEEP = 12, 50
_SAMPLED = 12
_KINDS = pytest.mark.parametrize("draw", [draw_norm, draw_softmax, draw_reduction, draw_pointwise])


@pytest.fixture(scope="module")
def cuda() -> Iterator[Handle]:
    with Handle.open("cuda") as handle:
        yield handle


@_KINDS
def test_drawn_lines_are_graphs(draw: Draw) -> None:
    rng = np.random.default_rng(fresh_seed())
    lines = [draw(rng, 20_000) for _ in range(50)]
    assert all(parse_case(line).graph().operations for line in lines)


@_KINDS
@pytest.mark.parametrize("number", range(_SAMPLED))
def test_sample_under_the_race_detector(number: int, draw: Draw) -> None:
    """Lines are the same in each run, so that their kernels are; the data are drawn afresh."""
    line, seed = draw(np.random.default_rng(number), 3000), fresh_seed()
    with Handle.open("emulated", policy="fuzz(7),early,races") as handle:
        wrong = failures(handle, line, seed)
    assert not wrong, f"seed {seed}: " + "\n".join(wrong)


@pytest.mark.gpu
@_KINDS
@pytest.mark.parametrize("sweep", range(_SWEEPS))
def test_sweep_on_a_gpu(cuda: Handle, sweep: int, draw: Draw) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    lines = [draw(rng, 2_000_000) for _ in range(_CASES_OF_A_SWEEP)]
    wrong = [report for line in lines for report in failures(cuda, line, int(rng.integers(2**32)), "all")]
    assert not wrong, f"seed {seed}: " + "\n".join(wrong)
