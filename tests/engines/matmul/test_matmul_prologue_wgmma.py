from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.gemm.wgmma_menu import WARP_CONFIGS
from lowdnn.engines.matmul.matmul_prologue_wgmma import MatmulPrologueWgmma, _Problem
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType, HeurMode, KnobType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.builders import matmul_graph
from tests.support.pairs import paired
from tests.support.running import ORDER_AND_RACES, check_close, check_exact

ENGINE = MatmulPrologueWgmma()
BF16 = DataType.BFLOAT16
COOPERATIVE, PING_PONG, TWO_BLOCKS, _ = range(len(WARP_CONFIGS))


def knobs(
    m: int = 64, n: int = 64, *, warps: int = TWO_BLOCKS, stages: int = 2, by_map: bool = True
) -> dict[KnobType, int]:
    return {
        KnobType.TILE_M: m,
        KnobType.TILE_N: n,
        KnobType.WARP_SPEC_CFG: warps,
        KnobType.STAGES: stages,
        KnobType.OUTPUT_TMA_ENABLE: int(by_map),
    }


def scaled_graph(
    m: int,
    n: int,
    k: int,
    *,
    raw: DataType = BF16,
    data_type: DataType = BF16,
    batch: tuple[int, ...] = (),
    port: str = "a",
    scale_dims: tuple[int, ...] | None = None,
    other_layout: Layout | None = None,
    epilogue: bool = False,
) -> OperationGraph:
    """relu(x + shift) as one operand, with a shift for each k (or ``scale_dims``), and an epilogue of bias and relu."""
    builder = CaseBuilder()
    a_dims, b_dims = (*batch, m, k), (*batch, k, n)
    raw_layout = Layout.ROW_MAJOR if port == "a" else Layout.TRANSPOSED
    x = builder.tensor(a_dims if port == "a" else b_dims, raw, layout=raw_layout, name="x")
    other_layout = other_layout or (Layout.TRANSPOSED if port == "a" else Layout.ROW_MAJOR)
    other = builder.tensor(b_dims if port == "a" else a_dims, data_type, layout=other_layout, name="other")
    ones = (1,) * len(batch)
    dims = scale_dims or ((*ones, 1, k) if port == "a" else (*ones, k, 1))
    shift = builder.tensor(dims, DataType.FLOAT, name="shift")
    moved = builder.pointwise(PointwiseMode.ADD, x, shift)
    operand = builder.pointwise(PointwiseMode.RELU_FWD, moved)
    operand = converted(builder, operand, data_type)
    value = builder.matmul(
        *((operand, other) if port == "a" else (other, operand)), store=None if epilogue else data_type
    )
    if epilogue:
        biased = builder.pointwise(PointwiseMode.ADD, value, builder.tensor((*ones, 1, n), data_type))
        builder.pointwise(PointwiseMode.RELU_FWD, biased, store=data_type)
    return builder.graph()


def converted(builder: CaseBuilder, tensor: Tensor, data_type: DataType) -> Tensor:
    """The virtual tensor that the product reads, in its own type."""
    return builder.pointwise(PointwiseMode.IDENTITY, tensor, virtual=data_type)


@paired(
    ("raw", [BF16, DataType.HALF, DataType.INT8, DataType.FP8_E4M3, DataType.FP8_E5M2]),
    ("data_type", [BF16, DataType.HALF]),
    ("port", ["a", "b"]),
)
def test_types(device: Runtime, raw: DataType, data_type: DataType, port: str) -> None:
    graph = scaled_graph(80, 72, 144, raw=raw, data_type=data_type, port=port)
    plan = check_exact(device, ENGINE, graph, length=300, choices=knobs())
    assert len(plan.launches) == 1


@paired(
    (
        ("m", "n", "warps", "stages"),
        [(128, 128, COOPERATIVE, 3), (64, 96, PING_PONG, 3), (64, 64, TWO_BLOCKS, 2), (128, 192, COOPERATIVE, 2)],
    ),
    ("by_map", [False, True]),
    ("checked", ORDER_AND_RACES),
    fixtures=["checked"],
)
def test_tails_of_tiles(
    checked: Runtime, monkeypatch: pytest.MonkeyPatch, m: int, n: int, warps: int, stages: int, by_map: bool
) -> None:
    monkeypatch.setattr(_Problem, "slowness", lambda self, arch: "")
    graph = scaled_graph(2 * m + 17, n + 8, 208, raw=DataType.INT8, epilogue=True)
    choices = knobs(m, n, warps=warps, stages=stages, by_map=by_map)
    check_exact(checked, ENGINE, graph, length=600, choices=choices, arch=SM_90A.with_sm_count(2))


@pytest.mark.parametrize("k", [8, 64, 72, 128, 192])
def test_stages_of_k(device: Runtime, k: int) -> None:
    check_exact(device, ENGINE, scaled_graph(40, 24, k), length=300, choices=knobs(64, 32))


@pytest.mark.parametrize("port", ["a", "b"])
@pytest.mark.parametrize("dims", [(1, 1, 1), (2, 1, 1), (1, 70, 1), (2, 1, 70), (2, 70, 1)])
def test_what_the_prologue_reads_repeats_along_rows_or_k(device: Runtime, port: str, dims: tuple[int, ...]) -> None:
    graph = scaled_graph(70, 70, 70, batch=(2,), port=port, scale_dims=dims, raw=DataType.INT8)
    # No tensor map has rows of 70 bytes.
    refusal = ENGINE.refuse(graph, SM_90A)
    assert refusal is not None
    assert "a tensor map of 16 bytes" in str(refusal)
    dims = (dims[0], *(80 if extent == 70 else extent for extent in dims[1:]))
    graph = scaled_graph(80, 80, 80, batch=(2,), port=port, scale_dims=dims, raw=DataType.INT8)
    check_exact(device, ENGINE, graph, length=200, choices=knobs(64, 80))


@pytest.mark.parametrize("port", ["a", "b"])
def test_outputs_along_m_and_broadcast_batches(device: Runtime, port: str) -> None:
    builder = CaseBuilder()
    a, b = builder.tensor((3, 40, 32), DataType.INT8), builder.tensor((1, 32, 48), BF16, layout=Layout.TRANSPOSED)
    if port == "b":
        a, b = builder.tensor((3, 40, 32), BF16), builder.tensor((1, 32, 48), DataType.INT8, layout=Layout.TRANSPOSED)
        b = converted(builder, b, BF16)
    else:
        a = converted(builder, a, BF16)
    builder.matmul(a, b, store=DataType.FLOAT, layout=Layout.TRANSPOSED)
    check_exact(device, ENGINE, builder.graph(), length=32, choices=knobs(64, 32))


def test_the_other_operand_is_repacked(device: Runtime) -> None:
    graph = scaled_graph(40, 33, 80, other_layout=Layout.ROW_MAJOR)
    plan = check_exact(device, ENGINE, graph, length=300, choices=knobs())
    assert len(plan.launches) == 2


def test_zeros_behind_the_end_of_k_stay_zeros(device: Runtime) -> None:
    """The prologue makes infinities of the zeros that fill the last stage."""
    builder = CaseBuilder()
    a, b = builder.tensor((40, 72), BF16), builder.tensor((72, 32), BF16, layout=Layout.TRANSPOSED)
    operand = converted(builder, builder.pointwise(PointwiseMode.RECIPROCAL, a), BF16)
    builder.matmul(operand, b, store=BF16)
    check_close(device, ENGINE, builder.graph(), length=72, choices=knobs(64, 32))


def convolution_graph(
    scale_dims: tuple[int, ...] = (1, 64, 1, 1),
    *,
    taps: tuple[int, int] = (1, 1),
    raw: DataType = BF16,
    layout: Layout = Layout.CHANNELS_LAST,
) -> OperationGraph:
    """conv(relu(x * scale + shift), w) + bias on 2 images of 5 x 7 pixels and 64 channels."""
    builder = CaseBuilder(layout)
    x, w = builder.tensor((2, 64, 5, 7), raw), builder.tensor((40, 64, *taps), BF16)
    scale, shift = (builder.tensor(dims, DataType.FLOAT) for dims in (scale_dims, (1, 64, 1, 1)))
    moved = builder.pointwise(PointwiseMode.ADD, builder.pointwise(PointwiseMode.MUL, x, scale), shift)
    operand = builder.pointwise(PointwiseMode.RELU_FWD, moved, virtual=BF16)
    geometry = Convolution(DataType.FLOAT, 2, (0, 0), (0, 0), (1, 1), (1, 1))
    y = builder.convolution(operand, w, geometry=geometry)
    builder.pointwise(PointwiseMode.ADD, y, builder.tensor((1, 40, 1, 1), BF16), store=BF16)
    return builder.graph()


@pytest.mark.parametrize("scale_dims", [(1, 64, 1, 1), (2, 64, 1, 1), (2, 1, 1, 1), (1,)])
@pytest.mark.parametrize("raw", [BF16, DataType.INT8])
def test_convolutions_of_one_tap(device: Runtime, scale_dims: tuple[int, ...], raw: DataType) -> None:
    """Batch norm, squeeze and excitation, a scale for each image, one for all."""
    graph = convolution_graph(scale_dims, raw=raw)
    check_exact(device, ENGINE, graph, length=2000, choices=knobs(64, 48))


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (convolution_graph(taps=(3, 3)), "expected one tap"),
        (convolution_graph((2, 64, 5, 7)), "expected one tensor of the size of matmul.a"),
        (convolution_graph(layout=Layout.ROW_MAJOR), "a tensor map of 16 bytes or multiples along k"),
        (scaled_graph(8, 8, 8, data_type=DataType.FLOAT), "expected BFLOAT16 or HALF after the prologue, got FLOAT"),
        (scaled_graph(8, 8, 0), "no extent of 0"),
        (matmul_graph((), 8, 8, 8, data_type=BF16), "expected one input with operations before it, got 0"),
    ],
)
def test_refusals_name_the_reason(graph: OperationGraph, reason: str) -> None:
    assert reason in str(ENGINE.refuse(graph, SM_90A))


def test_large_products_are_refused_whose_prologues_wait_for_what_they_read() -> None:
    """The tensor cores would wait for each stage; if memory bounds the product, they wait anyway."""
    assert "faster fused" in str(ENGINE.refuse(scaled_graph(4096, 4096, 4096), SM_90A))
    assert ENGINE.refuse(scaled_graph(65536, 64, 256), SM_90A) is None


def test_other_architectures_are_refused() -> None:
    refusal = ENGINE.refuse(scaled_graph(64, 64, 64), SM_80)
    assert refusal is not None
    assert refusal.status is Status.NOT_SUPPORTED_ARCH_MISMATCH


def test_it_is_preferred_where_copies_bound() -> None:
    graph = scaled_graph(50176, 64, 256)
    assert rank(graph, SM_90A, HeurMode.A, ENGINES).candidates[0].engine.name == ENGINE.name
