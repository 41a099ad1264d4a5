"""Each recipe runs, and what it computes is what NumPy computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from lowdnn.backend import Handle
from lowdnn.guide.pages import topics
from lowdnn.guide.recipes import convolution_gradients, lstm_training

Array = NDArray[Any]

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


def test_lstm_training(handle: Handle) -> None:
    """Gradients are those of sum(y * dy) in any direction of all inputs, by finite differences."""
    recipe = lstm_training
    x, dy, weights = recipe.inputs()
    results = recipe.compute(handle)
    np.testing.assert_allclose(results["y"], _lstm(x, weights), rtol=1e-5, atol=1e-6)
    rng, step = np.random.default_rng(1), 1e-4
    along = {name: rng.standard_normal(array.shape) for name, array in {"x": x, **weights}.items()}

    def moved(distance: float) -> float:
        there = {name: array + distance * along[name] for name, array in {"x": x, **weights}.items()}
        return float(np.sum(_lstm(there.pop("x"), there) * dy))

    slope = sum(float(np.sum(results[f"d{name}"] * direction)) for name, direction in along.items())
    assert slope == pytest.approx((moved(step) - moved(-step)) / (2 * step), rel=1e-4)


def _lstm(x: Array, weights: Mapping[str, Array]) -> Array:
    """The outputs of ``lstm_training``'s network in float64; 0 behind the end of a sequence."""
    steps, batch, _ = x.shape
    y, h, c = np.zeros((steps, batch, lstm_training.HIDDEN)), 0.0, 0.0
    for time in range(steps):
        gates = x[time] @ weights["weight_ih_l0"].T + weights["bias_ih_l0"] + weights["bias_hh_l0"]
        gates = gates + (h @ weights["weight_hh_l0"].T if time else 0.0)
        i, f, g, o = np.split(gates.astype(np.float64), 4, axis=1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        y[time] = h * (time < np.array(lstm_training.LENGTHS))[:, np.newaxis]
    return y
