from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.engines.base import Refusal
from lowdnn.engines.conv.stem.conv_stem_dgrad_mma import ConvStemDgradMma
from lowdnn.enums import DataType, KnobType
from lowdnn.runtime.runtime import Runtime
from tests.engines.conv.grouped.test_conv_grouped_mma import Case
from tests.support.pairs import paired
from tests.support.running import POLICIES, check_exact

ENGINE = ConvStemDgradMma()

#: A device with one multiprocessor.
_FEW = SM_90A.with_sm_count(1)

LAYERS = (
    Case((2, 3, 12, 14), (16, 3, 7, 7), (3, 3), strides=(2, 2)),
    Case((2, 3, 9, 11), (32, 3, 3, 3), (0, 0), strides=(2, 2)),
    Case((1, 3, 9, 10), (24, 3, 3, 3), (1, 1)),
    Case((1, 3, 9, 9), (33, 3, 5, 4), (2, 1), is_flipped=True),
    Case((2, 3, 13, 12), (96, 3, 4, 4), strides=(4, 4)),
    Case((1, 1, 11, 16), (8, 1, 3, 2), (1, 0), (0, 1), (3, 3), is_flipped=True),
    Case((1, 4, 12, 10), (16, 4, 3, 5), (2, 2), strides=(2, 3), is_flipped=True),
    Case((1, 2, 5, 6, 8), (40, 2, 3, 2, 3), (1, 0, 1), strides=(2, 2, 2), dilations=(2, 1, 1)),
    Case((2, 3, 21), (16, 3, 5), (2,), strides=(2,)),
    Case((1, 1, 8, 8, 8), (32, 1, 3, 3, 3), (1, 1, 1)),
    Case((2, 3, 3, 10, 16), (45, 3, 1, 7, 7), (0, 3, 3), strides=(1, 2, 2)),
    Case((2, 1, 161), (72, 1, 10), strides=(5,)),
)


@pytest.mark.parametrize("case", LAYERS)
def test_first_layers(device: Runtime, case: Case) -> None:
    check_exact(device, ENGINE, case.graph("data"), length=case.length)


@pytest.mark.parametrize("case", [LAYERS[0], LAYERS[9]])
def test_fp16(device: Runtime, case: Case) -> None:
    check_exact(device, ENGINE, case.graph("data", DataType.HALF), length=case.length)


@paired(
    ("rows", [4, 16]),
    ("positions", [16, 32, 48]),
    ("case", [LAYERS[0], LAYERS[9]]),
    ("scheduled", POLICIES),
    fixtures=["scheduled"],
)
def test_tiles(scheduled: Runtime, rows: int, positions: int, case: Case) -> None:
    choices = {KnobType.TILE_ROWS: rows, KnobType.TILE_M: positions}
    check_exact(scheduled, ENGINE, case.graph("data"), length=case.length, choices=choices)


def test_several_units_of_a_warp(scheduled: Runtime) -> None:
    """There are more units than all warps of the device."""
    case = Case((25, 1, 8, 2), (8, 1, 3, 1), (1, 0))
    choices = {KnobType.TILE_ROWS: 4, KnobType.TILE_M: 16}
    check_exact(scheduled, ENGINE, case.graph("data"), length=case.length, choices=choices, arch=_FEW)


def test_a_data_gradient_is_two_launches() -> None:
    plan = ENGINE.plan(LAYERS[10].graph("data"), SM_90A, {})
    assert len(plan.launches) == 2


def test_refusals_name_field_limit_and_value() -> None:
    def reason(case: Case, direction: str = "data", alpha: float = 1.0, data_type: DataType = DataType.HALF) -> str:
        refusal = ENGINE.refuse(case.graph(direction, data_type, alpha=alpha), SM_90A)
        assert isinstance(refusal, Refusal)
        return refusal.reason

    assert "expected a data gradient alone, with alpha 1 and beta 0" in reason(LAYERS[0], alpha=2.0)
    assert "expected a data gradient alone" in reason(LAYERS[0], "forward")
    assert "expected at most 4 channels in one group, got 5 channels" in reason(Case((1, 5, 6, 6), (8, 5, 3, 3)))
    assert "w.data_type: expected one of BFLOAT16, HALF, got FLOAT" in reason(LAYERS[0], data_type=DataType.FLOAT)
    assert "expected none in the last two axes, got 2" in reason(Case((1, 3, 9, 9), (8, 3, 3, 3), dilations=(2, 1)))
    assert "expected fewer filters, taps or strides" in reason(Case((1, 3, 32, 32), (64, 3, 16, 16), strides=(16, 16)))
