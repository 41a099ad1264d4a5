"""From graphs back to cases: the words of a family where it has them, otherwise JSON that stands for the same graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowdnn.cases import parse_case, parse_counted_cases
from lowdnn.cases.counted import HEADER, MAX_CASES, merged
from lowdnn.cases.families.any_graph import GraphCase
from lowdnn.cases.naming import case_of
from lowdnn.cases.oracle import evaluate
from lowdnn.codec import encode
from lowdnn.graph.graph import OperationGraph, graph_from
from lowdnn.status import BadParamError, LowdnnError
from tests.cases.test_cases import FILES, cases_of
from tests.support.data import fresh_seed
from tests.support.errors import raises
from tests.support.random_graphs.steps import random_graph

#: Cases whose text comes back as it is.
WORDS = (
    "conv n=2 c=8 hw=9x7 k=6 rs=3x2 pad=0:1x2 stride=2 dil=1x3 groups=2 mode=flipped dtype=bf16",
    "conv n=1 c=8 hw=6x6 k=8 rs=3x3 pad=1 dir=dgrad layout=nchw dtype=fp16 alpha=0.5 beta=1 epilogue=store+bias+relu6",
    "conv n=1 c=8 hw=5x6x7 k=8 rs=3x3x3 pad=1 dir=wgrad out=fp32 dtype=bf16",
    "matmul m=33 n=17 k=24 b=2x3 bb=1x3 layout=tn dtype=fp16 out=fp32 epilogue=scale+scalar+gelu",
    "matmul m=8 n=8 k=8 dtype=int8 epilogue=leaky_relu",
    "pointwise dims=2x3x8x8 ops=add+relu+store+double broadcast=row layout=nhwc out_layout=nhwc dtype=bf16",
    "reduction dims=4x8x16 axes=1,2 op=norm1 dtype=bf16 after=sqrt",
    "softmax dims=2x3x100 axes=1,2 log=yes dtype=fp16 out=fp32 stats=fp32",
)


@pytest.mark.parametrize("line", WORDS)
def test_families_have_words(line: str) -> None:
    case = parse_case(line)
    assert case_of(renamed(case.graph())) == case


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_listed_graph_comes_back(path: Path) -> None:
    """By its name, and as JSON, which has data for it: lengths, offsets and indices are within their bounds."""
    for case in cases_of(path):
        graph = case.graph()
        named, plain = case_of(graph), GraphCase.of(graph)
        for back in (parse_case(str(named)), parse_case(str(plain))):
            assert back in (named, plain)
            assert back.graph().key == graph.key, str(case)
        assert set(evaluate(plain.graph(), plain.inputs(fresh_seed(), exact=False))) == {
            tensor.uid for tensor in plain.graph().outputs
        }


def test_names_and_uids_do_not_count() -> None:
    for path in FILES:
        graph = cases_of(path)[-1].graph()
        assert GraphCase.of(graph) == GraphCase.of(renamed(graph)), path.stem


@pytest.mark.parametrize("ops", ["", "[]", "[1]", "[" * 5000, '[{"class":"Tensor"}]', '{"class":"MatmulOperation"}'])
def test_a_wrong_graph_is_an_error(ops: str) -> None:
    with pytest.raises(LowdnnError):
        parse_case(f"graph ops={ops}").graph()


def test_counts_are_added() -> None:
    text = merged("", {"softmax dims=4": 2, "matmul m=1 n=1 k=1": 1}, ["left out: a reason"])
    text = merged(text, {"matmul m=1 n=1 k=1": 5}, ["left out: a reason"])
    assert text == f"{HEADER}\n# left out: a reason\n6\tmatmul m=1 n=1 k=1\n2\tsoftmax dims=4\n"
    assert [(count, str(case)) for count, case in parse_counted_cases(text.splitlines())] == [
        (6, "matmul m=1 n=1 k=1"),
        (2, "softmax dims=4"),
    ]
    assert parse_counted_cases(["softmax dims=4  # no count"]) == [(1, parse_case("softmax dims=4"))]
    with raises(BadParamError, "cases", expected="a file that begins with", got="'#!/bin/sh'"):
        merged("#!/bin/sh\n", {}, [])
    with pytest.raises(BadParamError):
        parse_counted_cases(["-3\tsoftmax dims=4"])


def test_a_file_of_counts_is_bounded() -> None:
    counts = {f"softmax dims={number + 1}": number for number in range(MAX_CASES + 7)}
    text = merged("", counts, (f"reason {number}" for number in range(1000)))
    lines = text.splitlines()
    cases = [line for line in lines if not line.startswith("#")]
    assert len(cases) == MAX_CASES
    assert lines[1].startswith("# full: ")
    assert len(lines) < MAX_CASES + 150
    assert cases[-1] == "7\tsoftmax dims=8"
    assert merged(text, {}, []) == text
    rng = np.random.default_rng(fresh_seed())
    shuffled = dict(sorted(counts.items(), key=lambda item: rng.random()))
    assert [line for line in merged("", shuffled, []).splitlines() if line[0] != "#"] == cases


def test_random_graphs_come_back() -> None:
    seed = fresh_seed()
    for number in range(30):
        graph = random_graph(seed + number).graph
        named = case_of(renamed(graph))
        back = parse_case(str(named))
        assert back == named
        assert back.graph().key == graph.key, f"seed {seed + number}"
        plain = GraphCase.of(graph)
        assert set(evaluate(plain.graph(), plain.inputs(seed, exact=False))) == {
            tensor.uid for tensor in plain.graph().outputs
        }


def renamed(graph: OperationGraph) -> OperationGraph:
    """The graph with other names and other uids."""

    def change(value: Any) -> Any:
        if isinstance(value, list):
            return [change(item) for item in value]
        if not isinstance(value, dict):
            return value
        found = {name: change(item) for name, item in value.items()}
        is_tensor = found.get("class") == "Tensor"
        return found | ({"uid": 7 * found["uid"] + 3, "name": f"t {found['uid']}"} if is_tensor else {})

    return graph_from(change(encode(graph.operations)), "renamed")
