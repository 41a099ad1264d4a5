"""Random causal convolutions: a sample on the emulated device, a sweep of hundreds on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cases.families.causal_conv1d import CausalConv1dCase
from tests.support.data import fresh_seed
from tests.sweeps.checking import failures
from tests.sweeps.random_causal_conv1d import draw, forms

#: The forms stay the same, so that their kernels are compiled once; shapes and data are drawn afresh in each run.
_FORMS = forms(48, seed=8)
#: Forms of a sample, of both directions and every layout.
_SAMPLED_FORMS = 12
#: Shapes of each form of a sample.
_SAMPLED_SHAPES = 2
_SHAPES = 20


def test_drawn_lines_are_graphs_of_every_kind() -> None:
    rng = np.random.default_rng(1)
    cases = [case for case in (parse_case(draw(form, rng, 8)) for form in _FORMS) if isinstance(case, CausalConv1dCase)]
    assert len(cases) == len(_FORMS)
    assert all(case.graph().operations for case in cases)
    assert {(case.dir, case.layout) for case in cases} >= {
        (way, to) for way in ("fwd", "bwd") for to in ("row", "nhwc")
    }
    assert {case.act for case in cases} == {"none", "silu"}
    assert {case.states for case in cases} == {"none", "initial", "final", "both"}
    assert any(case.lengths for case in cases)
    assert any(case.sizes for case in cases)
    assert any(case.k > 100 for case in cases)


@pytest.mark.parametrize("number", range(_SAMPLED_FORMS))
def test_sample_under_the_race_detector(emulated: Handle, number: int) -> None:
    _sweep(emulated, number, _SAMPLED_SHAPES, most=8)


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(len(_FORMS)))
def test_sweep_on_a_gpu(cuda: Handle, number: int) -> None:
    _sweep(cuda, number, _SHAPES, most=96)


def _sweep(handle: Handle, number: int, shapes: int, most: int) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    lines = [draw(_FORMS[number], rng, most) for _ in range(shapes)]
    wrong = [text for line in lines for text in failures(handle, line, int(rng.integers(2**32)))]
    assert not wrong, f"seed {seed}: " + "\n".join(wrong)
