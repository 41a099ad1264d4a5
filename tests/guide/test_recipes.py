"""Each recipe runs, and what it computes is what NumPy computes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from lowdnn.backend import Handle
from lowdnn.guide.pages import topics
from lowdnn.guide.recipes import convolution_gradients

_RECIPES = [topic.removeprefix("recipes/") for topic in topics() if topic.startswith("recipes/")]


@pytest.mark.parametrize("name", _RECIPES)
def test_recipe_has_a_test(name: str) -> None:
    assert f"test_{name}" in globals()


def test_convolution_gradients(handle: Handle) -> None:
    recipe = convolution_gradients
    rng = np.random.default_rng(0)
    x, w, dy = (rng.integers(-2, 3, shape) for shape in (recipe.X_SHAPE, recipe.W_SHAPE, recipe.Y_SHAPE))
    windows = sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    spread = sliding_window_view(np.pad(dy, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    expected = {
        "y": np.einsum("nchwrs,kcrs->nkhw", windows, w),
        "dx": np.einsum("nkhwrs,kcrs->nchw", spread, w[..., ::-1, ::-1]),
        "dw": np.einsum("nchwrs,nkhw->kcrs", windows, dy),
    }
    results = recipe.compute(handle)
    assert results.keys() == expected.keys()
    for name, array in results.items():
        np.testing.assert_array_equal(array, expected[name])
