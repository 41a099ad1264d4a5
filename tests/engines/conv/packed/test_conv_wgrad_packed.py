from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.engines.conv.packed.conv_wgrad_packed import ConvWgradPacked
from lowdnn.engines.conv.wgmma.conv_wgrad_wgmma import ConvWgradWgmma
from lowdnn.engines.matmul.matmul_wgmma import MatmulWgmma
from lowdnn.engines.reduction.reduction import ReductionEngine
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.layouts import Layout
from lowdnn.runtime.runtime import Runtime
from tests.engines.conv.grouped.test_conv_grouped_mma import Case
from tests.support.running import check_exact, run_plan

ENGINE = ConvWgradPacked((ConvWgradWgmma(), MatmulWgmma()), ReductionEngine())

LAYERS = (
    (Case((2, 24, 6, 6), (54, 24, 1, 1)), 8),
    (Case((2, 24, 6, 5), (54, 24, 1, 1)), 4),
    (Case((3, 48, 2, 4, 5), (108, 48, 1, 1, 1)), 4),
    (Case((1, 8, 40), (3, 8, 1)), 8),
    (Case((2, 24, 7, 7), (144, 24, 1, 1)), 2),
)


@pytest.mark.parametrize(("case", "pixels"), LAYERS)
def test_narrow_pixels(device: Runtime, case: Case, pixels: int) -> None:
    plan = check_exact(device, ENGINE, case.graph("filter"), length=case.length)
    assert plan.choices == ((KnobType.PACK_SIZE, pixels),)


@pytest.mark.parametrize("pixels", [4, 8])
def test_pixels_of_a_pack(device: Runtime, pixels: int) -> None:
    case = Case((1, 16, 6, 8), (40, 16, 1, 1))
    check_exact(device, ENGINE, case.graph("filter"), length=case.length, choices={KnobType.PACK_SIZE: pixels})


def test_alpha_and_types(device: Runtime) -> None:
    case = Case((1, 12, 6, 4), (20, 12, 1, 1))
    check_exact(device, ENGINE, case.graph("filter", DataType.HALF, alpha=2.0), length=case.length)


def test_races(racing: Runtime) -> None:
    case = Case((1, 24, 4, 40), (54, 24, 1, 1))
    check_exact(racing, ENGINE, case.graph("filter"), length=case.length)


def test_infinities_stay_in_their_channels(device: Runtime) -> None:
    """Products of two different pixels of a pack are left out of the sum."""
    graph = Case((1, 12, 4, 4), (20, 12, 1, 1)).graph("filter", DataType.HALF)
    x, dy = graph.inputs
    inputs = {tensor.uid: np.ones(tensor.dims, np.float16) for tensor in (x, dy)}
    inputs[x.uid][0, 3, 1, 2] = np.inf
    (actual,) = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs).values()
    assert np.isinf(actual[:, 3]).all()
    assert np.isfinite(np.delete(actual, 3, axis=1)).all()


def test_refusals_name_field_limit_and_value() -> None:
    def reason(case: Case, direction: str = "filter", layout: Layout = Layout.CHANNELS_LAST, beta: float = 0) -> str:
        refusal = ENGINE.refuse(case.graph(direction, layout=layout, beta=beta), SM_90A)
        assert refusal is not None
        return str(refusal)

    assert "expected one ConvolutionBackwardFilter, got ConvolutionForward" in reason(LAYERS[0][0], "forward")
    assert "expected one tap, stride 1" in reason(Case((1, 8, 6, 6), (8, 8, 3, 3)))
    assert "strides [1, 2]" in reason(Case((1, 8, 6, 6), (8, 8, 1, 1), strides=(1, 2)))
    assert "beta: expected 0, got 1.0" in reason(LAYERS[0][0], beta=1.0)
    assert "expected elements in every tensor" in reason(Case((0, 8, 6, 6), (8, 8, 1, 1)))
    assert "expected dense channels-last pixels" in reason(LAYERS[0][0], layout=Layout.ROW_MAJOR)
    assert "got 128 and 64 bytes" in reason(Case((1, 64, 8, 8), (32, 64, 1, 1)))
    assert "got 49 pixels of 48 and 108 bytes" in reason(Case((1, 24, 7, 7), (54, 24, 1, 1)))
