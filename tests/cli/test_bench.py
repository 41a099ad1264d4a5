"""``lowdnn bench``: from cases to times, files, pictures and verdicts, on the emulated device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowdnn.bench.runs import saved_runs
from lowdnn.cli.main import main

CASES = ("matmul m=8 n=8 k=8", "softmax dims=4x8")
BENCH = ("bench", "--device", "emulated", "--rounds", "2")


def test_times_are_printed_saved_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, rows = tmp_path / "runs.jsonl", tmp_path / "times.csv"
    for _ in range(3):
        assert main([*BENCH, *CASES, "--save", str(runs), "--csv", str(rows), "--commit", "abc"]) == 0
    printed = capsys.readouterr().out
    assert "no time was measured" in printed
    assert all(case in printed for case in CASES)
    assert [run.commit for run in saved_runs(runs)] == ["abc"] * 3
    assert len(rows.read_text().splitlines()) == 3
    assert main([*BENCH, *CASES, "--compare", str(runs)]) == 0
    assert capsys.readouterr().out.endswith("2 cases: 0 slower, 0 faster, 2 none, 0 cannot tell\n")


def test_a_slower_case_is_told_by_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs.jsonl"
    for _ in range(3):
        main([*BENCH, *CASES, "--save", str(runs)])
    runs.write_text(runs.read_text().replace('"us":2.5', '"us":1.5'))
    capsys.readouterr()
    assert main([*BENCH, *CASES, "--compare", str(runs), "--json"]) == 1
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert [verdict["word"] for verdict in verdicts] == ["slower", "slower"]


def test_pictures_of_the_run_and_of_saved_ones(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs, folder = str(tmp_path / "runs.jsonl"), tmp_path / "plots"
    for _ in range(2):
        assert main([*BENCH, *CASES, "--save", runs, "--plot", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["trend.svg"]


def test_cases_come_from_suites_networks_and_files_with_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str]] = []

    def nothing(handle: object, cases: list[tuple[int, object]], rounds: int, commit: str) -> object:
        seen.extend((count, case.text) for count, case in cases)  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr("lowdnn.cli.bench.measured", nothing)
    file = tmp_path / "cases"
    file.write_text(f"7\t{CASES[0]}\n{CASES[1]}\n{CASES[0]}\n")
    assert main([*BENCH, f"@{file}"]) == 130
    assert seen == [(8, CASES[0]), (1, CASES[1])]
    seen.clear()
    main([*BENCH, "--suite", "gemm", "--networks", "--only", "resnet50", "--only", "skinny", "--sample", "3"])
    assert len(seen) == 6
    assert {text.split()[0] for _, text in seen} == {"matmul", "conv"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "bench.cases: expected at least one case, got none"),
        ((*CASES, "--rounds", "0"), "bench.rounds: expected 1 to 10000, got 0"),
        ((*CASES, "--pairs", "2"), "bench.pairs: expected 3 to 100, got 2"),
        ((*CASES, "--compare", "nowhere"), "bench.runs: expected a readable file"),
        ((*CASES, "--compare", ".", "--save", "f"), "bench.save: expected none beside a checkout or wheel"),
        (("matmul m=4",), "matmul.n: expected a value"),
        ((CASES[0], "--csv", "/dev/null/times.csv"), "bench.file: expected a place that can be written"),
        ((CASES[0], "--save", "/dev/null/runs"), "bench.file: expected a place that can be written"),
    ],
)
def test_wrong_options_are_one_line(arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--device", "emulated", *arguments]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
