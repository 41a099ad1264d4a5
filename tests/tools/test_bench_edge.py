"""MobileNetV3 as one CUDA graph gives NumPy's scores, has the paper's size, and is measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

import lowdnn
from tools.bench import edge, mobilenet
from tools.bench.mobilenet import Layer, Pool

Array = NDArray[Any]
RESOLUTION = 32


def test_multiplications_and_parameters_are_those_of_the_paper() -> None:
    """219 million multiplications and 5.4 million parameters, by table 3 of Howard et al. 2019."""
    products = sum(step.products for step in mobilenet.steps() if isinstance(step, Layer))
    assert products / 1e6 == pytest.approx(219, rel=0.02)
    parameters = sum(array.size for array in mobilenet.weights(224, 0).values())
    assert parameters / 1e6 == pytest.approx(5.4, rel=0.02)


@pytest.fixture
def frame(monkeypatch: pytest.MonkeyPatch) -> tuple[Array, Array, dict[str, Array]]:
    """(image, scores, weights) of a replay of the graph on the emulated device; five blocks have each kind of step."""
    monkeypatch.setattr(mobilenet, "BLOCKS", tuple(mobilenet.BLOCKS[number] for number in (1, 2, 3, 4, 6)))
    seed = int(np.random.default_rng().integers(2**32))
    image = np.random.default_rng(seed).standard_normal((1, 3, RESOLUTION, RESOLUTION)).astype(np.float32)
    with lowdnn.create_handle("emulated") as handle, edge.captured(handle, RESOLUTION, "fp16", seed) as network:
        network.image.copy_from(image)
        network.launch()
        network.stream.synchronize()
        return image, network.scores.numpy().astype(np.float32), mobilenet.weights(RESOLUTION, seed)


def test_scores_are_those_of_numpy(frame: tuple[Array, Array, dict[str, Array]]) -> None:
    image, scores, weights = frame
    expected = _reference(image, weights)
    error = np.abs(scores - expected).max() / np.sqrt(np.mean(expected**2))
    assert 0 < error < 0.03


def test_a_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers of a network of two layers, since a frame of the whole one takes seconds."""
    few = mobilenet.steps(RESOLUTION)[:1]
    monkeypatch.setattr(mobilenet, "steps", lambda resolution=224: [*few, Pool("scores", "stem", 16, 16)])
    monkeypatch.setattr(mobilenet, "CLASSES", 16)
    monkeypatch.setattr(sys, "argv", ["edge", "--device", "emulated", "--frames", "3", "--json", str(tmp_path / "x")])
    monkeypatch.setattr(edge.PowerMeter, "mean", property(lambda _: 20.0))
    edge.main()
    found = json.loads((tmp_path / "x").read_text())
    assert 0 < found["p50_us"] <= found["p99_us"]
    assert found["in_use_bytes"] >= found["arena_bytes"] + found["weight_bytes"] > 0
    assert found["joules_per_frame"] == pytest.approx(20 * found["back_to_back_us"] * 1e-6)
    assert "these are no times of a GPU" in capsys.readouterr().out


def test_power_is_read_while_a_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for nvidia-smi; lines that are no numbers do not count."""
    (tmp_path / "nvidia-smi").write_text(
        "#!/bin/sh\necho 100.5; echo '[N/A]'; echo 99.5; echo done > read\nexec sleep 60\n"
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    meter = edge.PowerMeter()
    with meter.reading():
        while not (tmp_path / "read").exists():
            pass
    assert meter.mean == 100.0
    monkeypatch.setenv("PATH", "/nowhere")
    without = edge.PowerMeter()
    with without.reading():
        pass
    assert without.mean is None


def _reference(image: Array, weights: dict[str, Array]) -> Array:
    """The network in fp32, with images, weights and what lies between steps rounded to fp16."""
    values = {"image": _half(image)}
    for step in mobilenet.steps(RESOLUTION):
        x = values[step.x]
        if isinstance(step, Pool):
            y = x.mean((2, 3), keepdims=True)
        else:
            x = _half(x * values[step.gate]) if step.gate else x
            y = _activated(_convolved(x, _half(weights[f"{step.name}.w"]), step), step, weights)
            y = y + values[step.residual] if step.residual else y
        values[step.name] = _half(y)
    return values["scores"]


def _half(array: Array) -> Array:
    return array.astype(np.float16).astype(np.float32)


def _convolved(x: Array, w: Array, step: Layer) -> Array:
    pad = step.taps // 2
    windows = sliding_window_view(np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))), (step.taps, step.taps), (2, 3))
    windows = windows[:, :, :: step.stride, :: step.stride]
    if step.groups == 1:
        return np.einsum("nchwrs,kcrs->nkhw", windows, w, optimize=True)
    return np.einsum("nchwrs,crs->nchw", windows, w[:, 0], optimize=True)


def _activated(y: Array, step: Layer, weights: dict[str, Array]) -> Array:
    y = y + _half(weights[f"{step.name}.b"])
    if step.activation == "none":
        return y
    if step.activation == "relu":
        return np.maximum(y, 0)
    gate = np.clip(y + 3, 0, 6) / 6
    return gate if step.activation == "hsigmoid" else y * gate
