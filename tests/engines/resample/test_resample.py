from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.registry import ENGINES
from lowdnn.engines.resample.axes import has_inside_taps, leaves_image
from lowdnn.engines.resample.resample import ResampleEngine
from lowdnn.enums import DataType, HeurMode, KnobType, PointwiseMode, ResampleMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.resample import AxisTaps, Resample
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, NotSupportedError
from tests.support.builders import matmul_graph
from tests.support.data import fresh_seed, special_values
from tests.support.running import check_exact, run_plan
from tests.support.tolerance import assert_exact

ENGINE = ResampleEngine()
POOL = "resample n=2 c=16 hw=6x9 mode=max window=3 stride=2 pad=1 dtype=bf16"
AVERAGE = "resample n=2 c=4 hw=6x9 mode=avg window=3 pad=1"
THIRDS = "resample n=2 c=4 hw=4x5 mode=nearest size=12x15"
ADAPTIVE = "resample n=2 c=4 hw=8x18 mode=avg size=7x17"
SPARSE = "resample n=1 c=4 hw=13x12 mode=nearest size=14x5"  # no output reads some columns, of them the first
ENLARGED = "resample n=2 c=4 hw=5x8 mode=linear size=10x16"
FEW_CHANNELS = "resample n=2 c=2 hw=6x9 mode=max window=3 stride=2 pad=1 dtype=bf16"


def graph_of(text: str) -> OperationGraph:
    return parse_case(text).graph()


def plan_of(text: str, **choices: int) -> Plan:
    return ENGINE.plan(graph_of(text), SM_90A, {KnobType[name]: value for name, value in choices.items()})


def check(runtime: Runtime, text: str, engine: Any = ENGINE, **choices: int) -> Plan:
    """Checks the case with integers that are exact; the index of a backward pass has positions in its windows."""
    case = parse_case(text)
    graph, seed = case.graph(), fresh_seed()
    inputs = case.inputs(seed, exact=True)
    plan: Plan = engine.plan(graph, SM_90A, {KnobType[name]: value for name, value in choices.items()})
    actual = run_plan(runtime, plan, graph, inputs)
    for uid, expected in evaluate(graph, inputs).items():
        assert_exact(actual[uid], expected, graph.tensors[uid].data_type, f"{text}, seed {seed}, {plan.name}")
    return plan


@pytest.mark.parametrize(
    ("text", "channels", "rows", "columns"),
    [
        (POOL, 8, 2, 2),
        (f"{POOL} index=int64 places=image", 8, 2, 2),
        (f"{POOL} index=int32 places=image layout=nchw", 1, 2, 4),
        (f"{POOL} index=int8 dir=bwd", 1, 1, 1),
        (f"{POOL} index=int8 dir=bwd", 4, 2, 4),
        (f"{POOL} dir=bwd", 2, 4, 2),
        (f"{AVERAGE} dir=bwd", 4, 2, 4),
        (f"{ADAPTIVE} dir=bwd", 4, 1, 4),
        (f"{ADAPTIVE} dir=bwd epilogue=relu", 2, 1, 16),
        (f"{SPARSE} dir=bwd", 4, 1, 4),
        ("resample n=2 c=4 hw=6x9 mode=avg_inside window=3 pad=1", 4, 1, 2),
        (THIRDS, 4, 3, 6),
        (f"{THIRDS} dir=bwd", 2, 2, 4),
        (f"{ENLARGED} layout=nchw", 1, 4, 8),
        (f"{ENLARGED} dir=bwd layout=nchw", 1, 2, 4),
    ],
)
def test_every_tile_gives_the_same(device: Runtime, text: str, channels: int, rows: int, columns: int) -> None:
    plan = check(device, text, LOAD_SIZE=channels, TILE_ROWS=rows, TILE_COLS=columns, BLOCK_SIZE=64)
    assert dict(plan.kernels[0].parameters)["IS_TILED"] == (
        rows * columns > 1 and "14x5" not in text and ADAPTIVE not in text
    )


@pytest.mark.parametrize(("columns", "width", "shift"), [(4, 8, 7), (2, 4, 3)])
def test_rows_are_read_in_aligned_accesses(device: Runtime, columns: int, width: int, shift: int) -> None:
    """With padding 1 of a row of 16, the first tap of a tile is the last element of an access."""
    text = "resample n=2 c=3 hw=5x16 mode=max window=3 stride=2 pad=1 dtype=bf16 layout=nchw index=int8"
    macros = dict(check(device, text, TILE_COLS=columns).kernels[0].parameters)
    assert (macros["ACCESS"], macros["SHIFT"]) == (width, shift)


@pytest.mark.parametrize("options", ["", "index=int8"])
@pytest.mark.parametrize("rule", ["wins", "loses"])
@pytest.mark.parametrize(
    ("data_type", "types"), [(DataType.BFLOAT16, "dtype=bf16"), (DataType.DOUBLE, "dtype=fp64 compute=fp64")]
)
def test_special_values_in_maxima(device: Runtime, data_type: DataType, types: str, rule: str, options: str) -> None:
    """NaN and infinities are in pairs of channels and alone, with ties and windows that have nothing else."""
    graph = graph_of(f"resample n=1 c=2 hw=24x24 mode=max window=2x3 stride=2x3 pad=1 nan={rule} {types} {options}")
    seed = fresh_seed()
    values = special_values(data_type)
    x = np.random.default_rng(seed).choice(values, (1, 2, 24, 24))
    x[0, 0, :8], x[0, 1, 8:16] = dtypes.from_float64(np.array([np.nan, -np.inf]), data_type)
    actual = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, {1: x})
    for uid, expected in evaluate(graph, {1: x}).items():
        assert_exact(actual[uid], expected, graph.tensors[uid].data_type, f"seed {seed}")


@pytest.mark.parametrize(
    ("rule", "data_type", "layout"),
    [("wins", "bf16", "nchw"), ("loses", "fp16", "nhwc"), ("wins", "fp32", "nhwc"), ("loses", "fp32", "nchw")],
)
def test_special_values_in_maxima_that_are_searched_again(
    device: Runtime, rule: str, data_type: str, layout: str
) -> None:
    """NaN, infinities, zeros of both signs and ties are in overlapping windows, some of which have nothing else."""
    text = f"resample n=1 c=2 hw=16x16 mode=max window=3 stride=2 pad=1 nan={rule} dtype={data_type} layout={layout}"
    case = parse_case(f"{text} dir=bwd")
    graph, seed = case.graph(), fresh_seed()
    inputs = case.inputs(seed, exact=True)
    (x,) = (tensor for tensor in graph.inputs if tensor.name == "x")
    drawn = np.random.default_rng(seed).choice(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, -2.0]), (1, 2, 16, 16))
    drawn[0, 0, :8], drawn[0, 1, 8:] = np.nan, -np.inf
    inputs[x.uid] = dtypes.from_float64(drawn, x.data_type)
    plan = ENGINE.plan(graph, SM_90A, {KnobType.TILE_ROWS: 2, KnobType.TILE_COLS: 4})
    actual = run_plan(device, plan, graph, inputs)
    for uid, expected in evaluate(graph, inputs).items():
        assert_exact(actual[uid], expected, graph.tensors[uid].data_type, f"seed {seed}")


@pytest.mark.parametrize(
    "strides",
    [
        ((1000, 100, 12, 1), (800, 1, 160, 20), (400, 50, 1, 7)),  # gaps; channels-last with gaps; rows innermost
        ((0, 1, 0, 8), (400, 40, 10, 1), (400, 1, 100, 8)),  # one row for all images
    ],
)
def test_any_strides(device: Runtime, strides: tuple[tuple[int, ...], ...]) -> None:
    builder = CaseBuilder()
    x = builder.tensor((2, 8, 6, 7), DataType.FLOAT, strides=strides[0])
    geometry = Resample(2, (2, 3), (2, 1), (0, 1), (0, 1), ResampleMode.MAXPOOL)
    builder.resample(x, geometry, store=DataType.FLOAT, index_type=DataType.INT8)
    (operation,) = builder.graph().operations
    y, index = (replace(t, strides=s) for t, s in zip((operation.y, operation.index), strides[1:], strict=True))  # type: ignore[attr-defined]
    check_exact(device, ENGINE, OperationGraph([replace(operation, y=y, index=index)]))  # type: ignore[type-var]


@pytest.mark.parametrize("text", [FEW_CHANNELS, "resample n=2 c=4 hw=5x8 mode=linear size=10x16 dir=bwd layout=nchw"])
def test_indices_of_64_bits_give_the_same(device: Runtime, text: str) -> None:
    case = parse_case(text)
    graph, inputs = case.graph(), case.inputs(3, exact=True)
    plan = ENGINE.plan(graph, SM_90A, {})
    macros = tuple((name, "i64" if name == "INDEX" else value) for name, value in plan.kernels[0].parameters)
    actual = run_plan(device, replace(plan, kernels=(replace(plan.kernels[0], parameters=macros),)), graph, inputs)
    for uid, expected in evaluate(graph, inputs).items():
        assert_exact(actual[uid], expected, graph.tensors[uid].data_type)


def test_every_scheduling_policy(scheduled: Runtime) -> None:
    for text in (FEW_CHANNELS, f"{FEW_CHANNELS} dir=bwd"):
        check(scheduled, text)


def test_large_tensors_are_planned_with_64_bit_indices() -> None:
    text = "resample n=300 c={c} hw=4096x4096 mode=avg window=2 stride=2 dtype=bf16 layout=nchw"
    assert dict(plan_of(text.format(c=1)).kernels[0].parameters)["INDEX"] == "u32"
    assert dict(plan_of(text.format(c=64)).kernels[0].parameters)["INDEX"] == "i64"


def test_windows_beyond_the_image_are_found_at_both_ends() -> None:
    axis = AxisTaps(inputs=6, outputs=3, step=2, offset=0, reach=2, unit=1)
    assert not leaves_image(axis)
    assert leaves_image(replace(axis, offset=1))
    assert leaves_image(replace(axis, inputs=5))
    assert has_inside_taps(replace(axis, offset=1))
    assert has_inside_taps(replace(axis, inputs=5))
    assert not has_inside_taps(replace(axis, offset=2))
    assert not has_inside_taps(replace(axis, inputs=4))


def test_another_shape_or_padding_is_no_other_kernel() -> None:
    shapes = ("n=64 c=64 hw=56x56 pad=1", "n=32 c=256 hw=112x57 pad=1:1x0:1", "n=64 c=64 hw=56x56 pad=0")
    lines = [f"resample {shape} mode=max window=3 stride=2 dtype=bf16" for shape in shapes]
    assert len({plan_of(line).kernels for line in lines}) == 1


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_each_byte_is_moved_once_and_the_device_is_full(layout: str, direction: str) -> None:
    plan = plan_of(
        f"resample n=256 c=64 hw=112x112 mode=max window=3 stride=2 pad=1 dtype=bf16 index=int8 layout={layout} "
        f"dir={direction}"
    )
    (launch,) = plan.launches
    images, outputs = 256 * 64 * 112**2, 256 * 64 * 56**2
    assert launch.work.bytes == 2 * images + 3 * outputs
    assert launch.grid[0] >= 8 * SM_90A.sm_count
    assert plan.workspace_bytes == 0


def test_empty_outputs_launch_nothing(device: Runtime) -> None:
    for text in ("resample n=0 c=8 hw=8x8 mode=max window=2", "resample n=2 c=0 hw=8 mode=avg window=2 dir=bwd"):
        assert check(device, text).launches == ()


def test_an_index_that_the_graph_reads_is_computed_first() -> None:
    """The engine cannot pass it to operations in the same launch; the composite engine can."""
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x = builder.tensor((1, 8, 8, 8), DataType.FLOAT)
    geometry = Resample(2, (2, 2), (2, 2), (0, 0), (0, 0), ResampleMode.MAXPOOL)
    y = builder.resample(x, geometry, store=DataType.FLOAT, index_type=DataType.INT32)
    (operation,) = builder.graph().operations
    builder.pointwise(PointwiseMode.ADD, y, operation.index, store=DataType.FLOAT)  # type: ignore[attr-defined]
    graph = builder.graph()
    refusal = ENGINE.refuse(graph, SM_90A)
    assert refusal is not None
    assert "index: expected a tensor that is not read" in refusal.reason
    (candidate,) = rank(graph, SM_90A, HeurMode.A, ENGINES).candidates
    assert candidate.engine.name == "composite"
    assert len(candidate.plan.launches) == 2


def test_refusals_name_what_they_found() -> None:
    refusal = ENGINE.refuse(matmul_graph(), SM_90A)
    assert refusal is not None
    assert "exactly one ResampleOperation, got 0" in refusal.reason
    with pytest.raises(NotSupportedError, match=r"resample\.strides: expected positions"):
        plan_of("resample n=1 c=1 hw=100000 mode=linear size=99991")
    with pytest.raises(
        NotSupportedError, match=r"TILE_ROWS x TILE_COLS: expected one of 1x1, .* with 4 channels, got 8x16"
    ):
        plan_of("resample n=1 c=8 hw=64x64 mode=linear size=128x128 dtype=bf16", TILE_ROWS=8, TILE_COLS=16)
    with pytest.raises(BadParamError, match="LOAD_SIZE"):
        plan_of("resample n=1 c=3 hw=8 mode=max window=2", LOAD_SIZE=2)
