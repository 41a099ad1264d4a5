"""The gradients of attention as matmuls, reductions and pointwise operations.

They serve graphs whose ``SdpaBackward`` no engine takes whole.

The formulas are those of ``ops.sdpa_backward`` and ``ops.sdpa_fp8_backward``. The scores and their gradients lie in
device memory between the parts, in FLOAT (DOUBLE where q is), rounded where they are operands of products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.expansion_writer import ExpansionWriter
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.uids import free_uid
from lowdnn.ops.base import Operation, inputs_of, outputs_of, with_tensors
from lowdnn.ops.norm import compute_type_of
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.sdpa_centred_backward import SdpaCentredBackward
from lowdnn.ops.sdpa_fp8_backward import LARGEST, NUMBERS, SdpaFp8Backward
from lowdnn.ops.subgraph import InnerOperation
from lowdnn.ops.tensor import Tensor

_HEAD, _QUERY, _KEY = 1, 2, 3
_EXCHANGED = (0, 1, 3, 2)
_ONE = (1, 1, 1, 1)


@dataclass(frozen=True)
class Parts:
    """graph: the operations that ``SdpaBackward`` stands for.  stages: the groups of them that no kernel may span."""

    graph: OperationGraph
    stages: tuple[tuple[Operation, ...], ...]


def parts_of(operation: SdpaBackward) -> Parts:
    """The operations that compute ``operation``; their intermediate tensors get uids that it does not use."""
    inner = operation.inner
    inside = () if inner is None else (*inner.given, *(op.output for op in inner.operations))
    taken = (*inputs_of(operation).values(), *outputs_of(operation).values(), *inside)
    stages = _Gradient(operation, free_uid(tensor.uid for tensor in taken)).stages()
    graph = OperationGraph(op for stage in stages for op in stage)
    kept = {id(op) for op in graph.operations}
    needed = (tuple(op for op in stage if id(op) in kept) for stage in stages)
    return Parts(graph, tuple(stage for stage in needed if stage))


class _Gradient:
    """Builds the parts of one operation; ``_numbers`` are the scales and descales of fp8, by name."""

    def __init__(self, operation: SdpaBackward, first_uid: int) -> None:
        self._op = operation
        self._builder = ExpansionWriter(first_uid)
        self._type = compute_type_of(operation.q)
        self._zero = self._builder.constant(4, self._type, 0.0)
        self._numbers: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}
        if isinstance(operation, SdpaFp8Backward):
            self._numbers = dict(zip(NUMBERS, operation.numbers, strict=True))
            self._largest = dict(zip(LARGEST, operation.largest, strict=True))
        self._shared: set[int] = set()
        self._ends: list[int] = []
        self._queries, self._keys = (
            None if lengths is None else self._clipped(lengths, tensor.dims[2])
            for lengths, tensor in ((operation.seq_len_q, operation.q), (operation.seq_len_kv, operation.k))
        )

    def stages(self) -> tuple[tuple[Operation, ...], ...]:
        """All operations, in groups that no kernel may span."""
        op = self._op
        q, o, d_o = (self._existing(tensor, self._queries) for tensor in (op.q, op.o, op.d_o))
        k, v = (self._existing(tensor, self._keys) for tensor in (op.k, op.v))
        terms, seen = self._terms(o, d_o), self._seen(d_o)
        self._end_stage()
        scores = self._scaled(self._product(q, self._transposed(k), "descale_q", "descale_k"))
        p = self._probabilities(scores, seen)
        weights = self._rounded(self._times(self._made(2, p), "scale_s"), op.q)
        self._end_stage()
        self._add_gradient("dv", self._product(self._transposed(weights), d_o, "descale_s", "descale_d_o"), op.dv)
        d_p = self._made(2, self._product(d_o, self._transposed(v), "descale_d_o", "descale_v"))
        centred = self._pointwise(PointwiseMode.SUB, d_p, terms)
        d_modified = self._where(seen, self._pointwise(PointwiseMode.MUL, p, centred))
        ds = d_modified if self._is_given(1) else self._where(seen, self._made(1, scores, d_modified))
        self._add_dbias(ds)
        self._add_gradients_of_products(ds, q, k)
        operations, ends = self._builder.operations, (*self._ends, None)
        return tuple(operations[begin:end] for begin, end in pairwise((0, *ends)))

    def _end_stage(self) -> None:
        self._ends.append(len(self._builder.operations))

    def _add_gradients_of_products(self, ds: Tensor, q: Tensor, k: Tensor) -> None:
        """Adds dq and dk. The scale of scores is applied before the rounding to fp8, otherwise after the products."""
        op, is_fp8 = self._op, bool(self._numbers)
        if is_fp8:
            ds = self._scaled(ds)
            self._add_largest("dp", ds)
        operand = self._rounded(self._times(ds, "scale_dp"), op.d_o if is_fp8 else op.q)
        self._end_stage()
        d_q = self._product(operand, k, "descale_dp", "descale_k")
        d_k = self._product(self._transposed(operand), q, "descale_dp", "descale_q")
        for port, values, given in (("dq", d_q, op.dq), ("dk", d_k, op.dk)):
            self._add_gradient(port, values if is_fp8 else self._scaled(values), given)

    def _seen(self, d_o: Tensor) -> Tensor:
        """The mask of unmasked weights, (B, H, S_q, S_kv), or (B, H, S_q, 1) where it does not depend on the key."""
        builder, op = self._builder, self._op
        largest = builder.reduction(ReduceTensorOp.AMAX, d_o, (_KEY,), compute_type=self._type)
        seen = self._both(
            self._differs(op.stats, builder.constant(4, DataType.FLOAT, -inf)), self._differs(largest, self._zero)
        )
        queries, keys = op.q.dims[_QUERY], op.k.dims[_QUERY]
        key = self._index(_KEY, keys)
        if self._keys is not None:
            seen = self._both(seen, builder.compared(PointwiseMode.CMP_LT, key, self._keys))
        for bound, sign, mode in ((op.left, -1, PointwiseMode.CMP_GE), (op.right, 1, PointwiseMode.CMP_LE)):
            if bound is not None:
                last = builder.moved(self._place(), (1, self._integer(sign * min(bound, queries + keys))))
                seen = self._both(seen, builder.compared(mode, key, last))
        return seen

    def _place(self) -> Tensor:
        """The place of each query among the keys, (1 or B, 1, S_q, 1)."""
        op, row = self._op, self._index(_QUERY, self._op.q.dims[_QUERY])
        if not op.is_bottom_right:
            return row
        keys, queries = (
            self._integer(tensor.dims[_QUERY]) if lengths is None else lengths
            for tensor, lengths in ((op.k, self._keys), (op.q, self._queries))
        )
        return self._builder.moved(row, (1, keys), (-1, queries))

    def _index(self, axis: int, extent: int) -> Tensor:
        """The integers from 0 to ``extent`` - 1 along ``axis``."""
        return self._builder.index(self._zero, axis, tuple(extent if axis == one else 1 for one in range(4)))

    def _probabilities(self, scores: Tensor, seen: Tensor) -> Tensor:
        exponent = self._pointwise(PointwiseMode.SUB, self._made(0, scores), self._op.stats)
        return self._where(seen, self._pointwise(PointwiseMode.EXP, exponent))

    def _terms(self, o: Tensor, d_o: Tensor) -> Tensor:
        """The sum of d_o * o over the elements of each query."""
        products = self._pointwise(PointwiseMode.MUL, d_o, o)
        total = self._builder.reduction(ReduceTensorOp.ADD, products, (_KEY,), compute_type=self._type)
        for number in self._op.centre_scales if isinstance(self._op, SdpaCentredBackward) else ():
            total = self._pointwise(PointwiseMode.MUL, total, number)
        return self._times(total, "descale_d_o", "descale_o")

    def _made(self, place: int, *given: Tensor) -> Tensor:
        """The result ``made[place]`` of the inner operations, whose inputs in these places are ``given``.

        In place 2 the one input is the weights; calls with other weights get other results.
        """
        inner = self._op.inner
        if inner is None or self._is_given(place):
            return given[-1]
        places: Sequence[int] = (2,) if place == 2 else range(len(given))
        known = {inner.given[at].uid: tensor for at, tensor in zip(places, given, strict=True)}
        for op in inner.operations_to(inner.made[place]):
            is_own = place == 2 and any(tensor.uid in known for tensor in inputs_of(op).values())
            if is_own or op.output.uid not in self._shared:
                self._add_inside(op, known, is_own)
        made = inner.made[place]
        return known.get(made.uid, made)

    def _add_inside(self, op: InnerOperation, known: dict[int, Tensor], is_own: bool) -> None:
        """Adds an inner operation, whose inputs are in ``known``.  is_own: its output is a new tensor at each call."""
        output = op.output
        if is_own:
            known[output.uid] = self._builder.tensor(output.dims, output.data_type, is_virtual=True, name=output.name)
        else:
            self._shared.add(output.uid)
        self._builder.add(with_tensors(op, known))

    def _is_given(self, place: int) -> bool:
        inner = self._op.inner
        return inner is None or inner.made[place].uid == inner.given[place].uid

    def _add_dbias(self, ds: Tensor) -> None:
        dbias = self._op.dbias
        if dbias is None:
            return
        axes = tuple(axis for axis in (0, _HEAD) if dbias.dims[axis] != ds.dims[axis])
        if axes:
            total = self._builder.reduction(ReduceTensorOp.ADD, ds, axes, compute_type=self._type)
        else:
            total = self._pointwise(PointwiseMode.IDENTITY, ds)
        self._builder.give(total, dbias)

    def _add_gradient(self, port: str, values: Tensor, given: Tensor) -> None:
        """Writes ``values``, gradients by head of q, into ``given``; heads that share one of its heads are summed."""
        batch, heads, rows, size = given.dims
        if values.dims[_HEAD] != heads:
            groups = self._builder.reshape(values, (batch, heads, values.dims[_HEAD] // max(1, heads), rows, size))
            summed = self._builder.reduction(ReduceTensorOp.ADD, groups, (2,), compute_type=self._type)
            values = self._builder.reshape(summed, given.dims)
        self._add_largest(port, values)
        self._builder.give(self._times(values, f"scale_{port}"), given)
        self._end_stage()

    def _add_largest(self, port: str, values: Tensor) -> None:
        given = self._largest.get(port)
        if given is None:
            return
        largest = self._builder.reduction(ReduceTensorOp.AMAX, values, (0, 1, 2, 3))
        self._builder.give(largest if given.dims == _ONE else self._builder.reshape(largest, given.dims), given)

    def _product(self, a: Tensor, b: Tensor, *numbers: str) -> Tensor:
        return self._times(self._builder.matmul(a, b, compute_type=self._type), *numbers)

    def _transposed(self, x: Tensor) -> Tensor:
        return self._builder.transpose(x, _EXCHANGED)

    def _rounded(self, x: Tensor, like: Tensor) -> Tensor:
        return self._pointwise(PointwiseMode.IDENTITY, x, virtual=like.data_type)

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self._op.scale is None else self._pointwise(PointwiseMode.MUL, x, self._op.scale)

    def _times(self, x: Tensor, *names: str) -> Tensor:
        """``x`` times the scales of these names, in fp8."""
        for name in names:
            x = self._pointwise(PointwiseMode.MUL, x, self._numbers[name]) if self._numbers else x
        return x

    def _existing(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """``x`` with zeros past the lengths, so that nothing there, NaN say, reaches a sum."""
        if lengths is None:
            return x
        found = self._builder.existing(x, lengths, self._zero)
        self._end_stage()
        return found

    def _clipped(self, lengths: Tensor, most: int) -> Tensor:
        """``lengths``, clipped to 0 and ``most``."""
        arithmetic = Pointwise(PointwiseMode.RELU_FWD, DataType.INT32, relu_upper_clip=most)
        return self._builder.pointwise(arithmetic, lengths)

    def _where(self, seen: Tensor, x: Tensor) -> Tensor:
        return self._pointwise(PointwiseMode.BINARY_SELECT, x, self._zero, seen)

    def _differs(self, x: Tensor, other: Tensor) -> Tensor:
        return self._pointwise(PointwiseMode.CMP_NEQ, x, other, virtual=DataType.BOOLEAN)

    def _both(self, left: Tensor, right: Tensor) -> Tensor:
        return self._builder.pointwise(PointwiseMode.LOGICAL_AND, left, right, compute_type=DataType.BOOLEAN)

    def _integer(self, value: int) -> Tensor:
        return self._builder.constant(4, DataType.INT32, value)

    def _pointwise(self, mode: PointwiseMode, *operands: Tensor, virtual: DataType | None = None) -> Tensor:
        return self._builder.pointwise(mode, *operands, compute_type=self._type, virtual=virtual)
