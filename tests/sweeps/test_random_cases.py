"""Random convolutions and matrix products: a sample on the emulated device, a sweep of thousands on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cases.families.convolution import ConvolutionCase
from tests.support.data import fresh_seed
from tests.sweeps.checking import failures
from tests.sweeps.random_cases import SMALL, TINY, Size, draw, forms, narrow_forms

#: The forms stay the same, so that their kernels are compiled once; shapes and data are drawn afresh in each run.
_FORMS = [*forms(120, seed=4), *narrow_forms(36, seed=4)]
#: Every pair of direction and data type once, in ordinary and in narrow forms.
_SAMPLED_FORMS = (*range(27), *range(120, 138))
_SAMPLED_SHAPES = 2
_SHAPES = 20


def test_drawn_lines_are_graphs_of_every_kind() -> None:
    rng = np.random.default_rng(1)
    cases = [parse_case(draw(form, rng, size)) for form in _FORMS for size in (TINY, SMALL)]
    assert all(case.graph().operations for case in cases)
    convolutions = [case for case in cases if isinstance(case, ConvolutionCase)]
    assert {case.dir for case in convolutions} == {"fprop", "dgrad", "wgrad"}
    assert {len(case.hw) for case in convolutions} == {1, 2, 3}
    assert any(1 < case.groups < case.c for case in convolutions)
    assert any(case.groups == case.c > 1 for case in convolutions)
    assert any(case.c % 2 for case in convolutions)
    assert any(min(case.c, case.k) < 8 and set(case.rs) == {1} for case in convolutions)


def test_forms_depend_on_the_seed_alone() -> None:
    assert forms(30, seed=4) == _FORMS[:30]
    assert forms(30, seed=5) != _FORMS[:30]


@pytest.mark.parametrize("number", _SAMPLED_FORMS)
def test_sample_under_the_race_detector(emulated: Handle, number: int) -> None:
    _sweep(emulated, number, _SAMPLED_SHAPES, TINY)


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(len(_FORMS)))
def test_sweep_on_a_gpu(cuda: Handle, number: int) -> None:
    _sweep(cuda, number, _SHAPES, SMALL)


def _sweep(handle: Handle, number: int, shapes: int, size: Size) -> None:
    """``shapes`` cases of one form; each fourth on every engine that takes it, the others on the first choice."""
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    wrong = []
    for shape in range(shapes):
        line = draw(_FORMS[number], rng, size)
        wrong += failures(handle, line, int(rng.integers(2**32)), "all" if shape % 4 == 3 else None)
    assert not wrong, f"seed {seed}: " + "\n".join(wrong)
