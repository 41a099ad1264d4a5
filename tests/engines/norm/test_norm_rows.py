"""``norm_rows`` with few kernels and many shapes: knobs are given where the defaults would need more kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.norm.summing import IN_REGISTERS, IN_SHARED_MEMORY
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType, HeurMode, KnobType, NormFwdPhase, NormMode, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.base import with_tensors
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.engines.norm.rows import CLUSTER, COLUMNS, ENGINE, GRID, NARROW, SMALL, WIDE, check, shape_of
from tests.support.builders import matmul_graph
from tests.support.data import fresh_seed
from tests.support.running import check_case, check_close, check_outputs, run_plan


@pytest.mark.parametrize("choices", [SMALL, CLUSTER], ids=["block", "cluster"])
def test_row_lengths_and_chunks(device: Runtime, choices: dict[KnobType, int]) -> None:
    for length in (4, 252, 256, 260, 1000, 5000):
        check(device, f"dims=5x{length} mode=layer", choices)


@pytest.mark.parametrize("length", [5, 5000])
def test_rows_computed_without_reading(device: Runtime, length: int) -> None:
    """The rows are the indices of their elements, and there is no scale."""
    x = Tensor(1, DataType.FLOAT, (3, length), (length, 1), 16)
    index, y = replace(x, uid=2, is_virtual=True), replace(x, uid=3)
    epsilon = Tensor(4, DataType.FLOAT, (1, 1), (1, 1), 4, constant_value=0.5)
    made = PointwiseOperation(Pointwise(PointwiseMode.GEN_INDEX, DataType.FLOAT, axis=1), x=x, y=index)
    graph = OperationGraph((made, NormForward(NormMode.LAYER_NORM, NormFwdPhase.INFERENCE, index, epsilon, y)))
    best = rank(graph, SM_90A, HeurMode.A, ENGINES).best
    assert best is not None
    found = run_plan(device, best.plan, graph, {1: np.zeros((3, length), np.float32)})[3]
    row = np.arange(length) - (length - 1) / 2
    np.testing.assert_allclose(found, np.tile(row / np.sqrt(np.mean(row**2) + 0.5), (3, 1)), rtol=1e-5, atol=1e-6)


def test_odd_rows(device: Runtime) -> None:
    for length in (1, 3, 97, 1009):
        check(device, f"dims=6x{length} mode=layer", NARROW)


@pytest.mark.parametrize(
    ("line", "choices", "vector"),
    [
        ("dims=9x509 mode=layer dtype=bf16", CLUSTER, 8),
        ("dims=9x519 mode=layer dtype=bf16", CLUSTER, 8),
        ("dims=9x1023 mode=layer dtype=bf16", CLUSTER, 8),
        ("dims=3x5x11x7 mode=instance scale=none dtype=fp16", NARROW, 8),
        ("dims=9x517 mode=layer mean=10000", CLUSTER, 4),
        ("dims=9x517 mode=layer mean=10000", NARROW, 4),
        ("dims=9x65 mode=layer mean=10000", NARROW, 4),  # 15 or 16 vectors, all in the estimate of the mean
    ],
)
def test_misaligned_rows(device: Runtime, line: str, choices: dict[KnobType, int], vector: int) -> None:
    """Groups are whole vectors in memory, and scale and bias are shifted to match."""
    shape = shape_of(check(device, line, choices))
    assert (shape["HAS_SKEW"], shape["VECTOR"]) == (1, vector)


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("dims=5x1533 mode=layer dtype=bf16", SMALL),
        ("dims=2x3x23x71 mode=instance dir=bwd dtype=fp16", SMALL),
        ("dims=2x3003 mode=rms scale=scale dtype=bf16 before=residual+store", GRID),
    ],
)
def test_chunks_of_misaligned_rows_are_resident(racing: Runtime, line: str, choices: dict[KnobType, int]) -> None:
    shape = shape_of(check(racing, line, choices))
    assert (shape["HAS_SKEW"], shape["CHUNKS_RESIDENT"]) == (1, 1)


@pytest.mark.parametrize(
    ("line", "is_as_read"),
    [
        ("dims=2x16384 mode=layer dtype=bf16", 1),
        ("dims=2x16377 mode=layer dtype=bf16", 1),
        ("dims=2x16392 mode=layer dtype=bf16", 0),
        ("dims=2x16384 mode=rms scale=scale dtype=bf16 before=residual+store", 0),
    ],
)
def test_long_narrow_rows_are_cached_unconverted(device: Runtime, line: str, is_as_read: int) -> None:
    """Rows are converted where their chunks are resident in shared memory, or elements are computed from several."""
    assert shape_of(check(device, line, WIDE))["AS_READ"] == is_as_read


@pytest.mark.parametrize(
    ("line", "team", "is_whole", "ahead"),
    [
        ("dims=5x1024 mode=layer dtype=bf16 mean=1000", 32, 1, 1),
        ("dims=5x1000 mode=rms scale=scale dtype=fp16", 32, 0, 4),
        ("dims=7x2048 mode=rms scale=scale dtype=bf16", 64, 0, 4),
        ("dims=3x2048 mode=layer", 128, 1, 2),
    ],
)
def test_scales_of_packed_rows_are_prefetched(racing: Runtime, line: str, team: int, is_whole: int, ahead: int) -> None:
    """Two teams of 64 threads have a barrier each, and the last block has one row less."""
    choices = {KnobType.THREADS_PER_ROW: team, KnobType.MULTIPLY: 4, KnobType.TILE_CGA_M: 1}
    shape = shape_of(check(racing, line, choices))
    assert (shape["AS_READ"], shape["IS_WHOLE"], shape["OPERANDS_AHEAD"]) == (1, is_whole, ahead)


def test_only_rows_with_just_a_scale_in_the_epilogue_are_packed(device: Runtime) -> None:
    for rest in ("epilogue=residual+relu", "scale=none"):
        shape = shape_of(check(device, f"dims=40x1024 mode=layer dtype=bf16 {rest}"))
        assert (shape["AS_READ"], shape["IS_WHOLE"], shape["OPERANDS_AHEAD"]) == (0, 0, 0)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_images_of_a_channel_are_cached_unconverted(device: Runtime, direction: str) -> None:
    assert shape_of(check(device, f"dims=4x2x28x28 mode=batch dtype=fp16 dir={direction}", WIDE))["AS_READ"] == 1


@pytest.mark.parametrize(
    "line",
    [
        "64x256x56x56 mode=batch",
        "128x256x56x56 mode=batch dtype=fp16",
        "64x256x56x56 mode=batch dir=bwd",
        "64x320x64x64 mode=group groups=32 layout=nhwc dtype=fp16",
    ],
)
def test_long_rows_of_images_are_read_once_with_prefetch(line: str) -> None:
    plan = ENGINE.plan(parse_case(f"norm dims={line}").graph(), SM_90A, {})
    (launch,) = plan.launches
    assert shape_of(plan)["IN_RING"] == 1
    assert launch.grid[0] <= SM_90A.sm_count
    assert launch.work.bytes < 1.01 * sum(tensor.size_bytes for tensor in plan.tensors)


def test_threads_cache_as_many_groups_as_rows_have(device: Runtime) -> None:
    shape = shape_of(check(device, "dims=40x768 mode=layer dtype=bf16"))
    assert (shape["TEAM"], shape["ITEMS"]) == (32, 3)


def test_gradients_are_summed_in_the_same_launch_where_rows_allow(device: Runtime) -> None:
    for rows in (1, 5, 40):
        plan = check(device, f"dims={rows}x64 mode=layer dir=bwd", NARROW)
        assert [kernel.source for kernel in plan.kernels] == ["norm/norm_backward_summing.cu", "norm/norm_join.cu"]
    plan = check(device, "dims=3x256 mode=layer dir=bwd", CLUSTER)
    assert "norm/norm_join.cu" in {kernel.source for kernel in plan.kernels}


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("dims=41x120 mode=rms scale=scale dtype=bf16 before=residual+store", NARROW),
        ("dims=23x509 mode=layer dtype=bf16", CLUSTER),
        ("dims=6x5x11x37 mode=instance dtype=fp16 dir=bwd", CLUSTER),
        ("dims=9x4x5x12 mode=group groups=2 scale=none before=relu_bwd dir=bwd", SMALL),
    ],
)
def test_the_next_row_is_prefetched(racing: Runtime, line: str, choices: dict[KnobType, int]) -> None:
    """There are few multiprocessors, so that blocks have several rows."""
    arch = SM_90A.with_sm_count(1)
    plan = check_case(racing, ENGINE, f"norm {line}", choices | {KnobType.READ_AHEAD: 1}, arch)
    assert shape_of(plan)["LOOKS_AHEAD"] == 1


@pytest.mark.parametrize("places", [1, 3])
@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("dims=23x250 mode=layer dtype=bf16", SMALL | {KnobType.MULTIPLY: 4}),
        ("dims=23x500 mode=layer dtype=bf16 before=relu_bwd", SMALL | {KnobType.THREADS_PER_ROW: 64}),
        ("dims=21x97 mode=rms scale=scale", SMALL | {KnobType.THREADS_PER_ROW: 16, KnobType.MULTIPLY: 8}),
        ("dims=37x512 mode=layer dtype=bf16", SMALL),
        ("dims=9x1016 mode=layer dtype=bf16", SMALL | {KnobType.MULTIPLY: 4}),
        ("dims=9x2040 mode=layer dtype=bf16", SMALL | {KnobType.MULTIPLY: 8}),
        ("dims=13x511 mode=layer dtype=fp16 stats=fp16", SMALL | {KnobType.THREADS_PER_ROW: 256}),
        ("dims=9x500 mode=layer axes=1 dtype=fp32", CLUSTER),
    ],
)
def test_rows_are_prefetched_while_gradients_are_summed(
    racing: Runtime, line: str, choices: dict[KnobType, int], places: int
) -> None:
    """A block has several rows at a time, whose teams have barriers of their own."""
    arch = SM_90A.with_sm_count(1)
    plan = check_case(racing, ENGINE, f"norm {line} dir=bwd", choices | {KnobType.STAGES: places}, arch)
    shape = shape_of(plan)
    assert (shape["STAGES"], shape["IS_WHOLE"]) == (places, int("x512 " in line))
    assert shape["CACHES_ROW"] == int("x2040 " not in line)
    assert shape["SCALES"] == (IN_SHARED_MEMORY if "x1016 " in line or "x2040 " in line else IN_REGISTERS)


def test_gradients_of_long_rows_are_reductions(device: Runtime) -> None:
    plan = check(device, "dims=3x1000 mode=layer dir=bwd scale=scale", CLUSTER)
    sources = [kernel.source for kernel in plan.kernels]
    assert sources == ["norm/norm_backward.cu", "reduction/reduction_columns.cu"]


@pytest.mark.parametrize(
    "line",
    [
        "dims=4x64 mode=layer dtype=fp64 scale=none",
        "dims=2x12x5x4 mode=group groups=3 layout=nhwc dtype=bf16 epilogue=swish",
        "dims=2x12x5x4 mode=group groups=3 dir=bwd scale=scale",
        "dims=4x6x5x4 mode=batch running=yes",
        "dims=2x5x24 mode=ada axes=2 dtype=fp16 phase=inference",
        "dims=8x64 mode=rms dtype=bf16 scale=scale before=residual+store out=e4m3 epilogue=scalar",
        "dims=8x64 mode=rms dir=bwd dtype=bf16 before=relu_bwd scale=scale",
    ],
)
def test_modes_types_and_fusions(device: Runtime, line: str) -> None:
    check(device, line)


def test_no_rows_and_empty_rows(device: Runtime) -> None:
    assert check(device, "dims=0x8 mode=layer", SMALL).launches == ()
    check(device, "dims=2x0 mode=layer", SMALL)
    check(device, "dims=0x64 mode=rms dir=bwd scale=scale", NARROW)


@pytest.mark.parametrize("length", [256, 3000])
@pytest.mark.parametrize(("mean", "deviation"), [(1e4, 1.0), (-3e6, 1.0), (0.0, 1e-4), (0.0, 1e15)])
def test_no_more_than_twice_the_error_of_plain_fp32(
    device: Runtime, mean: float, deviation: float, length: int
) -> None:
    case = parse_case(f"norm dims=4x{length} mode=layer scale=none mean={mean} deviation={deviation}")
    seed, graph = fresh_seed(), case.graph()
    inputs = case.inputs(seed, exact=False)
    x = inputs[1]
    actual = run_plan(device, ENGINE.plan(graph, SM_90A, SMALL), graph, inputs)
    y = next(tensor for tensor in graph.outputs if tensor.name == "y")
    expected = (x - x.mean(1, keepdims=True, dtype=np.float64)) / np.sqrt(
        x.var(1, keepdims=True, dtype=np.float64) + 1e-3
    )
    assert error(actual[y.uid], expected) <= 2 * error(plain(x), expected) + 2.0**-23, f"seed {seed}"


def plain(x: NDArray[np.float32]) -> NDArray[np.float32]:
    centred = x - x.mean(1, keepdims=True, dtype=np.float32)
    variance = (centred * centred).mean(1, keepdims=True, dtype=np.float32)
    result: NDArray[np.float32] = centred * (np.float32(1) / np.sqrt(variance + np.float32(1e-3)))
    return result


def error(actual: NDArray[np.float32], expected: NDArray[np.float64]) -> float:
    return float(np.abs(actual - expected).max())


@pytest.mark.parametrize("length", [64, 1000])
def test_nan_and_infinity_stay_in_their_row(device: Runtime, length: int) -> None:
    case = parse_case(f"norm dims=5x{length} mode=layer")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    inputs[1][0, -1], inputs[1][1, 7], inputs[1][2, 9], inputs[1][3, 60] = np.nan, np.nan, np.inf, -np.inf
    inputs[1][4, :8] = np.float32(1e-42)
    check_outputs(device, ENGINE.plan(graph, SM_90A, SMALL), graph, inputs, length)


def test_equal_rows_have_no_deviation(device: Runtime) -> None:
    graph = parse_case("norm dims=3x1000 mode=layer scale=none").graph()
    inputs = {1: np.full((3, 1000), 12345.678, np.float32)}
    results = run_plan(device, ENGINE.plan(graph, SM_90A, SMALL), graph, inputs)
    assert not next(results[tensor.uid] for tensor in graph.outputs if tensor.name == "y").any()


def test_every_scheduling_policy(scheduled: Runtime) -> None:
    check(scheduled, "dims=5x1000 mode=layer", CLUSTER)
    check(scheduled, "dims=5x1000 mode=layer", SMALL | {KnobType.THREADS_PER_ROW: 128})
    check(scheduled, "dims=40x64 mode=layer dir=bwd", NARROW)
    check(scheduled, "dims=4x64x5x4 mode=batch layout=nhwc", GRID)
    check(scheduled, "dims=5x509 mode=layer dtype=bf16", CLUSTER)
    check(scheduled, "dims=2x40x5x6 mode=group groups=4 layout=nhwc dtype=bf16 dir=bwd", CLUSTER)


def test_no_races_and_the_same_bits(racing: Runtime) -> None:
    """With a random order of the warps, twice: no race, and the results do not depend on the order."""
    for line, choices in (
        ("dims=5x1000 mode=layer", CLUSTER),
        ("dims=40x64 mode=layer dir=bwd", NARROW),
        ("dims=2x24x150x1 mode=instance layout=nhwc dtype=bf16", COLUMNS),
        ("dims=4x64x5x4 mode=batch layout=nhwc", GRID),
        ("dims=5x509 mode=layer dtype=bf16", CLUSTER),
        ("dims=2x40x9x9 mode=group groups=4 layout=nhwc dtype=bf16", CLUSTER),
        ("dims=2x40x9x9 mode=group groups=4 layout=nhwc dtype=bf16 dir=bwd", COLUMNS),
    ):
        case = parse_case(f"norm {line}")
        graph, inputs = case.graph(), case.inputs(3, exact=False)
        plan = ENGINE.plan(graph, SM_90A, choices)
        first, second = (run_plan(racing, plan, graph, inputs) for _ in range(2))
        assert all(first[uid].tobytes() == second[uid].tobytes() for uid in first)


@pytest.mark.parametrize(
    ("line", "bytes_each"),
    [
        ("dims=16384x4096 mode=layer dtype=bf16", 2 * 2),
        ("dims=8192x8192 mode=rms scale=scale dtype=fp32", 2 * 4),
        ("dims=16384x4096 mode=layer dtype=bf16 dir=bwd", 3 * 2),
        ("dims=4096x65536 mode=layer dtype=bf16 dir=bwd", 3 * 2),
    ],
)
def test_large_norms_are_one_pass_that_fills_the_device(line: str, bytes_each: int) -> None:
    case = parse_case(f"norm {line}")
    graph = case.graph()
    plan = ENGINE.plan(graph, SM_90A, {})
    x = graph.tensors[1]
    assert plan.launches[0].work.bytes < 1.07 * bytes_each * x.element_count
    assert plan.launches[0].grid[0] > 0.8 * SM_90A.sm_count
    assert "chunks=1" in chunks(plan)
    assert plan.workspace_bytes < 0.1 * x.span_bytes


@pytest.mark.parametrize(
    ("line", "tile"),
    [
        ("dims=65536x768 mode=layer dtype=bf16", (32, 3, 1)),
        ("dims=65536x1024 mode=layer dtype=bf16", (64, 2, 1)),
        ("dims=16384x4096 mode=layer dtype=bf16", (256, 2, 1)),
        ("dims=16384x4096 mode=layer dtype=fp32", (256, 4, 1)),
        ("dims=8192x16384 mode=layer dtype=bf16", (512, 4, 1)),
        ("dims=4096x65536 mode=layer dtype=bf16", (512, 4, 4)),
    ],
)
def test_rows_that_are_summed_have_few_threads(line: str, tile: tuple[int, int, int]) -> None:
    shape = shape_of(ENGINE.plan(parse_case(f"norm {line} dir=bwd").graph(), SM_90A, {}))
    assert (shape["TEAM"], shape["ITEMS"], shape["CLUSTER"]) == tile


@pytest.mark.parametrize("cluster", [2, 4, 8])
@pytest.mark.parametrize("team", [128, 512])
def test_clusters_of_a_persistent_grid_are_all_resident(cluster: int, team: int) -> None:
    """No cluster is left over that would begin when the others end, in an H100's groups of multiprocessors."""
    graph = parse_case(f"norm dims=8192x{team * 16 * cluster} mode=layer dir=bwd dtype=bf16").graph()
    plan = ENGINE.plan(
        graph, SM_90A, {KnobType.THREADS_PER_ROW: team, KnobType.MULTIPLY: 2, KnobType.TILE_CGA_M: cluster}
    )
    resident = int(shape_of(plan)["RESIDENT"])
    there = sum(count * resident // cluster for count in (16, 16, 16, 16, 16, 16, 18, 18))
    assert 0.85 * there < plan.launches[0].grid[0] / cluster <= there


@pytest.mark.parametrize(
    ("line", "tile"),
    [
        ("4096 mode=rms scale=scale dtype=bf16", (256, 2)),
        ("4096 mode=layer dtype=bf16", (128, 4)),
        ("4096 mode=layer", (256, 4)),
        ("1024 mode=rms scale=scale dtype=bf16", (32, 4)),
        ("3072 mode=rms scale=scale dtype=bf16", (128, 3)),
        ("8192 mode=rms scale=scale dtype=bf16", (256, 4)),
        ("8192 mode=rms scale=scale dtype=bf16 before=residual+store", (512, 2)),
    ],
)
def test_threads_of_long_rows(line: str, tile: tuple[int, int]) -> None:
    """There are twice as many if the row keeps them all busy, and only squares are summed or x is wide."""
    shape = shape_of(ENGINE.plan(parse_case(f"norm dims=4096x{line}").graph(), SM_90A, {}))
    assert (shape["TEAM"], shape["ITEMS"], shape["LOOKS_AHEAD"]) == (*tile, 0)


def test_blocks_of_a_persistent_grid_have_equally_many_rows() -> None:
    plan = ENGINE.plan(parse_case("norm dims=2048x4096 mode=rms scale=scale dir=bwd dtype=bf16").graph(), SM_90A, {})
    rows = 2048 / plan.launches[0].grid[0]
    assert 0.97 < rows / np.ceil(rows) <= 1


def chunks(plan: Plan) -> str:
    sizes = plan.launches[0].arguments[0].fields[0].fields  # type: ignore[union-attr]
    return f"chunks={sizes[2].value}"  # type: ignore[union-attr]


def test_another_shape_is_no_other_kernel() -> None:
    plans = [ENGINE.plan(parse_case(f"norm {line}").graph(), SM_90A, {}) for line in LIKE]
    assert plans[0].kernels == plans[1].kernels


LIKE = ("dims=512x3712 mode=layer dtype=bf16", "dims=1024x3968 mode=layer dtype=bf16")


def test_refusals_name_what_they_found() -> None:
    refusal = ENGINE.refuse(matmul_graph(), SM_90A)
    assert refusal is not None
    assert "exactly one NormForward, got 0" in refusal.reason


def test_rows_too_long_to_sum_gradients_compute_dy_again() -> None:
    graph = parse_case("norm dims=1x435567 mode=layer axes=1 dir=bwd dtype=fp16 align=2 before=mul").graph()
    kernels = [kernel.name for kernel in ENGINE.plan(graph, SM_90A, {}).kernels]
    assert sum("reduction" in name for name in kernels) == 2


def test_running_statistics_follow_from_the_mean_before_it_is_rounded(device: Runtime) -> None:
    """Running statistics are in fp32 and the mean in fp16, whose rounding would show."""
    builder = CaseBuilder()
    x, momentum = builder.tensor((2, 8, 1, 1), DataType.FLOAT), builder.by_value(4, DataType.FLOAT)
    epsilon = builder.constant(4, DataType.FLOAT, 1e-3)
    builder.norm(NormMode.BATCH_NORM, x, epsilon, momentum=momentum, store=DataType.FLOAT, statistics=DataType.HALF)
    (operation,) = builder.operations
    assert isinstance(operation, NormForward)
    running = (operation.output_running_mean, operation.output_running_var)
    wide = {tensor.uid: replace(tensor, data_type=DataType.FLOAT) for tensor in running if tensor is not None}
    check_close(device, ENGINE, OperationGraph([with_tensors(operation, wide)]), length=1)
