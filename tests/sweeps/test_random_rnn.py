"""Random recurrent networks: a sample on the emulated device, a sweep of a thousand on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from tests.support.data import fresh_seed
from tests.sweeps.checking import failures
from tests.sweeps.random_rnn import draw_rnn

_SWEEPS, _CASES_OF_A_SWEEP = 20, 60
_SAMPLES, _CASES_OF_A_SAMPLE = 8, 10


@pytest.fixture(scope="module")
def cuda() -> Iterator[Handle]:
    with Handle.open("cuda") as handle:
        yield handle


def test_drawn_lines_are_graphs() -> None:
    rng = np.random.default_rng(fresh_seed())
    lines = [draw_rnn(rng, 300, 20, 70) for _ in range(200)]
    assert all(parse_case(line).graph().operations for line in lines)


@pytest.mark.parametrize("sample", range(_SAMPLES))
def test_sample_under_the_race_detector(sample: int) -> None:
    """Each run draws the same lines, and so compiles no new kernels; the data are drawn afresh."""
    rng, seed = np.random.default_rng(sample), fresh_seed()
    lines = [draw_rnn(rng, 24, 4, 5) for _ in range(_CASES_OF_A_SAMPLE)]
    with Handle.open("emulated", policy="fuzz(7),early,races") as handle:
        wrong = [report for line in lines for report in failures(handle, line, seed, "all")]
    assert not wrong, f"seed {seed}: " + "\n".join(wrong)


@pytest.mark.parametrize(
    ("seed", "line"),
    [
        (1310779224, "rnn cell=relu t=10 b=7 i=8 h=8 lengths=1x9x10x9x1x6x10 tf32=yes"),
        (3557988084, "rnn cell=tanh t=10 b=1 i=2 h=2 layers=2 bi=yes input=skip lengths=2 layout=packed tf32=yes"),
        (
            208977640,
            "rnn cell=lstm t=10 b=8 i=8 h=6 layers=3 bias=input dropout=0.9 lengths=10x9x7x6x5x5x3x2 layout=packed "
            "dir=wgrad dtype=fp16 align=2",
        ),
    ],
)
def test_roundings_that_add_up(seed: int, line: str) -> None:
    """The plain implementation is as far off: it rounds what it drops, and to TF32 in any of its products."""
    with Handle.open("emulated") as handle:
        assert not failures(handle, line, seed, "rnn_stepwise")


@pytest.mark.gpu
@pytest.mark.parametrize("sweep", range(_SWEEPS))
def test_sweep_on_a_gpu(cuda: Handle, sweep: int) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    lines = [draw_rnn(rng, 300, 20, 70) for _ in range(_CASES_OF_A_SWEEP)]
    wrong = [report for line in lines for report in failures(cuda, line, int(rng.integers(2**32)), "all")]
    assert not wrong, f"seed {seed}: " + "\n".join(wrong)
