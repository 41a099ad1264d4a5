"""Plans of ``matmul_wgmma`` without a device: default tiles, work, refusals."""

from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.plan import MathUnit, Struct, TensorMap
from lowdnn.status import BadParamError, NotSupportedError, Status
from lowdnn.tensor_map import TensorMapL2Promotion
from tests.engines.matmul.wgmma import (
    BF16,
    COOPERATIVE,
    COOPERATIVE_3,
    ENGINE,
    bf16_graph,
    knobs,
    macro,
)
from tests.support.builders import convolution_graph, matmul_graph


def test_few_rows_become_the_columns_of_tiles() -> None:
    plan = ENGINE.plan(bf16_graph(5, 4096, 1024), SM_90A, {})
    assert macro(plan, "TRANSPOSED") == 1
    assert int(macro(plan, "TILE_N")) <= 32


def test_default_tile_fills_the_device() -> None:
    large, small, deep = (
        ENGINE.plan(bf16_graph(m, m, k), SM_90A, {}) for m, k in ((4096, 4096), (512, 512), (128, 65536))
    )
    assert dict(large.choices)[KnobType.TILE_M] * dict(large.choices)[KnobType.TILE_N] >= 128 * 128
    assert small.launches[0].grid[0] >= 64
    assert dict(deep.choices)[KnobType.SPLIT_K_SLC] > 8


@pytest.mark.parametrize(
    ("m", "k", "promotion"),
    [(1 << 17, 256, 3), (1 << 17, 192, 2), (1 << 16, 256, 2), (1 << 17, 128, 3), (1 << 17, 64, 2)],
)
def test_of_many_rows_in_pairs_of_lines_both_come_at_once(m: int, k: int, promotion: int) -> None:
    arguments = ENGINE.plan(bf16_graph(m, 128, k), SM_90A, {}).launches[0].arguments[0]
    assert isinstance(arguments, Struct)
    rows, columns = arguments.fields[:2]
    assert isinstance(rows, TensorMap)
    assert isinstance(columns, TensorMap)
    assert (rows.layout.l2_promotion, columns.layout.l2_promotion) == (promotion, TensorMapL2Promotion.BYTES_128)


def test_deep_columns_that_begin_inside_lines_become_rows_of_tiles() -> None:
    for size, is_transposed in ((4104, 1), (4096, 0)):
        graph = parse_case(f"matmul m={size} n={size} k={size} dtype=bf16").graph()
        assert dict(ENGINE.plan(graph, SM_90A, {}).choices)[KnobType.SWAP_AB] == is_transposed


def test_plan_counts_its_work() -> None:
    plan = ENGINE.plan(bf16_graph(256, 256, 512), SM_90A, knobs(128, 128, warps=COOPERATIVE))
    assert plan.work.flops == 2 * 256 * 256 * 512
    assert plan.work.bytes == 2 * (2 * 256 * 512 + 256 * 256)
    assert plan.work.unit is MathUnit.WGMMA_F16
    assert plan.launches[0].overlaps_previous


@pytest.mark.parametrize(
    ("graph", "reason", "status"),
    [
        (convolution_graph(), "expected one tap", Status.NOT_SUPPORTED_GRAPH_PATTERN),
        (
            matmul_graph(data_type=DataType.DOUBLE, compute_type=DataType.DOUBLE),
            "matmul.a.data_type, b.data_type: expected one of HALF x HALF",
            Status.NOT_SUPPORTED_DATA_TYPE,
        ),
        (
            matmul_graph(data_type=BF16, compute_type=DataType.DOUBLE),
            "matmul.compute_type: expected FLOAT",
            Status.NOT_SUPPORTED_DATA_TYPE,
        ),
        (matmul_graph((), 4, 5, 0, data_type=BF16), "expected no extent of 0", Status.NOT_SUPPORTED_SHAPE),
    ],
)
def test_refusals_name_field_limit_and_value(graph: OperationGraph, reason: str, status: Status) -> None:
    refusal = ENGINE.refuse(graph, SM_90A)
    assert refusal is not None
    assert refusal.status is status
    assert reason in str(refusal)
    with pytest.raises(NotSupportedError, match=ENGINE.name):
        ENGINE.plan(graph, SM_90A, {})


def test_other_architectures_are_refused() -> None:
    refusal = ENGINE.refuse(bf16_graph(64, 64, 64), SM_80)
    assert refusal is not None
    assert str(refusal) == "matmul_wgmma: arch: expected sm_90a, got sm_80"


def test_layouts_that_can_be_neither_read_nor_repacked_are_refused() -> None:
    builder = CaseBuilder()
    a = builder.tensor((2, 2, 2, 2, 9, 8), BF16, strides=(9000, 4000, 1000, 500, 24, 3))
    builder.matmul(a, builder.tensor((1, 1, 1, 1, 8, 8), BF16), store=BF16)
    assert "strides: expected a tensor that a tensor map describes" in str(ENGINE.refuse(builder.graph(), SM_90A))
    mixed = CaseBuilder()
    a = mixed.tensor((2, 1, 2, 1, 8, 8), BF16)
    mixed.matmul(a, mixed.tensor((1, 2, 1, 2, 8, 8), BF16), store=BF16)
    assert "at most 3 batch axes that do not merge, got [2, 2, 2, 2]" in str(ENGINE.refuse(mixed.graph(), SM_90A))


def test_clusters_that_cannot_share_k_are_refused() -> None:
    graph = bf16_graph(256, 256, 192)
    for choices, reason in (
        (knobs(64, 64, sharers=4), "a k block for each block of a cluster along k, of the 3 in the last part"),
        (knobs(64, 64, sharers=3), "TILE_N a multiple of 24"),
        (knobs(128, 128, warps=COOPERATIVE, cluster=(2, 1), sharers=2), "a cluster along k only"),
    ):
        with pytest.raises(BadParamError, match=reason):
            ENGINE.plan(graph, SM_90A, choices)


def test_knobs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadParamError, match="accumulators"):
        ENGINE.plan(bf16_graph(256, 256, 256), SM_90A, knobs(256, 256, warps=COOPERATIVE))
    # One instruction has 104 accumulators, in a thread that is launched with 128 registers.
    with pytest.raises(BadParamError, match="26 other registers"):
        ENGINE.plan(bf16_graph(256, 256, 256), SM_90A, knobs(192, 208, warps=COOPERATIVE_3))
