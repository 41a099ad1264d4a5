"""Attention forward as all its kernels read it, with mma.sync or wgmma (``attention_forward.cuh``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from lowdnn import dtypes
from lowdnn.codegen.functor import Functor, generate
from lowdnn.engines.attention.factors import Factors
from lowdnn.engines.attention.filled_band import FilledBand, filled_band_of
from lowdnn.engines.attention.forward_refusals import refuse_ragged, refuse_shape, refuse_types
from lowdnn.engines.attention.heads import TYPES, Heads, kernel_bounds, padded, refuse_heads, seen_share
from lowdnn.engines.base import Refusal
from lowdnn.engines.launch import bytes_of, i32, moved_bytes
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.attention_pattern import Attention, match_attention
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import dag_of
from lowdnn.ops.ragged import RaggedStore
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, TensorPointer
from lowdnn.status import Status

#: Bytes of k of one matrix instruction.
_STEP_BYTES = 32


@dataclass(frozen=True)
class AttentionForward:
    """The operands as the kernels read them."""

    attention: Attention
    q: Heads
    k: Heads
    v: Heads

    @staticmethod
    def match(engine: str, graph: OperationGraph, *, takes_fp8: bool = False) -> AttentionForward | Refusal:
        """Refuses data types without a tensor core instruction, sizes of heads, strides and alignments that copies of
        16 bytes do not reach, statistics that are not fp32, more than the kernels can count; unless ``takes_fp8``, fp8
        and largest magnitudes."""
        matched = match_attention(graph)
        if isinstance(matched, str):
            return Refusal(engine, matched)
        if not takes_fp8 and (matched.amax_s or matched.amax_o):
            return Refusal(engine, "operations: expected none that reduces, got a ReductionOperation")
        if refused := refuse_types(matched, TYPES + dtypes.FP8_TYPES if takes_fp8 else TYPES):
            return Refusal(engine, refused, Status.NOT_SUPPORTED_DATA_TYPE)
        found = graph.derive(_read)
        return Refusal(engine, *found) if isinstance(found, tuple) else found

    @property
    def rows(self) -> int:
        """Queries of all heads."""
        batch, heads, queries, _ = self.attention.first.c.dims
        return batch * heads * queries if self.v.size else 0

    @property
    def lengths(self) -> Tensor | None:
        return self.attention.band.lengths

    @property
    def is_fp8(self) -> bool:
        return self.data_type in dtypes.FP8_TYPES

    @cached_property
    def score_factors(self) -> Factors:
        """Factors of products of queries and keys; in device memory only descales, which are positive."""
        scores, x = self.attention.scores, self.attention.first.c
        factors = Factors.of(scores, x)
        return factors if self.is_fp8 or not factors.tensors else Factors(x, scores.operations)

    @cached_property
    def scale(self) -> float | None:
        """A positive number that products of queries and keys are multiplied by, where that, and what lies in device
        memory, is all that is done, and nothing is rounded."""
        factors, is_exact = self.score_factors, self.attention.first.c.data_type is DataType.FLOAT
        return factors.constant if is_exact and not factors.rest and 0 < factors.constant < inf else None

    @cached_property
    def weight_factors(self) -> Factors:
        """Factors of weights of fp8, which are scaled for the sake of their rounding."""
        weights, y = self.attention.weights, self.attention.softmax.y
        return Factors.of(weights, y) if self.is_fp8 else Factors(y, weights.operations)

    @cached_property
    def output_factors(self) -> Factors:
        """Factors of outputs of fp8, up to the value whose largest magnitude is stored."""
        output, c, amax_o = self.attention.output, self.attention.second.c, self.attention.amax_o
        last = None if amax_o is None else amax_o.x
        return Factors.of(output, c, last) if self.is_fp8 else Factors(c, output.operations)

    @property
    def value_factors(self) -> tuple[Tensor, ...]:
        """The factors of the output, those of the weights included."""
        return self.weight_factors.tensors + self.output_factors.tensors

    @property
    def has_weights(self) -> bool:
        """Whether weights are more than rounded to the type of the product."""
        operations = self.weight_factors.rest
        types = {self.attention.softmax.y.data_type}
        types |= {kind for op in operations for kind in (op.pointwise.compute_type, op.output.data_type)}
        is_plain = all(op.mode is PointwiseMode.IDENTITY and op.alpha1 == 1 for op in operations)
        return not is_plain or not types <= {DataType.FLOAT, self.q.tensor.data_type}

    @property
    def queries(self) -> int:
        return self.attention.first.c.dims[2]

    @property
    def keys(self) -> int:
        return self.attention.first.c.dims[3]

    @cached_property
    def keys_seen(self) -> float:
        """Mean number of keys that a query attends to, whatever the lengths are."""
        return self.keys * seen_share(self.queries, self.keys, *self.bounds)

    @property
    def data_type(self) -> DataType:
        return self.q.tensor.data_type

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of q, k and v."""
        return self.q.tensor.element_bytes

    @property
    def padded_qk(self) -> int:
        """Elements of a head of q and k, in whole fragments."""
        return padded(self.q.size, _STEP_BYTES // self.element_bytes)

    @property
    def padded_v(self) -> int:
        return padded(self.v.size)

    @cached_property
    def moved_bytes(self) -> int:
        """Bytes of the tensors that are read and written."""
        read = (*self.q.read, *self.k.read, *self.v.read, *self.attention.scores.loads)
        return bytes_of(read) + moved_bytes(self.attention.output)

    @property
    def bounds(self) -> tuple[int, int]:
        """Left and right, as the kernels have them where the fill of a mask is minus infinity."""
        band = self.attention.band if self.filled_band is None else self.filled_band
        return kernel_bounds(band.left, band.right)

    @property
    def bounds_arguments(self) -> tuple[Argument, ...]:
        """The kernels' left and right."""
        return i32(self.bounds) if self.filled_band is None else self.filled_band.bounds

    @cached_property
    def filled_band(self) -> FilledBand | None:
        """The band of a mask among the operations on scores, if the graph has no other band."""
        band = self.attention.band
        if (band.left, band.right) != (None, None):
            return None
        return filled_band_of(self.attention.scores.operations, band.scores)

    @property
    def stores_packed(self) -> bool:
        """Whether the output or the statistics are ragged."""
        return any(isinstance(move, RaggedStore) for move in self.attention.ragged.values())

    @property
    def largest_arguments(self) -> tuple[TensorPointer, ...]:
        """Pointers to the stored largest magnitudes."""
        reductions = (self.attention.amax_s, self.attention.amax_o)
        return tuple(TensorPointer(op.y.uid) for op in reductions if op is not None)

    def refuse_scaling(self) -> str:
        """Why the kernel does not scale or measure weights and outputs so, or an empty string."""
        attention = self.attention
        if self.is_fp8 and self.has_weights:
            return "operations: expected weights in fp8 that numbers alone scale, got other operations on them"
        if attention.amax_o is not None and self.output_factors.product.uid != attention.amax_o.x.uid:
            return f"{attention.amax_o.x.label}: expected an output that numbers alone scale, got another tensor"
        for largest in (attention.amax_s, attention.amax_o):
            if largest is not None and largest.x.data_type is not DataType.FLOAT:
                return f"{largest.x.label}: expected FLOAT under an AMAX, got {largest.x.data_type.name}"
        return ""

    @cached_property
    def functors(self) -> tuple[Functor, ...]:
        """The generated functors in the order of the kernel's parameters."""
        attention = self.attention
        functors = []
        if self.scale is None:
            functors.append(
                generate(
                    attention.scores,
                    accumulator=DataType.FLOAT,
                    vector_axis=3,
                    result=DataType.FLOAT,
                    name="Scores",
                )
            )
        if self.has_weights:
            functors.append(
                generate(
                    attention.weights,
                    accumulator=DataType.FLOAT,
                    vector_axis=3,
                    stores_result=True,
                    name="Weights",
                )
            )
        factors, dims = self.output_factors, attention.second.c.dims
        output = dag_of(dims, factors.rest, anchor=factors.product)
        functors.append(generate(output, accumulator=DataType.FLOAT, vector_axis=3, name="Output"))
        return tuple(functors)


def _read(graph: OperationGraph) -> AttentionForward | tuple[str, Status]:
    """The operands of a graph that is an attention, or why kernels cannot read them: the reason and its status."""
    attention = match_attention(graph)
    if isinstance(attention, str):
        return attention, Status.NOT_SUPPORTED_GRAPH_PATTERN
    if refused := refuse_shape(attention):
        return refused, Status.NOT_SUPPORTED_SHAPE
    heads, loads = attention.first.c.dims[1], (attention.k_load, attention.v_load)
    q = Heads.of(attention.first.a, heads, row_axis=2)
    k = Heads.loaded(loads[0], heads) if loads[0] else Heads.of(attention.k, heads, row_axis=3)
    v = Heads.loaded(loads[1], heads) if loads[1] else Heads.of(attention.second.b, heads, row_axis=2)
    q, k, v = (replace(operand, ragged=attention.ragged.get(operand.tensor.uid)) for operand in (q, k, v))
    if refused := refuse_ragged(attention):
        return refused, Status.NOT_SUPPORTED_LAYOUT
    for operand in (q, k, v):
        if refused := refuse_heads(operand):
            return refused, Status.NOT_SUPPORTED_LAYOUT
    problem = AttentionForward(attention, q, k, v)
    if refused := problem.refuse_scaling():
        return refused, Status.NOT_SUPPORTED_GRAPH_PATTERN
    return problem
