"""``lowdnn bench``: from cases to times, files, pictures and verdicts, on the emulated device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lowdnn.bench.runs import Run, measured, saved_runs
from lowdnn.cli.main import main
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.tuning.tensors import TuningTensors

CASES = ("matmul m=8 n=8 k=8", "softmax dims=4x8")
EMPTY = str(Path(__file__).with_name("__init__.py"))
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


def test_pictures_of_the_run_and_of_saved_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    runs, folder = str(tmp_path / "runs.jsonl"), tmp_path / "plots"
    for status in (2, 0):  # the first run has nothing to draw, and is not timed
        assert main([*BENCH, CASES[0], "--save", runs, "--plot", str(folder)]) == status
        assert main([*BENCH, CASES[0], "--save", runs]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["trend.svg"]
    assert len(saved_runs(Path(runs))) == 3
    capsys.readouterr()
    assert main([*BENCH, CASES[1], "--save", runs, "--plot", str(folder)]) == 2
    assert "bench.plot: expected cases timed on a card" in capsys.readouterr().err
    assert len(saved_runs(Path(runs))) == 4


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


def test_a_case_that_memory_has_no_room_for_leaves_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tensors(context: object, graph: OperationGraph, *more: Any, **options: Any) -> TuningTensors:
        if len(graph.tensors) == 3:  # a product
            raise MemoryError
        return TuningTensors(context, graph, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("lowdnn.bench.workbench.TuningTensors", tensors)
    assert main([*BENCH, *CASES, "--json"]) == 1
    first, second = json.loads(capsys.readouterr().out)["times"]
    assert first["error"] == "the host's memory is not large enough"
    assert second["us"] > 0


def test_what_was_timed_before_an_interrupt_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_batch(*arguments: Any) -> Iterator[Run]:
        yield next(measured(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr("lowdnn.cli.bench.measured", one_batch)
    runs, rows = tmp_path / "runs", tmp_path / "rows"
    cases = [f"softmax dims=4x{size}" for size in range(8, 25)]
    assert main([*BENCH, *cases, "--save", str(runs), "--csv", str(rows)]) == 130
    assert capsys.readouterr().err == f"lowdnn: interrupted; 16 of 17 cases were timed, and are in {rows}, {runs}\n"
    assert [times.case for times in saved_runs(runs)[0].times] == cases[:16]
    assert len(rows.read_text().splitlines()) == 17


PLACES = {"--csv": "/dev/null/f", "--save": "/proc/version", "--plot": "/proc/pictures"}


@pytest.mark.parametrize("option", PLACES)
def test_places_are_checked_before_the_timing(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowdnn.cli.bench.measured", None)
    (tmp_path / "notes").write_text("a list\n")
    for place in (PLACES[option], f"{tmp_path}/notes/f", "\0", str(tmp_path / ("notes" if option == "--plot" else ""))):
        assert main([*BENCH, CASES[0], option, place]) == 2
        assert f"lowdnn: BAD_PARAM bench.{option[2:]}: expected" in capsys.readouterr().err
    if option == "--save":
        assert main([*BENCH, CASES[0], option, str(tmp_path / "notes")]) == 2
        assert f"lowdnn: BAD_PARAM {tmp_path}/notes:1: expected a JSON document" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "bench.cases: expected at least one case, got none"),
        ((*CASES, "--rounds", "0"), "bench.rounds: expected 1 to 10000, got 0"),
        ((*CASES, "--pairs", "2"), "bench.pairs: expected 3 to 100, got 2"),
        ((*CASES, "--compare", "nowhere"), "bench.runs: expected a readable file"),
        ((*CASES, "--compare", "/dev/null"), "'/dev/null', which is no regular file"),
        ((*CASES, "--compare", __file__), "test_bench.py:1: expected a JSON document"),
        ((*CASES, "--compare", EMPTY), "bench.compare: expected a file of saved runs"),
        ((*CASES, "--pairs", "6"), "bench.pairs: expected none without a checkout or wheel"),
        ((*CASES, "--csv", ""), "bench.csv: expected a value, got ''"),
        ((*CASES, "--seed", "3"), "bench.seed: expected none without --sample"),
        ((*CASES, "--compare", ".", "--save", "f"), "bench.save: expected none beside a checkout or wheel"),
        (("matmul m=4",), "matmul.n: expected a value"),
    ],
)
def test_wrong_options_are_one_line(arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--device", "emulated", *arguments]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
