"""Replaces compound operations, ragged tensors and masks of bits by the operations that they stand for.

Engines take them whole all the same: ``attention_pattern`` finds attention again, ``band_pattern`` its bands, and
``ragged_pattern`` ragged tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from math import inf
from typing import cast

from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp, RngDistribution
from lowdnn.graph.attention_gradient_pattern import with_attention_gradients
from lowdnn.graph.bit_masks import with_bit_masks
from lowdnn.graph.expansion_writer import ExpansionWriter
from lowdnn.graph.gathering import gathered
from lowdnn.graph.uids import free_uid
from lowdnn.ops.base import HasPorts, Operation, inputs_of, outputs_of, with_tensors
from lowdnn.ops.block_scale_axes import BlockScaleDequantizeByAxes
from lowdnn.ops.described_reduction import DescribedReduction
from lowdnn.ops.diagonal_band_mask import DiagonalBandMask
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.matmul_extents import MatmulWithExtents
from lowdnn.ops.norm import compute_type_of
from lowdnn.ops.norm_inference import BatchNormInference
from lowdnn.ops.ragged import RaggedLoad, RaggedStore, packed_shape
from lowdnn.ops.rng import Rng, RngOperation
from lowdnn.ops.sdpa import Lengths
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.sdpa_forward import ScoreModifier, SdpaForward
from lowdnn.ops.sdpa_gradients import SdpaGradients
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.transpose import Transpose
from lowdnn.status import NotSupportedError

_QUERY, _KEY = 2, 3
_EXCHANGED = (0, 1, 3, 2)


def expanded(operations: Iterable[HasPorts]) -> tuple[Operation, ...]:
    """The operations of ``written_out``, those of an attention's gradients replaced by one."""
    return with_attention_gradients(written_out(operations))


def written_out(operations: Iterable[HasPorts]) -> tuple[Operation, ...]:
    """``operations`` with compound ones expanded, and with loads and stores of ragged tensors and of masks of bits.

    Operations that are a part of another one are put into it (``gathering``). Tensors in between have new uids.
    """
    given = tuple(operations)
    with_bits = with_bit_masks(given, _free_uid(given))
    written = {tensor.uid for op in with_bits for inner in _with_inner(op) for tensor in outputs_of(inner).values()}
    expansion = _Expansion(_free_uid(with_bits), written)
    for op in with_bits:
        expansion.add(op)
    return expansion.operations


def _free_uid(operations: Iterable[HasPorts]) -> int:
    """The first of many uids that no tensor of ``operations`` has."""
    tensors = (tensor for op in operations for inner in _with_inner(op) for tensor in _tensors(inner))
    return free_uid(tensor.uid for tensor in tensors)


def _with_inner(operation: HasPorts) -> Iterable[HasPorts]:
    """The operation itself, and the operations that it contains."""
    yield operation
    if isinstance(operation, SdpaForward):
        yield from () if operation.softmax is None else (operation.softmax,)
    if isinstance(operation, SdpaForward | SdpaGradients | DescribedReduction):
        yield from () if operation.subgraph is None else operation.subgraph.operations


def _tensors(operation: HasPorts) -> Iterable[Tensor]:
    for tensor in (inputs_of(operation) | outputs_of(operation)).values():
        yield from (tensor,) if tensor.ragged_offset is None else (tensor, tensor.ragged_offset)


def _packed(tensor: Tensor) -> tuple[Tensor, Tensor, int]:
    """The packed form of a ragged tensor with as many rows as it may have, its offsets, and their multiplier."""
    where, offsets = f"{tensor.label}.ragged_offset", tensor.ragged_offset
    if offsets is None or tensor.rank != 4:
        raise NotSupportedError.at(where, expected="a tensor [batch, heads, rows, size]", got=list(tensor.dims))
    dims, strides = packed_shape(tensor.dims, tensor.strides)
    packed = replace(tensor, dims=dims, strides=strides, ragged_offset=None, ragged_offset_multiplier=1)
    return packed, offsets, tensor.ragged_offset_multiplier


def _lies_transposed(tensor: Tensor) -> bool:
    """Whether the third axis of (batch, heads, size, rows) has a smaller stride than the last one."""
    return tensor.rank == 4 and tensor.strides[_QUERY] < tensor.strides[_KEY]


def _exchanged(tensor: Tensor) -> Tensor:
    """The transposed tensor, in this one's memory."""
    dims, strides = (tuple(values[axis] for axis in _EXCHANGED) for values in (tensor.dims, tensor.strides))
    return replace(tensor, dims=dims, strides=strides)


def _loads_table(operation: Operation) -> bool:
    return isinstance(operation, RaggedLoad) and operation.y.data_type is DataType.INT32


class _Expansion:
    """Builds the expanded operations, with padded tensors in place of ragged ones."""

    def __init__(self, first_uid: int, written: Collection[int]) -> None:
        """written: the uids of the outputs of all operations, later ones included."""
        self._builder = ExpansionWriter(first_uid)
        self._written = written
        self._padded: dict[int, Tensor] = {}

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Loads of page tables come first: engines that read pages fuse the operations after them."""
        return gathered(sorted(self._builder.operations, key=lambda op: not _loads_table(op)))

    def add(self, operation: HasPorts) -> None:
        reads, writes = (
            [tensor for tensor in ports(operation).values() if tensor.ragged_offset is not None]
            for ports in (inputs_of, outputs_of)
        )
        for tensor in (*reads, *writes):
            if tensor.uid not in self._padded:
                self._padded[tensor.uid] = self._padded_of(tensor)
        self._add(with_tensors(operation, self._padded) if reads or writes else operation)
        for tensor in writes:
            if not tensor.is_virtual:
                self._store_packed(self._padded[tensor.uid], tensor)

    def _padded_of(self, tensor: Tensor) -> Tensor:
        """A virtual tensor in place of a ragged one; a virtual one itself, of which nothing is packed."""
        y = replace(tensor, ragged_offset=None, ragged_offset_multiplier=1)
        if tensor.is_virtual:
            return y
        is_loaded = tensor.uid not in self._written
        if _lies_transposed(tensor):  # its strides say what views of it are
            y = replace(y, uid=self._builder.new_uid(), is_virtual=True)
            upright = replace(_exchanged(y), uid=self._builder.new_uid())
            if is_loaded:
                packed, offsets, multiplier = _packed(_exchanged(tensor))
                self._builder.add(RaggedLoad(packed, upright, offsets, multiplier))
                self._builder.add(Transpose(upright, y, _EXCHANGED))
            return y
        y = self._builder.tensor(tensor.dims, tensor.data_type, is_virtual=True, name=tensor.name)
        if is_loaded:
            packed, offsets, multiplier = _packed(tensor)
            self._builder.add(RaggedLoad(packed, y, offsets, multiplier))
        return y

    def _store_packed(self, padded: Tensor, tensor: Tensor) -> None:
        if _lies_transposed(tensor):
            padded, tensor = self._builder.transpose(padded, _EXCHANGED), _exchanged(tensor)
        self._builder.add(RaggedStore(padded, *_packed(tensor)))

    def _add(self, operation: HasPorts) -> None:
        if isinstance(operation, SdpaForward):
            self._add_attention(operation)
        elif isinstance(operation, SdpaGradients):
            self._add_gradients(operation)
        elif isinstance(operation, DiagonalBandMask):
            self._add_band_mask(operation)
        elif isinstance(operation, MatmulWithExtents):
            self._add_product(operation)
        elif isinstance(operation, BatchNormInference):
            self._add_inference(operation)
        elif isinstance(operation, BlockScaleDequantizeByAxes):
            self._builder.add(operation.operation)
        elif isinstance(operation, DescribedReduction):
            self._add_reduction(operation)
        elif hasattr(type(operation), "reference"):  # isinstance of a protocol would compute its properties
            self._builder.add(cast(Operation, operation))

    def _add_reduction(self, op: DescribedReduction) -> None:
        builder, reduction = self._builder, op.reduction
        if reduction is None or not op.has_groups:
            builder.add(op.operation(builder.new_uid))
            return
        dims, axes = op.group_dims
        (x,), (y,) = op.x, op.y
        values = builder.reshape(x, dims)
        joined = builder.reduction(reduction.operator, values, axes, compute_type=reduction.compute_type)
        builder.give(builder.reshape(joined, y.dims), y)

    def _add_attention(self, op: SdpaForward) -> None:
        builder = self._builder
        queries, keys = self._lengths(op.lengths)
        k, v = (
            x if table is None or keys is None else builder.paged_cache_load(x, table, keys, op.key_count)
            for x, table in ((op.k, op.page_table_k), (op.v, op.page_table_v))
        )
        scores = builder.matmul(op.q, builder.transpose(k, (0, 1, 3, 2)))
        scores = self._scaled(scores, op.descale_q, op.descale_k)
        if op.scale is not None:
            scores = builder.pointwise(PointwiseMode.MUL, scores, op.scale)
        scores = self._modified(op, scores)
        if op.block_mask is not None:
            scores = builder.block_mask(scores, op.block_mask)
        for axis, lengths in ((_QUERY, queries), (_KEY, keys)):  # last, where engines look for a band
            if lengths is not None:
                scores = self._masked(scores, PointwiseMode.CMP_LT, self._builder.index(scores, axis), lengths)
        weights = self._softmax(op, scores, queries)
        self._store_largest(weights, op.amax_s)
        weights = self._dropped(op, self._scaled(weights, op.scale_s))
        rounded = builder.pointwise(PointwiseMode.IDENTITY, weights, virtual=op.q.data_type)
        o = self._scaled(builder.matmul(rounded, v), op.descale_s, op.descale_v)
        self._store_largest(o, op.amax_o)
        self._builder.give(self._scaled(o, op.scale_o), op.o)

    def _scaled(self, x: Tensor, *numbers: Tensor | None) -> Tensor:
        for number in numbers:
            if number is not None:
                x = self._builder.pointwise(PointwiseMode.MUL, x, number)
        return x

    def _store_largest(self, x: Tensor, largest: Tensor | None) -> None:
        if largest is not None:
            axes = tuple(range(x.rank))
            self._builder.give(self._builder.reduction(ReduceTensorOp.AMAX, x, axes), largest)

    def _add_gradients(self, op: SdpaGradients) -> None:
        queries, keys = self._lengths(op.lengths)
        inner = None
        if op.subgraph is not None or op.dropout_probability:
            scores, gradient, weights = (
                self._builder.tensor(op.scores_dims, DataType.FLOAT, is_virtual=True) for _ in range(3)
            )
            modified = scores
            if op.subgraph_ends is not None:
                scores, modified = (replace(tensor, is_virtual=True) for tensor in op.subgraph_ends)
                self._add_subgraph(op.subgraph, scores, modified)
            dropped = self._dropped(op, weights)
            inner = Subgraph((scores, gradient, weights), (modified, gradient, dropped))
        inputs = (op.q, op.k, op.v, op.o, op.d_o, op.stats, op.dq, op.dk, op.dv, op.scale)
        self._builder.add(SdpaBackward(*inputs, queries, keys, op.dbias, inner))
        if op.sink is not None and op.dsink is not None:
            products = self._builder.pointwise(PointwiseMode.MUL, op.o, op.d_o)
            total = self._builder.reduction(ReduceTensorOp.ADD, products, (_KEY,))
            self._builder.give(self._builder.sink_gradient(op.sink, op.stats, total, queries), op.dsink)

    def _add_band_mask(self, op: DiagonalBandMask) -> None:
        queries, keys = self._lengths(op.lengths)
        row, column = self._builder.index(op.x, _QUERY), self._builder.index(op.x, _KEY)
        if op.left_bound is not None:
            left = self._builder.moved(column, (1, op.left_bound), (-1, keys), (1, queries))
            right = row
        else:
            left = self._builder.moved(row, (1, keys), (-1, queries), (1, op.shift_right_bound))
            right = column
        self._builder.give(self._masked(op.x, op.mode, left, right, op.b), op.y)

    def _add_product(self, op: MatmulWithExtents) -> None:
        arithmetic = replace(op.matmul, padding_value=0.0)
        if not op.has_extents:
            self._builder.add(MatmulOperation(arithmetic, op.a, op.b, op.c))
            return
        rank = op.c.rank
        a, b = self._before(op.a, rank - 1, op.k, 0), self._before(op.b, rank - 2, op.k, 0)
        product = self._builder.matmul(a, b, compute_type=arithmetic.compute_type)
        padding = op.matmul.padding_value
        rows = self._before(product, rank - 2, op.m, padding)
        self._builder.give(self._before(rows, rank - 1, op.n, padding), op.c)

    def _add_inference(self, op: BatchNormInference) -> None:
        steps = (
            (PointwiseMode.SUB, op.mean),
            (PointwiseMode.MUL, op.inv_variance),
            (PointwiseMode.MUL, op.scale),
            (PointwiseMode.ADD, op.bias),
        )
        y = op.x
        for mode, operand in steps:
            if operand is not None:
                y = self._builder.pointwise(mode, y, operand, compute_type=compute_type_of(op.x))
        self._builder.give(y, op.y)

    def _before(self, x: Tensor, axis: int, extent: Tensor | None, other: float) -> Tensor:
        """``x`` where its index along ``axis`` is less than ``extent``, elsewhere ``other``."""
        if extent is None:
            return x
        builder, compute_type = self._builder, compute_type_of(x)
        is_inside = builder.compared(PointwiseMode.CMP_LT, builder.index(x, axis), extent)
        rest = builder.constant(x.rank, compute_type, other)
        select = PointwiseMode.BINARY_SELECT
        return builder.pointwise(select, x, rest, is_inside, compute_type=compute_type, virtual=x.data_type)

    def _modified(self, op: SdpaForward, scores: Tensor) -> Tensor:
        """The output of the sub-graph for the input ``scores``."""
        ends = op.subgraph_ends
        if ends is None or op.subgraph is None:
            return scores
        first, last = (replace(tensor, is_virtual=True) for tensor in ends)
        self._builder.give(scores, first)
        self._add_subgraph(op.subgraph, first, last)
        return last

    def _add_subgraph(self, subgraph: ScoreModifier | None, *ends: Tensor) -> None:
        """Its operations, on the tensors ``ends`` in place of its own."""
        for inner in () if subgraph is None else subgraph.operations:
            self.add(with_tensors(inner, {tensor.uid: tensor for tensor in ends}))

    def _softmax(self, op: SdpaForward, scores: Tensor, queries: Tensor | None) -> Tensor:
        weights = self._builder.tensor(scores.dims, DataType.FLOAT, is_virtual=True, name="weights")
        softmax = op.softmax or Softmax(scores, weights)
        stats = op.stats or softmax.stats
        sink = softmax.sink
        if sink is not None and queries is not None:
            row = self._builder.index(sink, _QUERY, (*scores.dims[:_KEY], 1))
            sink = self._masked(sink, PointwiseMode.CMP_LT, row, queries)
        self.add(replace(softmax, x=scores, y=weights, stats=stats, sink=sink, axes=(_KEY,)))
        return weights

    def _dropped(self, op: SdpaForward | SdpaGradients, weights: Tensor) -> Tensor:
        probability, seed, offset = op.dropout_probability, op.dropout_seed, op.dropout_offset
        if not probability or seed is None:
            return weights
        dump = op.rng_dump if isinstance(op, SdpaForward) else None
        kept = dump or self._builder.tensor(weights.dims, DataType.FLOAT, is_virtual=True, name="kept")
        bernoulli = Rng(RngDistribution.BERNOULLI, probability=1 - probability)
        self._builder.add(RngOperation(bernoulli, kept, seed, offset))
        return self._builder.pointwise(PointwiseMode.MUL, weights, kept, alpha1=1 / (1 - probability))

    def _lengths(self, given: Lengths) -> tuple[Tensor | None, Tensor | None]:
        """Queries and keys of each batch, (B, 1, 1, 1)."""
        return (
            given.seq_len_q or self._differences(given.cu_seq_len_q),
            given.seq_len_kv or self._differences(given.cu_seq_len_kv),
        )

    def _differences(self, sums: Tensor | None) -> Tensor | None:
        if sums is None:
            return None
        batch, ones = sums.dims[0] - 1, (1, 1, 1)
        before = self._builder.slice(sums, (0,) * 4, (batch, *ones))
        after = self._builder.slice(sums, (1, 0, 0, 0), (batch + 1, *ones))
        return self._builder.pointwise(PointwiseMode.SUB, after, before, compute_type=DataType.INT32)

    def _masked(
        self, scores: Tensor, mode: PointwiseMode, left: Tensor, right: Tensor, other: Tensor | None = None
    ) -> Tensor:
        """Scores where ``left mode right`` holds, elsewhere ``other``: minus infinity where it is not given."""
        seen = self._builder.compared(mode, left, right)
        nothing = other or self._builder.constant(scores.rank, DataType.FLOAT, -inf)
        compute_type = compute_type_of(scores)
        return self._builder.pointwise(PointwiseMode.BINARY_SELECT, scores, nothing, seen, compute_type=compute_type)
