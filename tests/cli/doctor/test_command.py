"""``lowdnn doctor``: its lines, its JSON, its exit statuses, and the file of ``--require``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cli.doctor import command
from lowdnn.cli.doctor.execution import _CASE, execution
from lowdnn.cli.doctor.facts import Facts
from lowdnn.cli.doctor.findings import Finding, Verdict
from lowdnn.cli.main import main
from lowdnn.enums import HeurMode
from lowdnn.runtime.module_store import ModuleStore
from tests.cli.doctor.support import H200, facts_of


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every check is told, on the emulated device none fails, and a kernel has run."""
    monkeypatch.setenv("LOWDNN_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["doctor", "--device", "emulated", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = {each["check"]: each["verdict"] for each in report["findings"]}
    assert {"packages", "settings", "files", "precompiled", "driver", "nvrtc", "nccl", "cache", "disk"} <= set(found)
    assert found["execution 0"] == "ok"
    assert "failure" not in found.values()
    assert report["versions"]["nvrtc"].startswith("13.")


def test_the_case_needs_no_compiler() -> None:
    """Its kernels are precompiled for each architecture of the emulated device that a GPU stands for."""
    known = {kernel.name for kernel in ModuleStore.installed().kernels.values()}
    for arch in ("sm_80", "sm_90a", "sm_120"):
        with Handle.open("emulated", arch=arch) as handle:
            best = handle.rank(parse_case(_CASE).graph(), HeurMode.A).best
            assert best is not None
            assert {kernel.name for kernel in best.plan.kernels} <= known


def test_wrong_results_of_a_device_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowdnn.cli.case_results.run_graph", _raises_memory)
    (found,) = execution(facts_of(cuda=None))
    assert found.verdict is Verdict.FAILURE
    assert "pointwise" in found.reason
    assert "lowdnn verify --device emulated" in found.remedy


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("options", [[], ["--strict"]])
def test_exit_status(
    verdict: Verdict, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("one", verdict, "a reason\nof two lines", "what to do")
    monkeypatch.setattr(command, "CHECKS", (lambda facts: iter([finding]),))
    monkeypatch.setattr(Facts, "collected", classmethod(lambda cls, device: facts_of(H200)))
    is_bad = verdict is Verdict.FAILURE or (verdict is not Verdict.OK and bool(options))
    assert main(["doctor", *options]) == int(is_bad)
    first, second, _, last = capsys.readouterr().out.splitlines()
    assert first.split() == [verdict.value, "one", "a", r"reason\nof", "two", "lines"]
    assert second == "  -> what to do"
    assert last.startswith(f"{verdict.value}: ")


def test_requirements_that_are_met_and_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "matrix"
    file.write_text("# tested\ndriver >=580.65\ncuda ==13.0.*  # exactly\n\ngpus >=2\nnumpy >=2\nabsent-package >=1\n")
    monkeypatch.setattr(command, "CHECKS", ())
    monkeypatch.setattr(Facts, "collected", classmethod(lambda cls, device: facts_of(H200)))
    assert main(["doctor", "--require", str(file), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {each["check"]: each["verdict"] for each in found} == {
        "require driver": "ok",
        "require cuda": "ok",
        "require gpus": "failure",
        "require numpy": "ok",
        "require absent-package": "failure",
    }
    assert f"1 is not >=2 ({file}:5)" in {each["reason"] for each in found}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("numpy >=2\ndriver 580\n", "{file}:2: expected a range of versions"),
        ("numpy\n", "{file}:1: expected a name"),
        ("\n# nothing\n\nnumpy >=2\n  numpy >=3", "{file}:5: expected each name once, got numpy, which {file}:4 has"),
        ("../numpy >=2\n", "{file}:1: expected a name"),
        ("# nothing\n", "doctor.require: expected a file with requirements"),
        (None, "doctor.require: expected a readable file of requirements"),
    ],
)
def test_wrong_files_are_refused_with_their_lines(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "matrix"
    if text is not None:
        file.write_text(text)
    assert main(["doctor", "--require", str(file)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert message.format(file=file) in output.err


def test_an_empty_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--require", ""]) == 2
    assert "doctor.require: expected a value, got ''" in capsys.readouterr().err


def _raises_memory(*_: object) -> None:
    from lowdnn.status import DeviceAllocationFailedError

    raise DeviceAllocationFailedError("cuMemAlloc: no room")
