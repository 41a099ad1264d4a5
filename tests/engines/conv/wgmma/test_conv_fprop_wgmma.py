from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.base import Engine
from lowdnn.engines.conv.wgmma.conv_dgrad_wgmma import ConvDgradWgmma
from lowdnn.engines.conv.wgmma.conv_fprop_wgmma import ConvFpropWgmma
from lowdnn.enums import DataType, KnobType, NumericalNote, PointwiseMode
from lowdnn.ops.convolution import Convolution
from lowdnn.plan import MathUnit, Plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import NotSupportedError, Status
from tests.support.builders import convolution_graph, matmul_graph
from tests.support.pairs import in_turn, paired
from tests.support.running import check_close, check_exact, run_plan
from tests.support.tolerance import assert_exact

ENGINE = ConvFpropWgmma()
#: A device with so few multiprocessors that each block has several tiles.
SMALL = SM_90A.with_sm_count(3)


def check(device: Runtime, line: str, **choices: int) -> Plan:
    """Runs a case; ``choices``: knobs by name."""
    case = parse_case(line)
    chosen = {KnobType[name]: value for name, value in choices.items()}
    return check_exact(device, ENGINE, case.graph(), length=case.length, choices=chosen, arch=SMALL)


def tile(m: int, n: int, warps: int, cluster: tuple[int, int] = (1, 1), stages: int = 2) -> dict[str, int]:
    cluster_m, cluster_n = cluster
    return {
        "TILE_M": m,
        "TILE_N": n,
        "STAGES": stages,
        "WARP_SPEC_CFG": warps,
        "TILE_CGA_M": cluster_m,
        "TILE_CGA_N": cluster_n,
    }


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "int8", "e4m3 out=bf16", "e5m2 out=fp16"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_types_and_layouts(device: Runtime, dtype: str, layout: str) -> None:
    check(device, f"conv n=2 c=48 hw=7x9 k=40 rs=3x3 pad=1 layout={layout} dtype={dtype}")


@pytest.mark.parametrize(("warps", "swap"), [(0, 0), (1, 1), (2, 0)])
def test_sums_of_fp8_are_promoted_unless_the_compute_type_is_fast(device: Runtime, warps: int, swap: int) -> None:
    line = "conv n=1 c=144 hw=9x8 k=40 rs=3x3 pad=1 dtype=e4m3 out=bf16"
    plan = check(device, line, SWAP_AB=swap, **tile(128 if warps == 0 else 64, 32, warps))
    assert dict(plan.kernels[0].parameters)["PROMOTED"] == 1
    assert plan.numerical_notes == (NumericalNote.TENSOR_CORE,)
    fast = ENGINE.plan(parse_case(f"{line} compute=fast").graph(), SM_90A, {})
    assert dict(fast.kernels[0].parameters)["PROMOTED"] == 0
    assert NumericalNote.REDUCED_PRECISION_REDUCTION in fast.numerical_notes


@pytest.mark.parametrize(
    "line",
    [
        "conv n=2 c=16 hw=21 k=24 rs=5 pad=2 stride=2",
        "conv n=2 c=8 hw=300 k=8 rs=3 pad=200:0 dil=200",
        "conv n=2 c=72 hw=11x6 k=8 rs=3x2 pad=1x3 stride=2x1 dil=2x3",
        "conv n=2 c=64 hw=9x8 k=40 rs=3x4 pad=0:2x1:0 mode=flipped",
        "conv n=2 c=72 hw=5x5 k=40 rs=1x1 stride=2",
        "conv n=1 c=8 hw=1x1 k=8 rs=3x3 pad=1",
        "conv n=3 c=8 hw=17x17 k=8 rs=1x1 stride=8",
        "conv n=1 c=40 hw=5x6x7 k=16 rs=3x2x3 pad=1x0x2 stride=1x2x1 dil=1x1x2",
        "conv n=1 c=3 hw=9x8 k=130 rs=3x3 pad=1",
    ],
)
def test_geometry(device: Runtime, line: str) -> None:
    check(device, f"{line} dtype=bf16")


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_groups(device: Runtime, dtype: str, layout: str) -> None:
    check(device, f"conv n=2 c=128 hw=6x7 k=80 rs=3x3 pad=1 groups=2 layout={layout} dtype={dtype} epilogue=bias+relu")


@paired(
    ("swap", [0, 1]),
    ("splits", [1, 3]),
    ("layout", ["nhwc", "nchw"]),
    ("groups", [1, 2]),
)
def test_parts_of_k_and_tiles_across_the_output(
    device: Runtime, swap: int, splits: int, layout: str, groups: int
) -> None:
    line = f"conv n=2 c=128 hw=6x7 k=72 rs=2x2 groups={groups} layout={layout} dtype=fp16 epilogue=bias"
    check(device, line, SWAP_AB=swap, SPLIT_K_SLC=splits, SPECFILT=0, **tile(64, 64, 1))


@pytest.mark.parametrize(("epilogue", "swap"), [("residual", 0), ("bias", 1)])
def test_a_cluster_shares_the_k_of_a_tile(device: Runtime, epilogue: str, swap: int) -> None:
    line = f"conv n=2 c=72 hw=6x7 k=72 rs=2x2 dtype=fp16 epilogue={epilogue}"
    plan = check(device, line, SWAP_AB=swap, TILE_CGA_K=2, SPECFILT=0, **tile(64, 64, 1))
    assert plan.launches[0].cluster == (2, 1, 1)


@pytest.mark.parametrize(
    ("m", "n", "warps", "cluster"),
    [(128, 256, 0, (1, 1)), (256, 128, 0, (2, 1)), (128, 128, 1, (1, 2)), (64, 192, 2, (1, 1)), (128, 80, 1, (2, 1))],
)
def test_tiles(device: Runtime, m: int, n: int, warps: int, cluster: tuple[int, int]) -> None:
    line = f"conv n=1 c=64 hw=17x18 k={n + 8} rs=2x2 dtype=bf16"
    check(device, line, SPECFILT=0, **tile(m, n, warps, cluster))


@pytest.mark.parametrize(
    ("line", "swap"),
    in_turn(
        [
            "conv n=2 c=64 hw=10x9 k=64 rs=3x3 pad=1 dtype=bf16 epilogue=bias+relu",
            "conv n=2 c=72 hw=5x9 k=72 rs=3x5 pad=0:2x1:0 dtype=fp16 mode=flipped",
            "conv n=2 c=32 hw=9x12 k=64 rs=2x3 dil=1x3 pad=0x4 stride=2x1 dtype=fp16 epilogue=add+relu",
            "conv n=2 c=64 hw=70 k=64 rs=7 pad=3 dtype=e4m3 out=bf16",
            "conv n=1 c=24 hw=4x5x6 k=40 rs=3x2x3 pad=1x0x2 dtype=fp32",
            "conv n=2 c=72 hw=4x5x6 k=72 rs=3x1x1 pad=1x0x0 dtype=bf16 epilogue=bias+relu",
            "conv n=2 c=64 hw=3x9x4 k=64 rs=2x3x1 pad=0x1:0x1 dil=1x2x1 dtype=fp16 mode=flipped",
            "conv n=2 c=20 hw=9x6 k=64 rs=4x1 pad=2x0 dtype=bf16",
            "conv n=2 c=128 hw=6x7 k=80 rs=3x3 groups=2 dtype=bf16",
        ],
        (0, 1),
    ),
)
def test_windows(device: Runtime, line: str, swap: int) -> None:
    check(device, line, SPECFILT=1, SWAP_AB=swap, **tile(64, 64, 1))


@pytest.mark.parametrize(
    ("line", "way", "swap"),
    [
        ("c=64 hw=5x13 k=64 rs=2x11 pad=1x5 dtype=fp16 epilogue=bias+relu", 1, 0),
        ("c=72 hw=3x20 k=40 rs=1x8 pad=0x3 mode=flipped dtype=bf16", 1, 1),
        ("c=64 hw=40 k=16 rs=13 pad=6 dil=2 dtype=e4m3 out=bf16", 2, 1),
        ("c=20 hw=14x4 k=64 rs=9x1 pad=2x0 dtype=bf16", 2, 0),
        ("c=24 hw=3x3x9 k=24 rs=2x1x9 pad=1x0x7:0 dtype=fp32", 3, 0),
    ],
)
def test_windows_of_fewer_taps(racing: Runtime, line: str, way: int, swap: int) -> None:
    """Filters of more taps along an axis than a window has, with a last window that has all or fewer."""
    check(racing, f"conv n=2 {line}", SPECFILT=way, SWAP_AB=swap, **tile(64, 64, 1))


@pytest.mark.parametrize(
    ("line", "swap"),
    in_turn(
        [
            "conv n=3 c=64 hw=9x10 k=72 rs=3x3 pad=6 dil=6 dtype=bf16",
            "conv n=2 c=72 hw=9x8 k=64 rs=3x3 pad=3 dil=3 mode=flipped alpha=2 beta=1 dtype=fp16",
            # One tap reads the image, for all pixels.
            "conv n=2 c=24 hw=4x5 k=24 rs=3x3 pad=9 dil=9 dtype=int8 out=int32",
            "conv n=2 c=40 hw=3x3 k=24 rs=2x2 pad=4:6 dtype=bf16",  # pixels whose taps all read padding
            "conv n=2 c=24 hw=13x11 k=40 rs=3x2 pad=4:6x1:3 dil=3x4 stride=2x1 dtype=bf16",
            "conv n=2 c=24 hw=10x9 k=40 rs=5x4 pad=6x1 dil=3x2 stride=2x3 dtype=fp32",
            "conv n=4 c=40 hw=21 k=96 rs=5 pad=8 dil=4 dtype=e4m3 out=bf16",
            "conv n=1 c=64 hw=4x5x6 k=32 rs=3x1x3 pad=2x0x4 dil=2x1x4 epilogue=bias+relu dtype=bf16",
            "conv n=2 c=128 hw=6x7 k=80 rs=3x3 pad=3 dil=3 groups=2 dtype=bf16",
        ],
        (0, 1),
    ),
)
def test_split_edges(device: Runtime, line: str, swap: int) -> None:
    plan = check(device, line, EDGE=1, SPECFILT=0, SWAP_AB=swap, **tile(64, 64, 1))
    whole = ENGINE.plan(parse_case(line).graph(), SMALL, {KnobType.EDGE: 0})
    assert dict(plan.kernels[-1].parameters)["PIXEL_CLASSES"] >= dict(whole.kernels[-1].parameters)["PIXEL_CLASSES"]


def test_split_edges_meet_no_races(racing: Runtime) -> None:
    line = "conv n=3 c=72 hw=9x10 k=104 rs=3x3 pad=6 dil=6 dtype=bf16"
    plan = check(racing, line, EDGE=1, SPECFILT=0, SWAP_AB=0, **{**tile(64, 64, 1), "TILE_CGA_N": 2})
    assert "pixels" in plan.kernels[-1].name


def test_split_edges_multiply_no_padding() -> None:
    """The outer ones of three taps along an axis read 5 of 11 pixels: 21 of 33 pairs are valid, and the square for two
    axes.
    """
    line = "conv n=64 c=64 hw=11x11 k=64 rs=3x3 pad=6 dil=6 dtype=bf16"
    split, whole = (
        ENGINE.plan(parse_case(line).graph(), SM_90A, {KnobType.EDGE: edge, KnobType.TILE_M: 64, KnobType.TILE_N: 64})
        for edge in (1, 0)
    )
    assert split.work.flops / whole.work.flops == pytest.approx((21 / 33) ** 2, rel=0.03)


@pytest.mark.parametrize(
    ("m", "n", "warps", "cluster", "swap"),
    [
        (64, 128, 1, (1, 1), 1),
        (64, 128, 1, (2, 1), 1),
        (64, 64, 2, (1, 2), 1),
        (128, 64, 0, (2, 1), 0),
        (128, 128, 0, (1, 2), 0),
    ],
)
def test_tiles_of_windows(racing: Runtime, m: int, n: int, warps: int, cluster: tuple[int, int], swap: int) -> None:
    line = "conv n=2 c=72 hw=7x11 k=136 rs=3x3 pad=1 dtype=bf16"
    check(racing, line, SPECFILT=1, SWAP_AB=swap, **tile(m, n, warps, cluster))


@pytest.mark.parametrize(
    "line", ["c=64 hw=20x23 k=64 rs=3x3 pad=1", "c=72 hw=7x9 k=40 rs=2x3", "c=32 hw=300 k=8 rs=7 pad=3"]
)
def test_filters_that_stay_in_shared_memory(racing: Runtime, line: str) -> None:
    check(racing, f"conv n=2 {line} dtype=bf16", SPECFILT=2, SWAP_AB=1, **tile(64, 128, 1))


@pytest.mark.parametrize(
    ("line", "m", "n", "warps"),
    [
        ("c=24 hw=20x23 k=40 dtype=bf16 epilogue=bias+relu", 128, 48, 1),
        ("c=72 hw=17x23 k=64 stride=2 dtype=fp16", 128, 64, 0),
        ("c=12 hw=300 k=72 dtype=fp32", 64, 96, 1),
    ],
)
def test_filters_of_one_tap_that_stay_in_shared_memory(racing: Runtime, line: str, m: int, n: int, warps: int) -> None:
    taps = "rs=1" if "hw=300" in line else "rs=1x1"
    check(racing, f"conv n=2 {line} {taps}", SPECFILT=1, SWAP_AB=0, **tile(m, n, warps))


@paired(
    ("line", ["c=32 k=40 dtype=bf16", "c=128 k=64 groups=2 dtype=fp16", "c=36 k=24 dtype=fp32"]),
    (("ways", "swap"), [(0, 0), (0, 1), (1, 0), (1, 1)]),
    ("is_half", [False, True]),
)
def test_depths_of_a_stage(racing: Runtime, line: str, ways: int, swap: int, is_half: bool) -> None:
    whole = 32 if "fp32" in line else 64
    choices = {"SPECFILT": ways, "SWAP_AB": swap, "TILEK": whole // 2 if is_half else whole}
    check(racing, f"conv n=2 hw=7x9 rs=3x3 pad=1 {line}", **choices, **tile(64, 64, 1))


@pytest.mark.parametrize(
    ("channels", "depth"),
    [(16, 32), (32, 32), (48, 64), (64, 64), (96, 32), (144, 32), (288, 32), (352, 64), (928, 64)],
)
def test_few_stages_are_not_half_empty(channels: int, depth: int) -> None:
    graph = parse_case(f"conv n=2 c={channels} hw=8x8 k=64 rs=3x3 dtype=bf16").graph()
    assert {knob.type: knob.default for knob in ENGINE.knobs(graph, SM_90A)}[KnobType.TILEK] == depth


def test_few_filters_have_windows() -> None:
    graph = parse_case("conv n=128 c=64 hw=112x112 k=64 rs=3x3 pad=1 dtype=bf16").graph()
    assert {knob.type: knob.default for knob in ENGINE.knobs(graph, SM_90A)}[KnobType.SPECFILT]
    for filters in ("rs=3x3 stride=2", "rs=3x1 stride=2x1", "rs=3x3 dil=17", "rs=3x3 layout=nchw"):
        graph = parse_case(f"conv n=2 c=64 hw=40x40 k=64 {filters} dtype=bf16").graph()
        assert next(knob for knob in ENGINE.knobs(graph, SM_90A) if knob.type is KnobType.SPECFILT).values == (0,)


def test_wide_filters_have_windows_of_fewer_taps() -> None:
    graph = parse_case("conv n=8 c=64 hw=64x64 k=64 rs=31x31 pad=15 dtype=fp16").graph()
    for place, taps in enumerate((4, 3, 2), 1):
        (kernel,) = ENGINE.plan(graph, SM_90A, {KnobType.SPECFILT: place, KnobType.STAGES: 2}).kernels
        assert dict(kernel.parameters)["TAP_RUN"] == taps
        assert dict(kernel.parameters)["LAST_RUN"] == 31 - 30 // taps * taps


@pytest.mark.parametrize(("layer", "stays"), [("c=24 hw=56x56 k=144", 1), ("c=240 hw=14x14 k=80", 0)])
def test_a_filter_stays_where_blocks_have_several_tiles(layer: str, stays: int) -> None:
    graph = parse_case(f"conv n=64 {layer} rs=1x1 dtype=bf16").graph()
    assert {knob.type: knob.default for knob in ENGINE.knobs(graph, SM_90A)}[KnobType.SPECFILT] == stays


@pytest.mark.parametrize("tail", ["epilogue=bias+relu", "epilogue=add+swish", "alpha=2 beta=1 epilogue=store+relu"])
@pytest.mark.parametrize("by_map", [0, 1])
def test_epilogues(device: Runtime, tail: str, by_map: int) -> None:
    case = parse_case(f"conv n=2 c=64 hw=6x6 k=72 rs=3x3 pad=1 dtype=fp32 {tail}")
    choices = {KnobType.OUTPUT_TMA_ENABLE: by_map}
    check_close(device, ENGINE, case.graph(), length=case.length, choices=choices, arch=SMALL)


@pytest.mark.parametrize("line", ["rs=1x1 epilogue=bias+add+relu out=fp32", "rs=3x3 pad=1 groups=2 alpha=2 beta=1"])
def test_an_operand_of_the_epilogue_comes_by_tensor_map(scheduled: Runtime, line: str) -> None:
    plan = check(scheduled, f"conv n=3 c=128 hw=9x8 k=208 {line} dtype=bf16", **tile(128, 96, 1))
    assert "_map_ahead" in plan.kernels[-1].name


@pytest.mark.parametrize("choices", [{}, tile(128, 128, 1, (2, 1), stages=3)])
def test_every_scheduling_policy(scheduled: Runtime, choices: dict[str, int]) -> None:
    check(scheduled, "conv n=2 c=72 hw=9x8 k=40 rs=3x3 pad=1 stride=2 dtype=bf16", **choices)


def test_real_numbers(device: Runtime) -> None:
    half = convolution_graph((1, 32, 8, 8), (16, 32, 3, 3), data_type=DataType.HALF, pads=(1, 1))
    plan = check_close(device, ENGINE, half, length=288)
    assert plan.numerical_notes == (NumericalNote.TENSOR_CORE,)
    single = convolution_graph((1, 32, 8, 8), (16, 32, 3, 3), data_type=DataType.FLOAT, pads=(1, 1))
    plan = check_close(device, ENGINE, single, length=288)
    assert NumericalNote.TF32_INPUTS in plan.numerical_notes


@pytest.mark.parametrize("direction", ["fprop", "dgrad"])
def test_infinities_stay_in_their_group(device: Runtime, direction: str) -> None:
    """A group's channels end inside a stage's row: no product of another group's values with zero is formed."""
    engine: Engine = ENGINE if direction == "fprop" else ConvDgradWgmma()
    case = parse_case(f"conv n=2 c=96 hw=5x6 k=96 rs=3x3 pad=1 groups=2 dir={direction} dtype=fp16")
    graph = case.graph()
    inputs = case.inputs(3, exact=True)
    for uid, values in inputs.items():
        is_filter = graph.tensors[uid].name == "w"
        (values[48:] if is_filter else values[:, 48:])[...] = np.inf
    [output] = graph.outputs
    actual = run_plan(device, engine.plan(graph, SM_90A, {}), graph, inputs)[output.uid][:, :48]
    expected = evaluate(graph, {uid: np.nan_to_num(values, posinf=0) for uid, values in inputs.items()})
    assert_exact(actual, expected[output.uid][:, :48], output.data_type)


def test_narrow_groups_are_refused() -> None:
    refusal = ENGINE.refuse(parse_case("conv n=1 c=32 hw=4x4 k=8 rs=1x1 groups=2 dtype=bf16").graph(), SM_90A)
    assert "groups: expected groups of at least 64 bytes of channels, got 32" in str(refusal)


def test_plan_counts_its_work() -> None:
    graph = convolution_graph((2, 64, 8, 8), (64, 64, 3, 3), data_type=DataType.BFLOAT16, pads=(1, 1))
    plan = ENGINE.plan(graph, SM_90A, {})
    assert plan.work.flops >= 2 * 128 * 64 * 576
    assert plan.work.bytes >= 2 * (2 * 128 * 64 + 64 * 576)
    assert plan.work.unit is MathUnit.WGMMA_F16
    assert all(launch.overlaps_previous for launch in plan.launches)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("conv n=1 c=8 hw=9x9 k=8 rs=3x3 dtype=fp64", "one type of wgmma (fp8 may be mixed), got DOUBLE and DOUBLE"),
        ("conv n=1 c=8 hw=9x200 k=8 rs=2x3 dil=1x90 pad=0x129 dtype=fp16", "lower_corner[0]"),
        ("conv n=1 c=8 hw=9x40 k=8 rs=1x3 stride=1x9 pad=1 dtype=fp16", "element_strides[1]"),
        ("conv n=1 c=8 hw=4x4x40 k=8 rs=2x2x3 dil=1x1x16 dtype=fp16", "taps that reach at most 31 positions, got 32"),
    ],
)
def test_refusals_name_field_limit_and_value(line: str, reason: str) -> None:
    graph = parse_case(line).graph()
    assert reason in str(ENGINE.refuse(graph, SM_90A))
    with pytest.raises(NotSupportedError):
        ENGINE.plan(graph, SM_90A, {})


def test_other_graphs_and_architectures_are_refused() -> None:
    assert "expected exactly one ConvolutionForward" in str(ENGINE.refuse(matmul_graph(), SM_90A))
    refusal = ENGINE.refuse(convolution_graph(data_type=DataType.HALF), SM_80)
    assert refusal is not None
    assert refusal.status is Status.NOT_SUPPORTED_ARCH_MISMATCH


def test_tensors_of_another_rank_than_the_convolution_are_refused() -> None:
    builder = CaseBuilder()
    x, w = builder.tensor((1, 8, 2, 1, 3), DataType.HALF), builder.tensor((8, 8, 1, 1, 3), DataType.HALF)
    geometry = Convolution(DataType.FLOAT, 3, (0, 0, 0), (0, 0, 0), (1, 1, 3), (1, 1, 1))
    builder.convolution(x, w, geometry=geometry, store=DataType.HALF)
    builder.pointwise(PointwiseMode.NEG, builder.tensor((1, 5, 1), DataType.HALF), store=DataType.HALF)
    assert "dims: expected" in str(ENGINE.refuse(builder.graph(), SM_90A))
