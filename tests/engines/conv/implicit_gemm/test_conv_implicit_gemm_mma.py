from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.conv.implicit_gemm.conv_implicit_gemm_mma import ConvImplicitGemmMma
from lowdnn.enums import ConvolutionMode, DataType, KnobType, NumericalNote, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.convolution import Convolution
from lowdnn.plan import MathUnit
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import NotSupportedError, Status
from tests.support.builders import convolution_graph, matmul_graph
from tests.support.data import fresh_seed
from tests.support.pairs import in_turn, paired
from tests.support.running import POLICIES, check_close, check_exact, check_outputs

ENGINE = ConvImplicitGemmMma()
TYPES = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT, DataType.INT8)

#: Filters that are too wide for masks of taps, where tiles are larger than what is left of rows and of k.
WIDE = (
    "n=2 c=4 hw=70 k=8 rs=67 pad=33:9",
    "n=1 c=4 hw=3x140 k=8 rs=1x67 stride=1x2 dil=1x2 pad=0x20 mode=flipped",
    "n=1 c=12 hw=37x5 k=8 rs=33x2 pad=7:4x1 mode=flipped",
    "n=3 c=8 hw=18x18 k=8 rs=17x16 pad=3:1x2 stride=2",
    "n=1 c=8 hw=4x5x21 k=8 rs=2x2x11 pad=1x0x3 stride=1x2x1 dil=1x1x2 mode=flipped",
)


def compute_type(data_type: DataType) -> DataType:
    return DataType.INT32 if data_type is DataType.INT8 else DataType.FLOAT


def knobs(m: int, n: int, splits: int = 1) -> dict[KnobType, int]:
    return {KnobType.TILE_M: m, KnobType.TILE_N: n, KnobType.STAGES: 3, KnobType.SPLIT_K_SLC: splits}


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("layout", [Layout.CHANNELS_LAST, Layout.ROW_MAJOR])
def test_types_and_layouts(device: Runtime, data_type: DataType, layout: Layout) -> None:
    compute = compute_type(data_type)
    graph = convolution_graph(
        (2, 24, 7, 9), (40, 24, 3, 3), data_type=data_type, compute_type=compute, layout=layout, pads=(1, 1)
    )
    check_exact(device, ENGINE, graph, length=24 * 9)


@pytest.mark.parametrize(
    ("x_dims", "w_dims", "pads", "strides", "dilations"),
    [
        ((1, 16, 21), (24, 16, 5), (2,), (2,), (1,)),
        ((2, 8, 11, 6), (8, 8, 3, 2), (1, 3), (2, 1), (2, 3)),
        ((1, 8, 5, 6, 7), (16, 8, 3, 2, 3), (1, 0, 2), (1, 2, 1), (1, 1, 2)),
        ((2, 72, 5, 5), (40, 72, 1, 1), (0, 0), (2, 2), (1, 1)),
        ((1, 8, 4, 20), (8, 8, 1, 17), (0, 8), (1, 1), (1, 1)),
        ((1, 8, 1, 1), (8, 8, 3, 3), (1, 1), (1, 1), (1, 1)),
    ],
)
def test_geometry(
    device: Runtime,
    x_dims: tuple[int, ...],
    w_dims: tuple[int, ...],
    pads: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> None:
    for layout in (Layout.CHANNELS_LAST, Layout.ROW_MAJOR):
        graph = convolution_graph(
            x_dims, w_dims, data_type=DataType.BFLOAT16, layout=layout, pads=pads, strides=strides, dilations=dilations
        )
        check_exact(device, ENGINE, graph, length=w_dims[1] * 9)


def test_separate_paddings_and_a_flipped_filter(device: Runtime) -> None:
    geometry = Convolution(DataType.FLOAT, 2, (2, 0), (1, 3), (1, 2), (2, 1), mode=ConvolutionMode.CONVOLUTION)
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x = builder.tensor((2, 8, 9, 8), DataType.HALF)
    w = builder.tensor((16, 8, 3, 4), DataType.HALF)
    builder.convolution(x, w, geometry=geometry, store=DataType.HALF)
    check_exact(device, ENGINE, builder.graph(), length=8 * 12)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("line", WIDE)
def test_wide_filters(device: Runtime, line: str, layout: str) -> None:
    case = parse_case(f"conv {line} layout={layout} dtype=bf16")
    plan = check_exact(device, ENGINE, case.graph(), length=case.length, choices=knobs(32, 32))
    assert dict(plan.kernels[-1].parameters)["TAPS_INSIDE"] == "TapBounds"


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("hw=37 rs=31", "TapMasks"),
        ("hw=37 rs=32", "TapBounds"),
        ("hw=18x17 rs=15x1", "TapMasks"),
        ("hw=18x17 rs=1x16", "TapBounds"),
        ("hw=3x2x14 rs=1x2x9", "TapMasks"),
        ("hw=3x2x14 rs=1x2x10", "TapBounds"),
        ("hw=11x2x2 rs=9x1x1", "TapMasks"),
    ],
)
def test_the_widest_filters_with_masks(device: Runtime, line: str, form: str) -> None:
    case = parse_case(f"conv n=2 c=4 k=8 {line} dtype=fp16")
    plan = check_exact(device, ENGINE, case.graph(), length=case.length, choices=knobs(32, 32))
    assert dict(plan.kernels[-1].parameters)["TAPS_INSIDE"] == form


@pytest.mark.parametrize("mode", ["", "mode=flipped"])
@pytest.mark.parametrize("taps", [5, 33])
def test_nan_behind_the_last_tap_does_not_spread(device: Runtime, taps: int, mode: str) -> None:
    """k ends within a tile, whose rest would reach the NaN: no output reads them."""
    case = parse_case(f"conv n=2 c=4 hw={taps + 3} k=8 rs={taps} stride=4 {mode} dtype=fp16")
    graph, seed = case.graph(), fresh_seed()
    inputs = case.inputs(seed, exact=True)
    inputs[graph.operations[0].x.uid][:, :, taps:] = np.nan  # type: ignore[union-attr]
    plan = ENGINE.plan(graph, SM_90A, knobs(32, 32))
    check_outputs(device, plan, graph, inputs, case.length, f"seed {seed}")


@pytest.mark.parametrize(("channels", "unit_bytes"), [(1, 8), (3, 8), (4, 8), (5, 16), (12, 8), (24, 16)])
def test_channels_that_fill_no_chunk(device: Runtime, channels: int, unit_bytes: int) -> None:
    graph = convolution_graph((1, channels, 9, 8), (16, channels, 3, 3), data_type=DataType.BFLOAT16, pads=(1, 1))
    plan = check_exact(device, ENGINE, graph, length=channels * 9)
    assert dict(plan.kernels[-1].parameters)["ALIGNMENT"] == unit_bytes


def test_padded_channels_last_strides_are_read_in_place(device: Runtime) -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x = builder.tensor((2, 16, 6, 5), DataType.BFLOAT16, strides=(1200, 1, 160, 24))
    w = builder.tensor((24, 16, 3, 3), DataType.BFLOAT16)
    geometry = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    builder.convolution(x, w, geometry=geometry, store=DataType.BFLOAT16)
    plan = check_exact(device, ENGINE, builder.graph(), length=144)
    assert len(plan.launches) == 1


@pytest.mark.parametrize("x_strides", [(0, 1, 80, 16), (480, 1, 0, 16), (480, 1, 80, 0), (480, 0, 80, 16)])
@pytest.mark.parametrize("w_strides", [(144, 1, 48, 16), (0, 1, 48, 16), (144, 0, 48, 16)])
def test_repeated_elements_of_stride_zero(
    device: Runtime, x_strides: tuple[int, ...], w_strides: tuple[int, ...]
) -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x = builder.tensor((2, 16, 6, 5), DataType.BFLOAT16, strides=x_strides)
    w = builder.tensor((24, 16, 3, 3), DataType.BFLOAT16, strides=w_strides)
    geometry = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    builder.convolution(x, w, geometry=geometry, store=DataType.BFLOAT16)
    check_exact(device, ENGINE, builder.graph(), length=144)


def test_mixed_layouts_repack_what_needs_it(device: Runtime) -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x = builder.tensor((2, 16, 6, 5), DataType.BFLOAT16)
    w = builder.tensor((24, 16, 3, 3), DataType.BFLOAT16, layout=Layout.ROW_MAJOR)
    geometry = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    builder.convolution(x, w, geometry=geometry, store=DataType.BFLOAT16, layout=Layout.ROW_MAJOR)
    plan = check_exact(device, ENGINE, builder.graph(), length=144)
    assert len(plan.launches) == 2
    assert plan.workspace_bytes >= 24 * 16 * 9 * 2


@pytest.mark.parametrize("layout", [Layout.CHANNELS_LAST, Layout.ROW_MAJOR])
def test_groups(device: Runtime, layout: Layout) -> None:
    for channels, filters in ((8, 8), (24, 11), (10, 12)):
        graph = convolution_graph(
            (1, 3 * channels, 6, 7), (3 * filters, channels, 3, 3), data_type=DataType.HALF, layout=layout, pads=(1, 1)
        )
        check_exact(device, ENGINE, graph, length=channels * 9)


@pytest.mark.parametrize("layout", [Layout.CHANNELS_LAST, Layout.ROW_MAJOR])
@pytest.mark.parametrize("groups", [1, 2])
def test_split_sums(device: Runtime, layout: Layout, groups: int) -> None:
    graph = convolution_graph(
        (1, 64 * groups, 5, 5),
        (24 * groups, 64, 3, 3),
        data_type=DataType.BFLOAT16,
        layout=layout,
        pads=(1, 1),
        epilogue=(PointwiseMode.RELU_FWD,),
    )
    plan = check_exact(device, ENGINE, graph, length=576, choices=knobs(64, 64, splits=4))
    assert plan.kernels[-1].name.startswith("gemm_split_k_reduce")


@pytest.mark.parametrize(
    ("m", "n"), [(256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (32, 32)]
)
def test_tiles(device: Runtime, m: int, n: int) -> None:
    graph = convolution_graph((1, 40, 17, 18), (n + 8, 40, 2, 2), data_type=DataType.BFLOAT16)
    check_exact(device, ENGINE, graph, length=160, choices=knobs(m, n))


def test_alpha_beta_and_epilogue(device: Runtime) -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x, w = builder.tensor((2, 8, 6, 6), DataType.BFLOAT16), builder.tensor((16, 8, 3, 3), DataType.BFLOAT16)
    bias = builder.tensor((1, 16, 1, 1), DataType.BFLOAT16)
    geometry = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    y = builder.convolution(x, w, geometry=geometry, store=DataType.BFLOAT16, alpha=2.0, beta=1.0)
    builder.pointwise(PointwiseMode.ADD, y, bias, store=DataType.BFLOAT16)
    check_exact(device, ENGINE, builder.graph(), length=72)


@paired(
    ("splits", [1, 2]),
    ("layout", [Layout.CHANNELS_LAST, Layout.ROW_MAJOR]),
    ("scheduled", POLICIES),
    fixtures=["scheduled"],
)
def test_every_scheduling_policy(scheduled: Runtime, layout: Layout, splits: int) -> None:
    graph = convolution_graph(
        (1, 16, 7, 7), (24, 16, 3, 3), data_type=DataType.HALF, layout=layout, epilogue=(PointwiseMode.RELU_FWD,)
    )
    check_exact(scheduled, ENGINE, graph, length=144, choices=knobs(64, 64, splits))


@paired(
    (("line", "checked"), in_turn(WIDE, (*POLICIES, "fuzz(7),early,races"))),
    ("splits", [1, 2]),
    fixtures=["checked"],
)
def test_wide_filters_under_every_policy(checked: Runtime, line: str, splits: int) -> None:
    case = parse_case(f"conv {line} dtype=fp16")
    check_exact(checked, ENGINE, case.graph(), length=case.length, choices=knobs(32, 32, splits))


def test_real_numbers(device: Runtime) -> None:
    half = convolution_graph((1, 32, 8, 8), (16, 32, 3, 3), data_type=DataType.HALF, pads=(1, 1))
    check_close(device, ENGINE, half, length=288)
    single = convolution_graph((1, 32, 8, 8), (16, 32, 3, 3), data_type=DataType.FLOAT, pads=(1, 1))
    plan = check_close(device, ENGINE, single, length=288)
    assert NumericalNote.TF32_INPUTS in plan.numerical_notes


def test_plan_counts_its_work() -> None:
    graph = convolution_graph((2, 64, 8, 8), (64, 64, 3, 3), data_type=DataType.BFLOAT16, pads=(1, 1))
    plan = ENGINE.plan(graph, SM_80, knobs(64, 64))
    assert plan.work.flops == 2 * 128 * 64 * 576
    assert plan.work.bytes == 2 * (2 * 128 * 64 + 64 * 576)
    assert plan.work.unit is MathUnit.MMA_F16
    assert plan.workspace_bytes == 0


def test_refusals_name_field_limit_and_value() -> None:
    def reason(graph: OperationGraph) -> str:
        refusal = ENGINE.refuse(graph, SM_90A)
        assert refusal is not None
        return str(refusal)

    assert "expected exactly one ConvolutionForward" in reason(matmul_graph())
    double = convolution_graph(data_type=DataType.DOUBLE, compute_type=DataType.DOUBLE)
    assert "x.data_type: expected one of HALF" in reason(double)
    narrow = convolution_graph((1, 16, 6, 6), (16, 4, 3, 3), data_type=DataType.HALF)
    assert "expected at least 8 channels and filters in a group, got 4 and 4" in reason(narrow)
    refusal = ENGINE.refuse(narrow, SM_90A)
    assert refusal is not None
    assert refusal.status is Status.NOT_SUPPORTED_SHAPE
    with pytest.raises(NotSupportedError, match="channels and filters"):
        ENGINE.plan(narrow, SM_90A, {})


def test_offsets_past_32_bits_are_refused() -> None:
    graph = convolution_graph((1, 16, 4, 4), (16, 16, 1, 1), data_type=DataType.HALF)
    operation = graph.operations[0]
    far = replace(operation.x, strides=(2**40, 1, 2**36, 16))  # type: ignore[union-attr]
    refusal = ENGINE.refuse(OperationGraph([replace(operation, x=far)]), SM_90A)  # type: ignore[type-var]
    assert refusal is not None
    assert "units of 16 bytes in x" in str(refusal)


def test_paddings_past_32_bits_are_refused() -> None:
    """Also where x repeats its elements along the axis, so that all lie side by side."""
    geometry = Convolution(DataType.FLOAT, 2, (0, 2**30), (0, 2**30), (1, 2**20), (1, 1))
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x = builder.tensor((1, 16, 4, 4), DataType.HALF, strides=(64, 1, 16, 0))
    w = builder.tensor((16, 16, 1, 1), DataType.HALF)
    builder.convolution(x, w, geometry=geometry, store=DataType.HALF)
    refusal = ENGINE.refuse(builder.graph(), SM_90A)
    assert refusal is not None
    assert "positions along an axis and its padding, got 4294967300" in str(refusal)
