"""``lowdnn info`` reports on any machine; ``lowdnn demo`` trains, tests and judges."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from lowdnn.cli.main import main
from lowdnn.config import ConfigWarning
from lowdnn.engines.registry import ENGINES
from lowdnn.heuristics.tuning.record_files import RecordFile
from lowdnn.status import RuntimePrerequisiteMissingError
from tests.heuristics.tuning.test_records import RECORD


def test_info_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["emulated"]["devices"][0]["compute_capability"] == "9.0"
    assert re.fullmatch(r"PTX up to \d\.\d", report["emulated"]["devices"][0]["images"])
    assert len(report["engines"]) == len(ENGINES)
    assert all({"reason", "advice"} == set(found) for found in report["missing"].values())
    for section in ("nvrtc", "cuda", "emulated", "ptx", "cache"):
        assert (report[section] is None) == (section in report["missing"])


def test_info_lists_every_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LOWDNN_EMULATED_POLICY", "lockstep,devices=3")
    assert main(["info", "--json"]) == 0
    devices = json.loads(capsys.readouterr().out)["emulated"]["devices"]
    assert [device["number"] for device in devices] == [0, 1, 2]
    assert main(["info"]) == 0
    assert capsys.readouterr().out.count("lowdnn emulated sm_90a") == 3


def test_info_as_text_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LOWDNN_DISK_CACHE", "off")
    assert main(["info"]) == 0
    output = capsys.readouterr().out
    assert "missing: cache" in output
    assert "-> set LOWDNN_CACHE_DIR" in output


@pytest.mark.parametrize("is_json", [False, True])
def test_info_tells_why_the_cache_is_not_used(
    is_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("LOWDNN_CACHE_DIR", str(tmp_path / "file"))
    assert main(["info", *(["--json"] if is_json else [])]) == 0
    output = capsys.readouterr().out
    if is_json:
        report = json.loads(output)
        assert report["cache"] is None
        assert str(tmp_path / "file") in report["missing"]["cache"]["reason"]
    else:
        assert f"missing: cache\n  {RuntimePrerequisiteMissingError.status.name} cache.directory: expected" in output
        assert str(tmp_path / "file") in output


def test_info_tells_which_variable_names_no_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOWDNN_EMULATED_ARCH", "sm_75")
    assert main(["info"]) == 0
    output = capsys.readouterr().out
    assert "missing: emulated\n  NOT_SUPPORTED_ARCH_MISMATCH arch: expected one of sm_80" in output
    assert "-> unset LOWDNN_EMULATED_ARCH" in output


def test_info_counts_tuning_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full, none, file = (tmp_path / name for name in ("full", "none", "file"))
    RecordFile.in_directory(full).merge([RECORD])
    with (full / "v1" / "records.jsonl").open("a") as records:
        records.write("{\n")
    file.write_text("")
    monkeypatch.setenv("LOWDNN_TUNING_PATH", f"{full}:{none}:{file}")
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tuning"]
    assert (found[str(full)], found[str(none)]) == ("1 records, 1 damaged lines", "0 records")
    assert found[str(file)].startswith("not used: ")


def test_info_reads_the_environment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWDNN_CACHE_SIZE", "a lot")
    with pytest.warns(ConfigWarning) as told:
        assert main(["info"]) == 0
    assert len(told) == 1


def test_demo_reports_what_it_did(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A training that is cut short names too few digits, and says so."""
    monkeypatch.setattr("lowdnn.cli.demo._BATCH", 4)
    monkeypatch.setattr("lowdnn.cli.digits._HELD_OUT", slice(4))
    assert main(["demo", "--device", "emulated", "--steps", "1", "--mixed-precision"]) == 1
    output = capsys.readouterr().out
    assert "1793 handwritten digits; every fifth of the file, 4, is held out" in output
    assert "step    1   loss" in output
    assert re.search(r"^conv2 weight gradient +conv_\w+$", output, re.MULTILINE)
    assert re.search(r"^backward +\d+\.\d\d s$", output, re.MULTILINE)
    assert re.search(r"^test accuracy .* of 4\), expected at least 97%$", output, re.MULTILINE)


@pytest.mark.parametrize(
    ("argument", "value", "rule"),
    [
        ("steps", 0, "1 to 10000"),
        ("steps", 10**12, "1 to 10000"),
        ("seed", -1, "0 to 9223372036854775807"),
        ("seed", 10**30, "0 to 9223372036854775807"),
    ],
)
def test_demo_refuses_numbers_out_of_range(
    argument: str, value: int, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--device", "emulated", f"--{argument}", str(value)]) == 2
    assert f"demo.{argument}: expected {rule}, got {value}\n" in capsys.readouterr().err


def test_demo_looks_at_the_place_of_its_checkpoint_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path, tmp_path / "missing" / "file", "\0", ""):
        assert main(["demo", "--device", "emulated", "--checkpoint", str(place)]) == 2
        output = capsys.readouterr()
        assert "demo.checkpoint: expected a file that may be written" in output.err
        assert output.out == ""


@pytest.mark.gpu
@pytest.mark.parametrize("arguments", [[], ["--mixed-precision"], ["--seed", "1"]])
def test_demo_learns_the_digits(arguments: list[str]) -> None:
    assert main(["demo", "--device", "cuda", *arguments]) == 0
