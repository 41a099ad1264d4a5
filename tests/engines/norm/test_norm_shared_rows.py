"""``norm_rows`` where blocks share rows: resident chunks, rings, cooperative grids, pipelined rows."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType, HeurMode, KnobType, NormMode, PointwiseMode
from lowdnn.graph.layouts import Layout
from lowdnn.heuristics.ranking import rank
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError
from tests.engines.norm.rows import CLUSTER, COLUMNS, ENGINE, GRID, SMALL, check, is_pipelined, shape_of
from tests.support.data import fresh_seed
from tests.support.running import check_case, check_outputs, run_plan


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("dims=100x1000 mode=layer mean=10000", SMALL),
        ("dims=40x2000 mode=layer dtype=bf16 before=residual+store", SMALL),
        ("dims=10x24x7x16 mode=batch dtype=fp16 running=yes", CLUSTER),
        ("dims=10x24x7x16 mode=batch dir=bwd dtype=fp16", CLUSTER),
        ("dims=9x24x9x9 mode=group groups=8 layout=nhwc dtype=bf16 mean=10000 epilogue=swish", COLUMNS),
        ("dims=6x48x9x9 mode=group groups=4 layout=nhwc dir=bwd dtype=bf16", COLUMNS | {KnobType.TILE_CGA_M: 2}),
        ("dims=12x8x16x20 mode=group groups=2 dir=bwd", CLUSTER),
    ],
)
def test_chunks_of_successive_rows_go_through_a_ring(racing: Runtime, line: str, choices: dict[KnobType, int]) -> None:
    plan = check_case(racing, ENGINE, f"norm {line}", choices | {KnobType.READ_AHEAD: 2}, SM_90A.with_sm_count(1))
    assert shape_of(plan)["IN_RING"] == 1


def test_a_row_of_a_mebi_elements_has_the_whole_device(device: Runtime) -> None:
    plan = check(device, f"dims=1x{1 << 20} mode=rms scale=none dtype=bf16 phase=inference")
    assert plan.launches[0].cooperative
    assert plan.launches[0].grid[0] == SM_90A.sm_count


@pytest.mark.parametrize(
    "line",
    [
        "dims=4x64x5x4 mode=batch layout=nhwc running=yes epilogue=residual+relu dtype=bf16",
        "dims=3x72x5x5 mode=batch layout=nhwc dtype=bf16 mean=10000",
        "dims=4x64x5x4 mode=batch layout=nhwc dir=bwd dtype=bf16 epilogue=relu",
        "dims=3x10x7x7 mode=batch layout=nhwc dir=bwd dtype=fp64",
        "dims=3x5x7x7 mode=batch layout=nhwc dir=bwd dtype=bf16",
        "dims=3x6x7x7 mode=batch dir=bwd dtype=bf16",
        "dims=3x24x7x7 mode=group groups=8 layout=nhwc dtype=bf16 mean=10000 epilogue=swish",
        "dims=2x40x7x7 mode=group groups=4 layout=nhwc dir=bwd dtype=bf16",
        "dims=2x3000 mode=rms scale=scale dtype=bf16 before=residual+store",
        "dims=2x120 mode=layer dir=bwd dtype=bf16",
    ],
)
def test_blocks_of_a_grid_share_rows(racing: Runtime, line: str) -> None:
    plan = check(racing, line, GRID)
    assert plan.launches[0].cooperative
    assert plan.launches[0].grid[0] % 4 == 0


def test_gradients_of_many_groups_go_through_a_ring() -> None:
    """Rows go through a ring if blocks of a persistent grid have several groups; with few groups they lie in
    registers."""
    for dims, stages in (("16x256x128x128", 2), ("8x320x64x64", 0)):
        graph = parse_case(f"norm dims={dims} mode=group groups=32 dir=bwd dtype=bf16").graph()
        plan = ENGINE.plan(graph, SM_90A, {})
        assert dict(plan.choices)[KnobType.READ_AHEAD] == stages
        assert shape_of(plan)["IN_RING"] == stages // 2


def test_many_blocks_share_rows(racing: Runtime) -> None:
    """Several threads reduce a number in shares, and one thread adds the shares."""
    wide = {KnobType.THREADS_PER_ROW: 16, KnobType.MULTIPLY: 1, KnobType.TILE_CGA_M: 1, KnobType.CTA_COUNT: 32}
    assert check(racing, "dims=2x32x16x17 mode=batch layout=nhwc mean=100", wide).launches[0].grid[0] == 32


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_chunks_are_resident_in_shared_memory(device: Runtime, direction: str) -> None:
    """All eight chunks of two or three tensors are; of a longer row, as many as fit."""
    before = "residual+store" if direction == "fwd" else "relu_bwd"
    line = f"dims=2x64x120x1 mode=batch layout=nhwc dtype=bf16 before={before} dir={direction}"
    tensors = 2 if direction == "fwd" else 3
    assert check(device, line, GRID).launches[0].shared_bytes == 8 * 64 * tensors * 16
    line = f"dims=1x64x2048x1 mode=batch layout=nhwc dtype=bf16 dir={direction}"
    plan = check(device, line, {KnobType.THREADS_PER_ROW: 64, KnobType.MULTIPLY: 2, KnobType.TILE_CGA_M: 1})
    assert 0.6 * SM_90A.shared_bytes_per_block < plan.launches[0].shared_bytes < SM_90A.shared_bytes_per_block


def test_a_mask_is_resident_too(device: Runtime) -> None:
    """Arrays have different widths, and a tensor computed along with dy is stored once."""
    builder, dims = CaseBuilder(Layout.CHANNELS_LAST), (2, 64, 60, 1)
    x, dy = (builder.tensor(dims, DataType.HALF) for _ in range(2))
    mask = builder.tensor(dims, DataType.BOOLEAN)
    masked = builder.pointwise(PointwiseMode.MUL, dy, mask, store=DataType.HALF)
    scale = builder.tensor((1, 64, 1, 1), DataType.FLOAT)
    builder.norm_backward(NormMode.BATCH_NORM, x, masked, scale, store=DataType.HALF)
    graph, rng = builder.graph(), np.random.default_rng(fresh_seed())
    inputs = {tensor.uid: rng.uniform(0.5, 1.5, tensor.dims).astype(np.float32) for tensor in graph.inputs}
    inputs |= {t.uid: rng.normal(0, 1, dims).astype(np.float16) for t in (x, dy)}
    inputs[mask.uid] = rng.random(dims) > 0.5
    plan = ENGINE.plan(graph, SM_90A, GRID)
    assert plan.launches[0].shared_bytes == 4 * 64 * (16 + 32)
    check_outputs(device, plan, graph, inputs, 120)


@pytest.mark.parametrize(
    ("line", "team"),
    [
        ("dims=3x32x20x19 mode=instance layout=nhwc dtype=bf16 mean=10000", 32),
        ("dims=3x32x20x19 mode=instance layout=nhwc dir=bwd dtype=bf16", 32),
        ("dims=3x64x9x9 mode=group groups=8 layout=nhwc dtype=bf16 epilogue=swish", 8),
        ("dims=3x80x9x19 mode=group groups=8 layout=nhwc dtype=fp16", 16),
        ("dims=3x80x9x19 mode=group groups=8 layout=nhwc dir=bwd dtype=fp16", 16),
        ("dims=3x3x40x41 mode=instance scale=none mean=100", 64),
        ("dims=3x3x40x80 mode=instance dir=bwd dtype=bf16", 64),
        ("dims=2x3x64x192 mode=instance scale=none", 256),  # slots for more chunks than may be on their way
        ("dims=2x3x20x40 mode=instance dir=bwd dtype=fp64", 64),
    ],
)
def test_blocks_share_pipelined_rows(racing: Runtime, line: str, team: int) -> None:
    """Threads of four roles copy rows, run the first pass over one and the second over another, and exchange sums."""
    pipelined = GRID | {KnobType.THREADS_PER_ROW: team, KnobType.READ_AHEAD: 2}
    plan = check_case(racing, ENGINE, f"norm {line}", pipelined, SM_90A.with_sm_count(4))
    assert is_pipelined(plan)
    assert plan.launches[0].grid[0] == 4
    assert plan.launches[0].block[1] == 4


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_blocks_share_pipelined_rows_under_every_policy(scheduled: Runtime, direction: str) -> None:
    pipelined = GRID | {KnobType.THREADS_PER_ROW: 16, KnobType.READ_AHEAD: 2}
    line = f"norm dims=3x80x9x19 mode=group groups=8 layout=nhwc dtype=fp16 dir={direction}"
    plan = check_case(scheduled, ENGINE, line, pipelined, SM_90A.with_sm_count(4))
    assert is_pipelined(plan)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_many_blocks_share_pipelined_rows(device: Runtime, direction: str) -> None:
    """Several threads poll a number, each from more blocks than it loads at once."""
    pipelined = GRID | {KnobType.THREADS_PER_ROW: 32, KnobType.CTA_COUNT: 32, KnobType.READ_AHEAD: 2}
    line = f"norm dims=3x32x41x50 mode=instance layout=nhwc dtype=bf16 dir={direction}"
    plan = check_case(device, ENGINE, line, pipelined, SM_90A.with_sm_count(32))
    assert is_pipelined(plan)


@pytest.mark.parametrize(
    ("line", "sharing"),
    [
        ("16x256x128x128 mode=instance layout=nhwc dtype=bf16", 32),
        ("16x256x128x128 mode=group groups=32 layout=nhwc dir=bwd dtype=bf16", 22),
        ("64x320x64x64 mode=group groups=32 layout=nhwc dtype=fp16", 11),
        ("2x32x128x128x128 mode=instance dtype=bf16", 128),
        ("2x32x128x128x128 mode=instance dir=bwd dtype=bf16", 128),
    ],
)
def test_rows_that_no_cluster_holds_are_pipelined_and_read_once(line: str, sharing: int) -> None:
    plan = ENGINE.plan(parse_case(f"norm dims={line}").graph(), SM_90A, {})
    assert (is_pipelined(plan), shape_of(plan)["SHARING"]) == (True, sharing)
    assert plan.launches[0].grid[0] <= SM_90A.sm_count
    assert plan.launches[0].work.bytes < 1.01 * sum(tensor.size_bytes for tensor in plan.tensors)


def test_a_grid_that_does_not_fit_the_device_is_refused() -> None:
    graph = parse_case("norm dims=16x256x128x128 mode=instance layout=nhwc dtype=bf16").graph()
    with pytest.raises(BadParamError, match="CTA_COUNT: expected blocks that the device has"):
        ENGINE.plan(graph, SM_90A, {KnobType.READ_AHEAD: 0})


def test_a_shared_row_is_read_once_and_summed_exactly(device: Runtime) -> None:
    """A large mean costs no accuracy, since the blocks agree on an estimate of it."""
    case = parse_case("norm dims=8x64x16x1 mode=batch layout=nhwc mean=10000 deviation=1")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    results = run_plan(device, ENGINE.plan(graph, SM_90A, GRID), graph, inputs)
    x = inputs[1].astype(np.float64)
    inverse = next(results[tensor.uid] for tensor in graph.outputs if tensor.name == "inv_variance")
    expected = 1 / np.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-3)
    np.testing.assert_allclose(inverse, expected, rtol=1e-5)


def test_rows_are_shared_in_one_way(device: Runtime) -> None:
    graph = parse_case("norm dims=4x64x5x4 mode=batch layout=nhwc").graph()
    with pytest.raises(BadParamError, match="TILE_CGA_M: expected 1 with CTA_COUNT 4, got 2"):
        ENGINE.plan(graph, SM_90A, GRID | {KnobType.TILE_CGA_M: 2})


@pytest.mark.parametrize("channels", [64, 256, 512, 1024, 2048])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_batch_norms_are_one_launch_with_all_blocks_resident(channels: int, direction: str) -> None:
    """For a ResNet at batch 32, also with half the multiprocessors, this is the first choice."""
    extent = {64: 112, 256: 56, 512: 28, 1024: 14, 2048: 7}[channels]
    line = f"norm dims=32x{channels}x{extent}x{extent} mode=batch layout=nhwc dtype=bf16 dir={direction}"
    graph = parse_case(line).graph()
    for arch in (SM_80, SM_90A, SM_90A.with_sm_count(66)):
        plan = rank(graph, arch, HeurMode.A, ENGINES).candidates[0].plan
        (launch,) = plan.launches
        assert launch.cooperative
        assert 0.8 * arch.sm_count < launch.grid[0] <= arch.sm_count
        if arch is SM_90A and channels >= 1024:
            assert launch.work.bytes < 1.15 * sum(tensor.size_bytes for tensor in plan.tensors)
