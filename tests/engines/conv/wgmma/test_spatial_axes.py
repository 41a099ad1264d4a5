from __future__ import annotations

import pytest

from lowdnn.cases import parse_case
from lowdnn.engines.conv.wgmma.spatial_axes import with_fewest_axes, with_taps_last
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.convolution import ConvolutionOperation


def graph_of(case: str) -> OperationGraph:
    return parse_case(f"conv {case} dtype=bf16").graph()


def image(graph: OperationGraph) -> tuple[int, ...]:
    (operation,) = (op for op in graph.operations if isinstance(op, ConvolutionOperation))
    return operation.image.dims


@pytest.mark.parametrize(
    ("case", "dims"),
    [
        ("n=2 c=8 hw=3x4x5 k=8 rs=3x1x1 pad=1x0x0", (2, 8, 3, 20)),
        ("n=2 c=8 hw=3x4x5 k=8 rs=1x3x3 pad=0x1x1 dir=dgrad epilogue=bias+relu", (6, 8, 4, 5)),
        ("n=2 c=8 hw=3x4x5 k=8 rs=1x3x1 dir=wgrad", (6, 8, 4, 5)),
        ("n=2 c=8 hw=4x5 k=8 rs=1x1", (2, 8, 20)),
        ("n=2 c=8 hw=3x4x5 k=8 rs=1x3x3 stride=2x1x1", (2, 8, 3, 4, 5)),
        ("n=2 c=8 hw=3x4x5 k=8 rs=1x3x3 layout=nchw", (2, 8, 3, 4, 5)),
        ("n=2 c=8 hw=3x4x5 k=8 rs=1x3x3 dir=wgrad epilogue=relu", (2, 8, 3, 4, 5)),
        ("n=2 c=8 hw=4x5 k=8 rs=3x3", (2, 8, 4, 5)),
    ],
)
def test_axes_without_taps_are_one(case: str, dims: tuple[int, ...]) -> None:
    assert image(with_fewest_axes(graph_of(case))) == dims


@pytest.mark.parametrize(
    ("case", "dims"),
    [
        ("n=2 c=8 hw=3x4x5 k=8 rs=3x1x1", (2, 8, 4, 5, 3)),
        ("n=2 c=8 hw=3x4x5 k=8 rs=2x3x1", (2, 8, 3, 5, 4)),
        ("n=2 c=8 hw=3x4 k=8 rs=3x3", None),
        ("n=2 c=8 hw=3x4 k=8 rs=1x1", None),
    ],
)
def test_the_last_axis_with_taps_comes_last(case: str, dims: tuple[int, ...] | None) -> None:
    turned = with_taps_last(graph_of(case))
    assert (turned and image(turned)) == dims
