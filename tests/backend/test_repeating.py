"""The line of the log that repeats an execute runs the same plan on the same graph."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator

import numpy as np
import pytest

import lowdnn
from lowdnn.backend.handle import Handle
from lowdnn.backend.repeating import MAX_CASE, RunCommand
from lowdnn.cases import parse_case
from lowdnn.cli.execution import run_graph
from lowdnn.cli.main import main
from lowdnn.enums import DataType, HeurMode
from lowdnn.frontend.python_graph import pygraph
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate
from tests.support.data import fresh_seed

CASES = (
    "matmul m=5 n=6 k=7 dtype=fp16",
    "pointwise dims=2x3x4 ops=add+relu dtype=fp32",
    "norm dims=4x64 mode=layer dtype=bf16",
)


@pytest.fixture
def handle() -> Iterator[Handle]:
    with Handle.open("emulated", arch="sm_80", policy="cta-reverse") as opened:
        yield opened


def _candidate(handle: Handle, case: str) -> Candidate:
    rng = np.random.default_rng(fresh_seed())
    candidates = handle.rank(parse_case(case).graph(), HeurMode.A).candidates
    return candidates[int(rng.integers(len(candidates)))]


@pytest.mark.parametrize("case", CASES)
def test_the_line_of_an_execute_repeats_it(
    handle: Handle, case: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, logger="lowdnn.execute"):
        candidate = _candidate(handle, case)
        handle.load_candidate(candidate)
        run_graph(handle, candidate.graph, candidate.plan, parse_case(case).inputs(1, exact=False), repeats=0)
    (record,) = [record for record in caplog.records if record.name == "lowdnn.execute"]
    words = shlex.split(shlex.split(record.getMessage().partition("repeat=")[2])[0])
    assert words[:6] == ["lowdnn", "run", "--check", "--device", "emulated", "--arch"]
    assert words[words.index("--policy") + 1] == "cta-reverse"
    assert main(words[1:]) == 0
    assert f" {candidate.plan.name} " in capsys.readouterr().out


def test_a_graph_of_the_frontend_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="lowdnn.execute"), lowdnn.create_handle("emulated") as handle:
        data_type = DataType.FLOAT
        graph = pygraph("two\nlines", data_type, data_type, data_type, handle=handle)
        a, b = graph.tensor([1, 4, 4], name="a"), graph.tensor([1, 4, 4], name="b")
        graph.matmul(a, b).set_output(True)
        graph.run({a: np.ones((1, 4, 4)), b: np.ones((1, 4, 4))})
    (message,) = [record.getMessage() for record in caplog.records if record.name == "lowdnn.execute"]
    assert "'matmul m=4 n=4 k=4 b=1'" in message


def test_nothing_names_a_graph_unless_the_log_asks(handle: Handle) -> None:
    loaded = handle.load_candidate(_candidate(handle, CASES[0]))
    assert loaded.command() == ""


def test_a_graph_too_large_for_a_line_is_told(handle: Handle) -> None:
    case = parse_case(CASES[1])
    operations = OperationGraph(case.graph().operations).operations
    command = RunCommand(operations, "eng1_x", ("--device", "x" * MAX_CASE))
    assert command.line().startswith("lowdnn run")
    many = parse_case("pointwise dims=2x3x4 ops=" + "+".join(["abs", "neg"] * 600) + " dtype=fp32").graph()
    assert "LOWDNN_RECORD_CASES keeps it" in RunCommand(many.operations, "eng1_x", ()).line()


@pytest.mark.parametrize(
    "name",
    [
        "eng3",
        "matmul_simt",
        "eng3_nothing",
        "eng4_matmul_simt",
        "eng3_matmul_simt_k40",
        "eng3_matmul_simt_k987654=1",
        "x" * 99,
    ],
)
def test_names_that_no_plan_has_are_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["run", "--device", "emulated", "--plan", name, CASES[0]]) == 2
    assert "BAD_PARAM run.plan: expected the name of a plan" in capsys.readouterr().err


def test_values_that_a_knob_does_not_have_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--device", "emulated", "--plan", "eng3_matmul_simt_k40=33", CASES[0]]) == 1
    assert "expected" in capsys.readouterr().out
    assert main(["run", "--plan", "eng3_matmul_simt", "--engine", "matmul_simt", CASES[0]]) == 2
