"""Random pooling and interpolation: a sample on the emulated device, a sweep of hundreds on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cases.families.resample import ResampleCase
from tests.support.data import fresh_seed
from tests.sweeps.checking import failures
from tests.sweeps.random_resamples import draw, forms

#: The forms stay the same, so that their kernels are compiled once; shapes and data are drawn afresh in each run.
_FORMS = forms(64, seed=5)
#: Forms of a sample, of every mode and direction.
_SAMPLED_FORMS = 16
#: Shapes of each form of a sample.
_SAMPLED_SHAPES = 2
_SHAPES = 20


def test_drawn_lines_are_graphs_of_every_kind() -> None:
    rng = np.random.default_rng(1)
    cases = [case for case in (parse_case(draw(form, rng, 8)) for form in _FORMS) if isinstance(case, ResampleCase)]
    assert len(cases) == len(_FORMS)
    assert all(case.graph().operations for case in cases)
    assert {(case.mode, case.dir) for case in cases} == {
        (mode, way) for mode in ("max", "avg", "avg_inside", "linear", "nearest") for way in ("fwd", "bwd")
    }
    assert {len(case.hw) for case in cases} == {1, 2, 3}
    assert {case.padding for case in cases} == {"usual", "zero", "edge"}
    assert any(case.size for case in cases)
    assert any(stride.denominator > 1 for case in cases for stride in case.stride)


@pytest.mark.parametrize("number", range(_SAMPLED_FORMS))
def test_sample_under_the_race_detector(emulated: Handle, number: int) -> None:
    _sweep(emulated, number, _SAMPLED_SHAPES, most=8)


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(len(_FORMS)))
def test_sweep_on_a_gpu(cuda: Handle, number: int) -> None:
    _sweep(cuda, number, _SHAPES, most=64)


def _sweep(handle: Handle, number: int, shapes: int, most: int) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    lines = [draw(_FORMS[number], rng, most) for _ in range(shapes)]
    wrong = [text for line in lines for text in failures(handle, line, int(rng.integers(2**32)))]
    assert not wrong, f"seed {seed}: " + "\n".join(wrong)
