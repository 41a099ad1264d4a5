from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.base import Refusal
from lowdnn.engines.conv.stem.conv_stem_mma import ConvStemMma
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.layouts import Layout
from lowdnn.runtime.runtime import Runtime
from tests.engines.conv.grouped.test_conv_grouped_mma import Case
from tests.support.pairs import paired
from tests.support.running import POLICIES, check_exact, run_plan
from tests.support.tolerance import assert_exact

ENGINE = ConvStemMma()

#: A device with one multiprocessor.
_FEW = SM_90A.with_sm_count(1)
#: A device whose blocks have several of the tiles of the cases.
_PART = SM_90A.with_sm_count(4)

LAYERS = (
    Case((2, 3, 12, 14), (16, 3, 7, 7), (3, 3), strides=(2, 2)),
    Case((2, 3, 9, 12), (32, 3, 3, 3), (0, 0), strides=(2, 2)),
    Case((1, 3, 9, 10), (24, 3, 3, 3), (1, 1)),
    Case((2, 3, 9, 8), (64, 3, 3, 3), (1, 1)),
    Case((1, 3, 9, 8), (34, 3, 5, 4), (2, 1), (2, 2), is_flipped=True),
    Case((2, 3, 13, 12), (96, 3, 4, 4), strides=(4, 4)),
    Case((1, 1, 11, 16), (8, 1, 3, 2), (1, 0), (0, 1), (3, 1), is_flipped=True),
    Case((1, 4, 12, 10), (16, 4, 3, 5), (2, 2), strides=(2, 3), dilations=(2, 1), is_flipped=True),
    Case((1, 2, 5, 6, 8), (320, 2, 3, 2, 3), (1, 0, 1), strides=(1, 2, 2), dilations=(2, 1, 1)),
    Case((2, 3, 22), (16, 3, 5), (2,), strides=(2,)),
    Case((1, 1, 8, 8, 8), (32, 1, 3, 3, 3), (1, 1, 1)),
    Case((2, 3, 3, 10, 16), (45, 3, 1, 7, 7), (0, 3, 3), strides=(1, 2, 2)),
    Case((2, 1, 162), (70, 1, 10), strides=(5,)),
)

LAST_LAYERS = (
    Case((2, 16, 6, 8), (3, 16, 3, 3), (1, 1)),
    Case((1, 24, 7, 10), (4, 24, 3, 2), (2, 0), (1, 1), dilations=(2, 1), is_flipped=True),
    Case((1, 8, 3, 4, 6), (1, 8, 2, 3, 1), (1, 0, 0)),
)


@pytest.mark.parametrize("case", LAYERS)
def test_first_layers(device: Runtime, case: Case) -> None:
    check_exact(device, ENGINE, case.graph("forward"), length=case.length)


@pytest.mark.parametrize("case", LAST_LAYERS)
def test_data_gradients_of_last_layers(device: Runtime, case: Case) -> None:
    check_exact(device, ENGINE, case.graph("data", alpha=2.0), length=case.length)


@pytest.mark.parametrize("data_type", [DataType.HALF, DataType.FLOAT])
@pytest.mark.parametrize("case", [LAYERS[0], LAYERS[3], LAYERS[11]])
def test_types(device: Runtime, data_type: DataType, case: Case) -> None:
    check_exact(device, ENGINE, case.graph("forward", data_type), length=case.length)


def test_alpha_beta_and_epilogue(device: Runtime) -> None:
    for case in (LAYERS[3], LAYERS[11]):
        check_exact(device, ENGINE, case.graph("forward", alpha=2.0, beta=1.0), length=case.length)
        check_exact(device, ENGINE, case.graph("forward", epilogue=True), length=case.length)


@paired(
    ("stages", [1, 2]),
    ("unit", [32, 64]),
    ("case", [LAYERS[3], LAYERS[11], LAYERS[12]]),
    ("scheduled", POLICIES),
    fixtures=["scheduled"],
)
def test_tiles(scheduled: Runtime, stages: int, unit: int, case: Case) -> None:
    choices = {KnobType.STAGES: stages, KnobType.TILE_M: unit}
    check_exact(scheduled, ENGINE, case.graph("forward"), length=case.length, choices=choices, arch=_PART)


@pytest.mark.parametrize("case", [LAYERS[0], LAYERS[3], LAYERS[10]])
def test_infinities_reach_their_own_outputs_only(device: Runtime, case: Case) -> None:
    """Words of an output also have elements of its neighbours, which are multiplied with zeros of the filter."""
    graph = case.graph("forward", DataType.HALF)
    inputs = {tensor.uid: np.ones(tensor.dims, np.float16) for tensor in graph.inputs}
    source = inputs[next(tensor.uid for tensor in graph.inputs if tensor.dims == case.x)]
    source[..., 4, 5], source[..., 7, 7] = np.inf, np.nan
    (actual,) = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs).values()
    (expected,) = evaluate(graph, inputs).values()
    assert np.isinf(expected).any()
    assert np.isnan(expected).any()
    assert_exact(actual, expected, DataType.HALF)


def test_several_tiles_of_a_block(scheduled: Runtime) -> None:
    """There are more tiles than all blocks of the device."""
    case = Case((7, 1, 8, 6), (8, 1, 3, 3), (1, 1))
    choices = {KnobType.TILE_ROWS: 8, KnobType.STAGES: 2}
    check_exact(scheduled, ENGINE, case.graph("forward"), length=case.length, choices=choices, arch=_FEW)


def test_refusals_name_field_limit_and_value() -> None:
    def reason(case: Case, direction: str = "forward", layout: Layout = Layout.CHANNELS_LAST) -> str:
        refusal = ENGINE.refuse(case.graph(direction, layout=layout), SM_90A)
        assert isinstance(refusal, Refusal)
        return refusal.reason

    assert "expected at most 4 channels in one group, got 5 channels" in reason(Case((1, 5, 6, 6), (8, 5, 3, 3)))
    assert "2 groups" in reason(Case((1, 4, 6, 6), (8, 2, 3, 3)))
    assert "expected elements in every tensor" in reason(Case((0, 3, 6, 6), (8, 3, 3, 3)))
    assert "expected none in the last axis, got 2" in reason(Case((1, 3, 9, 9), (8, 3, 3, 3), dilations=(1, 2)))
    assert "expected dense channels-last rows" in reason(LAYERS[0], layout=Layout.ROW_MAJOR)
    assert "expected rows of whole words" in reason(Case((1, 3, 9, 9), (8, 3, 3, 3)))
    assert "bytes of shared memory" in reason(Case((1, 3, 32, 32), (512, 3, 16, 16), strides=(16, 16)))
    assert "expected at most 64 filters" in reason(Case((1, 3, 8, 8), (71, 3, 3, 3), (1, 1)))
    assert "expected one stored output, or data gradient of a last layer" in reason(LAYERS[0], "data")
