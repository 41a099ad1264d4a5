from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.engines.conv.grouped.conv_grouped_mma import ConvGroupedMma
from lowdnn.engines.conv.implicit_gemm.conv_implicit_gemm_mma import ConvImplicitGemmMma
from lowdnn.engines.conv.stem.conv_stem import ConvStem
from lowdnn.engines.conv.stem.fold import FoldedConvolution
from lowdnn.enums import DataType
from lowdnn.graph.layouts import Layout
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.runtime.runtime import Runtime
from tests.engines.conv.grouped.test_conv_grouped_mma import DIRECTIONS, Case
from tests.support.pairs import paired
from tests.support.running import check_exact

ENGINE = ConvStem((ConvGroupedMma(), ConvImplicitGemmMma()))

LAYERS = (
    Case((2, 3, 12, 14), (16, 3, 7, 7), (3, 3), strides=(2, 2)),
    Case((2, 3, 9, 11), (32, 3, 3, 3), (1, 1), strides=(2, 2)),
    Case((1, 3, 9, 10), (24, 3, 3, 3), (1, 1)),
    Case((2, 3, 9, 10), (16, 3, 3, 3), (1, 1)),
    Case((1, 3, 8, 9), (32, 3, 5, 4), (2, 1), is_flipped=True),
    Case((2, 3, 13, 12), (16, 3, 4, 4), strides=(4, 4)),
    Case((1, 3, 13, 12), (16, 3, 6, 6), strides=(6, 6)),
    Case((1, 1, 11, 9), (8, 1, 3, 2), (1, 0), (0, 2), (3, 4), is_flipped=True),
    Case((1, 4, 12, 10), (16, 4, 3, 5), (2, 2), strides=(2, 3), dilations=(2, 1), is_flipped=True),
    Case((1, 2, 5, 6, 7), (16, 2, 3, 2, 3), (1, 0, 1), strides=(1, 2, 2)),
    Case((2, 3, 21), (16, 3, 5), (2,), strides=(2,)),
)

#: Layers whose taps become channels.
WIDE_LAYERS = (
    Case((1, 4, 5, 6), (256, 4, 3, 3), (1, 1)),
    Case((2, 1, 6, 7), (64, 1, 3, 3), (1, 1)),
    Case((2, 2, 9, 8), (32, 2, 2, 2), (1, 0), (0, 2), strides=(2, 1), dilations=(1, 3), is_flipped=True),
    Case((2, 1, 41), (64, 1, 10), strides=(5,)),
)

#: Layers with few filters.
LAST_LAYERS = (
    Case((2, 16, 6, 7), (3, 16, 3, 3), (1, 1)),
    Case((1, 24, 7, 9), (4, 24, 3, 2), (2, 0), (1, 1), dilations=(1, 2), is_flipped=True),
    Case((1, 8, 3, 4, 5), (1, 8, 2, 3, 1), (1, 0, 0)),
)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", LAYERS + WIDE_LAYERS)
def test_first_layers(device: Runtime, direction: str, case: Case) -> None:
    check_exact(device, ENGINE, case.graph(direction), length=case.length)


@pytest.mark.parametrize("direction", ["data", "filter"])
@pytest.mark.parametrize("case", LAST_LAYERS)
def test_gradients_of_last_layers(device: Runtime, direction: str, case: Case) -> None:
    check_exact(device, ENGINE, case.graph(direction, alpha=2.0), length=case.length)


def test_gradient_of_a_last_layer_with_beta_and_epilogue(device: Runtime) -> None:
    case = LAST_LAYERS[0]
    check_exact(device, ENGINE, case.graph("data", layout=Layout.ROW_MAJOR, beta=1.0), length=case.length)
    check_exact(device, ENGINE, case.graph("data", epilogue=True), length=case.length)


@paired(
    ("direction", DIRECTIONS),
    ("data_type", [DataType.HALF, DataType.FLOAT]),
    ("layout", [Layout.CHANNELS_LAST, Layout.ROW_MAJOR]),
)
def test_types_and_layouts(device: Runtime, direction: str, data_type: DataType, layout: Layout) -> None:
    case = Case((2, 3, 8, 9), (16, 3, 3, 3), pads=(1, 1), strides=(2, 2))
    check_exact(device, ENGINE, case.graph(direction, data_type, layout), length=case.length)


def test_alpha_beta_and_epilogue(device: Runtime) -> None:
    case = Case((2, 3, 8, 9), (16, 3, 3, 3), pads=(1, 1), strides=(2, 2))
    check_exact(device, ENGINE, case.graph("forward", alpha=2.0, beta=1.0), length=case.length)
    check_exact(device, ENGINE, case.graph("forward", epilogue=True), length=case.length)
    check_exact(device, ENGINE, case.graph("data", alpha=2.0), length=case.length)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_scheduling_policy(scheduled: Runtime, direction: str) -> None:
    case = Case((1, 3, 7, 8), (16, 3, 3, 3), pads=(1, 1), strides=(2, 1))
    check_exact(scheduled, ENGINE, case.graph(direction), length=case.length)


@pytest.mark.parametrize(
    ("case", "image", "filters"),
    [
        (Case((2, 3, 224, 224), (64, 3, 7, 7), (3, 3), strides=(2, 2)), (2, 8, 224, 115), (64, 8, 7, 4)),
        (Case((2, 3, 224, 224), (96, 3, 4, 4), strides=(4, 4)), (2, 64, 56, 56), (96, 64, 1, 1)),
        (Case((2, 3, 224, 224), (768, 3, 16, 16), strides=(16, 16)), (2, 768, 14, 14), (768, 768, 1, 1)),
        (Case((2, 3, 224, 224), (64, 3, 3, 3), (1, 1)), (2, 8, 224, 224), (64, 8, 3, 3)),
        (Case((2, 4, 128, 128), (320, 4, 3, 3), (1, 1)), (2, 64, 128, 128), (320, 64, 1, 1)),
        (Case((2, 1, 64000), (512, 1, 10), strides=(5,)), (2, 16, 12799), (512, 16, 1)),
    ],
)
def test_which_axes_are_folded(case: Case, image: tuple[int, ...], filters: tuple[int, ...]) -> None:
    (operation,) = case.graph("forward").operations
    assert isinstance(operation, ConvolutionOperation)
    fold = FoldedConvolution.cheapest(operation)
    assert fold.image.folded.dims == image
    assert fold.filter.folded.dims == filters


def test_refusals_name_field_limit_and_value() -> None:
    def reason(case: Case, direction: str = "forward", *, epilogue: bool = False) -> str:
        refusal = ENGINE.refuse(case.graph(direction, epilogue=epilogue), SM_90A)
        assert refusal is not None
        return str(refusal)

    assert "groups: expected 1, got 2" in reason(Case((1, 4, 6, 6), (8, 2, 3, 3)))
    assert "expected at most 4 channels, got 5" in reason(Case((1, 5, 6, 6), (8, 5, 3, 3)))
    assert "expected elements in every tensor" in reason(Case((0, 3, 6, 6), (8, 3, 3, 3)))
    assert "no operations after it" in reason(LAYERS[1], "data", epilogue=True)
