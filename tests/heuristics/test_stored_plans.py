from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowdnn
from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec, all_specs
from lowdnn.cases import parse_case, parse_cases
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import DataType, HeurMode, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate, candidate_for, rank
from lowdnn.heuristics.stored_plans import Reading, document, read_plan, restored, write_plan
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.plan_rules import check_plan
from lowdnn.status import (
    ArchMismatchError,
    BadParamError,
    LowdnnError,
    SerializationVersionMismatchError,
)
from tests.support.data import fresh_seed
from tests.support.errors import raises
from tests.support.random_graphs.steps import random_graph

CASES = Path(__file__).parents[1] / "cases"
HERE = Reading(ENGINES)
MATMUL = "matmul m=64 n=64 k=4096 dtype=bf16"


def best(text: str, arch: ArchSpec = SM_90A) -> Candidate:
    found = rank(parse_case(text).graph(), arch, HeurMode.A, ENGINES).best
    assert found is not None
    return found


def written(candidate: Candidate) -> dict[str, Any]:
    """The document, for a test to change."""
    content: dict[str, Any] = json.loads(write_plan(candidate))
    return content


def read(content: Any, reading: Reading = HERE) -> Candidate:
    return read_plan(json.dumps(content), reading, "file")


def place(content: Any, path: str) -> tuple[Any, Any]:
    """The innermost container on a path such as ``launches/0/grid/0``, and the last step."""
    *steps, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    for step in steps:
        content = content[step]
    return content, last


def test_every_plan_is_made_again_from_its_document() -> None:
    """The test covers the default plans of every engine for a third of the cases, on one of two devices."""
    rng = np.random.default_rng(seed := fresh_seed())
    devices = [spec.with_sm_count(int(rng.integers(1, spec.sm_count + 1))) for spec in all_specs()]
    checked: set[str] = set()
    for path in sorted(CASES.glob("*.txt")):
        cases = parse_cases(path.read_text().splitlines())
        for case in (case for case in cases if rng.random() < 1 / 3):
            arch = devices[rng.integers(len(devices))]
            graph = case.graph()
            for engine in ENGINES:
                if engine.refuse(graph, arch) is None:
                    candidate = candidate_for(engine, graph, arch, {})
                    again = read_plan(write_plan(candidate), Reading(ENGINES, arch), "file")
                    assert again.plan == candidate.plan, f"{case} on {arch.name}, {arch.sm_count} SMs, seed {seed}"
                    assert again.graph.operations == graph.operations
                    check_plan(candidate.plan)
                    checked.add(engine.name)
    assert len(checked) > len(ENGINES) // 2


def test_plans_of_random_graphs_are_made_again() -> None:
    """Operations come in any order, as cudnn-frontend gives the operations of attention's gradients."""
    first = fresh_seed()
    for seed in range(first, first + 30):
        operations = list(random_graph(seed).graph.operations)
        random.Random(seed).shuffle(operations)
        graph = OperationGraph(operations)
        assert [*OperationGraph.from_json(graph.to_json()).tensors] == [*graph.tensors]
        for arch in (SM_80, SM_90A):
            for candidate in rank(graph, arch, HeurMode.A, ENGINES).candidates:
                assert read_plan(write_plan(candidate), HERE, "file").plan == candidate.plan, f"seed {seed}"


def test_ranked_and_recorded_choices_are_kept() -> None:
    candidates = rank(parse_case(MATMUL).graph(), SM_90A, HeurMode.A, ENGINES).candidates
    assert len({candidate.engine.name for candidate in candidates}) < len(candidates), "one without its split"
    for candidate in candidates:
        again = read_plan(write_plan(candidate), HERE, "file")
        assert (again.engine, again.plan) == (candidate.engine, candidate.plan)
        assert again.plan is not candidate.plan


@pytest.mark.parametrize(
    ("path", "value", "where", "expected", "got"),
    [
        ("launches/0/block/0", 64, "launches[0].block[0]", "128", "64"),
        ("launches/0/kernel", 99, "launches[0].kernel", "0", "99"),
        ("launches/0/kernel", False, "launches[0].kernel", "0", "False"),
        ("launches/0/arguments", [], "launches[0].arguments", "1 items", "0 items"),
        ("launches/0/shared_bytes", 2**63, "launches[0].shared_bytes", "", "9223372036854775808"),
        ("launches/0/work/busy_s", 1e300, "launches[0].work.busy_s", "", "1e+300"),
        ("launches/0", None, "launches[0]", '{"class": "Launch"', "None"),
        ("tensors/0/size_bytes", -1, "tensors[0].size_bytes", "", "-1"),
        ("tensors/0/size_bytes", 0, "tensors[0].size_bytes", "", "0"),
        ("tensors/0/alignment_bytes", 0, "tensors[0].alignment_bytes", "16", "0"),
        ("tensors/0/class", "Path", "tensors[0].class", "'PlanTensor'", "'Path'"),
        ("kernels/0/source", "../../../etc/passwd", "kernels[0].source", ".cu'", "'../../../etc/passwd'"),
        ("kernels/0/parameters/0/1", "1\n#include", "kernels[0].parameters[0][1]", "", "'1\\n#include'"),
        ("workspace_bytes", -256, "workspace_bytes", "0", "-256"),
        ("graph_key", "0", "graph_key", "", "'0'"),
        ("tensors/0", {}, "tensors[0].class", "PlanTensor", "None"),
        ("more", 1, "more", "no such field", "1"),
    ],
)  # fmt: skip
def test_what_differs_is_named_with_both_values(path: str, value: object, where: str, expected: str, got: str) -> None:
    content = written(best("conv n=1 c=8 hw=9x9 k=8 rs=3x3 dtype=fp32", SM_80))
    container, step = place(content["plan"], path)
    container[step] = value
    with raises(BadParamError, f"file.plan.{where}", expected=expected, got=got) as caught:
        read(content)
    assert (
        str(caught.value).count(f"lowdnn {lowdnn.__version__}")
        + str(caught.value).count(f"lowdnn '{lowdnn.__version__}'")
        == 2
    ), "both versions"
    assert (
        read(content, Reading(ENGINES, rebuild=True)).plan
        == best("conv n=1 c=8 hw=9x9 k=8 rs=3x3 dtype=fp32", SM_80).plan
    )


@pytest.mark.parametrize(
    "text",
    [
        '/**/#include "/etc/passwd"\n',
        '%:include "/etc/passwd"',
        '#define F "/etc"\n#include F',
        "value0 * value1",
    ],
)
def test_generated_text_is_compared_and_never_taken(text: str) -> None:
    candidate = best("pointwise dims=64x64 ops=add+relu dtype=fp32")
    content = written(candidate)
    kernel = content["plan"]["kernels"][0]
    for changed in (text, kernel["generated"] + text, kernel["generated"].replace("value0 + value1", text)):
        kernel["generated"] = changed
        with raises(BadParamError, "file.plan.kernels[0].generated"):
            read(content)
        assert read(content, Reading(ENGINES, rebuild=True)).plan == candidate.plan
        kernel["generated"] = candidate.plan.kernels[0].generated


def test_a_pointer_is_no_value() -> None:
    content = written(best("pointwise dims=64x64 ops=add dtype=fp32"))
    fields = content["plan"]["launches"][0]["arguments"][0]["fields"]
    assert fields[6]["fields"][0]["class"] == "TensorPointer"
    fields[6]["fields"][0] = {"class": "TensorValue", "uid": 1, "type": {"enum": "ScalarType", "name": "F32"}}
    with raises(BadParamError, "file.plan.launches[0].arguments[0].fields[6].fields[0].class", got="'TensorValue'"):
        read(content)


@pytest.mark.parametrize(
    ("path", "value", "where", "expected"),
    [
        ("lowdnn", 1, "file.lowdnn", "str"),
        ("lowdnn", "0.1.0\n", "file.lowdnn", "without control characters"),
        ("arch", "sm_7", "file", "a known architecture"),
        ("sm_count", 0, "file.sm_count", "1 to"),
        ("sm_count", 2**40, "file.sm_count", "1 to"),
        ("engine", "no_engine", "file.engine", "an engine of this handle"),
        ("engine", "pointwise", "file.engine", "an engine that takes graph and choices"),
        ("choices", [], "file.choices", "dict"),
        ("choices/NO_KNOB", 1, "file.choices", "names of knobs"),
        ("choices/SPLIT_K_BUF", 1, "file.engine", "an engine that takes graph and choices"),
        ("choices/TILE_M", True, "file.choices.TILE_M", "int"),
        ("choices/TILE_M", 7, "file.engine", "an engine that takes graph and choices"),
        ("graph", {}, "file.graph", "list"),
        ("graph", [], "operation_graph.operations", "at least one operation"),
        ("graph/0/a/dims/1", -1, "tensor 'a' (uid 1).dims", "extents >= 0"),
        ("graph/0/a/dims/1", 2**63, "file.graph[0].a.dims", "tuple"),
        ("graph/0/a/vector_count", 4, "file", "operations that keep their rules"),
        ("graph/0/a/name", "\x1b[2J", "file.graph[0].a.name", "without control characters"),
        ("plan", [], "file.plan", "dict"),
    ],
)  # fmt: skip
def test_what_a_plan_follows_from_is_checked(path: str, value: object, where: str, expected: str) -> None:
    content = written(best("matmul m=64 n=64 k=64 dtype=bf16"))
    container, step = place(content, path)
    container[step] = value
    with raises(BadParamError, where, expected=expected):
        read(content)


def test_what_no_plan_can_hold_is_refused_before_it_is_compared() -> None:
    content = written(best("pointwise dims=64x64 ops=add dtype=fp32"))
    fields = content["plan"]["launches"][0]["arguments"][0]["fields"]
    pointer = fields[6]["fields"][0]
    where = "file.plan.launches[0].arguments[0].fields[6].fields[0]"
    for offset in (2**64, -(2**64), 10**4000):
        pointer["offset_bytes"] = offset
        with raises(BadParamError, f"{where}.offset_bytes", expected="an integer of 64 bits"):
            read(content)
    pointer["offset_bytes"] = 0
    for _ in range(200):
        fields[6]["fields"][0] = {"class": "Struct", "fields": [fields[6]["fields"][0]]}
    with pytest.raises(BadParamError, match=r"file\.plan\.launches\[0\].*: expected at most 64 levels"):
        read(content)


def test_another_graph_or_choice_is_another_plan() -> None:
    content = written(best(MATMUL))
    other = written(best("matmul m=64 n=64 k=2048 dtype=bf16"))
    for name in ("graph", "choices", "engine", "sm_count"):
        mixed = content | {name: other[name] if content[name] != other[name] else 1}
        if mixed != content and name != "engine":
            with pytest.raises(BadParamError, match=r"file\."):
                read(mixed)


def test_plans_of_another_version_are_told_apart() -> None:
    content = written(best(MATMUL)) | {"lowdnn": "0.0.9"}
    assert read(content).plan == best(MATMUL).plan, "the same plan may come from any version"
    content["plan"]["launches"][0]["grid"][0] += 1
    with raises(SerializationVersionMismatchError, "file.plan.launches[0].grid[0]", got="'0.0.9' wrote") as caught:
        read(content)
    assert f"as lowdnn {lowdnn.__version__} plans" in str(caught.value)
    assert read(content, Reading(ENGINES, rebuild=True)).plan == best(MATMUL).plan
    with raises(SerializationVersionMismatchError, "file.lowdnn_plan", expected="2", got="1"):
        read(content | {"lowdnn_plan": 1}, Reading(ENGINES, rebuild=True))


def test_plans_of_another_device_are_refused_or_rebuilt() -> None:
    content = written(best(MATMUL, SM_80))
    with raises(ArchMismatchError, "file.arch", expected="sm_90a with at most 132", got="sm_80 with 108"):
        read(content, Reading(ENGINES, SM_90A))
    rebuilt = read(content, Reading(ENGINES, SM_90A, rebuild=True))
    assert rebuilt.plan.target_arch == "sm_90a"
    large = written(best(MATMUL))
    small = SM_90A.with_sm_count(114)
    with raises(ArchMismatchError, "file.arch", expected="sm_90a with at most 114", got="sm_90a with 132"):
        read(large, Reading(ENGINES, small))
    assert read(large, Reading(ENGINES, small, rebuild=True)).arch == small
    part = written(best(MATMUL, small))
    assert read(part, Reading(ENGINES, SM_90A)).arch == small, "a part of the device's multiprocessors"


def test_a_rebuilt_plan_has_no_further_notes() -> None:
    """A stored plan without tensor cores is not rebuilt as one with them."""
    graph = parse_case("matmul m=64 n=64 k=64 dtype=fp32").graph()
    exact = candidate_for(engine_named("matmul_simt"), graph, SM_80, {})
    content = written(exact)
    content["engine"] = "no_engine"
    rebuilt = read(content, Reading(ENGINES, SM_90A, rebuild=True))
    assert not rebuilt.plan.numerical_notes
    content["plan"]["numerical_notes"] = content["plan"]["behavior_notes"] = 7
    with raises(BadParamError, "file.graph", expected="without further notes"):
        read(content, Reading(ENGINES, SM_90A, rebuild=True))


def test_a_plan_inside_of_another_document() -> None:
    candidate = best(MATMUL)
    content = json.loads(json.dumps(document(candidate)))
    assert restored(content, HERE, "file").plan == candidate.plan
    for wrong in (7, [], None, {}, content | {"lowdnn_plan": "2"}):
        with pytest.raises((BadParamError, SerializationVersionMismatchError)):
            restored(wrong, HERE, "file")


def test_names_that_no_document_may_hold_are_refused_when_written() -> None:
    x = Tensor(1, DataType.FLOAT, (8,), (1,), 16, name="two\nlines")
    y = Tensor(2, DataType.FLOAT, (8,), (1,), 16)
    graph = OperationGraph([PointwiseOperation(Pointwise(PointwiseMode.NEG, DataType.FLOAT), x=x, y=y)])
    with raises(BadParamError, "tensor uid 1.name", expected="without control characters"):
        write_plan(candidate_for(engine_named("pointwise"), graph, SM_90A, {}))


def test_large_numbers_do_not_hang() -> None:
    content = written(best("conv n=1 c=8 hw=9x9 k=8 rs=3x3 dtype=fp32"))
    for name in ("x", "w", "y"):
        for axis in range(4):
            changed = json.loads(json.dumps(content))
            changed["graph"][0][name]["dims"][axis] = 2**62
            with pytest.raises(LowdnnError):
                read(changed)
