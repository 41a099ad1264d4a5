from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.engines.conv.wgmma import conv_wgrad_wgmma
from lowdnn.engines.conv.wgmma.conv_wgrad_wgmma import ConvWgradWgmma
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.plan import MathUnit
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, NotSupportedError, Status
from tests.support.pairs import in_turn
from tests.support.running import check_close, check_exact

ENGINE = ConvWgradWgmma()
#: A device with two multiprocessors: each block of a persistent grid computes several tiles.
SMALL = SM_90A.with_sm_count(2)


def graph_of(case: str) -> OperationGraph:
    return parse_case(f"conv {case} dir=wgrad").graph()


def knobs(
    m: int = 64, n: int = 192, *, stages: int = 3, warps: int = 1, windows: int = 0, splits: int = 1, **clusters: int
) -> dict[KnobType, int]:
    return {
        KnobType.TILE_M: m,
        KnobType.TILE_N: n,
        KnobType.STAGES: stages,
        KnobType.WARP_SPEC_CFG: warps,
        KnobType.SPECFILT: windows,
        KnobType.EDGE: clusters.get("edge", 0),
        KnobType.SPLIT_K_SLC: splits,
        KnobType.TILE_CGA_M: clusters.get("cluster_m", 1),
        KnobType.TILE_CGA_N: clusters.get("cluster_n", 1),
        KnobType.TILE_CGA_K: clusters.get("cluster_k", 1),
    }


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_types_and_layouts(device: Runtime, dtype: str, layout: str) -> None:
    graph = graph_of(f"n=2 c=24 hw=7x9 k=40 rs=3x3 pad=1 dtype={dtype} layout={layout} out=fp32")
    check_exact(device, ENGINE, graph, length=126, arch=SMALL)


@pytest.mark.parametrize(
    "case",
    [
        "n=2 c=32 hw=21 k=24 rs=5 pad=2 stride=2",
        "n=2 c=8 hw=11x6 k=8 rs=3x2 pad=1x3 stride=2x1 dil=2x3",
        "n=1 c=16 hw=5x6x7 k=16 rs=3x2x3 pad=1x0x2 stride=1x2x1 dil=1x1x2",
        "n=2 c=72 hw=5x5 k=40 rs=1x1 stride=2",
        "n=2 c=72 hw=5x5 k=40 rs=1x1",
        "n=2 c=72 hw=5x5 k=40 rs=1x1 pad=1",
        "n=1 c=8 hw=4x20 k=8 rs=1x17 pad=0x8",
        "n=1 c=8 hw=1x1 k=8 rs=3x3 pad=1",
        "n=3 c=32 hw=9x9 k=96 rs=3x3 pad=1 mode=flipped",
        "n=2 c=16 hw=9x8 k=16 rs=3x4 dil=2x1 mode=flipped",
        "n=1 c=10 hw=9x8 k=14 rs=3x3 pad=1",
        "n=1 c=3 hw=9x8 k=14 rs=1x1",
    ],
)
def test_geometry(device: Runtime, case: str) -> None:
    check_exact(device, ENGINE, graph_of(f"{case} dtype=bf16"), length=200, arch=SMALL)


@pytest.mark.parametrize(
    ("case", "n"),
    [
        ("n=2 c=64 hw=10x9 k=64 rs=3x3 pad=1", 192),
        ("n=2 c=96 hw=9x7 k=96 rs=3x3", 192),
        ("n=2 c=64 hw=9x12 k=64 rs=2x3 dil=1x3 pad=0x1 mode=flipped", 192),
        ("n=2 c=64 hw=33 k=64 rs=4 pad=3", 256),
        ("n=1 c=64 hw=5x6x7 k=64 rs=3x2x2 stride=2x2x1 pad=1", 128),
        ("n=2 c=72 hw=4x5x6 k=64 rs=3x1x1 pad=1x0x0", 192),
    ],
)
def test_windows(device: Runtime, case: str, n: int) -> None:
    graph = graph_of(f"{case} dtype=bf16")
    for splits in (1, 2):
        choices = knobs(n=n, windows=1, splits=splits)
        check_exact(device, ENGINE, graph, length=200, choices=choices, arch=SMALL)


@pytest.mark.parametrize(
    ("case_and_choices", "dtype"),
    in_turn(
        [
            ("n=2 c=72 hw=9x10 k=64 rs=3x3 pad=6 dil=6", knobs(64, 128, splits=2)),
            ("n=2 c=72 hw=9x10 k=72 rs=3x3 pad=6 dil=6 mode=flipped alpha=2 beta=1", knobs(128, 64, warps=0)),
            ("n=3 c=40 hw=7x9 k=24 rs=3x2 pad=4:6x1:3 dil=3x4 stride=2x1", knobs(64, 64, splits=3)),
            ("n=4 c=24 hw=4x5 k=24 rs=3x3 pad=9 dil=9", knobs(64, 64, splits=2)),  # eight taps have no valid pixel
            ("n=6 c=40 hw=4x4 k=24 rs=1x1 pad=3 layout=nchw", knobs(64, 64, splits=2)),
            ("n=4 c=96 hw=21 k=40 rs=5 pad=8 dil=4", knobs(64, 128, splits=4)),
            ("n=1 c=64 hw=4x5x6 k=64 rs=3x1x3 pad=2x0x4 dil=2x1x4", knobs(64, 64, splits=2)),
            ("n=4 c=128 hw=6x7 k=128 rs=3x3 pad=3 dil=3 groups=2", knobs(64, 64, splits=2)),
            ("n=2 c=128 hw=8x8 k=192 rs=3x3 pad=4 dil=4", knobs(128, 64, warps=0, cluster_m=2, splits=2)),
            ("n=2 c=192 hw=8x8 k=64 rs=3x3 pad=4 dil=4", knobs(64, 64, cluster_n=2)),
            ("n=4 c=128 hw=8x8 k=64 rs=3x1 pad=5x0 dil=5x1", knobs(64, 128, cluster_k=2)),
        ],
        ("bf16", "fp32"),
    ),
)
def test_taps_without_padding(device: Runtime, case_and_choices: tuple[str, dict[KnobType, int]], dtype: str) -> None:
    case, choices = case_and_choices
    graph = graph_of(f"{case} dtype={dtype}")
    plan = check_exact(device, ENGINE, graph, length=220, choices={**choices, KnobType.EDGE: 1}, arch=SMALL)
    apart_flops, whole_flops = (
        max(launch.work.flops for launch in made.launches if launch.work.unit is not MathUnit.FMA_F32)
        for made in (plan, ENGINE.plan(graph, SMALL, choices))
    )
    assert apart_flops < whole_flops


def test_taps_without_padding_meet_no_races(racing: Runtime) -> None:
    graph = graph_of("n=3 c=72 hw=9x10 k=64 rs=3x3 pad=6 dil=6 dtype=bf16")
    check_exact(racing, ENGINE, graph, length=270, choices=knobs(64, 128, splits=2, edge=1), arch=SMALL)


@pytest.mark.parametrize("case", ["n=2 c=9 hw=9x8 k=14 rs=3x3 pad=1", "n=2 c=67 hw=6x7 k=8 rs=3x1 pad=1x0"])
def test_odd_channels(device: Runtime, case: str) -> None:
    for splits in (1, 2):
        choices = knobs(splits=splits)
        check_exact(device, ENGINE, graph_of(f"{case} dtype=bf16"), length=144, choices=choices, arch=SMALL)


@pytest.mark.parametrize("windows", [0, 1])
@pytest.mark.parametrize("case", ["c=128 k=128", "c=80 k=144", "c=72 k=70"])
def test_groups(device: Runtime, case: str, windows: int) -> None:
    graph = graph_of(f"n=2 {case} hw=6x7 rs=3x3 pad=1 groups=2 dtype=fp16")
    check_exact(device, ENGINE, graph, length=84, choices=knobs(windows=windows, splits=2), arch=SMALL)


@pytest.mark.parametrize(
    "choices",
    [
        knobs(64, 256, warps=1, stages=4),
        knobs(128, 192, warps=0, splits=3),
        knobs(256, 192, warps=0, stages=2, windows=1),
        knobs(64, 128, warps=2),
        knobs(128, 192, warps=0, cluster_m=2),
        knobs(128, 192, warps=0, cluster_m=2, windows=1, splits=2),
        knobs(128, 192, warps=0, cluster_n=2, windows=1),
    ],
)
def test_tiles(device: Runtime, choices: dict[KnobType, int]) -> None:
    graph = graph_of("n=2 c=128 hw=10x9 k=192 rs=3x3 pad=1 dtype=bf16")
    check_exact(device, ENGINE, graph, length=180, choices=choices, arch=SMALL)


def test_alpha_beta_and_epilogue(device: Runtime) -> None:
    for after in ("beta=1", "epilogue=relu"):
        graph = graph_of(f"n=2 c=16 hw=6x6 k=16 rs=3x3 pad=1 dtype=bf16 alpha=2 {after}")
        for splits in (1, 2):
            check_exact(device, ENGINE, graph, length=72, choices=knobs(splits=splits), arch=SMALL)


@pytest.mark.parametrize(
    "choices",
    [
        knobs(windows=1, splits=2),
        knobs(128, 192, warps=0, windows=1, cluster_m=2),
        knobs(128, 128, warps=0, cluster_n=2, splits=2),
    ],
)
def test_races(racing: Runtime, choices: dict[KnobType, int]) -> None:
    graph = graph_of("n=1 c=64 hw=12x11 k=128 rs=3x3 pad=1 dtype=fp16")
    check_exact(racing, ENGINE, graph, length=132, choices=choices, arch=SMALL)


@pytest.mark.parametrize(
    ("case", "choices"),
    [
        ("n=2 c=64 hw=8x8 k=64 rs=1x3 pad=0x1", knobs(64, 192, windows=1, cluster_k=3)),
        ("n=4 c=72 hw=8x9 k=40 rs=1x1", knobs(64, 128, splits=2, cluster_k=2)),  # and a second launch sums the slices
    ],
)
def test_a_cluster_shares_the_pixels_of_a_tile(racing: Runtime, case: str, choices: dict[KnobType, int]) -> None:
    plan = check_exact(racing, ENGINE, graph_of(f"{case} dtype=bf16"), length=288, choices=choices, arch=SMALL)
    assert plan.launches[0].cluster == (choices[KnobType.TILE_CGA_K], 1, 1)
    assert len(plan.launches) == choices[KnobType.SPLIT_K_SLC]


@pytest.mark.parametrize(
    ("case", "choices"),
    [
        ("n=2 c=72 hw=7x6 k=136 rs=2x1 pad=1x0 stride=2x1", knobs(128, 256, warps=0, splits=2)),
        ("n=1 c=64 hw=12 k=200 rs=3 dil=2 mode=flipped", knobs(256, 64, warps=0)),
        ("n=1 c=80 hw=3x4x5 k=72 rs=1x2x3 pad=0x1x1 groups=2", knobs(64, 256)),
        ("n=1 c=64 hw=6x8 k=144 rs=1x3 pad=0x1 alpha=2 beta=1", knobs(128, 192, warps=0, cluster_m=2, stages=2)),
        ("n=2 c=96 hw=6x6 k=64 rs=1x1", knobs(64, 64, cluster_n=2, splits=2)),
        ("n=2 c=128 hw=8x9 k=64 rs=1x1", knobs(64, 128, cluster_k=2)),
        ("n=2 c=72 hw=5x7 k=136 rs=1x3 pad=0x1", knobs(128, 192, warps=0, windows=1, splits=2)),
        ("n=1 c=40 hw=6x9 k=256 rs=2x2 dil=1x2 mode=flipped", knobs(128, 128, warps=0, windows=1, cluster_m=2)),
    ],
)
def test_tf32(racing: Runtime, case: str, choices: dict[KnobType, int]) -> None:
    graph = graph_of(f"{case} dtype=fp32")
    plan = check_exact(racing, ENGINE, graph, length=200, choices=choices, arch=SMALL)
    assert NumericalNote.TF32_INPUTS in plan.numerical_notes


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_every_scheduling_policy(scheduled: Runtime, dtype: str) -> None:
    graph = graph_of(f"n=1 c=64 hw=9x9 k=64 rs=3x3 pad=1 dtype={dtype}")
    check_exact(scheduled, ENGINE, graph, length=81, arch=SMALL)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_real_numbers(device: Runtime, dtype: str) -> None:
    graph = graph_of(f"n=2 c=32 hw=8x8 k=32 rs=3x3 pad=1 dtype={dtype}")
    check_close(device, ENGINE, graph, length=128, arch=SMALL)


def test_estimates_count_groups_that_begin_inside_lines() -> None:
    """Groups of 32 channels: the pixels of every second group lie in two cache lines; 26.2 us on an H200."""
    graph = graph_of("n=64 c=1024 hw=14x14 k=1024 rs=3x3 pad=1 stride=2 groups=32 dtype=bf16")
    assert plan_us(ENGINE.plan(graph, SM_90A, {}), SM_90A) == pytest.approx(26.2, rel=0.15)


def test_few_outputs_are_split_over_the_device() -> None:
    plan = ENGINE.plan(graph_of("n=128 c=64 hw=56x56 k=64 rs=3x3 pad=1 dtype=bf16"), SM_90A, {})
    main, reduction = plan.launches
    assert main.grid[0] >= 120
    assert main.overlaps_previous
    assert reduction.overlaps_previous
    assert dict(plan.kernels[reduction.kernel].parameters)["LANES"] > 1
    assert plan.workspace_bytes >= dict(plan.choices)[KnobType.SPLIT_K_SLC] * 64 * 576 * 4


@pytest.fixture
def any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products are taken, however much faster separate launches are."""
    monkeypatch.setattr(conv_wgrad_wgmma, "_slowness", lambda product, arch: "")


@pytest.mark.usefixtures("any_speed")
@pytest.mark.parametrize(
    ("case", "choices"),
    [
        ("n=2 c=72 hw=5x7 k=24 rs=2x3 pad=1 dtype=bf16", knobs(windows=1)),
        ("n=2 c=24 hw=5x7 k=24 rs=3x3 pad=1 stride=2 mode=flipped dtype=bf16", knobs(64, 128, splits=2)),
        ("n=2 c=64 hw=5x6 k=72 rs=1x3 pad=0x1 groups=2 dtype=fp16 raw=bf16", knobs(128, 128, warps=0, stages=2)),
        ("n=2 c=40 hw=5x5 k=24 rs=1x1 dtype=bf16", knobs(64, 64)),
    ],
)
def test_x_is_converted_in_place(racing: Runtime, case: str, choices: dict[KnobType, int]) -> None:
    graph = graph_of(f"{case} out=fp32 prologue=scale+bias")
    check_exact(racing, ENGINE, graph, length=1000, choices=choices, arch=SMALL)


@pytest.mark.parametrize("case", ["rs=1x3 pad=0x1", "rs=1x1"])
def test_infinities_of_padding_stay_out(device: Runtime, case: str) -> None:
    graph = graph_of(f"n=1 c=16 hw=5x5 k=8 {case} dtype=bf16 prologue=reciprocal")
    check_close(device, ENGINE, graph, length=25, arch=SMALL)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("dtype=bf16 raw=int8 prologue=scale", "expected a prologue on 16-bit values"),
        ("dtype=fp32 raw=bf16 prologue=scale", "expected a prologue on 16-bit values to such"),
        ("dtype=bf16 prologue=residual", "expected one tensor of the size of convolution_backward_filter.x"),
    ],
)
def test_prologues_that_do_not_fuse(words: str, reason: str) -> None:
    graph = graph_of(f"n=2 c=64 hw=8x8 k=64 rs=3x3 {words}")
    assert reason in str(ENGINE.refuse(graph, SM_90A))


def test_defaults_are_knob_values() -> None:
    for case in (
        "n=1 c=8 hw=1x1 k=8 rs=1x1",
        "n=8 c=1280 hw=32x32 k=1280 rs=3x3 pad=1",
        "n=2 c=512 hw=7x7 k=512 rs=3x3",
    ):
        graph = graph_of(f"{case} dtype=bf16")
        for knob in ENGINE.knobs(graph, SM_90A):
            assert knob.default in knob.values
        assert ENGINE.plan(graph, SM_90A, {}).launches


def test_work() -> None:
    plan = ENGINE.plan(graph_of("n=2 c=64 hw=8x8 k=64 rs=3x3 pad=1 dtype=bf16"), SM_90A, knobs())
    assert plan.work.unit is MathUnit.WGMMA_F16
    assert plan.work.flops == 2 * 64 * 576 * 128


@pytest.mark.parametrize(
    ("case", "reason", "status"),
    [
        ("n=1 c=8 hw=5x5 k=8 rs=3x3 dtype=fp64", "expected x and dy both of HALF", Status.NOT_SUPPORTED_DATA_TYPE),
        ("n=1 c=32 hw=5x5 k=32 rs=3x3 groups=4 dtype=fp16", "at least 32 channels", Status.NOT_SUPPORTED_SHAPE),
        ("n=1 c=8 hw=400x8 k=8 rs=3x3 dil=130x1 dtype=fp16", "reach at most 255", Status.NOT_SUPPORTED_SHAPE),
        ("n=1 c=8 hw=40x8 k=8 rs=3x3 pad=130x1 dtype=fp16", "lower_corner", Status.NOT_SUPPORTED_SHAPE),
        ("n=1 c=8 hw=40x8 k=8 rs=3x3 stride=9x1 dtype=fp16", "element_strides", Status.NOT_SUPPORTED_SHAPE),
    ],
)
def test_refusals_name_field_limit_and_value(case: str, reason: str, status: Status) -> None:
    refusal = ENGINE.refuse(graph_of(case), SM_90A)
    assert refusal is not None
    assert reason in str(refusal)
    assert refusal.status is status
    with pytest.raises(NotSupportedError):
        ENGINE.plan(graph_of(case), SM_90A, {})


def test_other_architectures_are_refused() -> None:
    refusal = ENGINE.refuse(graph_of("n=1 c=8 hw=5x5 k=8 rs=3x3 dtype=fp16"), SM_80)
    assert refusal is not None
    assert refusal.status is Status.NOT_SUPPORTED_ARCH_MISMATCH


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        (knobs(64, 192, warps=0), "64 rows for each warpgroup"),
        (knobs(256, 256, warps=0), "accumulators"),
        (knobs(64, 256, warps=2, stages=2), "128 registers of a thread"),
        (knobs(64, 128, windows=1), "TILE_N of 192"),
        (knobs(128, 256, warps=0, stages=8), "shared memory"),
        (knobs(64, 192, cluster_k=2), "TILE_N a multiple of 128"),
        (knobs(64, 192, cluster_k=3), "of the 2 in the last part"),
    ],
)
def test_tiles_that_do_not_exist_are_refused(choices: dict[KnobType, int], reason: str) -> None:
    with pytest.raises(BadParamError, match=reason):
        ENGINE.plan(graph_of("n=2 c=64 hw=8x8 k=64 rs=3x3 pad=1 dtype=bf16"), SM_90A, choices)
