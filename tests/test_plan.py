from __future__ import annotations

import json
import struct
from dataclasses import replace

import pytest

from lowdnn.enums import BehaviorNote, DataType, KnobType, NumericalNote
from lowdnn.plan import (
    KernelRef,
    Launch,
    MathUnit,
    Plan,
    PlanTensor,
    Scalar,
    ScalarType,
    Struct,
    TensorPointer,
    TensorValue,
    Work,
    WorkspacePointer,
)
from lowdnn.status import BadParamError, SerializationVersionMismatchError
from tests.support.errors import raises

ARGUMENTS = Struct(
    (
        TensorPointer(1, 8),
        WorkspacePointer(256),
        Scalar(ScalarType.I64, 2**40),
        Scalar(ScalarType.F32, float("inf")),
        TensorValue(3, ScalarType.F64),
        Struct((Scalar(ScalarType.I32, -1),)),
    )
)
PLAN = Plan(
    engine="family_idea",
    engine_index=4,
    graph_key="abc",
    target_arch="sm_90",
    choices=((KnobType.TILE_SIZE, 128),),
    kernels=(KernelRef("kernel", "family/idea.cu", "sm_80", (("TILE", 128), ("TYPE", "bf16")), "text\n"),),
    launches=(
        Launch(0, (8, 1, 1), (128, 1, 1), (ARGUMENTS,), 1024, work=Work(100, 10, MathUnit.MMA_F16)),
        Launch(0, (1, 1, 1), (32, 1, 1), (ARGUMENTS,), cluster=(2, 1, 1), work=Work(7, 90, MathUnit.FMA_F32)),
    ),
    tensors=(PlanTensor(1, "x", DataType.BFLOAT16, 64, 16, is_output=False),),
    workspace_bytes=512,
    numerical_notes=(NumericalNote.TENSOR_CORE,),
    behavior_notes=(BehaviorNote.RUNTIME_COMPILATION,),
    parts=("family_idea",),
)


def test_json_round_trip() -> None:
    text = PLAN.to_json()
    assert Plan.from_json(text) == PLAN
    assert Plan.from_json(text).to_json() == text
    assert "Infinity" not in text


def test_name_and_work() -> None:
    assert PLAN.name == f"eng4_family_idea_k{int(KnobType.TILE_SIZE)}=128"
    assert PLAN.work == Work(107, 100, MathUnit.MMA_F16)
    assert replace(PLAN, launches=()).work == Work()


def test_scalar_sizes() -> None:
    sizes = {kind: struct.calcsize(kind.format_character) for kind in ScalarType}
    assert sizes == {
        ScalarType.I32: 4,
        ScalarType.U32: 4,
        ScalarType.I64: 8,
        ScalarType.U64: 8,
        ScalarType.F32: 4,
        ScalarType.F64: 8,
    }


def test_equal_plans_are_one_key() -> None:
    same = Plan.from_json(PLAN.to_json())
    assert {PLAN: 1, same: 2} == {PLAN: 2}
    other = replace(PLAN, launches=(replace(PLAN.launches[0], grid=(7, 1, 1)), *PLAN.launches[1:]))
    assert {PLAN: 1}.get(other) is None


def test_other_versions_are_refused() -> None:
    text = PLAN.to_json().replace('"lowdnn_plan":1', '"lowdnn_plan":2')
    with raises(SerializationVersionMismatchError, "Plan.json.lowdnn_plan", expected="1", got="2"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("workspace_bytes", "many", "Plan.json.plan.workspace_bytes"),
        ("kernels", None, "Plan.json.plan.kernels"),
        ("launches", [[]], "Plan.json.plan.launches"),
        ("choices", [["TILE_SIZE", 1]], "Plan.json.plan.choices"),
    ],
)
def test_malformed_plans_are_refused(field: str, value: object, where: str) -> None:
    document = json.loads(PLAN.to_json())
    document["plan"][field] = value
    with raises(BadParamError, where):
        Plan.from_json(json.dumps(document))


def test_truncated_text_is_refused() -> None:
    with raises(BadParamError, "Plan.json", expected="a JSON document"):
        Plan.from_json(PLAN.to_json()[:-5])
