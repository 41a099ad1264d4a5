"""The gradients of attention in a graph that writes them as products, pointwise operations and sums:

    s = scale * q k^T    p = exp(modified(s) - stats)    d = numbers * sum of d_o * o    dp = factors * (d_o v^T)
    ds = derivative(numbers * p * (dp - d))    dv = (weights * p)^T d_o    dk = (scale * ds)^T q    dq = (scale * ds) k

dbias is the sum of ds over batches or heads, dsink minus that of exp(sink - stats) * (sum of d_o * o). Operands of
products are in FLOAT or the type of q, all else in FLOAT. With lengths of sequences the products have zeros behind them
(``product_operands``), and what masks scores there is left out. An ``SdpaBackward`` takes the place of the operations
that make the gradients. Whatever else is stored, intermediates included, is made as before, beside it.

Rows without any key, whose stats are minus infinity, have weights 0, and so have rows past the lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

from lowdnn.enums import PointwiseMode
from lowdnn.graph.attention_gradient_core import (
    FLOAT,
    KEY,
    QUERY,
    Core,
    Product,
    core_of,
    dependent_on,
    is_exponential,
    other_maker,
)
from lowdnn.graph.bias_gradient import bias_gradient_behind, is_cut_behind
from lowdnn.graph.expansion_writer import ExpansionWriter
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.inner_writer import InnerWriter
from lowdnn.graph.product_operands import (
    EXCHANGED,
    Operand,
    is_plain,
    is_sum,
    length_cut,
    lengths_seen,
    operand_of,
    result_of,
)
from lowdnn.graph.uids import free_uid
from lowdnn.ops.base import Operation, inputs_of, outputs_of, with_tensors
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.ragged import RaggedLoad
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.sdpa_centred_backward import MAX_SCALES, SdpaCentredBackward
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.transpose import Transpose
from lowdnn.status import LowdnnError

#: Products of one attention.
_PRODUCTS = 5


def with_attention_gradients(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """``operations`` with one ``SdpaBackward`` for each attention whose gradients they make."""
    found = tuple(operations)
    if sum(isinstance(op, MatmulOperation) for op in found) < _PRODUCTS:
        return found
    graph = OperationGraph(found)
    for op in graph.operations:
        if is_exponential(op):
            core = core_of(graph, op)
            whole = None if core is None else _Gradients(graph, core).whole()
            if whole is not None:
                return with_attention_gradients(_replaced(graph, whole))
    return _without_empty_rows(graph)


def _without_empty_rows(graph: OperationGraph) -> tuple[Operation, ...]:
    """The graph's operations; weights of rows whose stats are minus infinity are 0 in the cores that are left."""
    cores = (core_of(graph, op) for op in graph.operations if is_exponential(op))
    differences = {id(core.difference): core.difference for core in cores if core is not None}
    builder = ExpansionWriter(free_uid(graph.tensors))
    replaced = {}
    for op in differences.values():
        stats = op.operands["b"]
        if graph.producer(stats) is None or isinstance(graph.producer(stats), RaggedLoad):
            replaced[id(op)] = replace(op, b=builder.stats_of_weights(stats))
    return (
        (*builder.operations, *(replaced.get(id(op), op) for op in graph.operations)) if replaced else graph.operations
    )


def _replaced(graph: OperationGraph, made: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """The graph's operations with ``made`` in place of those that have the same outputs, and whatever these need."""
    written = {tensor.uid for op in made for tensor in outputs_of(op).values()}
    others = (op for op in graph.operations if written.isdisjoint(t.uid for t in outputs_of(op).values()))
    operations = (*others, *made)
    producers = {t.uid: op for op in operations for t in outputs_of(op).values()}
    waiting = [op for op in operations if any(not t.is_virtual for t in outputs_of(op).values())]
    needed: set[int] = set()
    while waiting:
        op = waiting.pop()
        if id(op) not in needed:
            needed.add(id(op))
            waiting += [producers[t.uid] for t in inputs_of(op).values() if t.uid in producers]
    return _with_relabelled(tuple(op for op in operations if id(op) in needed), made)


def _with_relabelled(operations: tuple[Operation, ...], made: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """``operations``, where ``made`` read inputs that are transposed for them alone as they lie in memory."""
    *others, whole = made
    written = {tensor.uid for op in operations for tensor in outputs_of(op).values()}
    relabelled: dict[int, Tensor] = {}
    for op in others:
        if not isinstance(op, Transpose):
            continue
        readers = sum(any(t.uid == op.x.uid for t in inputs_of(other).values()) for other in operations)
        if op.x.uid not in written and readers == 1:
            dims, strides = (tuple(values[axis] for axis in EXCHANGED) for values in (op.x.dims, op.x.strides))
            relabelled[op.y.uid] = replace(op.x, dims=dims, strides=strides)
    kept = (op for op in operations if not (isinstance(op, Transpose) and op.y.uid in relabelled))
    return tuple(with_tensors(op, relabelled) if op is whole else op for op in kept)


@dataclass(frozen=True)
class _Ends:
    """The products of the gradients, and the lengths of queries and keys behind which they have zeros."""

    dv: Product
    dk: Product
    dq: Product

    @property
    def queries(self) -> Tensor | None:
        return self.dv.a.lengths.get(KEY)

    @property
    def keys(self) -> Tensor | None:
        return self.dq.a.lengths.get(KEY)

    @property
    def lengths(self) -> dict[int, Tensor]:
        """The lengths that exist, by axis of the scores: queries, keys."""
        given = ((QUERY, self.queries), (KEY, self.keys))
        return {axis: length for axis, length in given if length is not None}


@dataclass(frozen=True)
class _Factors:
    """The factors between the gradients of weights and those of scores.

    weights: factors of the weights before their product with d_o.  centres: numbers that d is multiplied by where dp
    has all factors of the weights.  d_scores: weights * (dp - d) with all of them.
    """

    weights: tuple[Tensor, ...]
    centres: tuple[Tensor, ...]
    d_scores: Tensor


class _Gradients:
    """Finds what is around ``core``."""

    def __init__(self, graph: OperationGraph, core: Core) -> None:
        self._graph = graph
        self._core = core
        self._builder = ExpansionWriter(free_uid(graph.tensors))
        self._first, self._second = (Product.of(graph, product) for product in (core.first, core.second))

    def whole(self) -> tuple[Operation, ...] | None:
        """The gradients as one operation, behind what makes its operands; None where they are something else."""
        ends = self._ends()
        if ends is None or not self._fits(ends):
            return None
        factors, results, o = self._factors(ends), self._results(ends), self._output(ends)
        if factors is None or results is None or o is None:
            return None
        scale, scores, ds = self._scaling(ends)
        inner, bias_sum = self._inner(ends, factors, scores, ds), self._bias_sum(ds)
        if inner is None or (bias_sum is not None and not self._is_known_behind(ends.lengths)):
            return None
        q, k, v = (self._upright(x) for x in (self._first.a, self._first.b.exchanged, self._second.b.exchanged))
        ports = (q, k, v, o, ends.dv.b.base, self._core.difference.operands["b"], *results, scale)
        is_deterministic = results[0].data_type is q.data_type  # otherwise sums come as they are there
        self._add_sink_gradients(ends.queries)
        dbias = None if bias_sum is None else self._dbias(bias_sum, ends.lengths, scores)
        made = inner if inner.operations else None
        more = (ends.queries, ends.keys, dbias, made, None, None, False, is_deterministic)
        whole = _operation((*ports, *more), factors.centres)
        return None if whole is None else (*self._builder.operations, whole)

    def _scaling(self, ends: _Ends) -> tuple[Tensor | None, Tensor, Tensor]:
        """(scale, scores, ds): the number by which the first product and ds are multiplied, the product after that, and
        ds before it. Without such a number scale is None, and the others are the product and ds themselves."""
        product, ds = self._core.first.c, ends.dk.a.base
        last = self._graph.producer(ds)
        uncut = product
        while cuts := [op for op in self._graph.consumers(uncut) if self._is_cut(op, ends.lengths)]:
            uncut = next(iter(outputs_of(cuts[0]).values()))
        for op in self._graph.consumers(uncut):
            number = self._number_beside(op, uncut)
            if number is None or last is None or not _multiplies(last, number):
                continue
            (unscaled,) = (tensor for tensor in inputs_of(last).values() if tensor.uid != number.uid)
            if unscaled.data_type is FLOAT:
                return number, next(iter(outputs_of(op).values())), unscaled
        return None, product, ds

    def _is_cut(self, operation: Operation, lengths: Mapping[int, Tensor]) -> bool:
        """Whether it puts zeros past ``lengths`` alone."""
        cut = length_cut(self._graph, operation)
        length = None if cut is None else lengths.get(cut.axis)
        return cut is not None and length is not None and length.uid == cut.length.uid

    def _number_beside(self, operation: Operation, x: Tensor) -> Tensor | None:
        """The number that ``operation`` multiplies ``x`` by, if no operation of the graph makes it."""
        if not isinstance(operation, PointwiseOperation) or not is_plain(operation, PointwiseMode.MUL):
            return None
        others = [tensor for tensor in operation.operands.values() if tensor.uid != x.uid]
        return others[0] if len(others) == 1 and self._is_number(others[0]) else None

    def _is_number(self, tensor: Tensor) -> bool:
        """Whether it is one FLOAT that no operation makes; a constant must be finite, since 0 times infinity is NaN."""
        is_finite = tensor.constant_value is None or isfinite(tensor.constant_value)
        is_given = self._graph.producer(tensor) is None and tensor.data_type is FLOAT
        return tensor.element_count == 1 and is_given and is_finite

    def _ends(self) -> _Ends | None:
        """The products of the gradients, if each occurs once."""
        of_weights, of_d_scores = (dependent_on(self._graph, op) for op in (self._core.weights, self._core.d_scores))
        found: dict[tuple[bool, bool], list[Product]] = {}
        for op in self._graph.operations:
            if isinstance(op, MatmulOperation) and op.a.uid in of_weights:
                product = Product.of(self._graph, op)
                kind = product.a.base.uid in of_d_scores, product.a.is_transposed
                found.setdefault(kind, []).append(product)
        dv, dk, dq = (found.get(kind, []) for kind in ((False, True), (True, True), (True, False)))
        return _Ends(dv[0], dk[0], dq[0]) if len(dv) == len(dk) == len(dq) == 1 else None

    def _fits(self, ends: _Ends) -> bool:
        """Whether the products are of the same operands, in types that change nothing, with the same lengths."""
        first, second, dv, dk, dq = self._first, self._second, ends.dv, ends.dk, ends.dq
        queries, keys = ends.queries, ends.keys
        of_same = (
            dk.b.is_view_of(first.a) and dv.b.is_view_of(second.a) and dq.b.is_view_of(first.b.exchanged)
        ) and dk.a.base.uid == dq.a.base.uid
        of_lengths = all(
            product.reads(a, b)
            for product, a, b in (
                (first, None, None),
                (second, None, None),
                (dv, queries, queries),
                (dk, queries, queries),
                (dq, keys, keys),
            )
        )
        batch, heads, rows, columns = self._core.weights.output.dims
        have_lengths = all(length.dims[0] == batch and not length.is_scalar_value for length in ends.lengths.values())
        exact = all(product.is_exact(first.a.base.data_type) for product in (first, second, dv, dk, dq))
        core = self._core
        floats = (core.first.c, core.second.c, core.total, *(t for op in self._steps for t in _ends_of(op)))
        return (
            of_same and of_lengths and have_lengths and exact and not dv.b.is_transposed
            and all(tensor.data_type is FLOAT for tensor in floats)
            and first.operation.a.dims[:3] == second.operation.a.dims[:3] == (batch, heads, rows)
            and first.operation.b.dims[0] == second.operation.b.dims[0] == batch
            and first.operation.b.dims[3] == second.operation.b.dims[3] == columns
        )  # fmt: skip

    @property
    def _steps(self) -> tuple[PointwiseOperation, ...]:
        core = self._core
        return (core.difference, *core.masks, core.weights, core.centred, core.d_scores)

    def _factors(self, ends: _Ends) -> _Factors | None:
        core = self._core
        of_weights, of_products, of_centres = (
            self._between(product, origin, ends.lengths)
            for product, origin in (
                (ends.dv.a.base, core.weights.output),
                (core.centred.operands["x"], core.second.c),
                (core.centred.operands["b"], core.total),
            )
        )
        if of_weights is None or of_products is None or of_centres is None:
            return None
        left = list(of_weights)
        for factor in of_products:
            if factor.uid not in (tensor.uid for tensor in left):
                return None
            left.remove(next(tensor for tensor in left if tensor.uid == factor.uid))
        d_scores = core.d_scores.output
        for factor in left:
            readers = (op for op in self._graph.consumers(d_scores) if _multiplies(op, factor))
            product = next(readers, None)
            if product is None:
                return None
            d_scores = next(iter(outputs_of(product).values()))
        numbers = (*left, *of_centres)
        centres = tuple(number for number in numbers if number.constant_value != 1)
        is_right = all(map(self._is_number, numbers)) and len(centres) <= MAX_SCALES and d_scores.data_type is FLOAT
        return _Factors(of_weights, centres, d_scores) if is_right else None

    def _between(self, product: Tensor, origin: Tensor, lengths: Mapping[int, Tensor]) -> tuple[Tensor, ...] | None:
        """The factors of ``origin`` in ``product``; None where something else happens to it before ``lengths``."""
        maker = self._graph.producer(origin)
        dependent = frozenset() if maker is None else dependent_on(self._graph, maker)
        factors: list[Tensor] = []
        while product.uid != origin.uid:
            step = self._graph.producer(product)
            if not isinstance(step, PointwiseOperation) or (factors and product.data_type is not FLOAT):
                return None
            if self._is_cut(step, lengths):
                product = step.operands["x"]
                continue
            on_way = [tensor for tensor in step.operands.values() if tensor.uid in dependent]
            others = [tensor for tensor in step.operands.values() if tensor.uid not in dependent]
            if not is_plain(step, PointwiseMode.MUL) or len(on_way) != 1 or len(others) != 1:
                return None
            factors.append(others[0])
            product = on_way[0]
        return tuple(reversed(factors))

    def _output(self, ends: _Ends) -> Tensor | None:
        """o, whose products with d_o are summed."""
        total = self._graph.producer(self._core.total)
        products = None if total is None else self._graph.producer(inputs_of(total)["x"])
        d_o = ends.dv.b.base
        if not isinstance(products, PointwiseOperation) or not is_plain(products, PointwiseMode.MUL):
            return None
        operands = [operand_of(self._graph, tensor) for tensor in products.operands.values()]
        others = [operand for operand in operands if not operand.is_view_of(Operand(d_o))]
        types = {products.output.data_type, *(kind for operand in operands for kind in operand.types)}
        if len(others) != 1 or others[0].is_transposed or others[0].base.dims != d_o.dims or types - {FLOAT}:
            return None
        return None if any(operand.lengths for operand in operands) else others[0].base

    def _results(self, ends: _Ends) -> tuple[Tensor, Tensor, Tensor] | None:
        """dq, dk, dv."""
        q, k, v = self._first.operation.a, self._first.operation.b, self._second.operation.b
        dq = result_of(self._graph, ends.dq.operation.c, ends.queries, q.dims[1])
        dk = result_of(self._graph, ends.dk.operation.c, ends.keys, k.dims[1])
        dv = result_of(self._graph, ends.dv.operation.c, ends.keys, v.dims[1])
        return None if dq is None or dk is None or dv is None else (dq, dk, dv)

    def _bias_sum(self, ds: Tensor) -> ReductionOperation | None:
        """The sum of ``ds`` over batches, heads or both; None where no operation computes it."""
        return next((op for op in self._graph.consumers(ds) if is_sum(op) and set(op.axes) <= {0, 1}), None)

    def _is_known_behind(self, lengths: Mapping[int, Tensor]) -> bool:
        """Whether gradients of scores past ``lengths`` are 0, or what masks make of products that are 0."""
        products = (self._core.first.c, self._core.second.c)
        return self._is_nothing_behind(lengths) or all(is_cut_behind(self._graph, c, lengths) for c in products)

    def _dbias(self, summed: ReductionOperation, lengths: Mapping[int, Tensor], scores: Tensor) -> Tensor:
        """The gradient of a bias as the operation makes it; what lies past ``lengths`` is added to it."""
        if self._is_nothing_behind(lengths):
            return summed.y
        graph, builder = self._graph, self._builder
        dbias = builder.tensor(summed.y.dims, FLOAT, is_virtual=True)
        behind = bias_gradient_behind(graph, builder, self._core, lengths, scores, summed.x, summed.axes)
        builder.give(builder.pointwise(PointwiseMode.ADD, dbias, behind), summed.y)
        return dbias

    def _add_sink_gradients(self, queries: Tensor | None) -> None:
        """Adds the gradients of sinks where the graph has sums of a sink's weights times those of d_o * o.

        They come without their minus sign in such graphs, and with it from cuDNN.
        """
        stats, total = self._core.difference.operands["b"], self._core.total
        for op in self._graph.consumers(total):
            weight = other_maker(self._graph, op, total, PointwiseMode.EXP)
            exponent = None if weight is None else self._graph.producer(weight.operands["x"])
            if not isinstance(exponent, PointwiseOperation) or not is_plain(exponent, PointwiseMode.SUB):
                continue
            sink, given = exponent.operands["x"], exponent.operands["b"]
            sums = (one for one in self._graph.consumers(next(iter(outputs_of(op).values()))) if is_sum(one))
            dsink = next((one.y for one in sums if one.y.dims == sink.dims == (1, total.dims[1], 1, 1)), None)
            if dsink is not None and given.uid == stats.uid:
                self._builder.give(self._builder.sink_gradient(sink, stats, total, queries), dsink)

    def _is_nothing_behind(self, lengths: Mapping[int, Tensor]) -> bool:
        """Whether masks put minus infinity in place of all scores past ``lengths``."""
        masks, step = list(self._core.masks), self._graph.producer(self._core.difference.operands["x"])
        while isinstance(step, PointwiseOperation) and is_plain(step, PointwiseMode.BINARY_SELECT):
            masks.append(step)
            step = self._graph.producer(step.operands["x"])
        found: dict[int, int] = {}
        for mask in masks:
            if mask.operands["b"].constant_value == -inf:
                seen = lengths_seen(self._graph, mask.operands["t"], mask.output.dims) or {}
                found |= {axis: length.uid for axis, length in seen.items()}
        return all(found.get(axis) == length.uid for axis, length in lengths.items())

    def _inner(self, ends: _Ends, factors: _Factors, scores: Tensor, ds: Tensor) -> Subgraph | None:
        """The operations on scores, their gradients and weights; None where they depend on more than they may."""
        dims = scores.dims
        given = tuple(self._builder.tensor(dims, FLOAT, is_virtual=True) for _ in range(3))
        core, known = self._core, {scores.uid: given[0]}
        makers = (core.weights, core.second, core.difference)
        hidden = frozenset({core.first.c.uid}).union(*(dependent_on(self._graph, op) for op in makers))
        maker = self._graph.producer(factors.d_scores)
        behind = hidden if maker is None else hidden - dependent_on(self._graph, maker)
        writers = tuple(
            InnerWriter(self._graph, self._builder, dims, given[0], own, ends.lengths, outside)
            for own, outside in (
                (known, hidden),
                (known | {factors.d_scores.uid: given[1]}, behind),
                ({}, hidden),
            )
        )
        made = (self._modified(writers[0]), writers[1].made(ds), self._dropped(writers[2], given[2], factors.weights))
        operations = tuple(op for writer in writers for op in writer.operations)
        for writer, result, own in zip(writers, made, given, strict=True):
            is_written = result.uid == own.uid or any(op.output.uid == result.uid for op in writer.operations)
            if not is_written or result.dims != dims or not hidden.isdisjoint(writer.read_from_outside()):
                return None
        return Subgraph(given, made, operations)

    def _modified(self, writer: InnerWriter) -> Tensor:
        """The scores that statistics are subtracted from, masks behind the difference included."""
        difference = self._core.difference
        modified = writer.made(difference.operands["x"])
        for mask in reversed(self._core.masks):
            if writer.is_behind_lengths(mask):
                continue
            other = writer.made(mask.operands["b"])
            if other.constant_value != -inf:  # minus infinity stays what it is, whatever is subtracted
                other = writer.sum(other, difference.operands["b"])
            modified = writer.pointwise(mask, x=modified, b=other, t=writer.made(mask.operands["t"]))
        return modified

    def _dropped(self, writer: InnerWriter, weights: Tensor, factors: tuple[Tensor, ...]) -> Tensor:
        for factor in factors:
            weights = writer.product(weights, writer.made(factor))
        return weights

    def _upright(self, operand: Operand) -> Tensor:
        """The operand's base with its axes in the operand's order: itself, or the result of an added transposition."""
        return self._builder.transpose(operand.base, EXCHANGED) if operand.is_transposed else operand.base


def _operation(fields: Sequence[Any], centre_scales: tuple[Tensor, ...]) -> SdpaBackward | None:
    """The operation, or None where tensors break one of its rules, for their types say."""
    try:
        if centre_scales:
            return SdpaCentredBackward(*fields, centre_scales=centre_scales)
        return SdpaBackward(*fields)
    except LowdnnError:
        return None


def _multiplies(operation: Operation, number: Tensor) -> bool:
    is_product = isinstance(operation, PointwiseOperation) and is_plain(operation, PointwiseMode.MUL)
    return is_product and sum(tensor.uid == number.uid for tensor in inputs_of(operation).values()) == 1


def _ends_of(operation: PointwiseOperation) -> tuple[Tensor, ...]:
    """The operands with the dims of scores or of their rows, and the result."""
    read = (tensor for port, tensor in operation.operands.items() if port != "t")
    return (*read, operation.output)
