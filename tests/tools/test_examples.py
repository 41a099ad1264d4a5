"""The examples run as they stand; the convolutions are right."""

from __future__ import annotations

import fused_convolution
import fused_convolution_backend
import pytest
import train_digits

from lowdnn.engines.registry import ENGINES


def test_fused_convolution_through_both_apis(capsys: pytest.CaptureFixture[str]) -> None:
    assert fused_convolution.main("emulated") == 0
    output = capsys.readouterr().out
    assert all(engine.name in output for engine in ENGINES)
    assert fused_convolution_backend.main("emulated") == 0


def test_train_digits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("lowdnn.cli.digits._HELD_OUT", slice(4))
    train_digits.main("emulated", steps=1, batch=4)
    output = capsys.readouterr().out
    assert "step 0: loss " in output
    assert "of 4 unseen digits" in output
