from __future__ import annotations

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.block_scale.block_scale import BlockScale
from lowdnn.engines.composite.composite import Composite
from lowdnn.engines.pointwise.pointwise import PointwiseEngine
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.layouts import Layout
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed, special_values
from tests.support.running import check_exact, run_plan
from tests.support.tolerance import assert_exact

ENGINE = BlockScale()


@pytest.mark.parametrize(
    "line",
    [
        "block_scale dims=5x100 axis=1 dtype=bf16",
        "block_scale dims=5x100 axis=1 block=16 dtype=fp32 scale=e4m3 out=e5m2",
        "block_scale dims=2x20x3x5 axis=1 block=8 dtype=fp16 scale=fp32",
        "block_scale dims=50x9 axis=0 block=42 dtype=bf16",
        "block_scale dims=50 axis=0 block=12 dtype=fp32",
        "block_scale dims=2x20x70 axis=2 dtype=bf16 order=tiles",
        "block_scale dims=20x70 axis=0 block=8 dtype=bf16 order=tiles",
    ],
)
def test_numbers_of_every_size_bit_for_bit(device: Runtime, line: str) -> None:
    """Random numbers over 30 decades, with NaN and infinities, into every type of scale."""
    graph = parse_case(line).graph()
    x = graph.inputs[0]
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal(x.dims) * 10.0 ** rng.integers(-15, 15, x.dims)
    special = dtypes.to_float64(special_values(x.data_type), x.data_type)
    numbers.flat[: special.size] = special[: numbers.size]
    inputs = {x.uid: dtypes.from_float64(numbers, x.data_type)}
    actual = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs)
    for uid, expected in evaluate(graph, inputs).items():
        assert_exact(actual[uid], expected, graph.tensors[uid].data_type, f"seed {seed}")


def test_dequantisation_with_scales_in_tiles(device: Runtime) -> None:
    """The launches copy scales from tiles to rows, then scale the whole blocks, then the shorter ones."""
    line = "block_scale dir=dequantize dims=2x20x70 axis=2 dtype=e4m3 out=bf16 scale=e4m3 order=tiles"
    graph = parse_case(line).graph()
    plan = check_exact(device, ENGINE, graph)
    assert len(plan.launches) == 3
    assert plan.workspace_bytes >= 512


@pytest.mark.parametrize(("axis", "launches"), [(0, 2), (1, 1)])
@pytest.mark.parametrize("layout", [Layout.ROW_MAJOR, Layout.PADDED])
def test_dequantisation(device: Runtime, axis: int, launches: int, layout: Layout) -> None:
    """Blocks of 32 along 40 rows (a shorter one at the end), or along 64 columns."""
    builder = CaseBuilder()
    x = builder.tensor((40, 64), DataType.FP8_E4M3, layout=layout)
    scale = builder.tensor((2, 64) if axis == 0 else (40, 2), DataType.FP8_E4M3)
    builder.block_scale_dequantize(x, scale, 32, store=DataType.BFLOAT16, layout=layout)
    assert len(check_exact(device, ENGINE, builder.graph()).launches) == launches


def test_between_other_operations(device: Runtime) -> None:
    builder = CaseBuilder()
    x, scale = builder.tensor((8, 64), DataType.FP8_E4M3), builder.tensor((8, 2), DataType.FP8_E8M0)
    wide = builder.block_scale_dequantize(x, scale, 32)
    builder.pointwise(PointwiseMode.RELU_FWD, wide, store=DataType.FLOAT)
    graph = builder.graph()
    assert ENGINE.refuse(graph, SM_90A) is not None
    check_exact(device, Composite((ENGINE, PointwiseEngine())), graph)


def test_refusals() -> None:
    builder = CaseBuilder()
    builder.pointwise(PointwiseMode.RELU_FWD, builder.tensor((8,), DataType.FLOAT), store=DataType.FLOAT)
    refusal = ENGINE.refuse(builder.graph(), SM_90A)
    assert refusal is not None
    assert refusal.reason == "operations: expected one block-scale operation, got PointwiseOperation"
    builder = CaseBuilder()
    dims = (1,) * 7 + (64,)
    x, scale = builder.tensor(dims, DataType.FP8_E4M3), builder.tensor((*dims[:7], 2), DataType.FLOAT)
    builder.block_scale_dequantize(x, scale, 32, store=DataType.FLOAT)
    refusal = ENGINE.refuse(builder.graph(), SM_90A)
    assert refusal is not None
    assert "expected at most 7 axes, got 8" in refusal.reason


def test_more_blocks_than_32_bits_count() -> None:
    graph = parse_case("block_scale dims=524288x262144 axis=1 dtype=bf16").graph()
    [kernel] = ENGINE.plan(graph, SM_90A, {}).kernels
    assert dict(kernel.parameters)["INDEX"] == "i64"
    assert ENGINE.refuse(graph, SM_90A) is None
