"""``lowdnn tune`` on the emulated device, where the cost model's estimates stand in for times."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lowdnn.cli.main import main
from lowdnn.heuristics.tuning.record_files import RecordFile
from lowdnn.heuristics.tuning.records import TuningRecord, file_text

CASES = ("matmul m=64 n=64 k=64 dtype=bf16", "norm dims=64x768 mode=layer dtype=bf16 epilogue=relu")
EMULATED = ("--device", "emulated", "--processes", "0")

Tune = Callable[..., tuple[int, str, str]]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOWDNN_TUNING_PATH", str(tmp_path / "tuning"))
    return tmp_path / "tuning"


@pytest.fixture
def tune(directory: Path, capsys: pytest.CaptureFixture[str]) -> Tune:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(("tune", *arguments))
        return (code, *capsys.readouterr())

    return run


def kept(directory: Path) -> list[TuningRecord]:
    return list(RecordFile.in_directory(directory).records()[0].values())


def test_cases_are_tuned_kept_and_then_known(tune: Tune, directory: Path) -> None:
    code, out, _ = tune(*CASES, *EMULATED)
    assert code == 0
    assert "2 tuned" in out
    assert "estimates, since the device is emulated" in out
    assert sorted(record.case.split()[0] for record in kept(directory)) == ["matmul", "norm"]
    code, out, _ = tune(*CASES, *EMULATED)
    assert "2 cases have records already" in out
    assert "0 tuned" in out
    code, out, _ = tune(CASES[0], "--again", "--json", *EMULATED)
    fields = json.loads(out)
    assert (code, fields["engine"], fields["clock"]) == (0, "matmul_mma", "model")


def test_a_limit_has_records_of_its_own(tune: Tune, directory: Path) -> None:
    tune(CASES[0], *EMULATED)
    _, out, _ = tune(CASES[0], "--workspace-limit", "0", *EMULATED)
    assert "1 tuned" in out
    assert sorted(record.workspace_limit for record in kept(directory)) == [-1, 0]


def test_a_log_is_tuned_longest_work_first_and_a_budget_leaves_the_rest(tune: Tune, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"3\t{CASES[1]}\n1000\t{CASES[0]}\n")
    _, out, _ = tune("--log", str(log), "--json", *EMULATED)
    assert [json.loads(line)["case"].split()[0] for line in out.splitlines()] == ["matmul", "norm"]
    _, out, _ = tune("--log", str(log), "--budget", "1e-9", "--again", *EMULATED)
    assert "0 tuned" in out
    assert "2 left" in out


def test_layers_of_networks_have_three_directions(tune: Tune) -> None:
    code, out, err = tune("--networks", "resnet51", *EMULATED)
    assert (code, out) == (2, "")
    assert "tune.networks: expected some of resnet50" in err
    _, out, _ = tune("--networks", "resnet50", "--batch", "2", "--kernels", "1", "--json", "--arch", "sm_80", *EMULATED)
    lines = [json.loads(line)["case"] for line in out.splitlines()]
    assert len(lines) == 3 * 23
    assert all(" n=2 " in line for line in lines)


def test_sums_are_true_where_cases_fail_and_where_none_is_tuned(tune: Tune) -> None:
    refused = "rnn cell=lstm t=2 b=2 i=8 h=8"
    code, out, _ = tune(CASES[0], refused, "--workspace-limit", "0", "--arch", "sm_80", *EMULATED)
    assert code == 1
    assert re.search(
        r"^1 tuned in [0-9.]+ s, 1 failed, 0 known before, 0 left; 1\.\d+x .* of 1, by the", out, re.MULTILINE
    )
    assert re.findall(r"^\[(\d/\d) ", out, re.MULTILINE) == ["1/2", "2/2"]
    code, out, _ = tune(CASES[0], refused, "--workspace-limit", "0", "--arch", "sm_80", *EMULATED)
    assert code == 1
    assert re.search(r"^0 tuned in [0-9.]+ s, 1 failed, 1 known before, 0 left$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ((), "tune.cases: expected cases, --log or --networks"),
        ((CASES[0], "--budget", "0"), "tune.budget: expected more than 0"),
        ((CASES[0], "--budget", "nan"), "tune.budget: expected more than 0"),
        ((CASES[0], "--kernels", "0"), "tune.kernels: expected 1 to 1000, got 0"),
        ((CASES[0], "--least-gain", "2"), "tune.least_gain: expected none without --prune, got 2.0"),
        ((CASES[0], "--batch", "2"), "tune.batch: expected none without --networks, got 2"),
        ((CASES[0], "--device", "cuda", "--arch", "sm_80"), "tune.arch: expected none for a GPU"),
        (("--merge", "one"), "tune.merge: expected a file and those to put into it, got one"),
        (("--merge", "one", "two", "--json"), "tune.json: expected none beside --merge, got True"),
        (("--diff", "none", "neither"), "tune.records: expected a file of records"),
        (("--diff", "one", "two", "--least-gain", "2"), "tune.least_gain: expected none beside --diff"),
        (("--prune", "one", CASES[0]), "tune.cases: expected none beside --prune"),
        (("--prune", "one", "--least-gain", "nan"), "tune.least_gain: expected a number from 0, got nan"),
        (("--prune", "one", "--least-gain", "-1"), "tune.least_gain: expected a number from 0, got -1.0"),
        (("--prune", ""), "tune.prune: expected a value, got ''"),
    ],
)
def test_wrong_options_are_named(tune: Tune, arguments: tuple[str, ...], where: str) -> None:
    code, _, err = tune(*arguments)
    assert code == 2
    assert where in err


def test_a_directory_that_cannot_be_written_is_named_before_the_first_case(tune: Tune, directory: Path) -> None:
    directory.write_text("a file")
    code, out, err = tune(CASES[0], *EMULATED)
    assert (code, out) == (2, "")
    assert "LOWDNN_TUNING_PATH: expected a directory" in err


def test_records_of_a_newer_version_stay_and_are_told_once(tune: Tune, directory: Path, tmp_path: Path) -> None:
    newer = '{"lowdnn_record":2,"of":"another form","with":"\u00fc"}'
    RecordFile.in_directory(directory).merge([])
    path = directory / "v1" / "records.jsonl"
    path.write_text(f"{newer}\n{{damaged\n", encoding="utf-8")
    code, out, _ = tune(*CASES, *EMULATED)
    assert code == 0
    assert out.count("1 records of other versions of lowdnn stay as they are") == 1
    _, out, _ = tune("--prune", str(path))
    assert "2 records stay in" in out
    assert "and 1 of other versions; 0 dropped, and 0 other lines" in out
    with path.open("a") as file:
        file.write("{damaged\n")
    _, out, _ = tune("--merge", str(path), str(path))
    assert f"{path}:4: BAD_PARAM tuning record: expected a JSON document" in out
    assert [line[:19] for line in path.read_text(encoding="utf-8").splitlines()] == [
        newer[:19],
        *[kept(directory)[0].text[:19]] * 2,
    ]
    assert path.read_text(encoding="utf-8").startswith(newer)


def test_an_interrupted_run_keeps_what_it_found_and_goes_on(directory: Path, tune: Tune) -> None:
    cases = [f"matmul m=64 n=64 k={k} dtype=bf16" for k in range(64, 64 * 101, 64)]
    command = (sys.executable, "-m", "lowdnn", "tune", *cases, *EMULATED)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in err
    found = [record.case for record in kept(directory)]
    assert 0 < len(found) < len(cases)
    others = [f"matmul m=32 n=64 k={k} dtype=bf16" for k in (64, 128, 192)]
    code, out, _ = tune(*found, *others, *EMULATED)
    assert code == 0
    assert f"{len(found)} cases have records already" in out
    assert len(kept(directory)) == len(found) + 3


def test_two_runs_at_once_lose_nothing(directory: Path) -> None:
    runs = []
    for part in (range(64, 64 * 9, 64), range(64 * 9, 64 * 17, 64)):
        cases = [f"matmul m=64 n=64 k={k} dtype=bf16" for k in part]
        runs.append(
            subprocess.Popen((sys.executable, "-m", "lowdnn", "tune", *cases, *EMULATED), stdout=subprocess.DEVNULL)
        )
    assert [run.wait(timeout=120) for run in runs] == [0, 0]
    assert len(kept(directory)) == 16


def test_files_are_merged_compared_and_pruned(tune: Tune, directory: Path, tmp_path: Path) -> None:
    tune(*CASES, *EMULATED)
    matmul, norm = sorted(kept(directory), key=lambda record: record.case)
    old, new, merged = (tmp_path / name for name in ("old", "new", "merged"))
    slower = replace(matmul, us=2 * matmul.us, choices=dict(list(matmul.choices.items())[:-1]))
    for path, records in ((old, [slower, replace(norm, device="NVIDIA H100, sm_90a, 132")]), (new, [matmul, norm])):
        path.write_text(file_text(records))
        path.chmod(0o600)
    _, out, _ = tune("--diff", str(old), str(new))
    assert out.startswith(f"  2.000x  {slower.us:.2f} us -> {matmul.us:.2f} us")
    assert f"+ {matmul.choice_text}" in out
    assert f"1 of 1 choices changed; 1 only in {old}, 1 only in {new}" in out
    tune("--merge", str(merged), str(old), str(new))
    records, _ = RecordFile(merged).records()
    assert len(records) == 3
    assert records[matmul.key] == matmul
    outdated = replace(norm, revision="0" * 16)
    with merged.open("a") as file:
        file.write(f"{outdated.text}\nno record\n")
    code, out, _ = tune("--prune", str(merged))
    assert code == 0
    assert "its kernels have changed" in out
    assert "2 records stay" in out
    _, out, _ = tune("--prune", str(merged), "--least-gain", "1000")
    assert "less than 1000" in out
    assert RecordFile(merged).records() == ({}, {})


@pytest.mark.parametrize("mode", [["--prune", "FILE"], ["--merge", "FILE", "RECORDS"], ["--diff", "RECORDS", "FILE"]])
def test_a_file_of_another_kind_stays_as_it_is(tune: Tune, directory: Path, tmp_path: Path, mode: list[str]) -> None:
    tune(*CASES, *EMULATED)
    other, records = tmp_path / "cases.txt", tmp_path / "records"
    other.write_text("# measured at home\nmatmul m=8 n=8 k=8\n")
    records.write_text(file_text(kept(directory)))
    for path in (other, records):
        path.chmod(0o600)
    names = {"FILE": str(other), "RECORDS": str(records)}
    code, _, error = tune(*(names.get(word, word) for word in mode))
    assert code == 2
    assert "BAD_PARAM tune.records: expected a file of tuning records, got" in error
    assert other.read_text() == "# measured at home\nmatmul m=8 n=8 k=8\n"
