"""Operations and outputs that nobody can observe are no part of a graph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, NormFwdPhase, NormMode, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.observable import observable, with_unread_stored
from lowdnn.ops.base import Operation, outputs_of, with_tensors
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor

FLOAT = DataType.FLOAT


def unread(operation: Operation, *ports: str) -> OperationGraph:
    """The graph of ``operation`` with virtual tensors at ``ports``."""
    outputs = outputs_of(operation)
    virtual = {outputs[port].uid: replace(outputs[port], is_virtual=True) for port in ports}
    return OperationGraph([with_tensors(operation, virtual)])


def norm(mode: NormMode, *, running: bool = False) -> NormForward:
    builder = CaseBuilder()
    x, scale = builder.tensor((2, 6, 5), FLOAT), builder.tensor((1, 6, 1), FLOAT)
    momentum = builder.by_value(3, FLOAT) if running else None
    epsilon = builder.constant(3, FLOAT, 1e-5)
    builder.norm(mode, x, epsilon, scale, momentum=momentum, groups=3 * (mode is NormMode.GROUP_NORM), store=FLOAT)
    (operation,) = builder.operations
    assert isinstance(operation, NormForward)
    return operation


def test_a_graph_without_them_has_the_same_key() -> None:
    def graph(*, with_dead: bool) -> OperationGraph:
        builder = CaseBuilder()
        a, b = builder.tensor((2, 5, 3), FLOAT), builder.tensor((2, 3, 7), FLOAT)
        product = builder.matmul(a, b)
        if with_dead:
            other = builder.tensor((2, 5, 7), FLOAT)
            builder.reduction(ReduceTensorOp.MAX, builder.pointwise(PointwiseMode.ADD, product, other), (2,))
        builder.pointwise(PointwiseMode.NEG, product, store=FLOAT)
        return builder.graph()

    kept = graph(with_dead=True)
    assert kept.key == graph(with_dead=False).key
    assert len(kept.operations) == 2
    assert [tensor.dims for tensor in kept.inputs] == [(2, 5, 3), (2, 3, 7)]


def test_what_any_operand_needs_is_kept() -> None:
    builder = CaseBuilder()
    x = builder.tensor((4, 5), FLOAT)
    made = [builder.pointwise(mode, x) for mode in (PointwiseMode.ABS, PointwiseMode.NEG)]
    builder.pointwise(PointwiseMode.SUB, *made, store=FLOAT)
    assert len(builder.graph().operations) == 3


def test_nothing_is_left_out_of_a_graph_that_is_observed() -> None:
    operations = (norm(NormMode.BATCH_NORM, running=True),)
    assert observable(operations) is operations
    assert with_unread_stored(operations) is operations


@pytest.mark.parametrize("mode", [NormMode.LAYER_NORM, NormMode.INSTANCE_NORM, NormMode.GROUP_NORM])
def test_a_norm_without_statistics_is_inference(mode: NormMode) -> None:
    (found,) = unread(norm(mode), "mean", "inv_variance").operations
    assert isinstance(found, NormForward)
    assert (found.phase, found.mean, found.inv_variance) == (NormFwdPhase.INFERENCE, None, None)
    assert found.shape == norm(mode).shape


def test_one_statistic_of_a_norm_brings_the_other() -> None:
    graph = unread(norm(NormMode.LAYER_NORM), "mean")
    (found,) = graph.operations
    assert outputs_of(found).keys() == {"y", "mean", "inv_variance"}
    (stored,) = with_unread_stored(graph.operations)
    assert not any(tensor.is_virtual for tensor in outputs_of(stored).values())


def test_batch_norm_without_running_statistics_reads_none() -> None:
    (found,) = unread(norm(NormMode.BATCH_NORM, running=True), "output_running_mean", "output_running_var").operations
    assert isinstance(found, NormForward)
    assert found.running == ()
    assert found.phase is NormFwdPhase.TRAINING


def test_softmax_keeps_its_axes() -> None:
    def tensor(uid: int, *dims: int) -> Tensor:
        return CaseBuilder(first_uid=uid).tensor(dims, FLOAT)

    softmax = Softmax(tensor(1, 3, 4, 5), tensor(2, 3, 4, 5), max=tensor(3, 3, 1, 5))
    (found,) = unread(softmax, "max").operations
    assert found == replace(softmax, max=None, axes=(1,))


@pytest.mark.parametrize(("has_scale", "kept"), [(True, {"dx"}), (False, {"dx", "dscale"})])
def test_norm_backward_keeps_what_says_its_axes(has_scale: bool, kept: set[str]) -> None:
    builder = CaseBuilder()
    x, dy, scale = (builder.tensor(dims, FLOAT) for dims in ((2, 6, 5), (2, 6, 5), (1, 6, 1)))
    builder.norm_backward(NormMode.LAYER_NORM, x, dy, scale, store=FLOAT)
    (operation,) = builder.operations
    assert isinstance(operation, NormBackward)
    (found,) = unread(operation if has_scale else replace(operation, scale=None), "dscale", "dbias").operations
    assert outputs_of(found).keys() == kept
