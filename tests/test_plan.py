from __future__ import annotations

import copy
import json
import struct
from dataclasses import replace

from lowdnn.codec import encode
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
    TensorMap,
    TensorPointer,
    TensorValue,
    ValueCase,
    Work,
    WorkspacePointer,
)
from lowdnn.status import BadParamError
from lowdnn.tensor_map import TensorMapInterleave, TensorMapSwizzle
from tests.support.errors import raises
from tests.test_tensor_map import IM2COL, TILED

TILED_MAP = TensorMap(TensorPointer(1, 32), replace(TILED, address=0))
IM2COL_MAP = TensorMap(WorkspacePointer(256), replace(IM2COL, address=0))

ARGUMENTS = Struct(
    (
        TensorPointer(1, 8),
        WorkspacePointer(256),
        Scalar(ScalarType.I64, 2**40),
        Scalar(ScalarType.F32, float("inf")),
        TensorValue(3, ScalarType.F64),
        ValueCase(3, ScalarType.I32, float("-inf"), 1, -1),
        Struct((Scalar(ScalarType.I32, -1), TILED_MAP)),
        IM2COL_MAP,
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
        Launch(
            0,
            (1, 1, 1),
            (32, 1, 1),
            (ARGUMENTS,),
            cluster=(2, 1, 1),
            work=Work(7, 90, MathUnit.FMA_F32),
            overlaps_previous=True,
            cooperative=True,
        ),
    ),
    tensors=(PlanTensor(1, "x", DataType.BFLOAT16, 64, 16, is_output=False),),
    workspace_bytes=512,
    numerical_notes=(NumericalNote.TENSOR_CORE,),
    behavior_notes=(BehaviorNote.RUNTIME_COMPILATION,),
    parts=("family_idea",),
)


def test_the_json_form_has_every_field() -> None:
    text = json.dumps(encode(PLAN), allow_nan=False)
    assert json.loads(text) == encode(PLAN)
    assert json.loads(text)["launches"][0]["arguments"][0]["fields"][3]["value"] == {"float": "inf"}
    for change in ({"workspace_bytes": 256}, {"parts": ()}, {"kernels": (replace(PLAN.kernels[0], generated="x\n"),)}):
        assert encode(replace(PLAN, **change)) != encode(PLAN)  # type: ignore[arg-type]


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


def test_tensor_maps_that_no_driver_takes_are_refused() -> None:
    with raises(BadParamError, "TensorMap.layout.address", expected="0", got="0x7f0000000100"):
        TensorMap(TensorPointer(1), TILED)
    with raises(BadParamError, "TensorMap.layout", got="box[1]: expected 1 to 256, got 257"):
        replace(TILED_MAP, layout=replace(TILED_MAP.layout, box=(64, 257)))
    with raises(BadParamError, "TensorMap.layout", got="lower_corner[0]: expected -128 to 127, got -129"):
        replace(IM2COL_MAP, layout=replace(IM2COL_MAP.layout, lower_corner=(-129, 0)))
    with raises(BadParamError, "TensorMap.target.offset_bytes", expected="a multiple of 16", got="8"):
        replace(TILED_MAP, target=TensorPointer(1, 8))


def test_alignment_of_mapped_tensors() -> None:
    assert TILED_MAP.alignment_bytes == 16
    interleaved = replace(
        TILED_MAP.layout,
        dims=(16, 8, 4),
        strides_bytes=(32, 256),
        box=(16, 1, 1),
        element_strides=(1, 1, 1),
        interleave=TensorMapInterleave.BYTES_32,
        swizzle=TensorMapSwizzle.BYTES_32,
    )
    assert replace(TILED_MAP, layout=interleaved).alignment_bytes == 32


def test_equal_plans_are_one_key() -> None:
    same = copy.deepcopy(PLAN)
    assert {PLAN: 1, same: 2} == {PLAN: 2}
    other = replace(PLAN, launches=(replace(PLAN.launches[0], grid=(7, 1, 1)), *PLAN.launches[1:]))
    assert {PLAN: 1}.get(other) is None
