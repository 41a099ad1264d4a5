from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.conv.grouped.conv_grouped_mma import ConvGroupedMma
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.enums import ConvolutionMode, DataType, KnobType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.convolution import Convolution
from lowdnn.runtime.runtime import Runtime
from tests.support.builders import matmul_graph
from tests.support.pairs import paired
from tests.support.running import POLICIES, check_exact, run_plan
from tests.support.tolerance import assert_exact

ENGINE = ConvGroupedMma()
DIRECTIONS = ("forward", "data", "filter")
#: The source of kernels whose warpgroups multiply.
WGMMA = "conv/grouped/conv_grouped_wgmma.cu"


@dataclass(frozen=True)
class Case:
    """A grouped convolution: x and w dims, and the geometry if it is not plain."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    pads: tuple[int, ...] = ()
    post: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    is_flipped: bool = False

    @property
    def geometry(self) -> Convolution:
        spatial = len(self.x) - 2
        pads, ones = self.pads or (0,) * spatial, (1,) * spatial
        mode = ConvolutionMode.CONVOLUTION if self.is_flipped else ConvolutionMode.CROSS_CORRELATION
        return Convolution(
            DataType.FLOAT, spatial, pads, self.post or pads, self.strides or ones, self.dilations or ones, mode=mode
        )

    @property
    def length(self) -> int:
        """Length of the longest sum in any direction."""
        pixels = prod(self.geometry.output_dims(self.x, self.w)[2:]) * self.x[0]
        return max(prod(self.w[2:]) * max(self.w[1], self.w[0] * self.w[1] // self.x[1]), pixels)

    def graph(
        self,
        direction: str,
        data_type: DataType = DataType.BFLOAT16,
        layout: Layout = Layout.CHANNELS_LAST,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        epilogue: bool = False,
    ) -> OperationGraph:
        builder, geometry = CaseBuilder(layout), self.geometry
        y_dims = geometry.output_dims(self.x, self.w)
        store = None if epilogue else data_type
        if direction == "forward":
            x, w = builder.tensor(self.x, data_type), builder.tensor(self.w, data_type)
            value = builder.convolution(x, w, geometry=geometry, store=store, alpha=alpha, beta=beta)
        elif direction == "data":
            dy, w = builder.tensor(y_dims, data_type), builder.tensor(self.w, data_type)
            value = builder.convolution_data_gradient(
                dy, w, self.x, geometry=geometry, store=store, alpha=alpha, beta=beta
            )
        else:
            x, dy = builder.tensor(self.x, data_type), builder.tensor(y_dims, data_type)
            value = builder.convolution_filter_gradient(
                x, dy, self.w, geometry=geometry, store=store, alpha=alpha, beta=beta
            )
        if epilogue:
            bias = builder.tensor((1, value.dims[1], *(1,) * len(self.x[2:])), data_type)
            value = builder.pointwise(PointwiseMode.ADD, value, bias)
            builder.pointwise(PointwiseMode.RELU_FWD, value, store=data_type)
        return builder.graph()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("groups", "channels", "filters"),
    [
        (4, 4, 4),
        (3, 4, 4),
        (5, 8, 8),
        (2, 16, 16),
        (3, 24, 24),
        (2, 32, 32),
        (3, 48, 48),
        (2, 64, 64),
        (9, 2, 2),
        (3, 8, 16),
        (4, 12, 4),
    ],
)
def test_widths_of_groups(device: Runtime, direction: str, groups: int, channels: int, filters: int) -> None:
    case = Case((2, groups * channels, 6, 7), (groups * filters, channels, 3, 3), pads=(1, 1))
    check_exact(device, ENGINE, case.graph(direction), length=case.length)


GEOMETRIES = (
    Case((1, 16, 21), (16, 4, 5), (2,), (1,), (2,)),
    Case((2, 16, 11, 6), (16, 8, 3, 2), (1, 3), (0, 2), (2, 1), (2, 3)),
    Case((1, 32, 5, 6, 7), (32, 16, 3, 2, 3), (1, 0, 2), (1, 1, 0), (1, 2, 1), (1, 1, 2)),
    Case((2, 16, 9, 8), (16, 4, 3, 3), (1, 1), (1, 1), (2, 2)),
    Case((2, 16, 9, 8), (16, 4, 3, 3), (1, 1), (1, 1), (2, 2), is_flipped=True),
    Case((1, 16, 7, 9), (16, 4, 1, 1), (), (), (3, 2)),
    Case((1, 16, 9, 9), (16, 8, 5, 3), (2, 1), (2, 1), is_flipped=True),
    Case((5, 16, 3, 3), (16, 8, 3, 3), (1, 1)),
)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", GEOMETRIES)
def test_geometry(device: Runtime, direction: str, case: Case) -> None:
    check_exact(device, ENGINE, case.graph(direction), length=case.length)


#: Channels in whole and half lines, or six chunks of a line, which are copied by tensor map; filters in their memory
#: layout and rearranged.
MAPPED = (
    Case((5, 64, 6, 5), (64, 16, 3, 3), (1, 1)),
    Case((5, 64, 6, 5), (64, 32, 3, 3), (1, 1), is_flipped=True),
    Case((5, 96, 6, 5), (96, 32, 3, 3), (1, 1)),
    Case((5, 64, 9, 8), (64, 8, 3, 3), (1, 1), (1, 1), (2, 2)),
    Case((5, 32, 9, 7), (32, 16, 3, 3), (1, 1), (0, 1), (2, 2)),
    Case((3, 64, 4, 5, 6), (64, 16, 2, 3, 3), (0, 1, 1), (1, 1, 1), (1, 2, 2)),
    Case((3, 64, 10, 9), (128, 16, 3, 3), (2, 2), (2, 2), (1, 4), (2, 2)),
    Case((5, 96, 6, 5), (96, 48, 3, 3), (1, 1)),
    Case((5, 96, 9, 8), (96, 48, 3, 3), (1, 1), (1, 1), (2, 2)),
    Case((3, 128, 9, 7), (96, 64, 2, 3), (1, 1), (0, 1), (2, 1), is_flipped=True),
    Case((11, 32, 7, 7), (32, 32, 3, 3), (1, 1)),
)
#: A device on which a block takes several tiles of small tensors.
SMALL = replace(SM_90A, sm_count=2)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", MAPPED)
def test_tiles_by_tensor_map(device: Runtime, direction: str, case: Case) -> None:
    choices = {KnobType.TILE_M: 64}
    plan = check_exact(device, ENGINE, case.graph(direction), length=case.length, choices=choices, arch=SMALL)
    assert plan.kernels[0].target == "sm_90a"


@paired(
    ("direction", DIRECTIONS[:2]),
    ("threads", [256, 512]),
    ("data_type", [DataType.HALF, DataType.BFLOAT16]),
)
def test_products_of_warpgroups(device: Runtime, direction: str, threads: int, data_type: DataType) -> None:
    """Backward in the data some residues have three taps, some two and some none."""
    case = Case((5, 96, 9, 8), (96, 48, 5, 1), (2, 0), (2, 0), (2, 2))
    choices = {KnobType.BLOCK_SIZE: threads}
    graph = case.graph(direction, data_type)
    plan = check_exact(device, ENGINE, graph, length=case.length, choices=choices, arch=SMALL)
    assert plan.kernels[0].source == WGMMA


@pytest.mark.parametrize("arch", [SM_80, SM_90A])
@pytest.mark.parametrize("channels", [8, 24, 32, 48, 64])
def test_wgmma_where_filters_are_not_kept(arch: ArchSpec, channels: int) -> None:
    case = Case((2, 2 * channels, 6, 6), (2 * channels, channels, 3, 3), (1, 1))
    source = ENGINE.plan(case.graph("forward"), arch, {}).kernels[0].source
    assert (source == WGMMA) == (arch is SM_90A and channels in (48, 64))


@pytest.mark.parametrize(("channels", "by_warpgroups"), [(32, False), (48, True)])
def test_wgmma_for_many_outputs_alone(channels: int, by_warpgroups: bool) -> None:
    """Four residues keep no filters in registers; with 32 channels wgmma took 29.5 us on an H200, mma.sync 22.0."""
    case = Case((2, 2 * channels, 6, 6), (2 * channels, channels, 3, 3), (1, 1), (1, 1), (2, 2))
    source = ENGINE.plan(case.graph("data"), SM_90A, {}).kernels[0].source
    assert (source == WGMMA) == by_warpgroups


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("channels", [4, 24, 32, 48])
def test_launches_overlap_where_the_device_lets_them(direction: str, channels: int) -> None:
    graph = Case((2, 2 * channels, 6, 6), (2 * channels, channels, 3, 3), (1, 1)).graph(direction)
    for arch in (SM_80, SM_90A):
        assert {launch.overlaps_previous for launch in ENGINE.plan(graph, arch, {}).launches} == {arch is SM_90A}


@paired(
    ("direction", DIRECTIONS),
    ("width", [16, 32, 48]),
    ("scheduled", POLICIES),
    fixtures=["scheduled"],
)
def test_tiles_by_tensor_map_under_every_policy(scheduled: Runtime, direction: str, width: int) -> None:
    channels = 96 if width == 48 else 64
    case = Case((4, channels, 4, 5), (channels, width, 3, 3), (1, 1))
    choices = {KnobType.TILE_M: 64}
    check_exact(scheduled, ENGINE, case.graph(direction), length=case.length, choices=choices, arch=SMALL)


@pytest.mark.parametrize("channels", [16, 64])
def test_boxes_are_copied_over_when_no_warp_reads_them(racing: Runtime, channels: int) -> None:
    """Blocks have three and more tiles each, two of them in shared memory, without and with a tensor map."""
    case, arch = Case((14, channels, 6, 5), (channels, 8, 3, 3), (1, 1)), SM_90A.with_sm_count(1)
    choices = {KnobType.TILE_M: 64}
    plan = check_exact(racing, ENGINE, case.graph("forward"), length=case.length, choices=choices, arch=arch)
    assert plan.launches[0].grid == (2, 1, 1)  # for seven tiles


#: Units of two packs, whose output blocks are an odd number, with filters in registers: two units of a slab, and one.
PAIRED_PACKS = (
    Case((2, 64, 5, 6), (96, 16, 1, 2)),
    Case((2, 64, 5, 6), (160, 16, 1, 1)),
    Case((2, 128, 5, 6), (96, 32, 1, 2)),
)


@pytest.mark.parametrize("case", PAIRED_PACKS)
@pytest.mark.parametrize("direction", DIRECTIONS[:2])
def test_pairs_of_packs_with_filters_in_their_layout(device: Runtime, direction: str, case: Case) -> None:
    """A pair of output blocks lies in two packs, each with filters of its own."""
    if direction == "data":  # the packs' odd numbers are those of the image's channels
        channels, filters = case.w[0] // 4, case.x[1]
        case = replace(case, x=(2, case.w[0], 5, 6), w=(filters, channels, *case.w[2:]))
    plan = check_exact(device, ENGINE, case.graph(direction), length=case.length)
    facts = dict(plan.kernels[0].parameters)
    assert (facts["UNIT_PACKS"], facts["WHOLE_FILTERS"]) == (2, 1)
    assert facts["UNITS"] == (2 if min(case.w[0], case.x[1]) == 64 else 1)


#: Channels in pairs and single, in several parts of a block; one task's taps in several sets; a half-empty task.
SPLIT = (
    Case((4, 64, 6, 5), (64, 16, 3, 3), (1, 1)),
    Case((4, 12, 6, 5), (18, 4, 3, 3), (1, 1)),
    Case((9, 32, 3, 3), (32, 32, 5, 3), (2, 1)),
    Case((4, 8, 6, 5), (16, 8, 3, 3), (1, 1)),
)


@pytest.mark.parametrize("case", SPLIT)
@pytest.mark.parametrize("splits", [1, 2])
def test_splits(device: Runtime, case: Case, splits: int) -> None:
    """One split goes through the epilogue at once."""
    choices = {KnobType.TILE_M: 64, KnobType.SPLIT_K_SLC: splits}
    graph = case.graph("filter", epilogue=True)
    plan = check_exact(device, ENGINE, graph, length=case.length, choices=choices, arch=SMALL)
    assert ("reduce" in plan.kernels[-1].name) == (splits > 1)


def test_one_split_under_every_policy(scheduled: Runtime) -> None:
    case = Case((6, 32, 5, 5), (32, 16, 3, 3), (1, 1))
    choices = {KnobType.TILE_M: 64, KnobType.SPLIT_K_SLC: 1}
    check_exact(scheduled, ENGINE, case.graph("filter"), length=case.length, choices=choices, arch=SMALL)


@pytest.mark.parametrize(("extent", "stride", "stages"), [(7, 1, 4), (14, 2, 2)])
def test_tiles_under_way(extent: int, stride: int, stages: int) -> None:
    """A block has all four tiles at once, with rows of 8 outputs for 7; with halved boxes it has two."""
    case = Case((64, 1024, extent, extent), (1024, 32, 3, 3), (1, 1), (1, 1), (stride, stride))
    plan = ENGINE.plan(case.graph("filter"), SM_90A, {})
    assert dict(plan.kernels[0].parameters)["STAGES"] == stages
    if stages == 4:
        place_bytes, barrier_bytes, tile = 64, 8, 4 * (7 * 8 + 9 * 10)
        assert plan.launches[0].shared_bytes == stages * (tile * place_bytes + barrier_bytes) + 4 * 7 * 8 * 4


@paired(
    ("direction", DIRECTIONS),
    ("data_type", [DataType.HALF, DataType.FLOAT]),
    ("layout", [Layout.CHANNELS_LAST, Layout.ROW_MAJOR]),
)
def test_types_and_layouts(device: Runtime, direction: str, data_type: DataType, layout: Layout) -> None:
    case = Case((2, 12, 5, 6), (18, 4, 3, 3), pads=(1, 1))
    check_exact(device, ENGINE, case.graph(direction, data_type, layout), length=case.length)


@pytest.mark.parametrize("case", [Case((1, 32, 5, 6), (16, 16, 3, 3), (1, 1)), Case((1, 128, 9), (160, 32, 1))])
def test_int8_forward(device: Runtime, case: Case) -> None:
    """The second case has two units of two packs."""
    geometry, builder = replace(case.geometry, compute_type=DataType.INT32), CaseBuilder(Layout.CHANNELS_LAST)
    x, w = builder.tensor(case.x, DataType.INT8), builder.tensor(case.w, DataType.INT8)
    builder.convolution(x, w, geometry=geometry, store=DataType.INT32)
    check_exact(device, ENGINE, builder.graph(), length=case.length)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_alpha_beta_and_epilogue(device: Runtime, direction: str) -> None:
    case = Case((2, 12, 5, 6), (12, 4, 3, 3), pads=(1, 1))
    check_exact(device, ENGINE, case.graph(direction, alpha=2.0, beta=1.0), length=case.length)
    check_exact(device, ENGINE, case.graph(direction, epilogue=True), length=case.length)


@pytest.mark.parametrize("places", [64, 256])
def test_limits_of_places(device: Runtime, places: int) -> None:
    case = Case((3, 64, 11, 13), (64, 8, 3, 3), pads=(1, 1))
    check_exact(device, ENGINE, case.graph("forward"), length=case.length, choices={KnobType.TILE_M: places})


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_scheduling_policy(scheduled: Runtime, direction: str) -> None:
    case = Case((2, 16, 7, 6), (16, 4, 3, 3), pads=(1, 1), strides=(2, 1))
    check_exact(scheduled, ENGINE, case.graph(direction), length=case.length)


@pytest.mark.parametrize("direction", DIRECTIONS[:2])
@pytest.mark.parametrize("width", [2, 4])
def test_infinities_stay_in_their_group(device: Runtime, direction: str, width: int) -> None:
    """The zeros between the groups of a pack, and those of a null tap, must not be multiplied with an infinity or a
    NaN.
    """
    case = Case((1, 4 * width, 5, 4), (4 * width, width, 3, 3), pads=(1, 1))
    graph = case.graph(direction, DataType.HALF)
    inputs = {tensor.uid: np.ones(tensor.dims, np.float16) for tensor in graph.inputs}
    source = inputs[next(tensor.uid for tensor in graph.inputs if tensor.dims == case.x)]
    source[0, width, 2, 2], source[0, 2 * width + 1, 4, 3] = np.inf, np.nan
    (actual,) = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs).values()
    with np.errstate(invalid="ignore"):
        (expected,) = evaluate(graph, inputs).values()
    assert np.isinf(expected).any()
    assert np.isnan(expected).any()
    assert_exact(actual, expected, DataType.HALF)


@pytest.mark.parametrize(
    ("channels", "width", "extent", "stride", "measured_us"),
    [
        (256, 8, 56, 2, 36.0),
        (512, 16, 28, 2, 22.0),
        (1024, 32, 14, 2, 15.8),
        (1024, 32, 7, 1, 12.5),
        (512, 16, 14, 1, 14.7),
        (192, 48, 56, 2, 44.7),
        (432, 48, 28, 2, 33.3),
    ],
)
def test_estimates_of_filter_gradients(channels: int, width: int, extent: int, stride: int, measured_us: float) -> None:
    """The model is compared with an H200, for boxes by tensor map: reads of six chunks' odd warps and of torn rows are
    counted.
    """
    case = Case((64, channels, extent, extent), (channels, width, 3, 3), (1, 1), (1, 1), (stride, stride))
    plan = ENGINE.plan(case.graph("filter"), SM_90A, {})
    assert plan_us(plan, SM_90A) == pytest.approx(measured_us, rel=0.08)


def test_data_gradients_need_no_workspace() -> None:
    plan = ENGINE.plan(Case((2, 16, 6, 6), (16, 4, 3, 3)).graph("data"), SM_90A, {})
    assert plan.workspace_bytes == 0


def test_refusals_name_field_limit_and_value() -> None:
    def reason(case: Case, data_type: DataType = DataType.HALF) -> str:
        refusal = ENGINE.refuse(case.graph("forward", data_type), SM_90A)
        assert refusal is not None
        return str(refusal)

    assert "expected exactly one ConvolutionOperation" in str(ENGINE.refuse(matmul_graph(), SM_90A))
    assert "expected at most 64 channels" in reason(Case((1, 256, 6, 6), (256, 128, 3, 3)))
    assert "filter.dims[1]: expected a multiple of 2, got 3" in reason(Case((1, 24, 6, 6), (24, 3, 3, 3)))
    assert "expected at most 128 taps, got 143" in reason(Case((1, 32, 13, 13), (32, 16, 13, 11)))
    assert "bytes of shared memory" in reason(Case((1, 128, 400, 400), (128, 64, 3, 3), dilations=(99, 99)))
