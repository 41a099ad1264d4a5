"""``lowdnn run``: cases, engines, policies, checks, and what a user sees when something is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowdnn.cases import parse_case
from lowdnn.cases.counted import merged
from lowdnn.cases.families.any_graph import GraphCase
from lowdnn.cli.execution import Outcome, run_graph
from lowdnn.cli.main import main

CASE = "conv n=1 c=4 hw=6x6 k=8 rs=3x3 pad=1 dtype=fp16 epilogue=bias+relu"


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_engine_that_takes_a_case_is_checked(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", CASE, "--device", device, "--check", "--engine", "all", "--json"]) == 0
    results = lines(capsys)
    assert {result["engine"] for result in results} >= {"conv_direct", "conv_implicit_gemm_mma"}
    assert {result["status"] for result in results} == {"ok"}
    assert all(result["device"] == device for result in results)
    assert {result["policy"] for result in results} == {"lockstep" if device == "emulated" else ""}


def test_engines_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """Each engine's workspace, error and notes, which a line without --engine all does not have."""
    case = "conv n=1 c=8 hw=8x8 k=8 rs=3x3 pad=1 dtype=fp32"
    assert main(["run", case, "--device", "emulated", "--engine", "all"]) == 0
    text = capsys.readouterr().out
    facts = re.findall(r"workspace (\d+) bytes, greatest error (\S+) of the results' size, notes: (.*)", text)
    by_notes = {notes: (int(size), float(error)) for size, error, notes in facts}
    assert by_notes["TF32X3"][1] < 1e-6 < 1e-4 < by_notes["TENSOR_CORE, TF32_INPUTS"][1] < 1e-2
    assert by_notes["WINOGRAD, WINOGRAD_TILE_6x6"][0] > 0
    assert main(["run", case, "--device", "emulated", "--check"]) == 0
    assert "greatest error" not in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["lockstep", "warp-serial(3)", "cta-reverse", "fuzz(3),early,races"])
def test_a_policy_is_taken(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    case = "reduction dims=5x300 axes=1 op=add dtype=fp32"
    assert main(["run", case, "--device", "emulated", "--exact", "--policy", policy, "--json"]) == 0
    assert [result["policy"] for result in lines(capsys)] == [policy]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("check", "status"), [("--exact", 1), ("--check", 0)])
def test_a_bit_of_any_output_fails_where_all_bits_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: int, check: str, status: int
) -> None:
    def inexact(*arguments: Any) -> Outcome:
        outcome = run_graph(*arguments)
        array = list(outcome.outputs.values())[place]
        array.flat[-1] = np.nextafter(array.flat[-1], np.float32(np.inf))
        return outcome

    monkeypatch.setattr("lowdnn.cli.case_results.run_graph", inexact)
    case = "pointwise dims=4x5 ops=add+store+mul dtype=fp32"
    assert main(["run", case, "--device", "emulated", check, "--json"]) == status
    assert [result["status"] for result in lines(capsys)] == ["FAILED" if status else "ok"]


def test_cases_come_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cases.txt"
    file.write_text("# two\nmatmul m=8 n=8 k=8 dtype=fp32\n\npointwise dims=64 ops=relu dtype=fp32\n")
    assert main(["run", f"@{file}", "--device", "emulated", "--check", "--json"]) == 0
    assert len(lines(capsys)) == 2


def test_a_difference_fails_with_the_line_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lowdnn.cases.compare.steps", _wrong_steps)
    assert main(["run", "pointwise dims=64 ops=relu dtype=fp32", "--device", "emulated", "--check", "--seed", "5"]) == 1
    output = capsys.readouterr().out
    assert "FAILED" in output
    assert "64 of 64 elements differ" in output
    assert "--seed 5 'pointwise dims=64 ops=relu" in output


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["fold n=2"], ["case", "matmul, matmuls"]),
        (["conv n=2"], ["conv"]),
        (["conv n=x c=4 hw=6x6 k=8 rs=3x3"], ["conv.n", "'x'"]),
        (["matmul m=4 n=4 k=4 dtype=fp99"], ["fp99"]),
        (["pointwise dims=4 ops=levitate"], ["levitate"]),
        (["@/nowhere/cases.txt"], ["BAD_PARAM cases", "/nowhere/cases.txt"]),
        (["matmul m=4 n=4 k=4", "--policy", "sideways"], ["sideways", "warp-serial"]),
        (["matmul m=4 n=4 k=4", "--arch", "sm_70"], ["sm_70", "sm_80"]),
    ],
)
def test_bad_input_is_named(arguments: list[str], fragments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *arguments, "--device", "emulated"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("lowdnn: ")
    assert all(fragment in message for fragment in fragments), message


def test_an_engine_that_cannot_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", CASE, "--device", "emulated", "--engine", "matmul_mma", "--json"]) == 1
    (result,) = lines(capsys)
    assert result["status"] == "refused"
    assert "expected one tap" in str(result["detail"])


def _wrong_steps(graph: Any, inputs: Any) -> list[Any]:
    from lowdnn.cases.oracle import steps

    return [(tensor, exact + 1, stored + 1) for tensor, exact, stored in steps(graph, inputs)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--engine", "nope"], "run.engine: expected one of all, conv_implicit_gemm_mma"),
        (["--repeats", "0"], "run.repeats: expected 1 to 1000000, got 0"),
        (["--seed", "-1"], "run.seed: expected 0 to 9223372036854775807, got -1"),
    ],
)
def test_wrong_options_are_bad_input(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", CASE, "--device", "emulated", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_a_file_without_cases_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.txt").write_text("# nothing\n")
    assert main(["run", f"@{tmp_path / 'none.txt'}"]) == 2
    assert "run.cases: expected at least one case" in capsys.readouterr().err


def test_interrupts_end_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lowdnn.cli.run.read_cases", interrupted)
    assert main(["run", CASE]) == 130
    assert capsys.readouterr().err == "lowdnn: interrupted\n"


def test_the_choice_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", CASE, "--device", "emulated", "--explain"]) == 0
    case, sentence, *table = capsys.readouterr().out.splitlines()
    assert case == CASE
    assert " us; " in sentence
    assert any(line.startswith("> ") for line in table)
    assert main(["run", CASE, "--device", "emulated", "--explain", "--json"]) == 0
    assert sentence in json.loads(capsys.readouterr().out)["choice"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", ""], "run.arch: expected a value, got ''"),
        (["--schedules", "5"], "run.schedules: expected none without --sanitize, got 5"),
        (["--sanitize", "--repeats", "5"], "run.repeats: expected none beside --sanitize, got 5"),
        (["--sanitize", "--explain"], "run.explain: expected none beside --sanitize"),
        (["--device", "cuda", "--policy", "lockstep"], "run.policy: expected none for a GPU"),
    ],
)
def test_options_that_would_change_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", CASE, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_file_with_counts_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = GraphCase.of(parse_case(CASE).graph())
    file = tmp_path / "cases"
    file.write_text(merged("", {CASE: 2, str(graph): 3}, ["a remark"]))
    assert main(["run", f"@{file}", "--device", "emulated", "--check", "--json"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["case"] for result in results] == [str(graph), CASE]
    assert main(["run", f"@{file}", "--device", "emulated"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 250
