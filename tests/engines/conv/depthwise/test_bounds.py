"""The bounds by which tiles are skipped: no tile is estimated below its own bound."""

from __future__ import annotations

import pytest

from lowdnn.arch.specs import ArchSpec, all_specs
from lowdnn.cases import parse_case
from lowdnn.engines.conv.depthwise import filter_gradient, rows
from lowdnn.engines.conv.depthwise.correlation import Correlation
from lowdnn.engines.conv.depthwise.filter_gradient import FilterGradient
from lowdnn.engines.conv.depthwise.geometry import DepthwiseGeometry
from lowdnn.graph.pattern import Anchored, match_anchored
from lowdnn.ops.convolution import ConvolutionOperation

LAYERS = (
    "n=64 c=32 hw=112x112 k=32 rs=3x3 pad=1 groups=32",
    "n=2 c=1152 hw=7x7 k=1152 rs=5x5 pad=2 groups=1152",
    "n=32 c=54 hw=13x40x40 k=54 rs=3x3x3 pad=1 stride=1x2x2 groups=54",
    "n=8 c=512 hw=4096 k=512 rs=4 pad=3 groups=512 layout=nchw",
)


def geometry(layer: str, direction: str) -> DepthwiseGeometry:
    matched = match_anchored(parse_case(f"conv {layer} dir={direction} dtype=bf16").graph(), ConvolutionOperation)
    assert isinstance(matched, Anchored)
    return DepthwiseGeometry.of(matched)


@pytest.mark.parametrize("arch", all_specs(), ids=lambda arch: arch.name)
@pytest.mark.parametrize("direction", ["fprop", "dgrad"])
@pytest.mark.parametrize("layer", LAYERS)
def test_tiles_of_rows_are_not_below_their_bounds(layer: str, direction: str, arch: ArchSpec) -> None:
    correlation = Correlation(geometry(layer, direction))
    tiles = [
        (bound, rows._reading_ahead(correlation, tile, arch)) for bound, tile in rows._bounded_tiles(correlation, arch)
    ]
    costs = [rows.estimated_s(correlation, tile, arch) for _, tile in tiles]
    assert all(bound <= cost for (bound, _), cost in zip(tiles, costs, strict=True))
    assert rows.estimated_s(correlation, rows.best_tile(correlation, arch), arch) == min(costs)


@pytest.mark.parametrize("arch", all_specs(), ids=lambda arch: arch.name)
@pytest.mark.parametrize("layer", LAYERS)
def test_tiles_of_filter_gradients_are_not_below_their_bounds(layer: str, arch: ArchSpec) -> None:
    gradient = FilterGradient(geometry(layer, "wgrad"))
    for tile in filter_gradient._tiles(gradient, arch):
        for variant in filter_gradient._variants(gradient, tile, arch):
            cost = filter_gradient.estimated_s(gradient, filter_gradient._reading_ahead(gradient, variant, arch), arch)
            assert filter_gradient._least_s(gradient, variant, arch) <= cost
