"""``matmul_wgmma`` on the emulated device: types, tiles, clusters, splits, epilogues."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.driver import open_driver
from lowdnn.enums import DataType, KnobType, NumericalNote, PointwiseMode
from lowdnn.graph.layouts import Layout
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError
from tests.engines.matmul.wgmma import (
    BF16,
    COOPERATIVE,
    COOPERATIVE_3,
    ENGINE,
    LAYOUTS,
    PING_PONG,
    TWO_BLOCKS,
    TYPES,
    bf16_graph,
    compute_type,
    knobs,
    macro,
)
from tests.support.builders import matmul_graph
from tests.support.cases import check_case
from tests.support.data import fresh_seed, real_values
from tests.support.pairs import paired
from tests.support.running import ORDER_AND_RACES, check_close, check_exact, read_tensors, run_plan
from tests.support.runtime import open_runtime


@paired(
    ("data_type", TYPES),
    ("a_layout", LAYOUTS),
    ("b_layout", LAYOUTS),
)
def test_types_and_layouts(device: Runtime, data_type: DataType, a_layout: Layout, b_layout: Layout) -> None:
    compute = compute_type(data_type)
    store = DataType.FLOAT if data_type is DataType.FP8_E4M3 else data_type
    graph = matmul_graph(
        (2,), 80, 96, 144, data_type=data_type, compute_type=compute, store=store, a_layout=a_layout, b_layout=b_layout
    )
    plan = check_exact(device, ENGINE, graph, length=144, choices=knobs())
    repacked = (a_layout is Layout.TRANSPOSED) + (b_layout is Layout.ROW_MAJOR)
    assert len(plan.launches) == 1 + (0 if data_type in (DataType.HALF, BF16) else repacked)


@pytest.mark.parametrize("a_type", [DataType.FP8_E4M3, DataType.FP8_E5M2])
@pytest.mark.parametrize("swap", [False, True])
def test_fp8_types_may_differ(device: Runtime, a_type: DataType, swap: bool) -> None:
    builder = CaseBuilder()
    a = builder.tensor((40, 48), a_type)
    b = builder.tensor((48, 72), DataType.FP8_E5M2, layout=Layout.TRANSPOSED)
    builder.matmul(a, b, store=DataType.HALF)
    check_exact(device, ENGINE, builder.graph(), length=48, choices=knobs(swap=swap))


@pytest.mark.parametrize("warps", [COOPERATIVE, PING_PONG, TWO_BLOCKS])
def test_sums_of_fp8_are_promoted_unless_the_knob_says_no(checked: Runtime, warps: int) -> None:
    graph = matmul_graph((), 150, 72, 400, data_type=DataType.FP8_E4M3, store=DataType.HALF, b_layout=Layout.TRANSPOSED)
    choices = knobs(128, 32 if warps == TWO_BLOCKS else 64, warps=warps, stages=3)
    plan = check_exact(checked, ENGINE, graph, length=400, choices=choices, arch=SM_90A.with_sm_count(1))
    assert macro(plan, "PROMOTED") == 1
    assert plan.numerical_notes == (NumericalNote.TENSOR_CORE,)
    fast = ENGINE.plan(graph, SM_90A, choices | {KnobType.REDUCTION_MODE: 0})
    assert macro(fast, "PROMOTED") == 0
    assert NumericalNote.REDUCED_PRECISION_REDUCTION in fast.numerical_notes


@pytest.mark.parametrize("swap", [False, True])
def test_fast_sums_of_fp8_are_those_of_the_tensor_cores(device: Runtime, swap: bool) -> None:
    case = parse_case("matmul m=40 n=48 k=272 layout=nt dtype=e4m3 out=bf16 compute=fast")
    plan = check_exact(device, ENGINE, case.graph(), length=case.length, choices={KnobType.SWAP_AB: int(swap)})
    assert macro(plan, "PROMOTED") == 0
    assert NumericalNote.REDUCED_PRECISION_REDUCTION in plan.numerical_notes
    promoted = ENGINE.plan(case.graph(), SM_90A, {KnobType.REDUCTION_MODE: 1})
    assert macro(promoted, "PROMOTED") == 1
    assert promoted.numerical_notes == (NumericalNote.TENSOR_CORE,)


@pytest.mark.parametrize("data_type", TYPES)
def test_odd_extents_are_repacked(device: Runtime, data_type: DataType) -> None:
    store = DataType.FLOAT if data_type is DataType.FP8_E4M3 else data_type
    graph = matmul_graph((), 67, 35, 77, data_type=data_type, compute_type=compute_type(data_type), store=store)
    plan = check_exact(device, ENGINE, graph, length=77, choices=knobs())
    assert len(plan.launches) == 3


@paired(
    (
        ("m", "n", "warps", "stages", "cluster"),
        [
            (128, 256, COOPERATIVE, 4, (1, 1)),
            (128, 160, COOPERATIVE, 3, (2, 1)),
            (256, 128, COOPERATIVE, 2, (1, 2)),
            (128, 128, PING_PONG, 3, (1, 1)),
            (64, 96, PING_PONG, 3, (2, 2)),
            (64, 8, PING_PONG, 5, (1, 1)),
            (192, 64, PING_PONG, 3, (4, 1)),
            (64, 64, PING_PONG, 2, (2, 4)),
            (128, 32, TWO_BLOCKS, 2, (1, 1)),
        ],
    ),
    ("by_map", [False, True]),
    ("checked", ORDER_AND_RACES),
    fixtures=["checked"],
)
def test_tails_of_tiles(
    checked: Runtime, m: int, n: int, warps: int, stages: int, cluster: tuple[int, int], by_map: bool
) -> None:
    choices = knobs(m, n, warps=warps, stages=stages, cluster=cluster, by_map=by_map, group=2)
    graph = bf16_graph(2 * m + 17, 2 * n + 8, 200)
    plan = check_exact(checked, ENGINE, graph, length=200, choices=choices, arch=SM_90A.with_sm_count(3))
    assert macro(plan, "STORE") == int(by_map)


@pytest.mark.parametrize(
    ("n", "by_map", "swap"),
    [(136, True, False), (137, False, False), (136, False, True)],
    ids=["map", "functor", "swap"],
)
def test_large_tiles_have_one_staging_buffer_for_a_fourth_stage(
    racing: Runtime, n: int, by_map: bool, swap: bool
) -> None:
    choices = knobs(192, 192, warps=COOPERATIVE_3, stages=4, by_map=by_map, swap=swap)
    graph, arch = bf16_graph(200, n, 72), SM_90A.with_sm_count(1)
    plan = check_exact(racing, ENGINE, graph, length=72, choices=choices, arch=arch)
    assert (macro(plan, "STORE"), macro(plan, "STAGING_BUFFERS")) == (int(by_map), 1)
    plan = ENGINE.plan(graph, arch, choices | {KnobType.STAGES: 3})
    assert macro(plan, "STAGING_BUFFERS") == 2


@pytest.mark.parametrize("n", [160, 96, 24])
@pytest.mark.parametrize("warps", [COOPERATIVE, TWO_BLOCKS])
def test_columns_of_a_tile_need_not_be_whole_boxes(device: Runtime, n: int, warps: int) -> None:
    """The operand is contiguous along n; a copy has 64 columns of it."""
    graph = matmul_graph((2,), 80, 330, 144, data_type=BF16)
    choices = knobs(128 if warps == COOPERATIVE else 64, min(n, 96) if warps == TWO_BLOCKS else n, warps=warps)
    plan = check_exact(device, ENGINE, graph, length=144, choices=choices)
    assert macro(plan, "Q_MN_MAJOR") == 1


@pytest.mark.parametrize(
    ("m", "n", "cluster"), [(128, 96, (2, 1)), (192, 48, (1, 2)), (64, 24, (2, 2)), (64, 64, (4, 2))]
)
def test_blocks_share_the_k_of_operands_contiguous_along_m_and_n(
    racing: Runtime, m: int, n: int, cluster: tuple[int, int]
) -> None:
    """Tiles of shared operands need not divide into boxes of 64 for each block."""
    graph = matmul_graph((2,), 2 * m + 8, 2 * n + 8, 136, data_type=BF16, a_layout=Layout.TRANSPOSED)
    choices = knobs(m, n, warps=COOPERATIVE_3 if m == 192 else PING_PONG, cluster=cluster)
    plan = check_exact(racing, ENGINE, graph, length=136, choices=choices, arch=SM_90A.with_sm_count(4))
    assert (macro(plan, "P_MN_MAJOR"), macro(plan, "Q_MN_MAJOR")) == (1, 1)


@pytest.mark.parametrize(("m", "n", "warps"), [(512, 32, COOPERATIVE), (384, 64, COOPERATIVE_3), (256, 16, PING_PONG)])
@pytest.mark.parametrize("a_layout", LAYOUTS)
def test_tiles_of_many_rows(device: Runtime, m: int, n: int, warps: int, a_layout: Layout) -> None:
    graph = matmul_graph((), 712, 40, 144, data_type=BF16, a_layout=a_layout)
    check_exact(device, ENGINE, graph, length=144, choices=knobs(m, n, warps=warps))


@pytest.mark.parametrize(("m", "n"), [(128, 192), (192, 120)])
def test_accumulators_may_be_more_than_the_registers_at_launch(checked: Runtime, m: int, n: int) -> None:
    choices = knobs(m, n, warps=PING_PONG)
    check_exact(checked, ENGINE, bf16_graph(300, 200, 144), length=144, choices=choices, arch=SM_90A.with_sm_count(1))


def test_epilogues_that_need_registers_leave_fewer_accumulators() -> None:
    builder = CaseBuilder()
    product = builder.matmul(builder.tensor((512, 72), BF16), builder.tensor((72, 512), BF16))
    builder.pointwise(PointwiseMode.ADD, product, builder.tensor((512, 512), DataType.DOUBLE), store=BF16)
    for graph, n, most in (
        (bf16_graph(512, 512, 72, (PointwiseMode.TANH_FWD,)), 192, 160),
        (builder.graph(), 160, 128),
    ):
        with pytest.raises(BadParamError, match=f"at most {most} accumulators"):
            ENGINE.plan(graph, SM_90A, knobs(128, n, warps=PING_PONG))


@pytest.mark.parametrize("k", [1, 8, 63, 64, 65, 300])
def test_tails_of_k(device: Runtime, k: int) -> None:
    check_exact(device, ENGINE, bf16_graph(20, 24, k), length=k, choices=knobs())


@paired(
    ("data_type", [BF16, DataType.INT8]),
    ("swap", [False, True]),
    ("splits", [3, 5]),
    ("checked", ORDER_AND_RACES),
    fixtures=["checked"],
)
def test_split_sums(checked: Runtime, data_type: DataType, swap: bool, splits: int) -> None:
    """Slices are added up by one lane, and by two."""
    epilogue = (PointwiseMode.RELU_FWD,) if data_type is BF16 else ()
    compute = compute_type(data_type)
    graph = matmul_graph(
        (2,), 70, 51, 640, data_type=data_type, compute_type=compute, b_layout=Layout.TRANSPOSED, epilogue=epilogue
    )
    plan = check_exact(checked, ENGINE, graph, length=640, choices=knobs(splits=splits, swap=swap))
    assert plan.workspace_bytes >= splits * 2 * 70 * 56 * 4
    assert [kernel.name.split("_k_")[0] for kernel in plan.kernels][1] == "gemm_split"


@pytest.mark.parametrize(
    ("m", "n", "k", "choices"),
    [
        (70, 72, 264, knobs(64, 64, sharers=4)),  # one k block for each, and one left over
        (140, 72, 200, knobs(128, 64, warps=PING_PONG, sharers=2, stages=3)),
        (200, 40, 136, knobs(256, 32, warps=COOPERATIVE, sharers=2, by_map=False)),
        (24, 40, 512, knobs(64, 64, sharers=8, swap=True)),
        (40, 100, 392, knobs(64, 96, sharers=3, splits=2)),  # and a second launch sums the slices
    ],
)
def test_a_cluster_shares_the_k_of_a_tile(
    checked: Runtime, m: int, n: int, k: int, choices: dict[KnobType, int]
) -> None:
    sharers, splits = choices[KnobType.TILE_CGA_K], choices[KnobType.SPLIT_K_SLC]
    arch = SM_90A.with_sm_count(sharers)
    plan = check_exact(checked, ENGINE, bf16_graph(m, n, k), length=k, choices=choices, arch=arch)
    assert len(plan.launches) == splits
    assert plan.launches[0].cluster == (sharers, 1, 1)
    assert bool(plan.workspace_bytes) == (splits > 1)


@pytest.mark.parametrize(
    ("m", "n", "k", "choices"),
    [
        (330, 64, 200, knobs(64, 64, sharers=2, streams=True)),  # six tiles on four blocks
        (300, 40, 136, knobs(64, 48, warps=PING_PONG, sharers=2, streams=True, by_map=False)),  # five on two
        (40, 40, 264, knobs(64, 48, sharers=3, streams=True)),  # fewer tiles than blocks
        (20, 170, 136, knobs(64, 32, warps=PING_PONG, stages=3, sharers=2, streams=True, swap=True)),
    ],
)
def test_clusters_share_the_last_tiles_only(
    checked: Runtime, m: int, n: int, k: int, choices: dict[KnobType, int]
) -> None:
    arch = SM_90A.with_sm_count(2)
    check_exact(checked, ENGINE, bf16_graph(m, n, k), length=k, choices=choices, arch=arch)


@pytest.mark.parametrize("streams", [False, True])
def test_a_cluster_shares_the_k_of_a_tile_with_a_residual(checked: Runtime, streams: bool) -> None:
    builder = CaseBuilder()
    product = builder.matmul(builder.tensor((2, 72, 136), BF16), builder.tensor((2, 136, 72), BF16))
    builder.pointwise(PointwiseMode.ADD, product, builder.tensor((2, 72, 72), BF16), store=BF16)
    choices = knobs(64, 64, stages=3, sharers=2, streams=streams)
    arch = SM_90A.with_sm_count(1)  # one cluster, which also has tiles in which a block has no column
    plan = check_exact(checked, ENGINE, builder.graph(), length=136, choices=choices, arch=arch)
    assert (macro(plan, "STORE"), macro(plan, "OPERAND_BUFFERS")) == (1, 4)


def test_a_cluster_shares_sums_of_integers(device: Runtime) -> None:
    data_type, compute = DataType.INT8, DataType.INT32
    graph = matmul_graph((), 70, 64, 256, data_type=data_type, compute_type=compute, b_layout=Layout.TRANSPOSED)
    check_exact(device, ENGINE, graph, length=256, choices=knobs(64, 64, sharers=2))


def test_sums_of_a_cluster_have_the_same_bits_in_any_order(kernel_cache_dir: Path) -> None:
    graph = bf16_graph(64, 64, 256)
    plan = ENGINE.plan(graph, SM_90A, knobs(64, 64, sharers=4))
    rng = np.random.default_rng(fresh_seed())
    inputs = {tensor.uid: real_values(rng, tensor.dims, tensor.data_type) for tensor in read_tensors(graph)}
    results = []
    for policy in ("lockstep", "cta-reverse", "fuzz(3),early", "fuzz(8),late"):
        with open_runtime(open_driver("emulated", policy=policy), kernel_cache_dir) as runtime:
            (values,) = run_plan(runtime, plan, graph, inputs).values()
            results.append(values.tobytes())
    assert len(set(results)) == 1


def test_the_sum_of_one_row_reads_nothing_behind_its_end(device: Runtime) -> None:
    check_exact(device, ENGINE, bf16_graph(1, 10, 320), length=320, choices=knobs(splits=2))


@paired(
    ("swap", [False, True]),
    ("c_layout", [Layout.ROW_MAJOR, Layout.TRANSPOSED, Layout.PADDED]),
    ("checked", ORDER_AND_RACES),
    fixtures=["checked"],
)
def test_output_layouts(checked: Runtime, c_layout: Layout, swap: bool) -> None:
    builder = CaseBuilder()
    a = builder.tensor((2, 72, 40), BF16)
    b = builder.tensor((2, 40, 88), BF16)
    bias = builder.tensor((1, 1, 88), BF16)
    value = builder.matmul(a, b)
    builder.pointwise(PointwiseMode.ADD, value, bias, store=BF16, layout=c_layout)
    plan = check_exact(checked, ENGINE, builder.graph(), length=40, choices=knobs(swap=swap))
    assert macro(plan, "STORE") == int(c_layout is not Layout.PADDED and not swap)


def test_residual_of_the_outputs_size_and_two_outputs(device: Runtime) -> None:
    builder = CaseBuilder()
    a = builder.tensor((72, 40), BF16)
    b = builder.tensor((40, 88), BF16)
    residual = builder.tensor((72, 88), BF16)
    total = builder.pointwise(PointwiseMode.ADD, builder.matmul(a, b, store=DataType.FLOAT), residual, store=BF16)
    builder.pointwise(PointwiseMode.RELU_FWD, total, store=DataType.HALF)
    plan = check_exact(device, ENGINE, builder.graph(), length=40, choices=knobs())
    assert macro(plan, "STORE") == 0


@paired(
    (
        ("m", "n", "warps"),
        [(128, 64, PING_PONG), (256, 64, COOPERATIVE), (192, 128, COOPERATIVE_3), (64, 64, TWO_BLOCKS)],
    ),
    ("residual_type", [BF16, DataType.FLOAT]),
    ("checked", ORDER_AND_RACES),
    fixtures=["checked"],
)
def test_residual_comes_by_tensor_map(checked: Runtime, m: int, n: int, warps: int, residual_type: DataType) -> None:
    builder = CaseBuilder()
    a = builder.tensor((2, 200, 72), BF16)
    b = builder.tensor((2, 72, 88), BF16)
    biased = builder.pointwise(PointwiseMode.ADD, builder.matmul(a, b), builder.tensor((1, 1, 88), BF16))
    total = builder.pointwise(PointwiseMode.ADD, biased, builder.tensor((2, 200, 88), residual_type))
    builder.pointwise(PointwiseMode.RELU_FWD, total, store=BF16)
    choices = knobs(m, n, warps=warps)
    plan = check_exact(checked, ENGINE, builder.graph(), length=72, choices=choices, arch=SM_90A.with_sm_count(2))
    assert (macro(plan, "STORE"), macro(plan, "OPERAND_BUFFERS")) == (1, 2 if warps == COOPERATIVE_3 else 4)


def test_no_residual_is_loaded_for_a_tile_past_the_last_column(device: Runtime) -> None:
    builder = CaseBuilder()
    product = builder.matmul(builder.tensor((120, 64), BF16), builder.tensor((64, 136), BF16))
    builder.pointwise(PointwiseMode.ADD, product, builder.tensor((120, 136), BF16), store=BF16)
    choices = knobs(64, 64, stages=3, cluster=(1, 2), group=1)
    arch = SM_90A.with_sm_count(1)  # one cluster: a block of it continues with the next row of tiles
    check_exact(device, ENGINE, builder.graph(), length=64, choices=choices, arch=arch)


def test_large_tiles_load_fewer_chunks_of_a_residual_ahead() -> None:
    builder = CaseBuilder()
    product = builder.matmul(builder.tensor((4096, 4096), BF16), builder.tensor((4096, 4096), BF16))
    builder.pointwise(PointwiseMode.ADD, product, builder.tensor((4096, 4096), BF16), store=BF16)
    plan = ENGINE.plan(builder.graph(), SM_90A, knobs(128, 256, warps=COOPERATIVE, stages=3))
    assert macro(plan, "OPERAND_BUFFERS") == 2


@pytest.mark.parametrize("store", [DataType.FP8_E4M3, DataType.INT8, DataType.BOOLEAN, DataType.FLOAT, DataType.DOUBLE])
def test_output_types(device: Runtime, store: DataType) -> None:
    graph = matmul_graph((), 72, 48, 64, data_type=BF16, store=store)
    check_exact(device, ENGINE, graph, length=64, choices=knobs())


def test_bytes_of_narrow_tiles_go_through_the_functor(device: Runtime) -> None:
    graph = matmul_graph((), 72, 48, 64, data_type=BF16, store=DataType.INT8, b_layout=Layout.TRANSPOSED)
    plan = check_exact(device, ENGINE, graph, length=64, choices=knobs(64, 8))
    assert macro(plan, "STORE") == 0


@pytest.mark.parametrize(
    ("a_batch", "b_batch", "axes"),
    [
        ((2, 1, 3), (1, 4, 3), 3),
        ((1, 1), (2, 2), 1),
        ((5,), (1,), 1),
        ((2, 3), (1, 1), 1),
        ((2, 2, 3), (2, 2, 1), 1),
        ((2, 2, 1), (2, 2, 3), 2),
    ],
)
def test_batch_broadcast(device: Runtime, a_batch: tuple[int, ...], b_batch: tuple[int, ...], axes: int) -> None:
    builder = CaseBuilder()
    a = builder.tensor((*a_batch, 10, 16), BF16)
    b = builder.tensor((*b_batch, 16, 24), BF16)
    builder.matmul(a, b, store=BF16)
    plan = check_exact(device, ENGINE, builder.graph(), length=16, choices=knobs(swap=False))
    assert macro(plan, "BATCH_AXES") == axes


def test_batches_with_shared_weights_become_rows() -> None:
    builder = CaseBuilder()
    a = builder.tensor((16, 4, 64), BF16)
    builder.matmul(a, builder.tensor((1, 64, 64), BF16), store=BF16)
    assert ENGINE.plan(builder.graph(), SM_90A, knobs()).launches[0].grid == (1, 1, 1)


@pytest.mark.parametrize("a_strides", [(0, 8, 1), (72, 0, 1), (72, 8, 0), (0, 0, 1)])
@pytest.mark.parametrize("b_strides", [(128, 16, 1), (0, 1, 8), (128, 16, 0)])
def test_repeated_elements_of_stride_zero(
    device: Runtime, a_strides: tuple[int, ...], b_strides: tuple[int, ...]
) -> None:
    builder = CaseBuilder()
    a = builder.tensor((2, 9, 8), BF16, strides=a_strides)
    b = builder.tensor((2, 8, 10), BF16, strides=b_strides)
    builder.matmul(a, b, store=BF16)
    check_exact(device, ENGINE, builder.graph(), length=8, choices=knobs())


@pytest.mark.parametrize(
    "text",
    [
        "conv n=3 c=24 hw=7x5 k=40 rs=1x1 dir={dir} dtype=bf16",
        "conv n=3 c=20 hw=35 k=12 rs=1 dir={dir} dtype=fp16",
        "conv n=2 c=16 hw=2x3x4 k=40 rs=1x1x1 dir={dir} dtype=bf16 epilogue=scale+residual+relu",
    ],
)
@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_convolutions_that_read_each_pixel_once(device: Runtime, text: str, direction: str) -> None:
    check_case(device, ENGINE, text.format(dir=direction))


@pytest.mark.parametrize("direction", ["fprop", "dgrad"])
def test_pixels_may_lie_contiguous(device: Runtime, direction: str) -> None:
    plan = check_case(device, ENGINE, f"conv n=2 c=24 hw=4x8 k=40 rs=1x1 dir={direction} layout=nchw dtype=bf16")
    assert len(plan.launches) == 1
    assert macro(plan, "Q_MN_MAJOR") == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("conv n=1 c=8 hw=6x6 k=8 rs=3x3 pad=1 dtype=bf16", "taps [3, 3]"),
        ("conv n=1 c=8 hw=6x6 k=8 rs=1x1 stride=2 dtype=bf16", "strides [2, 2]"),
        ("conv n=1 c=16 hw=6x6 k=16 rs=1x1 groups=2 dtype=bf16", "groups 2"),
        ("conv n=1 c=8 hw=6x6 k=8 rs=1x1 alpha=2 dtype=bf16", "got 2.0 and 0.0"),
        ("conv n=2 c=8 hw=6x6 k=8 rs=1x1 dir=wgrad layout=nchw dtype=bf16", "pixels at equal distances"),
        ("conv n=1 c=8 hw=6x6 k=8 rs=1x1 exits=sum dtype=bf16", "got ReductionOperation"),
    ],
)
def test_other_convolutions_are_refused(text: str, reason: str) -> None:
    refusal = ENGINE.refuse(parse_case(text).graph(), SM_90A)
    assert refusal is not None
    assert reason in str(refusal)


@pytest.mark.parametrize("data_type", [BF16, DataType.HALF])
def test_real_numbers(device: Runtime, data_type: DataType) -> None:
    graph = matmul_graph((), 70, 40, 192, data_type=data_type, b_layout=Layout.TRANSPOSED)
    check_close(device, ENGINE, graph, length=192, choices=knobs())


def test_tf32_rounds_its_inputs(device: Runtime) -> None:
    graph = matmul_graph((), 70, 64, 64, b_layout=Layout.TRANSPOSED)
    plan = check_close(device, ENGINE, graph, length=64, choices=knobs())
    assert plan.numerical_notes == (NumericalNote.TENSOR_CORE, NumericalNote.TF32_INPUTS)
    assert ENGINE.plan(bf16_graph(70, 64, 64), SM_90A, {}).numerical_notes == (NumericalNote.TENSOR_CORE,)
