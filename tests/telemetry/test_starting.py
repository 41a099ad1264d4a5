"""Telemetry that LOWDNN_TELEMETRY turns on with the first handle, and what does not fit there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lowdnn import telemetry
from lowdnn.backend.handle import Handle
from lowdnn.config import Config, ConfigWarning
from lowdnn.status import BadParamError
from lowdnn.telemetry.starting import options_of


@pytest.mark.parametrize("text", ["on", "1", "sample=0.5", "sample=1,interval=2"])
def test_the_first_handle_turns_it_on(text: str) -> None:
    config = Config.from_environment({"LOWDNN_TELEMETRY": text})
    with Handle.open("emulated", config=config):
        assert telemetry.is_enabled()
        with Handle.open("emulated", config=config):
            assert telemetry.is_enabled()


@pytest.mark.parametrize("text", ["off", "0", ""])
def test_it_stays_off(text: str) -> None:
    with Handle.open("emulated", config=Config.from_environment({"LOWDNN_TELEMETRY": text})):
        assert not telemetry.is_enabled()


def test_options_have_their_values() -> None:
    assert options_of("on") == {}
    assert options_of("sample=0.25,interval=3") == {"sample": 0.25, "interval_s": 3.0}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("sample=a", "LOWDNN_TELEMETRY.sample: expected a number, got 'a'"),
        ("sample=1,sample=1", "LOWDNN_TELEMETRY.sample: expected each option once, got twice"),
        ("graphite=1", "LOWDNN_TELEMETRY: expected options of the guide's topic telemetry, got 'graphite'"),
    ],
)
def test_other_options_are_refused_and_the_program_goes_on(text: str, rule: str) -> None:
    with pytest.raises(BadParamError, match=rule):
        options_of(text)
    config = Config.from_environment({"LOWDNN_TELEMETRY": text})
    with pytest.warns(ConfigWarning, match="telemetry is off"), Handle.open("emulated", config=config):
        assert not telemetry.is_enabled()


def test_importing_lowdnn_imports_no_telemetry_and_no_extra() -> None:
    code = "import sys, lowdnn, lowdnn.frontend; print([name for name in sys.modules if name in %r])"
    names = ["lowdnn.telemetry", "prometheus_client", "opentelemetry", "pynvml", "nvtx"]
    found = subprocess.run([sys.executable, "-c", code % names], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    code = "import sys, lowdnn.telemetry; print([name for name in sys.modules if name in %r])"
    found = subprocess.run([sys.executable, "-c", code % names[1:]], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
