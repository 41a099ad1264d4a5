"""Recognisers' readings of a graph, evaluated: the graph's outputs from what a recogniser has found alone.

A kernel computes what is found. So a graph that is recognised and is no such pattern shows here, whichever engine would
run it, without a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.attention.factors import Factors
from lowdnn.engines.attention.forward import AttentionForward
from lowdnn.engines.base import Refusal
from lowdnn.engines.conv.wgmma.spatial_axes import with_fewest_axes, with_taps_last
from lowdnn.engines.matmul.pixel_matmul import as_matmul
from lowdnn.engines.matmul.shared_batches import split_batches
from lowdnn.engines.resample.resample_reduction import rewritten
from lowdnn.engines.transform.matching import Moves, View
from lowdnn.engines.transform.matching import match as match_moves
from lowdnn.graph.attention_gradient import parts_of
from lowdnn.graph.attention_gradient_pattern import with_attention_gradients
from lowdnn.graph.attention_pattern import Attention, match_attention
from lowdnn.graph.attention_values import with_existing_values
from lowdnn.graph.band_pattern import Band
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import (
    Anchored,
    AnchoredWithReductions,
    PointwiseDag,
    dag_of,
    match_anchored,
    match_anchored_with_reductions,
    match_over_nothing,
)
from lowdnn.graph.prologue_pattern import Prologued, match_prologued, match_prologued_with_reductions
from lowdnn.graph.reduction_pattern import FusedReduction, match_reduction
from lowdnn.graph.row_pattern import FusedRows, match_rows
from lowdnn.graph.softmax_pattern import SoftmaxGradient, match_softmax_gradient
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.block_mask import BlockMask
from lowdnn.ops.bn_backward_weights import BnBackwardWeights
from lowdnn.ops.bn_finalize import BnFinalize
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.memory import from_memory, to_memory
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.ragged import RaggedLoad, RaggedStore
from lowdnn.ops.resample import ResampleOperation
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import TensorPointer
from tests.support.near_misses.pattern import Array

Inputs = Mapping[int, Array]

#: Operations over rows, with the ports that others may be before and behind.
_ROWS: tuple[tuple[type[Any], str, str], ...] = (
    (Softmax, "x", "y"),
    (NormForward, "x", "y"),
    (NormBackward, "dy", "dx"),
    (BnFinalize, "sum", "eq_bias"),
    (BnBackwardWeights, "dy", "eq_bias"),
)
_ANCHORS: tuple[type[Any], ...] = (MatmulOperation, ConvolutionOperation, MoeGroupedMatmul, ResampleOperation)


def meanings(graph: OperationGraph, inputs: Inputs) -> Iterator[tuple[str, dict[int, Array]]]:
    """(what recognises the graph, its outputs by uid) of everything that does."""
    for name, find in _FINDERS.items():
        found = find(graph)
        if not isinstance(found, str | Refusal):
            yield name, _evaluated(graph, inputs, found)
    for name, rewrite in _REWRITES.items():
        other = rewrite(graph)
        if isinstance(other, OperationGraph) and other is not graph:
            yield name, _of_rewritten(graph, other, inputs)


def gradients_in_parts(graph: OperationGraph) -> OperationGraph | None:
    """The operations that the gradients of attention stand for; None where they are not alone.

    They round in other places, so that their results are to be compared without.
    """
    operation = graph.operations[0]
    is_alone = len(graph.operations) == 1 and isinstance(operation, SdpaBackward)
    return parts_of(operation).graph if is_alone else None


def gradients_as_one(graph: OperationGraph) -> OperationGraph | None:
    """``graph`` with one operation for gradients of attention, which rounds in other places; None without any."""
    operations = with_attention_gradients(graph.operations)
    return None if operations == graph.operations else OperationGraph(operations)


#: Recognisers of a graph as a whole.
_FINDERS: Mapping[str, Callable[[OperationGraph], Any]] = {
    "match_attention": match_attention,
    "AttentionForward.match": lambda graph: AttentionForward.match("", graph, takes_fp8=True),
    "match_softmax_gradient": match_softmax_gradient,
    "match_reduction": match_reduction,
    "match_over_nothing": match_over_nothing,
    "transform.match": match_moves,
    **{
        f"match_rows of {of.__name__}": lambda graph, of=of, x=x, y=y: match_rows(graph, of, x, y) for of, x, y in _ROWS
    },
    **{
        f"match_anchored of {of.__name__}": lambda graph, of=of: match_anchored_with_reductions(graph, of)
        for of in _ANCHORS
    },
    **{f"match_anchored of {of.__name__} alone": lambda graph, of=of: match_anchored(graph, of) for of in _ANCHORS},
    **{
        f"match_prologued of {of.__name__} alone": lambda graph, of=of: match_prologued(graph, of)
        for of in (MatmulOperation, ConvolutionOperation)
    },
    **{
        f"match_prologued of {of.__name__}": lambda graph, of=of: match_prologued_with_reductions(graph, of)
        for of in (MatmulOperation, ConvolutionOperation)
    },
}
#: Functions that make another graph with the same results.
_REWRITES: Mapping[str, Callable[[OperationGraph], OperationGraph | str | None]] = {
    "as_matmul": as_matmul,
    "split_batches": split_batches,
    "with_fewest_axes": with_fewest_axes,
    "with_taps_last": with_taps_last,
    "with_existing_values": with_existing_values,
    "resample_reduction": lambda graph: rewritten(graph, SM_90A),
}


def _evaluated(graph: OperationGraph, inputs: Inputs, found: Any) -> dict[int, Array]:
    evaluation = _Evaluation(graph, inputs)
    match found:
        case Attention():
            evaluation.attention(_Unscaled(found))
        case AttentionForward():
            evaluation.attention(_Scaled(found))
        case SoftmaxGradient():
            evaluation.softmax_gradient(found)
        case FusedReduction():
            evaluation.reduction(found)
        case FusedRows():
            evaluation.rows(found)
        case AnchoredWithReductions():
            evaluation.anchored(found)
        case Anchored():
            evaluation.anchored(AnchoredWithReductions(found.anchor, found.epilogue, ()))
        case Prologued():
            evaluation.prologued(found)
        case PointwiseDag():
            evaluation.dag(found)
        case Moves():
            return _of_moves(graph, found, inputs)
    return evaluation.outputs


def _of_rewritten(graph: OperationGraph, rewritten: OperationGraph, inputs: Inputs) -> dict[int, Array]:
    """The outputs of a graph whose tensors are others over the same memory."""
    seen = {uid: _moved(values, graph.tensors[uid], rewritten.tensors[uid]) for uid, values in inputs.items()}
    found = evaluate(rewritten, seen)
    return {uid: _moved(values, rewritten.tensors[uid], graph.tensors[uid]) for uid, values in found.items()}


def _moved(values: Array, lies: Tensor, other: Tensor) -> Array:
    """The values of ``other`` in the memory in which ``values`` lie."""
    if (lies.dims, lies.strides) == (other.dims, other.strides):
        return values
    return from_memory(to_memory(values, lies), other)


def _of_moves(graph: OperationGraph, moves: Moves, inputs: Inputs) -> dict[int, Array]:
    """The outputs, from copies between flat arrays, one for each tensor and for each place in the workspace."""
    memory = {TensorPointer(uid): to_memory(values, graph.tensors[uid]) for uid, values in inputs.items()}
    for copy in (copy for stage in moves.stages for copy in stage.copies):
        assert copy.x.dims == copy.y.dims
        values = dtypes.to_values(memory[copy.x.target][_places(copy.x)], copy.x.data_type)
        stored = dtypes.from_float64(values, copy.y.data_type)
        places = _places(copy.y)
        end = int(places.max(initial=-1)) + 1
        before = memory.get(copy.y.target, np.zeros(0, stored.dtype))
        memory[copy.y.target] = np.concatenate([before, np.zeros(max(0, end - before.size), stored.dtype)])
        memory[copy.y.target][places] = stored
    return {tensor.uid: from_memory(memory[TensorPointer(tensor.uid)], tensor) for tensor in graph.outputs}


def _places(view: View) -> NDArray[np.int64]:
    """The places of the view's elements in its memory."""
    axes = (np.arange(extent) * stride for extent, stride in zip(view.dims, view.strides, strict=True))
    return view.offset + sum(np.ix_(*axes), np.zeros(view.dims, np.int64))


class _Evaluation:
    """Collects ``outputs``. Nothing is read but the inputs of the graph and what the pattern itself computes."""

    def __init__(self, graph: OperationGraph, inputs: Inputs) -> None:
        self.outputs: dict[int, Array] = {}
        self._given = {uid: dtypes.to_values(array, graph.tensors[uid].data_type) for uid, array in inputs.items()}
        for tensor in graph.inputs:
            if tensor.constant_value is not None:
                self._given[tensor.uid] = _constant(tensor)

    def dag(self, dag: PointwiseDag, anchor: Array | None = None) -> dict[int, Array]:
        """The values of its tensors by uid, from ``anchor``, which is not rounded yet."""
        assert all(tensor.dims == dag.dims for tensor in dag.stores)
        values = {tensor.uid: self.value(tensor) for tensor in (*dag.loads, *dag.scalars)}
        if dag.anchor is not None and anchor is not None:
            values[dag.anchor.uid] = dtypes.rounded(anchor, dag.anchor.data_type)
        for op in (*dag.randoms, *dag.operations):
            values |= self._results(op, values)
        for tensor in dag.stores:
            self._store(tensor, values[tensor.uid])
        return values

    def rows(self, found: FusedRows[Any]) -> None:
        operation = found.operation
        before = self.dag(found.before)
        results = self._of_ports(operation, before)
        behind = {tensor.uid for op in found.after for tensor in op.operands.values()}
        for port, tensor in outputs_of(operation).items():
            if tensor.uid in behind:
                self.dag(dag_of(tensor.dims, found.after, anchor=tensor), results[port])
            elif not tensor.is_virtual:
                self._store(tensor, results[port])

    def softmax_gradient(self, found: SoftmaxGradient) -> None:
        before, y = self.dag(found.before), self.value(found.y)
        assert found.before.result is not None
        dy = before[found.before.result.uid]

        def exact(values: Array) -> Array:
            return dtypes.rounded(values, found.compute_type)

        if found.is_log:
            total = exact(exact(dy).sum(found.axes, keepdims=True))
            dx = exact(dy) - exact(exact(np.exp(exact(y))) * total)
        else:
            total = exact(exact(exact(dy) * exact(y)).sum(found.axes, keepdims=True))
            dx = exact(exact(dy) - total) * exact(y)
        self.dag(found.after, exact(dx))

    def reduction(self, found: FusedReduction) -> None:
        results = self._of_ports(found.operation, self.dag(found.before))
        for port, dag in zip(outputs_of(found.operation), found.after, strict=True):
            self.dag(dag, results[port])

    def anchored(self, found: AnchoredWithReductions[Any], before: Mapping[int, Array] | None = None) -> None:
        plain = found.anchor
        assert not any(tensor.is_scalar_value for tensor in inputs_of(plain).values())
        if isinstance(plain, ConvolutionOperation):
            plain = replace(plain, alpha=1.0, beta=0.0)
        (accumulated,) = list(self._of_ports(plain, before or {}).values())[:1]
        values = self.dag(found.epilogue, accumulated)
        if not found.epilogue.stores and not found.reductions:
            return
        for op in found.reductions:
            assert found.epilogue.result is not None
            assert op.x.uid == found.epilogue.result.uid
            for tensor, result in zip(
                outputs_of(op).values(), op.reference({"x": values[op.x.uid]}).values(), strict=True
            ):
                self._store(tensor, result)

    def prologued(self, found: Prologued[Any]) -> None:
        assert not found.prologue.stores
        self.anchored(found.matched, self.dag(found.prologue))

    def attention(self, steps: _Unscaled) -> None:
        found = steps.attention
        self._load(found)
        first, softmax, second = found.first, found.softmax, found.second
        keys = self._given[found.k.uid]
        keys = keys if keys.shape == found.k.dims else keys.transpose(0, 1, 3, 2)
        product = first.reference({"a": self.value(first.a), "b": keys})["c"]
        scores = steps.scores(self, product)
        operands = {"x": self._masked(found.band, scores)}
        if softmax.sink is not None:
            operands["sink"] = self._sink(found)
        results = softmax.reference(operands)
        for port, tensor in outputs_of(softmax).items():
            if port != "y":
                self._store(tensor, results[port])
        weights = dtypes.rounded(steps.weights(self, results["y"]), second.a.data_type)
        self._largest(found.amax_s, {softmax.y.uid: dtypes.rounded(results["y"], softmax.y.data_type)})
        output = second.reference({"a": weights, "b": self.value(second.b)})["c"]
        self._largest(found.amax_o, steps.output(self, output))
        for uid, move in found.ragged.items():
            if isinstance(move, RaggedStore):
                padded = dtypes.to_values(self.outputs[uid], move.packed.data_type)
                self._store(move.packed, move.reference({"x": padded, "offsets": self.value(move.offsets)})["y"])

    def scaled(self, factors: Factors, values: Array) -> Array:
        """``values`` times all factors, not rounded."""
        for tensor in factors.tensors:
            values = values * self.value(tensor)
        return values * factors.constant

    def _load(self, found: Attention) -> None:
        """Loads the tensors that are read from pages and from packed tensors."""
        for load in filter(None, (found.k_load, found.v_load)):
            self._given |= self._results(load, {})
        for uid, move in found.ragged.items():
            if isinstance(move, RaggedLoad):
                (self._given[uid],) = self._results(move, {}).values()

    def _masked(self, band: Band, scores: Array) -> Array:
        """Minus infinity outside of the band."""
        row, column = np.arange(scores.shape[2])[:, None], np.arange(scores.shape[3])[None]
        seen = np.ones(scores.shape, np.bool_)
        if band.left is not None:
            seen &= column >= row - band.left
        if band.right is not None:
            seen &= column <= row + band.right
        if band.lengths is not None:
            seen &= column < self.value(band.lengths)
        if band.query_lengths is not None:
            seen &= row < self.value(band.query_lengths)
        masked = np.where(seen, scores, -np.inf)
        if band.blocks is None:
            return masked
        operation = BlockMask(band.scores, band.blocks, replace(band.scores, uid=band.scores.uid + 1))
        return operation.reference({"x": masked, "mask": self.value(band.blocks)})["y"]

    def _sink(self, found: Attention) -> Array:
        assert found.softmax.sink is not None
        sink = np.broadcast_to(self.value(found.softmax.sink), found.softmax.stats_dims)
        if not found.cuts_sink:
            return sink
        assert found.band.query_lengths is not None
        row = np.arange(sink.shape[2])[:, None]
        return np.where(row < self.value(found.band.query_lengths), sink, -np.inf)

    def _largest(self, operation: Any, values: Mapping[int, Array]) -> None:
        if operation is not None:
            self._store(operation.y, operation.reference({"x": values[operation.x.uid]})["y"])

    def _of_ports(self, operation: Operation, before: Mapping[int, Array]) -> dict[str, Array]:
        """The results of ``operation`` for ``before`` and the inputs, not rounded yet."""
        ports = inputs_of(operation).items()
        operands = {port: before[t.uid] if t.uid in before else self.value(t) for port, t in ports}
        for port, tensor in outputs_of(operation).items():
            if tensor.uid in self._given:
                operands[port] = self._given[tensor.uid]
        return operation.reference(operands)

    def _results(self, operation: Operation, values: Mapping[int, Array]) -> dict[int, Array]:
        """By uid, rounded."""
        tensors, results = outputs_of(operation), self._of_ports(operation, values)
        return {t.uid: dtypes.rounded(results[port], t.data_type) for port, t in tensors.items()}

    def value(self, tensor: Tensor) -> Array:
        if tensor.uid not in self._given and tensor.constant_value is not None:
            return _constant(tensor)
        return self._given[tensor.uid]

    def _store(self, tensor: Tensor, values: Array) -> None:
        self.outputs[tensor.uid] = dtypes.from_float64(values, tensor.data_type)


class _Unscaled:
    """The operations between the products of attention and behind them, as ``match_attention`` finds them."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention

    def scores(self, evaluation: _Evaluation, product: Array) -> Array:
        return evaluation.dag(self.attention.scores, product)[self.attention.band.scores.uid]

    def weights(self, evaluation: _Evaluation, weights: Array) -> Array:
        return evaluation.dag(self.attention.weights, weights)[self.attention.second.a.uid]

    def output(self, evaluation: _Evaluation, output: Array) -> dict[int, Array]:
        return evaluation.dag(self.attention.output, output)


class _Scaled(_Unscaled):
    """These operations as kernels read them, with single numbers as factors."""

    def __init__(self, problem: AttentionForward) -> None:
        super().__init__(problem.attention)
        self._problem = problem

    def scores(self, evaluation: _Evaluation, product: Array) -> Array:
        scale = self._problem.scale
        if scale is None:
            return super().scores(evaluation, product)
        return evaluation.scaled(replace(self._problem.score_factors, constant=scale), product)

    def weights(self, evaluation: _Evaluation, weights: Array) -> Array:
        if self._problem.has_weights:
            return super().weights(evaluation, weights)
        return evaluation.scaled(self._problem.weight_factors, weights)

    def output(self, evaluation: _Evaluation, output: Array) -> dict[int, Array]:
        factors, dims = self._problem.output_factors, self.attention.output.dims
        product = evaluation.scaled(factors, output)
        return evaluation.dag(dag_of(dims, factors.rest, anchor=factors.product), product)


def _constant(tensor: Tensor) -> Array:
    return dtypes.rounded(np.full(tensor.dims, tensor.constant_value), tensor.data_type)
