from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lowdnn.enums import DataType
from lowdnn.plan import (
    Argument,
    KernelRef,
    Launch,
    Plan,
    PlanTensor,
    Scalar,
    ScalarType,
    Struct,
    TensorMap,
    TensorPointer,
    TensorValue,
    ValueCase,
    WorkspacePointer,
)
from lowdnn.runtime.plan_rules import MAX_STRUCT_DEPTH, check_plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError
from lowdnn.tensor_map import TensorMapDataType, TiledMap
from tests.support.errors import raises
from tests.support.runtime import open_runtime, scale_plan, scale_sources

MAP = TiledMap(TensorMapDataType.FLOAT32, 0, (32, 4), (128,), (32, 4), (1, 1))
I32, U32, U64, F32, F64 = ScalarType.I32, ScalarType.U32, ScalarType.U64, ScalarType.F32, ScalarType.F64
ARGUMENTS: tuple[Argument, ...] = (
    TensorPointer(7, 16),
    WorkspacePointer(512),
    Struct((Scalar(I32, -1), Scalar(U64, 2**64 - 1), Scalar(F32, float("inf")), Scalar(F64, 1e300))),
    TensorValue(8, F32),
    ValueCase(8, I32, float("-inf"), 2**29, -1),
    TensorMap(TensorPointer(7), MAP),
)
PLAN = Plan(
    engine="e",
    engine_index=0,
    graph_key="g",
    target_arch="sm_80",
    choices=(),
    kernels=(KernelRef("k", "k.cu", "sm_80"),),
    launches=(Launch(0, (4, 2, 65535), (64, 4, 4), ARGUMENTS, cluster=(2, 2, 1)),),
    tensors=(
        PlanTensor(7, "x", DataType.FLOAT, 0, 16, is_output=False),
        PlanTensor(8, "alpha", DataType.HALF, 2, 2, is_output=False, is_by_value=True),
    ),
    workspace_bytes=512,
)


def nested(levels: int) -> Argument:
    argument: Argument = Scalar(I32, 1)
    for _ in range(levels):
        argument = Struct((argument,))
    return argument


def with_launch(**change: Any) -> Plan:
    return replace(PLAN, launches=(replace(PLAN.launches[0], **change),))


def with_tensor(**change: Any) -> Plan:
    return replace(PLAN, tensors=(replace(PLAN.tensors[0], **change), PLAN.tensors[1]))


def with_argument(argument: Any) -> Plan:
    return with_launch(arguments=(argument,))


def test_a_plan_that_keeps_the_rules() -> None:
    check_plan(PLAN)
    check_plan(with_argument(nested(MAX_STRUCT_DEPTH)))


@pytest.mark.parametrize(
    ("plan", "where", "expected"),
    [
        (replace(PLAN, workspace_bytes=-1), "workspace_bytes", "an integer from 0"),
        (replace(PLAN, workspace_bytes=2**63), "workspace_bytes", "an integer from 0"),
        (replace(PLAN, kernels=("k",)), "kernels[0]", "KernelRef"),
        (replace(PLAN, tensors=PLAN.tensors * 2), "tensors", "each uid once"),
        (replace(PLAN, tensors=(*PLAN.tensors, replace(PLAN.tensors[1], name="y"))), "tensors", "each uid once"),
        (with_tensor(uid=-1), "tensors[0].uid", "an integer from 0"),
        (with_tensor(size_bytes=-1), "tensors[0].size_bytes", "an integer from 0"),
        (with_tensor(size_bytes=1.0), "tensors[0].size_bytes", "an integer from 0"),
        (with_tensor(alignment_bytes=0), "tensors[0].alignment_bytes", "an integer from 1"),
        (with_tensor(alignment_bytes=24), "tensors[0].alignment_bytes", "a power of two"),
        (with_tensor(data_type=0), "tensors[0].data_type", "DataType"),
        (with_tensor(is_by_value=0), "tensors[0].is_by_value", "bool"),
        (with_launch(kernel=1), "launches[0].kernel", "an integer from 0 to 0"),
        (with_launch(kernel=-1), "launches[0].kernel", "an integer from 0 to 0"),
        (with_launch(kernel=True), "launches[0].kernel", "an integer from 0 to 0"),
        (with_launch(grid=(2**31, 1, 1)), "launches[0].grid[0]", "an integer from 1"),
        (with_launch(grid=(2, 2, 65536)), "launches[0].grid[2]", "an integer from 1"),
        (with_launch(grid=(2, 2)), "launches[0].grid", "three extents"),
        (with_launch(grid=(3, 2, 1)), "launches[0].grid", "multiples of the cluster's (2, 2, 1)"),
        (with_launch(block=(0, 1, 1)), "launches[0].block[0]", "an integer from 1"),
        (with_launch(block=(1, 1, 65)), "launches[0].block[2]", "an integer from 1"),
        (with_launch(block=(64, 17, 1)), "launches[0].block", "at most 1024 threads"),
        (with_launch(cluster=(4, 2, 4)), "launches[0].cluster", "at most 16 blocks"),
        (with_launch(cluster=(17, 1, 1)), "launches[0].cluster[0]", "an integer from 1 to 16"),
        (with_launch(shared_bytes=-1), "launches[0].shared_bytes", "an integer from 0"),
        (with_launch(shared_bytes=2**31), "launches[0].shared_bytes", "an integer from 0"),
        (with_launch(cooperative=1), "launches[0].cooperative", "bool"),
        (with_launch(arguments=[]), "launches[0].arguments", "a tuple"),
        (with_argument(TensorPointer(9)), "launches[0].arguments[0].uid", "one of plan.tensors in device memory"),
        (with_argument(TensorPointer(8)), "launches[0].arguments[0].uid", "one of plan.tensors in device memory"),
        (with_argument(TensorPointer(7, -1)), "launches[0].arguments[0].offset_bytes", "0 to"),
        (with_argument(TensorPointer(7, 2**64)), "launches[0].arguments[0].offset_bytes", "0 to"),
        (with_argument(WorkspacePointer(513)), "launches[0].arguments[0].offset_bytes", "0 to 512"),
        (with_argument(TensorValue(7, F32)), "launches[0].arguments[0]", "the value of a by-value tensor"),
        (with_argument(TensorValue(8, "f")), "launches[0].arguments[0]", "the value of a by-value tensor"),  # type: ignore[arg-type]
        (with_argument(ValueCase(7, I32, 0.0, 1, 2)), "launches[0].arguments[0]", "a case of a by-value tensor"),
        (with_argument(ValueCase(8, I32, 0.0, 1, 2**31)), "launches[0].arguments[0].value", "a number of I32"),
        (with_argument(Scalar(I32, 2**31)), "launches[0].arguments[0].value", "a number of I32"),
        (with_argument(Scalar(U32, -1)), "launches[0].arguments[0].value", "a number of U32"),
        (with_argument(Scalar(U64, 2**64)), "launches[0].arguments[0].value", "a number of U64"),
        (with_argument(Scalar(I32, True)), "launches[0].arguments[0].value", "a number of I32"),
        (with_argument(Scalar(I32, 0.5)), "launches[0].arguments[0].value", "a number of I32"),
        (with_argument(Scalar(F32, 1e39)), "launches[0].arguments[0].value", "a number of F32"),
        (with_argument(Scalar(F64, "1")), "launches[0].arguments[0].value", "a number of F64"),  # type: ignore[arg-type]
        (with_argument(Scalar("i", 1)), "launches[0].arguments[0].type", "a ScalarType"),  # type: ignore[arg-type]
        (with_argument(7), "launches[0].arguments[0]", "an argument of a kernel"),
        (with_argument(Struct((Scalar(I32, 1), TensorPointer(9)))), "launches[0].arguments[0].fields[1].uid", "one of"),
        (with_argument(TensorMap(TensorPointer(9), MAP)), "launches[0].arguments[0].target.uid", "one of"),
    ],
)  # fmt: skip
def test_what_breaks_a_rule_is_named(plan: Plan, where: str, expected: str) -> None:
    with raises(BadParamError, f"plan.{where}", expected=expected):
        check_plan(plan)


def test_structs_are_not_nested_without_end() -> None:
    with pytest.raises(BadParamError, match=f"at most {MAX_STRUCT_DEPTH} structs inside each other"):
        check_plan(with_argument(nested(500)))


def test_nothing_is_loaded_of_a_plan_that_breaks_a_rule(device: Runtime, tmp_path: Path) -> None:
    plan = scale_plan(4)
    with open_runtime(device.driver, tmp_path / "cache", sources=scale_sources(tmp_path / "engines")) as runtime:
        with pytest.raises(BadParamError, match=r"plan.launches\[0\].kernel: expected an integer from 0 to 0, got 99"):
            runtime.load(replace(plan, launches=(replace(plan.launches[0], kernel=99),)))
        assert runtime.counters.snapshot() == {}
