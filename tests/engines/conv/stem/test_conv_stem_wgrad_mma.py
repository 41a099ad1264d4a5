from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.engines.base import Refusal
from lowdnn.engines.conv.stem.conv_stem_wgrad_mma import ConvStemWgradMma
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.layouts import Layout
from lowdnn.runtime.runtime import Runtime
from tests.engines.conv.grouped.test_conv_grouped_mma import Case
from tests.engines.conv.stem.test_conv_stem_mma import LAST_LAYERS, LAYERS
from tests.support.pairs import paired
from tests.support.running import POLICIES, check_exact

ENGINE = ConvStemWgradMma()

#: A device with one multiprocessor.
_FEW = SM_90A.with_sm_count(1)
#: A device whose blocks have several of the tiles of the cases.
_PART = SM_90A.with_sm_count(4)


#: Rows of pixels that are not whole words.
ODD_LAYERS = (
    Case((2, 3, 9, 11), (32, 3, 3, 3), (0, 0), strides=(2, 2)),
    Case((1, 1, 7, 9), (24, 1, 3, 3), (1, 1)),
    Case((2, 3, 21), (16, 3, 5), (2,), strides=(2,)),
)

#: Cases with whole words of filters.
EVEN_LAYERS = tuple(case for case in LAYERS if case.w[0] % 2 == 0)


@pytest.mark.parametrize("case", EVEN_LAYERS + ODD_LAYERS)
def test_first_layers(device: Runtime, case: Case) -> None:
    check_exact(device, ENGINE, case.graph("filter"), length=case.length)


@pytest.mark.parametrize("case", LAST_LAYERS)
def test_last_layers(device: Runtime, case: Case) -> None:
    check_exact(device, ENGINE, case.graph("filter", alpha=2.0), length=case.length)


@pytest.mark.parametrize("case", [LAYERS[0], LAYERS[3], LAYERS[10]])
def test_fp16(device: Runtime, case: Case) -> None:
    check_exact(device, ENGINE, case.graph("filter", DataType.HALF), length=case.length)


def test_alpha_beta_and_epilogue(device: Runtime) -> None:
    case = LAYERS[3]
    check_exact(device, ENGINE, case.graph("filter", alpha=2.0, beta=1.0), length=case.length)
    check_exact(device, ENGINE, case.graph("filter", epilogue=True), length=case.length)


@paired(
    ("stages", [1, 2]),
    ("case", [LAYERS[3], LAYERS[10], LAYERS[12]]),
    ("scheduled", POLICIES),
    fixtures=["scheduled"],
)
def test_stages(scheduled: Runtime, stages: int, case: Case) -> None:
    choices = {KnobType.STAGES: stages}
    check_exact(scheduled, ENGINE, case.graph("filter"), length=case.length, choices=choices, arch=_PART)


def test_several_tiles_of_a_block(scheduled: Runtime) -> None:
    """There are more tiles than all blocks of the device, and each block has some."""
    case = Case((7, 1, 8, 6), (16, 1, 3, 3), (1, 1))
    choices = {KnobType.TILE_ROWS: 8, KnobType.STAGES: 2}
    check_exact(scheduled, ENGINE, case.graph("filter"), length=case.length, choices=choices, arch=_FEW)


def test_refusals_name_field_limit_and_value() -> None:
    def reason(case: Case, direction: str = "filter", **kinds: Layout | DataType) -> str:
        refusal = ENGINE.refuse(case.graph(direction, **kinds), SM_90A)  # type: ignore[arg-type]
        assert isinstance(refusal, Refusal)
        return refusal.reason

    assert "expected at most 4 channels in one group, got 5 channels" in reason(Case((1, 5, 6, 6), (8, 5, 3, 3)))
    assert "expected dense channels-last rows" in reason(LAYERS[0], layout=Layout.ROW_MAJOR)
    assert "x.data_type: expected one of BFLOAT16, HALF, got FLOAT" in reason(LAYERS[0], data_type=DataType.FLOAT)
    assert "expected fewer taps, got [16, 16]" in reason(Case((1, 3, 32, 32), (512, 3, 16, 16), strides=(16, 16)))
    assert "expected whole words of filters, got 33" in reason(Case((1, 3, 8, 8), (33, 3, 3, 3)))
    assert "expected a filter gradient" in reason(LAYERS[0], "forward")
