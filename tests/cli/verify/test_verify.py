"""``lowdnn verify``: every device, references, saved outputs, and the file for Prometheus."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cli import case_results
from lowdnn.cli.execution import Outcome, run_graph
from lowdnn.cli.main import main
from lowdnn.cli.verify.metrics import CaseVerdict, metrics_text

RELU = "pointwise dims=8x8 ops=relu dtype=fp32"
SUM = "reduction dims=5x300 axes=1 op=add dtype=fp32"


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated")


@pytest.fixture
def drifting(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Every output is multiplied by 1 and ``drift``."""
    by = {"drift": 0.0}

    def drifted(*arguments: Any) -> Outcome:
        outcome = run_graph(*arguments)
        for array in outcome.outputs.values():
            array *= np.float32(1 + by["drift"])
        return outcome

    monkeypatch.setattr(case_results, "run_graph", drifted)
    return by


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_device_runs_every_case_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LOWDNN_EMULATED_POLICY", "lockstep,devices=2")
    assert main(["verify", RELU, SUM, RELU, "--json"]) == 0
    found = [(line["number"], line["case"].split()[0]) for line in lines(capsys)]
    assert found == [(0, "pointwise"), (0, "reduction"), (1, "pointwise"), (1, "reduction")]


def test_a_device_that_computes_wrongly_fails(
    drifting: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drifting["drift"] = 0.01
    metrics = tmp_path / "canary.prom"
    assert main(["verify", RELU, "--seed", "3", "--metrics", str(metrics)]) == 1
    output = capsys.readouterr().out
    assert output.startswith("FAILED   0 error")
    assert "repeat: lowdnn verify --seed 3 'pointwise dims=8x8 ops=relu" in output
    values = dict(re.findall(r"^(lowdnn_verify_\w+)\{case=\"pointwise.*\"\} (.*)$", metrics.read_text(), re.MULTILINE))
    assert values["lowdnn_verify_failures"] == "1.0"
    assert float(values["lowdnn_verify_largest_error"]) > 1


def test_drift_against_a_baseline(
    drifting: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outputs within the tolerance pass, with the share that they use up; bit for bit they do not."""
    file = str(tmp_path / "baseline.npz")
    assert main(["verify", RELU, SUM, "--save", file]) == 0
    assert main(["verify", "--baseline", file, "--exact"]) == 0
    capsys.readouterr()
    drifting["drift"] = 3e-6
    assert main(["verify", "--baseline", file, "--json"]) == 0
    shares = [line["share_of_tolerance"] for line in lines(capsys)]
    assert len(shares) == 2
    assert all(0.02 < share < 1 for share in shares), shares
    assert main(["verify", "--baseline", file, "--exact"]) == 1
    drifting["drift"] = 1e-3
    assert main(["verify", "--baseline", file, SUM]) == 1
    assert f"repeat: lowdnn verify --baseline {file} 'reduction" in capsys.readouterr().out


def test_a_baseline_of_own_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program may put its own data and outputs into the file."""
    file = tmp_path / "baseline.npz"
    assert main(["verify", RELU, "--save", str(file)]) == 0
    with np.load(file) as saved:
        arrays = {name: saved[name] for name in saved.files if name.startswith("0.")}
        document = saved["baseline.json"]
    (given,) = (name for name in arrays if ".inputs." in name)
    (made,) = (name for name in arrays if ".outputs." in name)
    arrays[given] = np.full_like(arrays[given], -2)
    arrays[made] = np.zeros_like(arrays[made])
    _write(file, document, arrays)
    assert main(["verify", "--baseline", str(file), "--exact"]) == 0
    arrays[made] = arrays[made] + 1
    _write(file, document, arrays)
    assert main(["verify", "--baseline", str(file)]) == 1


def test_nothing_wrong_is_saved(drifting: dict[str, float], tmp_path: Path) -> None:
    drifting["drift"] = 0.01
    assert main(["verify", RELU, "--save", str(tmp_path / "baseline.npz")]) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_does_not_open_fails_every_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = Handle.open
    monkeypatch.setattr(
        Handle, "open", lambda *a, **k: opened(*a, **k, faults="primary_context_retain:1=ECC_UNCORRECTABLE")
    )
    metrics = tmp_path / "canary.prom"
    assert main(["verify", RELU, SUM, "--metrics", str(metrics)]) == 1
    assert capsys.readouterr().out.count("CUDA_ERROR_ECC_UNCORRECTABLE") == 2
    assert len(re.findall(r"^lowdnn_verify_failures\{.*\} 1\.0$", metrics.read_text(), re.MULTILINE)) == 2
    assert "lowdnn_verify_largest_error{" not in metrics.read_text()


def test_no_gpu_fails_every_case_where_one_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """On a machine with a GPU the cases pass."""
    status = main(["verify", RELU, "--device", "cuda", "--json"])
    (result, *_) = lines(capsys)
    assert (status, result["status"]) in [(1, "error"), (0, "ok")]


def test_texts_of_metrics() -> None:
    """Cases with one short text are told apart, and what the format escapes is escaped."""
    long = "graph " + "x" * 200
    text = metrics_text(
        [CaseVerdict(long, 0, 0.5), CaseVerdict(long + "y", 2, float("inf")), CaseVerdict('a"\\', 0, 0.0)]
    )
    labels = re.findall(r'^lowdnn_verify_failures\{case="(.*)"\} ', text, re.MULTILINE)
    assert labels[1] == f"{labels[0]} (2)"
    assert labels[2] == r"a\"\\"
    assert re.findall(r"^lowdnn_verify_largest_error\{.*\} (.*)$", text, re.MULTILINE) == ["0.5", "+Inf", "0.0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fold n=2"], "case: expected a line that starts with"),
        ([RELU, "--seed", "-1"], "verify.seed: expected 0 to"),
        ([RELU, "--baseline", "/nowhere", "--save", "x"], "verify.save: expected none beside --baseline"),
        ([RELU, "--baseline", "/nowhere"], "expected a regular file"),
        ([RELU, "--metrics", "/nowhere/canary.prom"], "verify.metrics: expected a file that can be written"),
        ([RELU, "--save", "/nowhere/base.npz"], "verify.save: expected a file that can be written"),
        ([RELU, "--arch", "sm_70"], "sm_70"),
    ],
)
def test_bad_input_is_named_before_anything_runs(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err


def _write(file: Path, document: Any, arrays: dict[str, Any]) -> None:
    """As a program would: NumPy's file, and the document beside the arrays."""
    import zipfile

    np.savez(file, **arrays)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("baseline.json", bytes(document))
