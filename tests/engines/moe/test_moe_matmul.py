from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.base import Engine
from lowdnn.engines.moe.arguments import MAX_GROUPS
from lowdnn.engines.moe.moe_matmul_mma import MoeMatmulMma
from lowdnn.engines.moe.moe_matmul_simt import MoeMatmulSimt
from lowdnn.engines.moe.moe_matmul_wgmma import MoeMatmulWgmma
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.plan import MathUnit, Plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.cases import check_case, wgmma_tile
from tests.support.running import run_plan
from tests.support.tolerance import assert_exact

SIMT, MMA, WGMMA = MoeMatmulSimt(), MoeMatmulMma(), MoeMatmulWgmma()
_, PING_PONG, TWO_BLOCKS = range(3)
#: A device with one multiprocessor: a block takes many tiles, of many groups.
ALONE = SM_90A.with_sm_count(1)
BF16 = "k=136 n=136 dtype=bf16 layout=nt"
GATHERED = "k=20 dtype=fp16 layout=nt mode=gather tokens=40 offset=int64 epilogue=bias+relu"
MMA_TILE = {KnobType.TILE_M: 64, KnobType.TILE_N: 64, KnobType.TILEK: 64, KnobType.STAGES: 2}
SMALL_TILE = {KnobType.TILE_M: 32, KnobType.TILE_N: 32}


def macro(plan: Plan, name: str) -> int | str:
    return dict(plan.kernels[-1].parameters)[name]


@pytest.mark.parametrize(
    "sizes",
    [
        "sizes=64x128x0x17",  # whole tiles, none, a tail
        "sizes=0x0x1x208",
        "sizes=79x81x1x48",  # slabs of 16 rows that end in their first and last row
        "sizes=70x0x60x33 ends=1",  # rows left over
    ],
)
@pytest.mark.parametrize("columns", [64, 96])  # chunks of 64, of 32
def test_rows_of_a_group_end_where_the_next_one_begins(device: Runtime, sizes: str, columns: int) -> None:
    text = f"moe experts=4 rows=209 {BF16} {sizes}"
    plan = check_case(device, WGMMA, text, wgmma_tile(64, columns, warps=TWO_BLOCKS), ALONE)
    assert macro(plan, "BY_MAP") == 1


def test_no_offsets_lead_outside_the_rows(device: Runtime) -> None:
    """One group ends before it begins, one continues past the rows, two lie beyond them."""
    case = parse_case(f"moe experts=4 rows=209 {BF16} sizes=0x0x0x0 ends=1")
    graph = case.graph()
    inputs = case.inputs(1, exact=True)
    offsets = next(tensor.uid for tensor in graph.inputs if tensor.name == "first_token_offset")
    inputs[offsets][:] = np.array([150, 30, 300, 500, -1]).reshape(5, 1, 1)
    plan = WGMMA.plan(graph, ALONE, wgmma_tile(64, 64, warps=TWO_BLOCKS))
    (expected,) = evaluate(graph, inputs).values()
    (actual,) = run_plan(device, plan, graph, inputs).values()
    assert_exact(actual, expected, DataType.BFLOAT16, "offsets 150, 30, 300, 500, -1")


def test_every_kind_of_block_under_races(racing: Runtime) -> None:
    """Clusters share weights, teams alternate, groups have several batches, offsets have 64 bits."""
    text = "moe experts=3 batches=2 rows=150 k=72 n=136 dtype=bf16 offset=int64 sizes=70x0x1x0x60x19"
    choices = wgmma_tile(64, 128, warps=PING_PONG, stages=3, cluster_m=2)
    plan = check_case(racing, WGMMA, text, choices, SM_90A.with_sm_count(4))
    assert (macro(plan, "BY_MAP"), plan.launches[0].cluster) == (1, (2, 1, 1))


def test_scattered_rows_under_races(racing: Runtime) -> None:
    """The functor stores, with operands of the epilogue at the rows' targets."""
    text = "moe experts=3 rows=99 k=72 n=72 dtype=bf16 layout=nt mode=scatter top_k=3 epilogue=residual+bias"
    plan = check_case(racing, WGMMA, text, wgmma_tile(64, 64, warps=TWO_BLOCKS), ALONE)
    assert macro(plan, "BY_MAP") == 0


def test_gathered_rows(device: Runtime) -> None:
    """Some tokens are repeated, some are not used."""
    text = f"moe experts=4 rows=209 {BF16} mode=gather tokens=30"
    plan = check_case(device, WGMMA, text, wgmma_tile(64, 64, warps=TWO_BLOCKS), ALONE)
    assert len(plan.launches) == 2
    assert plan.workspace_bytes >= 209 * 136 * 2


@pytest.mark.parametrize(
    ("types", "unit"),
    [
        ("dtype=fp16 out=fp32", MathUnit.WGMMA_F16),
        ("dtype=e4m3 out=bf16", MathUnit.WGMMA_FP8),
        ("dtype=int8", MathUnit.WGMMA_INT8),
        ("dtype=fp32", MathUnit.WGMMA_TF32),
    ],
)
def test_types(types: str, unit: MathUnit) -> None:
    graph = parse_case(f"moe experts=4 rows=209 k=136 n=136 layout=nt {types}").graph()
    assert WGMMA.plan(graph, SM_90A, {}).launches[-1].work.unit is unit


def test_sums_of_fp8_are_promoted_unless_the_knob_says_no() -> None:
    graph = parse_case("moe experts=2 rows=100 k=272 n=64 layout=nt dtype=e4m3 out=bf16").graph()
    assert macro(WGMMA.plan(graph, SM_90A, {}), "PROMOTED") == 1
    fast = WGMMA.plan(graph, SM_90A, {KnobType.REDUCTION_MODE: 0})
    assert macro(fast, "PROMOTED") == 0
    assert NumericalNote.REDUCED_PRECISION_REDUCTION in fast.numerical_notes


def test_mma_scatters_under_races(racing: Runtime) -> None:
    text = "moe experts=3 rows=99 k=72 n=72 dtype=bf16 mode=scatter top_k=3 sizes=40x0x50 ends=1"
    check_case(racing, MMA, text, MMA_TILE, SM_80)


def test_mma_gathers_rows_of_no_whole_chunks(device: Runtime) -> None:
    text = "moe experts=3 batches=2 rows=99 k=33 n=72 dtype=bf16 mode=gather tokens=20 epilogue=bias+relu offset=int64"
    assert len(check_case(device, MMA, text, MMA_TILE, SM_80).launches) == 2


def test_mma_takes_many_tiles_of_a_group(device: Runtime) -> None:
    text = "moe experts=3 rows=180 k=40 n=72 dtype=bf16 layout=nt sizes=130x1x49"
    check_case(device, MMA, text, MMA_TILE, SM_80)


def test_mma_leaves_room_for_its_table() -> None:
    graph = parse_case(f"moe experts={MAX_GROUPS} rows=100000 k=64 n=4096 dtype=bf16").graph()
    for knob in (64, 128, 256):
        launch = MMA.plan(graph, SM_80, {KnobType.TILE_M: knob, KnobType.TILE_N: 64}).launches[-1]
        assert launch.shared_bytes <= SM_80.shared_bytes_per_block


def test_without_tensor_cores_under_every_policy(scheduled: Runtime) -> None:
    check_case(scheduled, SIMT, f"moe experts=4 batches=2 rows=90 n=40 {GATHERED}", SMALL_TILE, SM_80)


def test_more_groups_than_a_warp_counts_under_races(racing: Runtime) -> None:
    check_case(racing, SIMT, f"moe experts=33 rows=33 n=8 {GATHERED}", SMALL_TILE, SM_80)


def test_without_tensor_cores_scattered_and_unaligned(device: Runtime) -> None:
    text = "moe experts=4 rows=120 k=19 n=37 dtype=int8 mode=scatter top_k=2 align=1 sizes=30x50x0x21 ends=1"
    check_case(device, SIMT, text, arch=SM_80)


@pytest.mark.parametrize("engine", [SIMT, MMA, WGMMA])
def test_an_odd_number_of_groups_costs_a_reason(engine: Engine) -> None:
    refusal = engine.refuse(parse_case(f"moe experts={MAX_GROUPS + 1} rows=10 k=8 n=8 dtype=bf16").graph(), SM_90A)
    assert refusal is not None
    assert f"at most {MAX_GROUPS} groups, got {MAX_GROUPS + 1}" in refusal.reason


def test_what_wgmma_refuses() -> None:
    def reason(text: str) -> tuple[Status, str]:
        refusal = WGMMA.refuse(parse_case(f"moe experts=2 {text}").graph(), SM_90A)
        assert refusal is not None
        return refusal.status, refusal.reason

    assert reason("rows=8 k=8 n=8 dtype=fp64 compute=fp64")[0] is Status.NOT_SUPPORTED_DATA_TYPE
    assert reason("rows=8 k=0 n=8 dtype=bf16")[0] is Status.NOT_SUPPORTED_SHAPE
    assert "expected exactly one MoeGroupedMatmul" in reason("rows=8 k=8 n=8 dtype=bf16 dir=wgrad")[1]
    assert WGMMA.refuse(parse_case("moe experts=2 rows=8 k=8 n=8 dtype=bf16").graph(), SM_80) is not None


def test_empty_outputs_launch_nothing() -> None:
    assert SIMT.plan(parse_case("moe experts=2 rows=0 k=8 n=8").graph(), SM_90A, {}).launches == ()


def test_no_more_blocks_than_tiles_there_can_be() -> None:
    """3 rows in 4 groups make at most 3 tiles of rows; 1000 rows at most 1000 / 64 and one more for each group."""

    def blocks(rows: int) -> int:
        graph = parse_case(f"moe experts=4 rows={rows} k=64 n=64 dtype=bf16").graph()
        return WGMMA.plan(graph, SM_90A, wgmma_tile(64, 64, warps=TWO_BLOCKS)).launches[0].grid[0]

    assert (blocks(3), blocks(1000)) == (3, 19)
