"""The operations that ``pygraph.sdpa`` writes into a graph, and the gradient's one operation before lowering."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, log
from typing import Any

from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp, RngDistribution
from lowdnn.frontend.arguments import real
from lowdnn.frontend.attention_arguments import BATCH, HEAD, KEY, QUERY, Argument, Band, Sizes, modified_by
from lowdnn.frontend.builder import GraphBuilder, Operand
from lowdnn.frontend.data_types import data_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.layouts import strides_like
from lowdnn.frontend.moves import SliceNode, TransposeNode
from lowdnn.frontend.nodes import Lowered, MatmulNode, PointwiseNode, PointwiseParameters, Ports, ReductionNode
from lowdnn.frontend.norm_nodes import RowSumNode, SoftmaxNode
from lowdnn.frontend.random_numbers import RngNode
from lowdnn.ops.base import Operation
from lowdnn.ops.block_mask import BlockMask
from lowdnn.ops.rng import Rng
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.sdpa_fp8_backward import LARGEST, NUMBERS, SdpaFp8Backward
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import BadParamError

NOT_SET = data_type.NOT_SET

#: The ends of tensors' default names, by the port of ``SdpaBackward``.
_SUFFIXES = {
    "q": "Q",
    "k": "K",
    "v": "V",
    "o": "O",
    "d_o": "dO",
    "stats": "Stats",
    "scale": "Attn_scale",
    "seq_len_q": "SEQ_LEN_Q",
    "seq_len_kv": "SEQ_LEN_KV",
}
#: Suffixes of the names of fp8's scales, descales and magnitudes: the tensor that the number belongs to.
_SCALED_SUFFIXES = {"s": "S", "dp": "dP", "dq": "dQ", "dk": "dK", "dv": "dV"}


@dataclass(frozen=True)
class Inside:
    """A ``Subgraph`` before lowering."""

    given: tuple[Tensor, Tensor, Tensor]
    made: tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Statistics:
    """The stored statistics of each query's scores: their log-sum-exp; the tensors for their maximum and sum."""

    has_stats: bool
    uses_log2: bool
    maximum: Tensor | None
    sum_exp: Tensor | None

    @property
    def given(self) -> dict[str, Tensor]:
        """By the port of ``Softmax``."""
        tensors = {"max": self.maximum, "sum_exp": self.sum_exp}
        return {port: tensor for port, tensor in tensors.items() if tensor is not None}


@dataclass(frozen=True)
class AttentionWriter:
    """Adds the nodes of one attention to a graph.  method: its name in errors.  name: the prefix of tensors' names."""

    graph: GraphBuilder
    method: str
    sizes: Sizes
    name: str

    def name_outputs(self, tensors: Mapping[str, Tensor | None]) -> None:
        """Names results as cudnn-frontend does, whatever operation writes them. ``tensors`` are by suffix."""
        for suffix, tensor in tensors.items():
            if tensor is not None:
                tensor.set_name(self._label(suffix))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        node = TransposeNode((k,), (BATCH, HEAD, KEY, QUERY), keeps_type=True)
        return self._add(MatmulNode((q, self._add(node, NOT_SET, "K_T")), 0.0), data_type.FLOAT, "S")

    def softmax(self, scores: Tensor, statistics: Statistics, sink: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(the weights, the log-sum-exp where it is asked for)."""
        given = statistics.given
        made = ("y", *(("stats",) if statistics.has_stats else ()), *given)
        inputs = {"x": scores} if sink is None else {"x": scores, "sink": sink}
        node = SoftmaxNode(inputs, made, (KEY,), False, statistics.uses_log2)
        by_suffix = {port.upper(): tensor for port, tensor in given.items()}
        outputs = self.graph._add_all(node, data_type.FLOAT, self._label("softmax"), by_suffix)
        for tensor in outputs:
            if not tensor.get_data_type():
                tensor.set_data_type(data_type.FLOAT)
        return outputs[0], outputs[1] if statistics.has_stats else None

    def cut_sink(self, sink: Tensor, queries: Tensor) -> Tensor:
        """The sink with minus infinity for queries past their length, whose softmax then sums nothing."""
        batch, heads, rows, _ = self.sizes.dims
        dims = (batch, heads, rows, 1)
        row = self.index(sink, QUERY).set_dim(dims).set_stride(packed_strides(dims))
        return self._select(sink, PointwiseMode.CMP_LT, row, queries)

    def product(self, weights: Tensor, q: Tensor, v: Tensor) -> Tensor:
        """O, of weights in q's type."""
        node = PointwiseNode(PointwiseMode.IDENTITY, (weights,), PointwiseParameters(), type_of=q)
        rounded = self._add(node, NOT_SET, "P", compute=data_type.FLOAT)
        return self._add(MatmulNode((rounded, v), 0.0), NOT_SET, "O", compute=data_type.FLOAT)

    def pointwise(
        self, mode: PointwiseMode, *operands: Operand, kind: data_type = data_type.FLOAT, result: data_type = NOT_SET
    ) -> Tensor:
        """In arithmetic of type ``kind``, which is the result's unless that is given."""
        tensors = tuple(self.graph._operand(self.method, operand) for operand in operands)
        node = PointwiseNode(mode, tensors, PointwiseParameters())
        return self._add(node, result or kind, mode.name, compute=kind)

    def index(self, scores: Tensor, axis: int, kind: data_type = data_type.INT32) -> Tensor:
        node = PointwiseNode(PointwiseMode.GEN_INDEX, (scores,), PointwiseParameters(axis=axis))
        return self._add(node, kind, "index", compute=kind)

    def masked(
        self, scores: Tensor, band: Band, lengths: tuple[Tensor, Tensor] | None, blocks: Tensor | None
    ) -> Tensor:
        """Minus infinity where a query does not see a key. Masks of keys come last, where engines look for a band.

        blocks: the mask of a ``BlockMask``.
        """
        if lengths is not None:
            scores = self._select(scores, PointwiseMode.CMP_LT, self.index(scores, QUERY), lengths[0])
        if band.right is not None:
            place = self._plus(self._place(scores, band, lengths), band.right)
            scores = self._select(scores, PointwiseMode.CMP_GE, place, self.index(scores, KEY))
        if band.left is not None:
            place = self._plus(self._place(scores, band, lengths), -band.left)
            scores = self._select(scores, PointwiseMode.CMP_LE, place, self.index(scores, KEY))
        if blocks is not None:
            scores = self._add(BlockMaskNode((scores, blocks)), data_type.FLOAT, "block_mask")
        if lengths is not None:
            scores = self._select(scores, PointwiseMode.CMP_LT, self.index(scores, KEY), lengths[1])
        return scores

    def modified(self, scores: Tensor, bias: Tensor | None, modify: Argument, has_alibi: bool) -> Tensor:
        """Scaled scores before they are masked."""
        if bias is not None:
            scores = self.pointwise(PointwiseMode.ADD, scores, bias)
        scores = modified_by(self.method, modify, self.graph, scores)
        return self.with_alibi(scores) if has_alibi else scores

    def with_alibi(self, scores: Tensor) -> Tensor:
        """Plus slope * (key - query). With 2^n the greatest power of two in the number H of heads, the first 2^n heads
        have the slopes 2^(-8 (h + 1) / 2^n), the others 2^(-4 (2 (h - 2^n) + 1) / 2^n). Source: Press et al., "Train
        short, test long".
        """
        heads = self.sizes.dims[HEAD]
        power = 1 << (max(heads, 1).bit_length() - 1)
        head, key, query = (self.index(scores, axis, data_type.FLOAT) for axis in (HEAD, KEY, QUERY))
        exponent = self.pointwise(PointwiseMode.MUL, self.pointwise(PointwiseMode.ADD, head, 1.0), -8 / power)
        if heads > power:
            later = self.pointwise(PointwiseMode.MUL, self.pointwise(PointwiseMode.ADD, head, 0.5 - power), -8 / power)
            is_first = self.pointwise(PointwiseMode.CMP_LT, head, float(power), result=data_type.BOOLEAN)
            exponent = self.pointwise(PointwiseMode.BINARY_SELECT, exponent, later, is_first)
        slope = self.pointwise(PointwiseMode.EXP, self.pointwise(PointwiseMode.MUL, exponent, log(2)))
        distance = self.pointwise(PointwiseMode.SUB, key, query)
        return self.pointwise(PointwiseMode.ADD, scores, self.pointwise(PointwiseMode.MUL, slope, distance))

    def lengths(self, sums: Tensor, label: str) -> Tensor:
        """(B, 1, 1, 1) from what sequences add up to, (B + 1, 1, 1, 1) or (B + 1,), the first being 0."""
        expected = [self.sizes.dims[BATCH] + 1, 1, 1, 1]
        if len(sums.get_dim()) == 1:
            sums.set_dim([*sums.get_dim(), 1, 1, 1]).set_stride([*sums.get_stride(), 1, 1, 1])
        if sums.get_dim() != expected:
            raise BadParamError.at(f"{self.method}.{label}.dim", expected=expected, got=sums.get_dim())
        parts = (SliceNode((sums,), (part,)) for part in (slice(1, None), slice(0, -1)))
        after, before = (self._add(part, data_type.INT32, label) for part in parts)
        return self.pointwise(PointwiseMode.SUB, after, before, kind=data_type.INT32)

    def dropped(self, weights: Tensor, dropout: tuple[Any, ...], dump: Tensor | None) -> Tensor:
        """Weights times a mask and its scale.  dump: where the mask is stored, if it is drawn."""
        if len(dropout) == 2 and dump is not None:
            raise BadParamError.at(f"{self.method}.rng_dump", expected="None beside a mask", got=repr(dump))
        if len(dropout) == 2:
            mask, scale = dropout
            return self.pointwise(PointwiseMode.MUL, self.pointwise(PointwiseMode.MUL, weights, mask), scale)
        if len(dropout) != 3:
            expected = "(probability, seed, offset) or (mask, scale)"
            raise BadParamError.at(f"{self.method}.dropout", expected=expected, got=f"{len(dropout)} values")
        probability = real(dropout[0], f"{self.method}.dropout.probability")
        if not 0 <= probability < 1:
            raise BadParamError.at(f"{self.method}.dropout.probability", expected="0 to 1, not 1", got=probability)
        for label, tensor in {"seed": dropout[1], "offset": dropout[2]}.items():
            if not isinstance(tensor, Tensor):
                raise BadParamError.at(f"{self.method}.dropout.{label}", expected="a tensor", got=type(tensor).__name__)
        kept = Rng(RngDistribution.BERNOULLI, probability=1 - probability)
        node = RngNode(dropout[1:], seed=None, distribution=kept, dims=self.sizes.dims)
        given = {} if dump is None else {"Y": dump}
        (mask,) = self.graph._add_all(node, data_type.FLOAT, self._label("dropout"), given)
        if not mask.get_data_type():
            mask.set_data_type(data_type.FLOAT)
        return self.pointwise(
            PointwiseMode.MUL, self.pointwise(PointwiseMode.MUL, weights, mask), 1 / (1 - probability)
        )

    def inside(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tensors that the gradient's subgraph is given: scores, the gradient of what is made of them, weights."""
        dims, strides = self.sizes.dims, packed_strides(self.sizes.dims)
        scores, gradient, weights = (
            self.graph._register(Tensor(dim=dims, stride=strides, data_type=data_type.FLOAT, is_virtual=True))
            for _ in range(3)
        )
        return scores, gradient, weights

    def sink_gradient(self, sink: Tensor, given: Mapping[str, Tensor], gradient: Tensor) -> None:
        """- sum of exp(sink - stats) * (sum of o * dO) over batches and queries that exist, into ``gradient``.

        given: the inputs of ``SdpaBackward`` by port, and the numbers of fp8.
        """
        products = self.pointwise(PointwiseMode.MUL, given["o"], given["d_o"])
        node = RowSumNode((products,), ReduceTensorOp.ADD, axes=(-1,))
        total = self._add(node, data_type.FLOAT, "sum_of_row")
        for label in ("descale_o", "descale_d_o"):
            if label in given:
                total = self.pointwise(PointwiseMode.MUL, total, given[label])
        weight = self.pointwise(PointwiseMode.EXP, self.pointwise(PointwiseMode.SUB, sink, given["stats"]))
        terms = self.pointwise(PointwiseMode.MUL, self.pointwise(PointwiseMode.NEG, weight), total)
        if "seq_len_q" in given:
            row, length = self.index(terms, QUERY), given["seq_len_q"]
            exists = self.pointwise(PointwiseMode.CMP_LT, row, length, kind=data_type.INT32, result=data_type.BOOLEAN)
            terms = self.pointwise(PointwiseMode.BINARY_SELECT, terms, 0.0, exists)
        node_of_all = ReductionNode((terms,), ReduceTensorOp.ADD)
        self.graph._add_all(node_of_all, data_type.FLOAT, self._label("sink_gradient"), {"Y": gradient})
        if not gradient.get_data_type():
            gradient.set_data_type(data_type.FLOAT)

    def _place(self, scores: Tensor, band: Band, lengths: tuple[Tensor, Tensor] | None) -> Tensor:
        """The position of each query among the keys."""
        query = self.index(scores, QUERY)
        if not band.is_bottom_right:
            return query
        if lengths is None:
            return self._plus(query, self.sizes.shift)
        shift = self.pointwise(PointwiseMode.SUB, lengths[1], lengths[0], kind=data_type.INT32)
        return self.pointwise(PointwiseMode.ADD, query, shift, kind=data_type.INT32)

    def _plus(self, index: Tensor, offset: int) -> Tensor:
        if not offset:
            return index
        return self.pointwise(PointwiseMode.ADD, index, offset, kind=data_type.INT32)

    def _select(self, scores: Tensor, mode: PointwiseMode, x: Tensor, b: Tensor) -> Tensor:
        """Scores where ``x mode b`` holds, elsewhere minus infinity."""
        seen = self.pointwise(mode, x, b, kind=data_type.INT32, result=data_type.BOOLEAN)
        return self.pointwise(PointwiseMode.BINARY_SELECT, scores, -inf, seen)

    def _add(self, node: Any, result: data_type, label: str, compute: data_type = data_type.FLOAT) -> Tensor:
        tensor = self.graph._add(node, compute, self._label(label))
        return tensor.set_data_type(result) if result else tensor

    def _label(self, label: str) -> str:
        return f"{self.name}::{label}"


@dataclass(frozen=True)
class Fp8AttentionWriter(AttentionWriter):
    """An AttentionWriter with a number that each operand is descaled by and each result scaled by (``sdpa_fp8``), and
    the largest magnitudes of weights and output."""

    scales: Mapping[str, Tensor]
    amax_s: Tensor
    amax_o: Tensor

    @staticmethod
    def of(
        graph: GraphBuilder, method: str, sizes: Sizes, name: str, scales: Mapping[str, Tensor]
    ) -> Fp8AttentionWriter:
        amaxes = largest_magnitudes(graph, name, ("S", "O"))
        return Fp8AttentionWriter(graph, method, sizes, name, scales, *amaxes.values())

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self._scaled(super().scores(q, k), "descale_q", "descale_k")

    def softmax(self, scores: Tensor, statistics: Statistics, sink: Tensor | None) -> tuple[Tensor, Tensor | None]:
        weights, stats = super().softmax(scores, statistics, sink)
        self._add_amax(weights, self.amax_s)
        return self._scaled(weights, "scale_s"), stats

    def product(self, weights: Tensor, q: Tensor, v: Tensor) -> Tensor:
        product = super().product(weights, q, v).set_data_type(data_type.FLOAT)
        o = self._scaled(product, "descale_s", "descale_v")
        self._add_amax(o, self.amax_o)
        node = PointwiseNode(PointwiseMode.MUL, (o, self.scales["scale_o"]), PointwiseParameters())
        return self._add(node, NOT_SET, "O")

    def _scaled(self, x: Tensor, *labels: str) -> Tensor:
        for label in labels:
            x = self.pointwise(PointwiseMode.MUL, x, self.scales[label])
        return x

    def _add_amax(self, x: Tensor, amax: Tensor) -> None:
        node = ReductionNode((x,), ReduceTensorOp.AMAX)
        self.graph._add_all(node, data_type.FLOAT, self._label("amax"), {"Y": amax})


def largest_magnitudes(graph: GraphBuilder, name: str, suffixes: Iterable[str]) -> dict[str, Tensor]:
    """The largest magnitudes of the tensors with those suffixes, by suffix; they need not become outputs."""
    one = (1, 1, 1, 1)
    labels = [f"Amax_{suffix}" for suffix in suffixes]
    return {
        label: graph._register(
            Tensor(dim=one, stride=one, data_type=data_type.FLOAT, is_virtual=True, name=f"{name}::{label}")
        )
        for label in labels
    }


@dataclass(frozen=True)
class BlockMaskNode(Ports):
    """The operation on scores and a mask of their tiles."""

    inputs: tuple[Tensor, Tensor]
    input_names: tuple[str, ...] = ("X", "Block_mask")
    output_suffixes: tuple[str, ...] = ("Y",)

    @property
    def input_ports(self) -> tuple[str, ...]:
        return ("x", "mask")

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        (output,), scores = outputs, self.inputs[0]
        output.set_dim(scores.get_dim()).set_stride(scores.get_stride())

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        return BlockMask(*map(lowered, (*self.inputs, *outputs)))


@dataclass(frozen=True)
class SdpaBackwardNode(Ports):
    """given: the inputs by port. Dims, strides and types that dQ, dK and dV lack are those of q, k and v.  has_dbias:
    whether dBias is one of the outputs.  unread: tensors that the caller may have values for and that the gradients do
    not depend on."""

    given: Mapping[str, Tensor]
    band: Band
    is_deterministic: bool
    inside: Inside | None = None
    has_dbias: bool = False
    unread: tuple[Tensor, ...] = ()

    @property
    def output_suffixes(self) -> tuple[str, ...]:
        return ("dQ", "dK", "dV", *(("dBias",) if self.has_dbias else ()))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        inner = () if self.inside is None else (*self.inside.given, *self.inside.made)
        return (*self.given.values(), *inner, *self.unread)

    @property
    def input_ports(self) -> tuple[str, ...]:
        return tuple(self.given)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(map(_suffix, self.given))

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        for port, output in zip("qkv", outputs, strict=False):
            own = self.given[port]
            if not output.get_dim():
                output.set_dim(own.get_dim())
            if not output.get_stride():
                output.set_stride(strides_like(own, output.get_dim()))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        return SdpaBackward(**self._fields(outputs, lowered))

    def _fields(self, outputs: tuple[Tensor, ...], lowered: Lowered) -> dict[str, Any]:
        """The fields of the operation.  outputs: dQ, dK, dV and dBias if it is wanted."""
        tensors = {**self.given, **dict(zip(("dq", "dk", "dv", "dbias"), outputs, strict=False))}
        inner = None
        if self.inside is not None:
            inner = Subgraph(given=tuple(map(lowered, self.inside.given)), made=tuple(map(lowered, self.inside.made)))
        return {port: lowered(tensor) for port, tensor in tensors.items()} | {
            "inner": inner,
            "left": self.band.left,
            "right": self.band.right,
            "is_bottom_right": self.band.is_bottom_right,
            "is_deterministic": self.is_deterministic,
        }


@dataclass(frozen=True)
class SdpaFp8BackwardNode(SdpaBackwardNode):
    """``given`` has the numbers, too, by their names in ``NUMBERS``."""

    @property
    def output_suffixes(self) -> tuple[str, ...]:
        return (*super().output_suffixes, *(f"Amax_{_SCALED_SUFFIXES[port]}" for port in LARGEST))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        gradients, largest = outputs[: -len(LARGEST)], outputs[-len(LARGEST) :]
        fields = self._fields(gradients, lowered)
        numbers = tuple(fields.pop(name) for name in NUMBERS)
        return SdpaFp8Backward(**fields, numbers=numbers, largest=tuple(map(lowered, largest)))


def _suffix(port: str) -> str:
    """The suffix of the tensor, or of the number, that the operation has there."""
    if port in _SUFFIXES:
        return _SUFFIXES[port]
    kind, _, scaled = port.partition("_")
    return f"{kind.capitalize()}_{(_SUFFIXES | _SCALED_SUFFIXES)[scaled]}"
