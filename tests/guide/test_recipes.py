"""Each recipe runs, and what it computes is what NumPy computes."""

from __future__ import annotations

import math
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from lowdnn.backend import Handle
from lowdnn.guide.pages import topics
from lowdnn.guide.recipes import (
    batch_norm,
    capture,
    convolution_gradients,
    cross_entropy,
    data_parallel,
    dropout,
    grouped_attention,
    lstm_training,
    memory,
    own_kernels,
    pipeline,
    plans_without_device,
    quantised_inference,
    streams_and_events,
    tensor_parallel_mlp,
    training_loop,
)
from tools import check

Array = NDArray[Any]

_SETTINGS = Path(__file__).resolve().parents[2] / "pyproject.toml"
_RECIPES = [topic.removeprefix("recipes/") for topic in topics() if topic.startswith("recipes/")]


@pytest.mark.parametrize("name", _RECIPES)
def test_recipe_has_a_test(name: str) -> None:
    assert f"test_{name}" in globals()


def test_types_of_recipes_are_strict() -> None:
    """The step ``types`` reads every module of lowdnn, recipes included, by mypy's strict rules without exception."""
    settings = tomllib.loads(_SETTINGS.read_text(encoding="utf-8"))["tool"]["mypy"]
    assert check.STEPS["types"] == (sys.executable, "-m", "mypy")
    assert settings["packages"] == ["lowdnn"]
    assert settings["strict"]
    assert not {"exclude", "files", "modules"} & settings.keys()
    assert not [name for override in settings["overrides"] for name in override["module"] if "lowdnn" in name]


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


def test_data_parallel() -> None:
    """The bits of one rank on two and four, close to gradient descent on the whole batch in float64."""
    recipe = data_parallel
    x, y = (array.astype(np.float64) for array in recipe.data())
    w = np.zeros((recipe.INPUTS, recipe.OUTPUTS))
    for _ in range(recipe.STEPS):
        w -= recipe.RATE * x.T @ (x @ w - y)
    found = [recipe.compute(ranks) for ranks in (1, 2, 4)]
    np.testing.assert_allclose(found[0], w, rtol=2e-2, atol=2e-2)  # products are rounded to TF32
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


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


def test_batch_norm(handle: Handle) -> None:
    recipe, given = batch_norm, {name: array.astype(np.float64) for name, array in batch_norm.inputs().items()}
    x, dy, scale, axes = given["x"], given["dy"], given["scale"], (0, 2, 3)
    count = x[:, 0].size
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    inv_variance = 1 / np.sqrt(variance + recipe.EPSILON)
    normal = (x - mean) * inv_variance
    dscale, dbias = np.sum(dy * normal, axes, keepdims=True), np.sum(dy, axes, keepdims=True)
    running = {"mean": mean, "var": variance * count / (count - 1)}
    expected = {
        "y": normal * scale + given["bias"],
        "mean": mean,
        "inv_variance": inv_variance,
        **{
            f"next_running_{name}": (1 - recipe.MOMENTUM) * given[f"running_{name}"] + recipe.MOMENTUM * value
            for name, value in running.items()
        },
        "dx": scale * inv_variance * (dy - (dbias + normal * dscale) / count),
        "dscale": dscale,
        "dbias": dbias,
    }
    _check(recipe.compute(handle), expected)


def test_cross_entropy(handle: Handle) -> None:
    given = cross_entropy.inputs()
    logits, labels = given["logits"].astype(np.float64), given["labels"][:, 0]
    rows = np.arange(len(labels))
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    gradient = np.exp(log_probabilities)
    gradient[rows, labels] -= 1
    expected = {"loss": [[-log_probabilities[rows, labels].mean()]], "dlogits": gradient / len(labels)}
    _check(cross_entropy.compute(handle), expected)


def test_dropout(handle: Handle) -> None:
    recipe, results = dropout, dropout.compute(handle)
    mask = results["y"] != 0  # no element of x is 0
    assert mask.mean() == pytest.approx(recipe.KEEP, abs=4 * np.sqrt(recipe.KEEP * (1 - recipe.KEEP) / mask.size))
    _check(
        {name: results[name] for name in ("y", "dx")},
        {"y": results["x"] * mask / recipe.KEEP, "dx": results["dy"] * mask / recipe.KEEP},
    )
    both = np.mean(mask & (results["next_y"] != 0))
    assert both == pytest.approx(recipe.KEEP**2, abs=0.03), "masks of two offsets are independent"


def test_grouped_attention(handle: Handle) -> None:
    recipe, given = grouped_attention, {n: a.astype(np.float64) for n, a in grouped_attention.inputs().items()}
    group = recipe.HEADS // recipe.KEY_HEADS
    q, k, v, do = given["q"], given["k"].repeat(group, 1), given["v"].repeat(group, 1), given["do"]
    scores = recipe.SCALE * q @ k.swapaxes(2, 3)
    scores[..., ~np.tri(recipe.LENGTH, dtype=bool)] = -np.inf
    stats = np.log(np.exp(scores).sum(axis=3, keepdims=True))
    weights = np.exp(scores - stats)
    o = weights @ v
    dscores = recipe.SCALE * weights * (do @ v.swapaxes(2, 3) - np.sum(do * o, axis=3, keepdims=True))
    of_group = (recipe.BATCH, recipe.KEY_HEADS, group, recipe.LENGTH, recipe.SIZE)
    expected = {
        "o": o,
        "stats": stats,
        "dq": dscores @ k,
        "dk": (dscores.swapaxes(2, 3) @ q).reshape(of_group).sum(axis=2),
        "dv": (weights.swapaxes(2, 3) @ do).reshape(of_group).sum(axis=2),
    }
    _check(recipe.compute(handle), expected)


def test_quantised_inference(handle: Handle) -> None:
    """int8 equals a simulation in float64 with its rounding; errors against fp32 are those of the formats."""
    recipe, outputs = quantised_inference, quantised_inference.compute(handle)
    weights, calibration, x = recipe.inputs()

    def hidden(x: Array, w1: Array) -> Array:
        return np.maximum(x @ w1 + weights["b1"], 0)

    def in_int8(array: Array, like: Array) -> Array:
        scale = np.abs(like).max() / 127
        return np.clip(np.rint(array / scale), -128, 127) * scale

    exact = hidden(x, weights["w1"]) @ weights["w2"] + weights["b2"]
    np.testing.assert_allclose(outputs["fp32"], exact, rtol=2e-3, atol=5e-3)  # TF32 by default
    w1, w2 = (in_int8(weights[name], weights[name]) for name in ("w1", "w2"))
    stored = in_int8(hidden(in_int8(x, calibration), w1), hidden(calibration, weights["w1"]))
    # Where a hidden unit lies half-way between two integers, both are right.
    assert recipe.relative_error(outputs["int8"], stored @ w2 + weights["b2"]) < 2e-3
    assert 0.005 < recipe.relative_error(outputs["int8"], exact) < 0.025
    assert 0.02 < recipe.relative_error(outputs["fp8"], exact) < 0.07


def test_training_loop(handle: Handle) -> None:
    recipe, results = training_loop, training_loop.compute(handle)
    parameters, x, target = recipe.inputs()
    w1, b1, w2, b2 = (parameters[name].astype(np.float64) for name in recipe.SHAPES)
    losses = []
    for _ in range(recipe.STEPS):
        hidden = np.maximum(x @ w1 + b1, 0)
        difference = hidden @ w2 + b2 - target
        losses.append(np.mean(difference**2))
        dy = 2 * difference / difference.size
        dhidden = dy @ w2.swapaxes(1, 2) * (hidden > 0)
        dw1, dw2 = x.swapaxes(1, 2) @ dhidden, hidden.swapaxes(1, 2) @ dy
        w1, b1 = w1 - recipe.LEARNING_RATE * dw1, b1 - recipe.LEARNING_RATE * dhidden.sum(1, keepdims=True)
        w2, b2 = w2 - recipe.LEARNING_RATE * dw2, b2 - recipe.LEARNING_RATE * dy.sum(1, keepdims=True)
    np.testing.assert_allclose(results.pop("losses"), losses, rtol=0.01)  # TF32 by default
    assert losses[-1] < losses[0] / 4
    for name, expected in zip(recipe.SHAPES, (w1, b1, w2, b2), strict=True):
        np.testing.assert_allclose(results[name], expected, rtol=0.01, atol=0.01)


def test_tensor_parallel_mlp() -> None:
    """Two ranks have the same bits, close to the layers in float64."""
    recipe = tensor_parallel_mlp
    given = {name: array.astype(np.float64) for name, array in recipe.inputs().items()}
    y, r = given["x"], given["residual"]
    for _ in range(recipe.LAYERS):
        units = y.astype(np.float16).astype(np.float64) @ given["w1"]
        r = r + units * (1 + np.vectorize(math.erf)(units / np.sqrt(2))) / 2 @ given["w2"]
        y = r / np.sqrt(np.square(r).mean(-1, keepdims=True) + recipe.EPSILON) * given["weight"]
    parts = recipe.compute(2)
    for name, expected in (("y", y), ("r", r)):
        np.testing.assert_allclose(parts[0][name], expected, rtol=5e-3, atol=5e-3)
        np.testing.assert_array_equal(parts[1][name], parts[0][name])


def test_pipeline() -> None:
    recipe, given = pipeline, {name: array.astype(np.float64) for name, array in pipeline.inputs().items()}
    hidden = np.maximum(given["x"] @ given["w1"][0] + given["b1"][0], 0)
    expected = hidden @ given["w2"][0] + given["b2"][0]
    np.testing.assert_allclose(recipe.compute(), expected, rtol=1e-2, atol=1e-2)  # TF32 by default


def test_streams_and_events(handle: Handle) -> None:
    results = streams_and_events.compute(handle)
    np.testing.assert_array_equal(results["y"], np.maximum(results["x"] @ results["w"], 0) + 1)


def test_capture(handle: Handle) -> None:
    replays = capture.compute(handle)
    assert len(replays) == capture.REPLAYS
    assert handle.stream == 0
    for a, b, c in replays:
        np.testing.assert_array_equal(c, np.maximum(a @ b, 0))


def test_memory(handle: Handle) -> None:
    recipe, result = memory, memory.compute(handle)
    values = {name: array.astype(np.float64) for name, array in result.arrays.items()}
    hidden = values["x"]
    for number in range(recipe.LAYERS):
        hidden = np.maximum(hidden @ values[f"w{number}"], 0)
    np.testing.assert_allclose(values["y"], hidden, rtol=4e-3, atol=1e-3)  # hidden layers are stored in fp16
    assert np.abs(hidden).max() > 0.1
    assert result.held_bytes <= recipe.LIMIT_BYTES < max(size for _, size in result.plans)
    assert result.taken_bytes == max(size for _, size in result.plans if size <= recipe.LIMIT_BYTES // 2)


def test_plans_without_device(handle: Handle) -> None:
    results = plans_without_device.compute(handle)
    product = results["a"].astype(np.float64) @ results["b"].astype(np.float64)
    _check({"c": results["c"]}, {"c": np.maximum(product, 0)})
    assert len(set(plans_without_device.plan_names().values())) > 1


def test_own_kernels(handle: Handle) -> None:
    recipe = own_kernels
    np.testing.assert_array_equal(recipe.compute(handle), np.arange(recipe.COUNT)[::-1])
    report = recipe.report_of(recipe.WRONG)
    assert report.startswith("data-race")
    assert "ld.shared.f32 %f2" in report
    assert recipe.report_of(recipe.MENDED) == ""


def _check(results: Mapping[str, Array], expected: Mapping[str, Any]) -> None:
    """Results in fp16 within 2^-9, others within 1e-4."""
    assert results.keys() == expected.keys()
    for name, array in results.items():
        bound = 2.0**-9 if array.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(array, expected[name], rtol=bound, atol=bound, err_msg=name)
