"""``softmax`` with few kernels and many shapes: knobs are given where the defaults would need more kernels."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.registry import ENGINES
from lowdnn.engines.softmax.softmax import SoftmaxEngine
from lowdnn.enums import DataType, HeurMode, KnobType, PointwiseMode
from lowdnn.heuristics.ranking import rank
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.builders import matmul_graph
from tests.support.data import fresh_seed
from tests.support.running import check_case, check_close, check_outputs, run_plan
from tests.support.runtime import download, upload

ENGINE = SoftmaxEngine()

#: A team of one warp with two groups in each thread: 256 elements of fp32 in a chunk.
SMALL = {KnobType.THREADS_PER_ROW: 32, KnobType.MULTIPLY: 2, KnobType.TILE_CGA_M: 1}
CLUSTER = SMALL | {KnobType.TILE_CGA_M: 2}
NARROW = SMALL | {KnobType.THREADS_PER_ROW: 8}
#: Bulk copies bring the next row, even if it begins inside a memory line.
LINES = SMALL | {KnobType.THREADS_PER_ROW: 128, KnobType.READ_AHEAD: 3}
#: Groups of so many values that only one block is resident.
WIDE = {KnobType.THREADS_PER_ROW: 512, KnobType.MULTIPLY: 4, KnobType.TILE_CGA_M: 1}


def check(device: Runtime, line: str, choices: dict[KnobType, int] | None = None) -> Plan:
    return check_case(device, ENGINE, f"softmax {line}", choices)


@pytest.mark.parametrize(
    ("line", "choices", "how"),
    [
        ("dims=23x509 dtype=bf16 stats=fp32", CLUSTER, 2),  # misaligned rows
        ("dims=23x509 dtype=bf16 dir=bwd", CLUSTER, 2),
        ("dims=11x1500 log=yes", SMALL | {KnobType.THREADS_PER_ROW: 128, KnobType.MULTIPLY: 4}, 2),
        ("dims=11x1500 before=mul", SMALL | {KnobType.THREADS_PER_ROW: 128, KnobType.MULTIPLY: 4}, 1),  # two tensors
    ],
)
def test_bulk_copies_bring_the_next_row(racing: Runtime, line: str, choices: dict[KnobType, int], how: int) -> None:
    """Bulk copies bring the part of the row that lies in one tensor."""
    arch = SM_90A.with_sm_count(1)
    plan = check_case(racing, ENGINE, f"softmax {line}", choices | {KnobType.READ_AHEAD: 3}, arch)
    assert dict(plan.kernels[0].parameters)["LOOKS_AHEAD"] == how


@pytest.mark.parametrize(
    ("line", "line_groups"),
    [
        ("dims=41x1989 dtype=bf16 stats=fp32", 8),  # misaligned, at each position in a line
        ("dims=4x11x1985 dtype=fp16 log=yes", 8),
        ("dims=7x5x1992 dtype=bf16", 8),  # inside lines
        ("dims=19x1960 dtype=bf16 out=fp32", 8),
        ("dims=19x953 log=yes", 8),
        ("dims=19x1984 dtype=bf16", 1),  # at lines
        ("dims=19x2000 dtype=bf16", 1),  # with no room for the groups before the row
        ("dims=19x1960 before=mul dtype=bf16", 1),  # two tensors
    ],
)
def test_warps_begin_at_memory_lines(racing: Runtime, line: str, line_groups: int) -> None:
    """Warps begin at memory lines even if rows do not; a block has 256 groups in all."""
    plan = check_case(racing, ENGINE, f"softmax {line}", LINES, SM_90A.with_sm_count(1))
    assert shape_of(plan)["LINE_GROUPS"] == line_groups


@pytest.mark.parametrize(
    ("length", "stages", "line_groups"), [(50257, 3, 8), (50264, 3, 8), (50304, 1, 1), (53240, 1, 1)]
)
def test_rows_inside_memory_lines_by_default(length: int, stages: int, line_groups: int) -> None:
    plan = ENGINE.plan(parse_case(f"softmax dims=2048x{length} dtype=bf16").graph(), SM_90A, {})
    assert (dict(plan.choices)[KnobType.READ_AHEAD], shape_of(plan)["LINE_GROUPS"]) == (stages, line_groups)


@pytest.mark.parametrize("choices", [SMALL, CLUSTER], ids=["block", "cluster"])
def test_row_lengths_and_chunks(device: Runtime, choices: dict[KnobType, int]) -> None:
    for length in (4, 252, 256, 1000, 5000):
        check(device, f"dims=5x{length} stats=fp32", choices)


@pytest.mark.parametrize(
    ("line", "choices", "is_ahead"),
    [
        ("dims=41x250 dtype=fp16", NARROW | {KnobType.MULTIPLY: 16}, 1),
        ("dims=23x509 dtype=bf16 stats=fp32", CLUSTER, 1),  # misaligned rows
        ("dims=23x512 dtype=bf16 log=yes", CLUSTER, 1),
        ("dims=23x509 dtype=bf16 dir=bwd", CLUSTER, 1),
        ("dims=19x1020 dtype=fp32 log=yes dir=bwd", SMALL | {KnobType.THREADS_PER_ROW: 64, KnobType.MULTIPLY: 4}, 1),
        ("dims=7x60x4x8 axes=1 dtype=bf16", SMALL, 1),
        ("dims=5x1000", SMALL, 0),  # several chunks
    ],
)
def test_the_next_row_is_prefetched(racing: Runtime, line: str, choices: dict[KnobType, int], is_ahead: int) -> None:
    """There are few multiprocessors, so that blocks have several rows."""
    arch = SM_90A.with_sm_count(1)
    plan = check_case(racing, ENGINE, f"softmax {line}", choices | {KnobType.READ_AHEAD: 1}, arch)
    assert dict(plan.kernels[0].parameters)["LOOKS_AHEAD"] == is_ahead


@pytest.mark.parametrize("choices", [SMALL, CLUSTER], ids=["block", "cluster"])
def test_sinks(device: Runtime, choices: dict[KnobType, int]) -> None:
    check(device, "dims=3x4x252 sink=yes log=yes before=mul dtype=bf16", choices)
    check(device, "dims=2x3x1500 sink=yes stats=fp32", choices)


def test_sinks_of_columns(device: Runtime) -> None:
    check(device, "dims=3x60x4x8 axes=1 sink=yes dtype=fp16", SMALL)


def test_odd_rows(device: Runtime) -> None:
    for length in (1, 3, 13):
        check(device, f"dims=6x{length}", NARROW)


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("dims=9x65 dtype=bf16 out=fp32", NARROW),
        ("dims=9x1500 dtype=bf16 stats=fp32", SMALL),
        ("dims=9x509 dtype=bf16", CLUSTER),
        ("dims=3x5x77 dtype=fp16 dir=bwd before=mul", NARROW),
    ],
)
def test_misaligned_rows(device: Runtime, line: str, choices: dict[KnobType, int]) -> None:
    """Groups are whole vectors in memory, and rows begin at each position in one."""
    plan = check(device, line, choices)
    assert shape_of(plan)["HAS_SKEW"] == 1
    assert shape_of(plan)["VECTOR"] == 8


def test_every_start_and_end_of_a_row(racing: Runtime) -> None:
    """Rows have 32 to 39 elements: three to five whole vectors and up to seven elements before and after them."""
    for length in range(32, 40):
        for line in (f"dims=9x{length} dtype=bf16 log=yes stats=fp32", f"dims=9x{length} dtype=fp16 dir=bwd"):
            plan = check(racing, line, NARROW)
            assert shape_of(plan)["HAS_SKEW"] == int(length != 32)


@pytest.mark.parametrize("length", [197, 1001])
def test_a_row_is_replaced_by_its_result(racing: Runtime, length: int) -> None:
    """x and y share memory: no thread reads what another has written."""
    case = parse_case(f"softmax dims=9x{length} dtype=fp16")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    plan = ENGINE.plan(graph, SM_90A, NARROW)
    (x,), (y,) = graph.inputs, graph.outputs
    separate = run_plan(racing, plan, graph, inputs)[y.uid]
    with upload(racing, inputs[x.uid], "x and y") as both:
        racing.load(plan).execute({x.uid: both.address, y.uid: both.address}, 0)
        assert download(both, separate.dtype).tobytes() == separate.tobytes()


def test_tensors_with_other_starts_than_the_rows(device: Runtime) -> None:
    """A bias for each element of a row is shifted into place; no byte outside of it is read."""
    builder = CaseBuilder()
    x, bias = builder.tensor((9, 109), DataType.HALF), builder.tensor((1, 109), DataType.FLOAT)
    biased = builder.pointwise(PointwiseMode.ADD, x, bias)
    builder.softmax(biased, (1,), store=DataType.HALF)
    graph = builder.graph()
    rng = np.random.default_rng(fresh_seed())
    inputs = {
        x.uid: rng.standard_normal((9, 109)).astype(np.float16),
        bias.uid: rng.standard_normal((1, 109)).astype(np.float32),
    }
    plan = ENGINE.plan(graph, SM_90A, SMALL)
    assert shape_of(plan)["HAS_SKEW"] == 1
    check_outputs(device, plan, graph, inputs, 109)


def test_long_narrow_rows_are_cached_unconverted(device: Runtime) -> None:
    for line in ("dims=2x16392 dtype=bf16 stats=fp32", "dims=2x8201 dtype=fp16 dir=bwd"):
        plan = check(device, line, WIDE)
        assert shape_of(plan)["AS_READ"] == 1
    assert shape_of(check(device, "dims=2x16392 dtype=bf16 before=add", WIDE))["AS_READ"] == 0


@pytest.mark.parametrize(
    ("line", "team", "items"),
    [
        ("dims=40x197 dtype=fp16", 8, 3),
        ("dims=40x197 dtype=fp16 dir=bwd", 8, 3),
        ("dims=2x6144 dtype=bf16", 128, 3),
        ("dims=3x40x64 axes=1 dtype=bf16 epilogue=residual", 8, 5),
    ],
)
def test_threads_cache_as_many_groups_as_rows_have(device: Runtime, line: str, team: int, items: int) -> None:
    shape = shape_of(check(device, line))
    assert (shape["TEAM"], shape["ITEMS"], shape["CHUNKED"]) == (team, items, 0)


def shape_of(plan: Plan) -> dict[str, int | str]:
    return dict(plan.kernels[0].parameters)


def test_a_row_of_a_mebi_elements(device: Runtime) -> None:
    plan = check(device, f"dims=1x{1 << 20} dtype=bf16 out=fp32")
    assert plan.launches[0].cluster == (8, 1, 1)


@pytest.mark.parametrize(
    "line",
    [
        "dims=5x8x24 axes=1 dtype=bf16 stats=fp32",
        "dims=3x33 dtype=fp64 stats=fp64",
        "dims=7x97 log=yes dtype=bf16",
        "dims=8x64 dir=bwd dtype=bf16 before=mul epilogue=scalar",
        "dims=5x96 dir=bwd log=yes",
        "dims=8x64 dtype=fp16 before=residual+store out=e4m3 epilogue=scalar",
        "dims=0x8",
    ],
)
def test_axes_types_and_fusions(device: Runtime, line: str) -> None:
    check(device, line)


@pytest.mark.parametrize("length", [40, 1500])
def test_statistics_to_base_2(device: Runtime, length: int) -> None:
    """The largest elements of rows, far from 0, are scaled like the logarithm of the sum."""
    builder = CaseBuilder()
    x = builder.tensor((3, length), DataType.FLOAT)
    moved = builder.pointwise(PointwiseMode.ADD, x, builder.constant(2, DataType.FLOAT, 20.0))
    builder.softmax(moved, (1,), statistics=DataType.FLOAT, stats_log2=True, store=DataType.FLOAT)
    check_close(device, ENGINE, builder.graph(), length=length)


@pytest.mark.parametrize("log", ["no", "yes"])
@pytest.mark.parametrize(("length", "choices"), [(200, SMALL), (1000, SMALL), (1000, CLUSTER), (1001, NARROW)])
def test_extreme_elements(device: Runtime, length: int, choices: dict[KnobType, int], log: str) -> None:
    """Rows have large numbers of either sign, infinities and NaN, alone or among others, or only minus infinity."""
    case = parse_case(f"softmax dims=10x{length} stats=fp32 log={log}")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    x = inputs[1]
    x[0] += 1e4
    x[1] -= 1e4
    x[2, : length // 2] = -np.inf
    x[3, length // 2 :] = -np.inf
    x[3] -= 1e4
    x[4:8] = -np.inf
    x[5, 7], x[6, 60], x[7, 60], x[8, 9] = np.nan, np.inf, -1e4, np.inf
    check_outputs(device, ENGINE.plan(graph, SM_90A, choices), graph, inputs, length)


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("dims=6x1 stats=fp32", {}),
        ("dims=6x1 stats=fp32 log=yes", {}),
        ("dims=6x13 dtype=fp16 stats=fp32", NARROW),
        ("dims=6x256 dtype=bf16 stats=fp32", {}),
        ("dims=6x509 dtype=bf16 out=fp32 stats=fp32", CLUSTER),
        ("dims=6x8x24 axes=1 dtype=bf16 stats=fp32", {}),
        ("dims=6x600x8 axes=1 stats=fp32", SMALL),
        ("dims=6x33 dtype=fp64 stats=fp64", {}),
        ("dims=6x700 dtype=fp64 stats=fp64 log=yes", SMALL),
        ("dims=4x16384 dtype=bf16 stats=fp32", WIDE),
        ("dims=4x16392 dtype=bf16 stats=fp32", WIDE),
        ("dims=6x300 dtype=bf16 before=residual epilogue=scalar", {}),
        ("dims=6x1000 dtype=bf16 before=residual epilogue=bias", SMALL),
    ],
)
@pytest.mark.parametrize("masked", ["zero", "nan"])
def test_masked_rows(device: Runtime, masked: str, line: str, choices: dict[KnobType, int]) -> None:
    """A row of only minus infinity, among others, gives zeros (of the logarithm, minus infinity), or NaN."""
    case = parse_case(f"softmax {line} masked={masked}")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    inputs[1][[0, 3]] = dtypes.from_float64(np.array(-np.inf), graph.tensors[1].data_type)
    check_outputs(device, ENGINE.plan(graph, SM_90A, choices), graph, inputs, case.length)


def test_every_scheduling_policy(scheduled: Runtime) -> None:
    check(scheduled, "dims=5x1000 stats=fp32", CLUSTER)
    check(scheduled, "dims=5x256 stats=fp32", SMALL)
    check(scheduled, "dims=5x509 dtype=bf16", CLUSTER)
    check(scheduled, "dims=5x509 dtype=bf16", CLUSTER | {KnobType.READ_AHEAD: 1})
    check(scheduled, "dims=5x1989 dtype=bf16", LINES)


def test_no_races_and_the_same_bits(racing: Runtime) -> None:
    """With a random order of the warps, twice: no race, and the results do not depend on the order."""
    for line, choices in (
        ("dims=5x1000 stats=fp32", CLUSTER),
        ("dims=5x8x24 axes=1 dtype=bf16 stats=fp32", {}),
        ("dims=5x509 dtype=bf16", CLUSTER),
        ("dims=5x509 dtype=bf16", CLUSTER | {KnobType.READ_AHEAD: 1}),
        ("dims=5x1989 dtype=bf16", LINES),
        ("dims=2x8201 dtype=bf16 dir=bwd", WIDE),
    ):
        case = parse_case(f"softmax {line}")
        graph, inputs = case.graph(), case.inputs(3, exact=False)
        plan = ENGINE.plan(graph, SM_90A, choices)
        first, second = (run_plan(racing, plan, graph, inputs) for _ in range(2))
        assert all(first[uid].tobytes() == second[uid].tobytes() for uid in first)


@pytest.mark.parametrize(
    ("line", "bytes_each"),
    [("dims=4096x128256 dtype=bf16", 2 * 2), ("dims=16384x4096 dtype=bf16 dir=bwd", 3 * 2)],
)
def test_large_rows_are_one_launch_that_reads_each_element_once(line: str, bytes_each: int) -> None:
    graph = parse_case(f"softmax {line}").graph()
    best = rank(graph, SM_90A, HeurMode.A, ENGINES).candidates[0]
    assert best.engine.name == "softmax"
    (launch,) = best.plan.launches
    assert launch.work.bytes <= bytes_each * graph.tensors[1].element_count
    assert dict(best.plan.kernels[0].parameters).get("CHUNKED", 0) == 0


def test_near_misses_of_the_gradient_are_refused() -> None:
    builder = CaseBuilder()
    dy, y = (builder.tensor((4, 8), DataType.FLOAT) for _ in range(2))
    builder.softmax_backward(dy, y, (1,), store=DataType.FLOAT)
    assert ENGINE.refuse(builder.graph(), SM_90A) is None
    builder.pointwise(PointwiseMode.ABS, builder.graph().operations[0].output, store=DataType.FLOAT)  # type: ignore[attr-defined]
    refusal = ENGINE.refuse(builder.graph(), SM_90A)
    assert refusal is not None
    assert "expected dx = (dy - sum of dy * y) * y" in refusal.reason
    refusal = ENGINE.refuse(matmul_graph(), SM_90A)
    assert refusal is not None
    assert "got 0 reductions" in refusal.reason
