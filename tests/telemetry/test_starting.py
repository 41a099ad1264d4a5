"""Telemetry that LOWDNN_TELEMETRY turns on with the first handle, and what does not fit there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lowdnn import telemetry
from lowdnn.backend.handle import Handle
from lowdnn.config import Config, ConfigWarning
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


def test_options_have_their_values(tmp_path: Path) -> None:
    assert options_of("on") == {"exporters": [], "feeds": []}
    found = options_of(
        f"sample=0.25,interval=3,prometheus=0.0.0.0:0,directory={tmp_path},text=a.prom,json=b,opentelemetry"
    )
    assert (found["sample"], found["interval_s"], found["feeds"]) == (0.25, 3.0, [])
    kinds = [type(exporter).__name__ for exporter in found["exporters"]]
    assert kinds == ["Endpoint", "ProcessFiles", "TextFile", "JsonLines", "OpenTelemetry"]
    assert found["exporters"][0].host == "0.0.0.0"
    assert found["spans"] == found["exporters"][-1].spans


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("sample=a", "LOWDNN_TELEMETRY.sample: expected a number, got 'a'"),
        ("sample=1,sample=1", "LOWDNN_TELEMETRY.sample: expected each option once, got twice"),
        ("graphite=1", "LOWDNN_TELEMETRY: expected on, off, or sample, .*, got 'graphite'"),
        ("json", "LOWDNN_TELEMETRY.json: expected a value, got ''"),
        ("nvml=1", "LOWDNN_TELEMETRY.nvml: expected no value, got '1'"),
        ("prometheus=http", "LOWDNN_TELEMETRY.prometheus: expected a number, got 'http'"),
        ("prometheus=99999", "telemetry.Endpoint.port: expected 0 to 65535, got 99999"),
        ("text=/nowhere/at/all.prom", "No such file"),
        ("sample=2", "telemetry.enable.sample: expected 0 to 1, got 2.0"),
    ],
)
def test_other_options_are_refused_and_the_program_goes_on(text: str, rule: str) -> None:
    config = Config.from_environment({"LOWDNN_TELEMETRY": text})
    with pytest.warns(ConfigWarning, match=f"{rule}.*telemetry is off"), Handle.open("emulated", config=config):
        assert not telemetry.is_enabled()


def test_importing_lowdnn_imports_no_telemetry_and_no_extra() -> None:
    code = "import sys, lowdnn, lowdnn.frontend; print([name for name in sys.modules if name in %r])"
    names = ["lowdnn.telemetry", "prometheus_client", "opentelemetry", "pynvml", "nvtx"]
    found = subprocess.run([sys.executable, "-c", code % names], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    code = "import sys, lowdnn.telemetry; print([name for name in sys.modules if name in %r])"
    found = subprocess.run([sys.executable, "-c", code % names[1:]], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
