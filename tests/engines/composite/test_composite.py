from __future__ import annotations

from dataclasses import replace

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.composite.composite import Composite
from lowdnn.engines.matmul.matmul_simt import MatmulSimt
from lowdnn.engines.registry import engine_named
from lowdnn.enums import DataType, HeurMode, KnobType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.base import with_tensors
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Plan, Struct, WorkspacePointer
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, NotSupportedError
from tests.support.builders import convolution_graph, matmul_graph
from tests.support.running import check_close, check_exact

ENGINE = engine_named("composite")
GEOMETRY = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))


def engines_of(plan: Plan) -> list[str]:
    """The engine of each part: ``eng3_matmul_simt_k40=32`` is ``matmul_simt``."""
    return [part.split("_", 1)[1].split("_k")[0] for part in plan.parts]


def matmul_chain(
    count: int, virtual_layout: Layout = Layout.ROW_MAJOR, data_type: DataType = DataType.FLOAT, extent: int = 16
) -> OperationGraph:
    """x w0 w1 ... of ``count`` products of ``extent`` x ``extent`` matrices; the last one is stored in fp32."""
    builder = CaseBuilder(virtual_type=data_type)
    value = builder.tensor((extent, extent), data_type)
    for number in range(count):
        weight = builder.tensor((extent, extent), data_type)
        is_last = number == count - 1
        layout = Layout.ROW_MAJOR if is_last else virtual_layout
        value = builder.matmul(value, weight, store=DataType.FLOAT if is_last else None, layout=layout)
    return builder.graph()


def convolved(builder: CaseBuilder, x: Tensor, filters: int) -> Tensor:
    w = builder.tensor((filters, x.dims[1], 3, 3), DataType.FLOAT)
    return builder.convolution(x, w, geometry=GEOMETRY)


def test_convolution_then_matmul_fuses_the_activation_into_the_convolution(device: Runtime) -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    active = builder.pointwise(
        PointwiseMode.RELU_FWD, convolved(builder, builder.tensor((1, 4, 6, 5), DataType.FLOAT), 4)
    )
    builder.matmul(active, builder.tensor((1, 1, 5, 7), DataType.FLOAT), store=DataType.FLOAT)
    plan = check_exact(device, ENGINE, builder.graph(), length=36 * 5 * 4)
    assert len(plan.parts) == 2
    assert plan.workspace_bytes == 512


def test_two_convolutions_with_bias(device: Runtime) -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    bias = builder.tensor((1, 4, 1, 1), DataType.FLOAT)
    first = convolved(builder, builder.tensor((1, 3, 6, 5), DataType.FLOAT), 4)
    second = convolved(builder, builder.pointwise(PointwiseMode.ADD, first, bias), 6)
    builder.pointwise(PointwiseMode.RELU_FWD, second, store=DataType.FLOAT)
    plan = check_exact(device, ENGINE, builder.graph(), length=27 * 36 * 4)
    assert len(plan.parts) == 2


def test_a_pointwise_prologue_runs_first(device: Runtime) -> None:
    builder = CaseBuilder()
    a, b = (builder.tensor((2, 9, 9), DataType.BFLOAT16) for _ in range(2))
    scaled = builder.pointwise(PointwiseMode.ADD, a, b)
    builder.matmul(scaled, builder.pointwise(PointwiseMode.RELU_FWD, a), store=DataType.FLOAT)
    plan = check_exact(device, ENGINE, builder.graph(), length=18)
    assert engines_of(plan)[-1].startswith("matmul")
    assert "pointwise" in engines_of(plan)


def test_a_virtual_tensor_with_several_consumers_is_written_once(device: Runtime) -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    shared = convolved(builder, builder.tensor((1, 4, 6, 5), DataType.FLOAT), 4)
    builder.pointwise(PointwiseMode.RELU_FWD, shared, store=DataType.FLOAT)
    builder.pointwise(PointwiseMode.ADD, convolved(builder, shared, 4), shared, store=DataType.HALF)
    graph = builder.graph()
    plan = check_exact(device, ENGINE, graph, length=36 * 36 * 4)
    assert len(plan.parts) == 2
    assert plan.workspace_bytes == 512


def test_branches_are_put_beside_their_producers(device: Runtime) -> None:
    """Both convolutions come before both activations, and still each activation runs in its convolution's kernel."""
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x = builder.tensor((1, 4, 6, 5), DataType.FLOAT)
    values = [convolved(builder, x, 4) for _ in range(2)]
    for value in values:
        builder.pointwise(PointwiseMode.RELU_FWD, value, store=DataType.FLOAT)
    plan = check_exact(device, ENGINE, builder.graph(), length=36)
    assert len(plan.parts) == 2
    assert plan.workspace_bytes == 0


def test_stored_outputs_of_another_index_space(device: Runtime) -> None:
    builder = CaseBuilder()
    small = builder.pointwise(PointwiseMode.RELU_FWD, builder.tensor((1, 1, 7), DataType.FLOAT), store=DataType.FLOAT)
    a, b = builder.tensor((2, 5, 3), DataType.FLOAT), builder.tensor((2, 3, 7), DataType.FLOAT)
    builder.pointwise(PointwiseMode.ADD, builder.matmul(a, b), small, store=DataType.FLOAT)
    plan = check_exact(device, ENGINE, builder.graph(), length=3)
    assert len(plan.parts) == 2


def test_an_output_that_nobody_reads_and_that_cannot_be_left_out_lies_in_the_workspace(device: Runtime) -> None:
    builder = CaseBuilder()
    _, scale = builder.block_scale_quantize(builder.tensor((3, 40), DataType.FLOAT), 16, 1)
    (operation,) = builder.operations
    graph = OperationGraph([with_tensors(operation, {scale.uid: replace(scale, is_virtual=True)})])
    plan = check_exact(device, ENGINE, graph)
    assert engines_of(plan) == ["block_scale"]
    assert plan.workspace_bytes > 0


def softmax(builder: CaseBuilder, x: Tensor, axis: int) -> Tensor:
    """exp(x - max x) / sum of the same, stored in fp32."""
    largest = builder.reduction(ReduceTensorOp.MAX, x, (axis,))
    shifted = builder.pointwise(PointwiseMode.SUB, x, largest)
    exponential = builder.pointwise(PointwiseMode.EXP, shifted)
    total = builder.reduction(ReduceTensorOp.ADD, exponential, (axis,))
    return builder.pointwise(PointwiseMode.DIV, exponential, total, store=DataType.FLOAT)


def test_convolution_activation_matmul_softmax(device: Runtime) -> None:
    builder = CaseBuilder()
    active = builder.pointwise(
        PointwiseMode.RELU_FWD, convolved(builder, builder.tensor((1, 3, 6, 5), DataType.FLOAT), 4)
    )
    product = builder.matmul(active, builder.tensor((1, 1, 5, 7), DataType.FLOAT))
    softmax(builder, product, axis=3)
    plan = check_close(device, ENGINE, builder.graph(), length=27 * 5 * 4)
    families = [name.split("_")[0] for name in engines_of(plan)]
    assert families[:2] == ["conv", "matmul"], "the activation is in the convolution"
    assert families[2:] in (["reduction", "reduction", "pointwise"], ["reduction", "pointwise"])


def test_softmax_keeps_the_exponential_for_the_division(device: Runtime) -> None:
    builder = CaseBuilder()
    softmax(builder, builder.tensor((3, 5, 40), DataType.BFLOAT16), axis=2)
    check_close(device, ENGINE, builder.graph(), length=40)


@pytest.mark.parametrize("layout", [Layout.TRANSPOSED, Layout.PADDED])
def test_intermediates_are_packed_in_their_declared_order(device: Runtime, layout: Layout) -> None:
    graph = matmul_chain(2, layout)
    plan = check_exact(device, ENGINE, graph, length=256 * 4)
    (virtual,) = (tensor for tensor in graph.tensors.values() if tensor.is_virtual)
    assert plan.workspace_bytes == -(-virtual.element_count * virtual.element_bytes // 256) * 256


def test_intermediates_share_memory_where_their_lives_do_not_meet(device: Runtime) -> None:
    plan = ENGINE.plan(matmul_chain(5), SM_90A, {})
    assert len(plan.launches) == 5
    assert plan.workspace_bytes == 2 * 16 * 16 * 4
    assert len(plan.kernels) < len(plan.launches)
    check_exact(device, ENGINE, matmul_chain(3), length=16**3 * 16)


def test_a_graph_is_cut_where_whole_it_would_lose_precision() -> None:
    """Without products of three terms, engines that reduce a product's rows on the way out round fp32 to TF32."""
    builder = CaseBuilder()
    a, b = builder.tensor((1, 32, 32), DataType.FLOAT), builder.tensor((1, 32, 32), DataType.FLOAT)
    builder.reduction(ReduceTensorOp.MAX, builder.matmul(a, b), (2,), store=DataType.FLOAT)
    engines = [engine_named(name) for name in ("matmul_mma", "matmul_simt", "reduction")]
    cut = Composite(engines)
    assert engines_of(cut.plan(builder.graph(), SM_90A, {})) == ["matmul_simt", "reduction"]
    ranking = rank(builder.graph(), SM_90A, HeurMode.A, [*engines, cut])
    assert {"matmul_mma", "composite"} <= {candidate.engine.name for candidate in ranking.candidates}


def test_products_of_three_terms_take_whole_what_would_lose_precision() -> None:
    builder = CaseBuilder()
    a, b = builder.tensor((1, 32, 32), DataType.FLOAT), builder.tensor((1, 32, 32), DataType.FLOAT)
    builder.reduction(ReduceTensorOp.MAX, builder.matmul(a, b), (2,), store=DataType.FLOAT)
    refusal = ENGINE.refuse(builder.graph(), SM_90A)
    assert refusal is not None
    assert "one engine takes the whole graph: matmul_mma_tf32x3" in refusal.reason


def test_precision_is_kept_where_an_engine_keeps_it() -> None:
    """fp32 inputs are not rounded to TF32; bf16 inputs go to the tensor cores."""
    assert set(engines_of(ENGINE.plan(matmul_chain(2), SM_90A, {}))) == {"matmul_simt"}
    narrow = matmul_chain(2, data_type=DataType.BFLOAT16)
    assert set(engines_of(ENGINE.plan(narrow, SM_90A, {}))) <= {"matmul_mma", "matmul_wgmma"}


def test_precision_is_kept_where_that_takes_longer() -> None:
    cut = Composite((engine_named("matmul_mma"), engine_named("matmul_simt")))
    assert engines_of(cut.plan(matmul_chain(2, extent=2048), SM_90A, {})) == ["matmul_simt"] * 2


def test_every_workspace_offset_is_aligned() -> None:
    plan = ENGINE.plan(matmul_chain(4), SM_90A, {})
    structs = [item for launch in plan.launches for item in launch.arguments if isinstance(item, Struct)]
    offsets = {p.offset_bytes for item in structs for p in item.fields if isinstance(p, WorkspacePointer)}
    assert offsets == {0, 1024}


def test_every_scheduling_policy(scheduled: Runtime) -> None:
    check_exact(scheduled, ENGINE, matmul_chain(2), length=256 * 4)


def test_the_same_graph_gives_the_same_plan() -> None:
    assert ENGINE.plan(matmul_chain(3), SM_90A, {}) == ENGINE.plan(matmul_chain(3), SM_90A, {})


def test_leaves_a_graph_to_the_engine_that_takes_all_of_it() -> None:
    graph = matmul_graph(epilogue=(PointwiseMode.RELU_FWD,))
    refusal = ENGINE.refuse(graph, SM_90A)
    assert refusal is not None
    assert refusal.reason.startswith("one engine takes the whole graph: matmul_")
    with pytest.raises(NotSupportedError, match="one engine takes the whole graph"):
        ENGINE.plan(graph, SM_90A, {})


def test_names_the_operation_that_nobody_takes_and_counts_engines_of_others() -> None:
    composite = Composite((MatmulSimt(),))
    refusal = composite.refuse(convolution_graph(), SM_90A)
    assert refusal is not None
    assert "no engine takes ConvolutionForward that writes tensor 'y' (uid 3)" in refusal.reason
    assert "1 engine of operations that the graph does not have" in refusal.reason
    with pytest.raises(NotSupportedError, match="composite: no engine takes ConvolutionForward"):
        composite.plan(convolution_graph(), SM_90A, {})


def test_has_no_knobs() -> None:
    assert ENGINE.knobs(matmul_chain(2), SM_90A) == ()
    with pytest.raises(BadParamError, match=r"composite\.knob_choices: expected no knobs, got TILE_M"):
        ENGINE.plan(matmul_chain(2), SM_90A, {KnobType.TILE_M: 64})
