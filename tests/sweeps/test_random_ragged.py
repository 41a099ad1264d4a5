"""Random ragged attention in tensors that end with their last sequence, on every engine that takes it: a sample on the
emulated device, thousands on a GPU, where nothing is mapped behind tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.sweeps.random_ragged import check, draw, draw_backward, engines_of

Draw = Callable[[np.random.Generator, np.random.Generator, int], str]

# -- kernels, emulated and on a GPU
_KERNELS, _KERNELS_ON_A_GPU = 5, 16
# -- cases for each kernel, emulated and on a GPU
_CASES, _CASES_ON_A_GPU = 1, 24
#: The longest sequences of each case in turn: the reference's time grows with their square.
_MOST = (100,)
_MOST_ON_A_GPU = (500, 160, 160, 160, 160, 160)

of_each_kind = pytest.mark.parametrize("drawn", [draw, draw_backward], ids=["forward", "backward"])


def test_drawn_lines_have_engines() -> None:
    rng = np.random.default_rng(fresh_seed())
    names = {engine.name for _ in range(60) for engine in engines_of(draw(rng, rng, 80))}
    assert names == {"attention_decode", "attention_mma", "attention_wgmma"}
    assert all(engines_of(draw_backward(rng, rng, 80)) for _ in range(20))


@of_each_kind
@pytest.mark.parametrize("kernel", range(_KERNELS))
def test_sample(guarded: Runtime, drawn: Draw, kernel: int) -> None:
    """Kernels are the same in each run, so that they are compiled once."""
    _sweep(guarded, drawn, [kernel, 0], _CASES, _MOST)


@pytest.mark.gpu
@of_each_kind
@pytest.mark.parametrize("kernel", range(_KERNELS_ON_A_GPU))
@pytest.mark.parametrize("guarded", ["cuda"], indirect=True)
def test_sweep(guarded: Runtime, drawn: Draw, kernel: int) -> None:
    _sweep(guarded, drawn, [kernel, fresh_seed()], _CASES_ON_A_GPU, _MOST_ON_A_GPU)


def _sweep(runtime: Runtime, drawn: Draw, kernel: list[int], cases: int, most: Sequence[int]) -> None:
    for case in range(cases):
        seed = fresh_seed()
        line = drawn(np.random.default_rng(kernel), np.random.default_rng(seed), most[case % len(most)])
        for engine in engines_of(line):
            check(runtime, engine, line, seed)
