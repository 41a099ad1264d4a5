from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.engines.base import Engine
from lowdnn.engines.moe.arguments import MAX_GROUPS
from lowdnn.engines.moe.moe_matmul_simt import MoeMatmulSimt
from lowdnn.engines.moe.moe_matmul_wgmma import MoeMatmulWgmma
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.cases import parse_case
from lowdnn.plan import MathUnit, Plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.engines.moe.running import check, tile

SIMT, WGMMA = MoeMatmulSimt(), MoeMatmulWgmma()
COOPERATIVE, PING_PONG, TWO_BLOCKS = range(3)
#: One multiprocessor: a block takes many tiles, of many groups.
ALONE = SM_90A.with_sm_count(1)
BF16 = "k=136 n=136 dtype=bf16 layout=nt"


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
def test_rows_of_a_group_end_where_the_next_one_begins(device: Runtime, sizes: str) -> None:
    text = f"moe experts=4 rows=209 {BF16} {sizes}"
    plan = check(device, WGMMA, text, tile(64, 64, warps=TWO_BLOCKS), ALONE)
    assert macro(plan, "BY_MAP") == 1


def test_every_kind_of_block_under_races(racing: Runtime) -> None:
    """Clusters that share weights, teams in turn, groups of several batches, 64-bit offsets."""
    text = "moe experts=3 batches=2 rows=400 k=72 n=200 dtype=bf16 offset=int64"
    choices = tile(64, 128, warps=PING_PONG, stages=3, cluster_m=2)
    plan = check(racing, WGMMA, text, choices, SM_90A.with_sm_count(4))
    assert (macro(plan, "BY_MAP"), plan.launches[0].cluster) == (1, (2, 1, 1))


def test_scattered_rows_under_races(racing: Runtime) -> None:
    """By the functor, with operands of the epilogue where the rows go."""
    text = f"moe experts=4 rows=210 {BF16} mode=scatter top_k=3 epilogue=residual+bias"
    plan = check(racing, WGMMA, text, tile(128, 64, warps=COOPERATIVE), ALONE)
    assert macro(plan, "BY_MAP") == 0


def test_scattered_rows_that_are_left_over_leave_their_slots(device: Runtime) -> None:
    check(device, WGMMA, f"moe experts=2 rows=90 sizes=30x50 ends=1 {BF16} mode=scatter top_k=3")


@pytest.mark.parametrize("k", ["k=136", "k=77"])
def test_gathered_rows(device: Runtime, k: str) -> None:
    """Repeated and unused tokens; rows of whole chunks of 16 bytes and others."""
    plan = check(device, WGMMA, f"moe experts=4 rows=209 {k} n=136 dtype=bf16 mode=gather tokens=30")
    assert len(plan.launches) == 2 + (k == "k=77") * 0
    assert plan.workspace_bytes >= 209 * int(k[2:]) * 2


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


def test_sums_of_fp8_are_promoted_unless_the_knob_says_no(device: Runtime) -> None:
    text = "moe experts=2 rows=100 k=272 n=64 layout=nt dtype=e4m3 out=bf16"
    assert macro(check(device, WGMMA, text), "PROMOTED") == 1
    fast = WGMMA.plan(parse_case(text).graph(), SM_90A, {KnobType.REDUCTION_MODE: 0})
    assert macro(fast, "PROMOTED") == 0
    assert NumericalNote.REDUCED_PRECISION_REDUCTION in fast.numerical_notes


@pytest.mark.parametrize(
    "text",
    [
        "rows=100 k=33 n=37 dtype=fp64 compute=fp64 sizes=33x0x47x3 ends=1",
        "rows=150 k=20 n=40 dtype=fp16 layout=nt mode=gather tokens=40 batches=2 epilogue=bias+relu offset=int64",
        "rows=120 k=20 n=40 dtype=int8 mode=scatter top_k=2 align=1",
    ],
)
def test_without_tensor_cores(device: Runtime, text: str) -> None:
    check(device, SIMT, f"moe experts=4 {text}", arch=SM_80)


def test_without_tensor_cores_under_every_policy(scheduled: Runtime) -> None:
    check(scheduled, SIMT, "moe experts=40 rows=100 k=24 n=40", {KnobType.TILE_M: 32, KnobType.TILE_N: 32})


@pytest.mark.parametrize("engine", [SIMT, WGMMA])
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
    """3 rows in 4 groups are at most 3 tiles of rows; 1000 rows at most 1000 / 64 and one for each group."""

    def blocks(rows: int) -> int:
        graph = parse_case(f"moe experts=4 rows={rows} k=64 n=64 dtype=bf16").graph()
        return WGMMA.plan(graph, SM_90A, tile(64, 64, warps=TWO_BLOCKS)).launches[0].grid[0]

    assert (blocks(3), blocks(1000)) == (3, 19)
