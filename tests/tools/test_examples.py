"""The examples run as they stand; the convolutions are right."""

from __future__ import annotations

import re

import pytest

from lowdnn.engines.registry import ENGINES
from lowdnn.ops.convolution_forward import ConvolutionForward
from tools.examples import fused_convolution, fused_convolution_backend, train_digits


def test_fused_convolution_through_both_apis(capsys: pytest.CaptureFixture[str]) -> None:
    assert fused_convolution.main("emulated") == 0
    output = capsys.readouterr().out
    of_convolutions = [
        engine.name for engine in ENGINES if any(issubclass(ConvolutionForward, kind) for kind in engine.anchors)
    ]
    assert len(of_convolutions) > 5
    missing = [name for name in of_convolutions if name not in output]
    assert len(missing) <= sum(map(int, re.findall(r"^  and (\d+) more$", output, re.MULTILINE))), missing
    assert fused_convolution_backend.main("emulated") == 0


def test_train_digits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("lowdnn.cli.digits._HELD_OUT", slice(4))
    train_digits.main("emulated", steps=1, batch=4)
    output = capsys.readouterr().out
    assert "step 0: loss " in output
    assert "of 4 unseen digits" in output
