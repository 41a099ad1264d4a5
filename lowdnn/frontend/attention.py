"""Attention in pygraph, written node by node: a product, pointwise operations on the scores, a softmax, dropout, a
product. Engines find the pattern (``graph.attention_pattern``); a graph that none takes whole runs as a chain of plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Any

from lowdnn.enums import PointwiseMode, RngDistribution
from lowdnn.frontend.arguments import boolean, integer, member, number
from lowdnn.frontend.builder import GraphBuilder, Operand
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.enums import attention_implementation, diagonal_alignment
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.moves import TransposeNode
from lowdnn.frontend.nodes import MatmulNode, PointwiseNode, PointwiseParameters
from lowdnn.frontend.norm_nodes import SoftmaxNode
from lowdnn.frontend.random_numbers import RngNode
from lowdnn.ops.rng import Rng
from lowdnn.status import BadParamError, NotSupportedError

NOT_SET = data_type.NOT_SET

#: From pygraph and the scores to other scores.
ScoreModifier = Callable[[Any, Tensor], Tensor]

_BATCH, _HEAD, _QUERY, _KEY = range(4)


class AttentionMethods(GraphBuilder):
    """See the module's docstring."""

    def sdpa(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_inference: bool | None = None,
        attn_scale: Tensor | float | None = None,
        bias: Tensor | None = None,
        block_mask: Tensor | None = None,
        use_alibi_mask: bool = False,
        use_padding_mask: bool = False,
        seq_len_q: Tensor | None = None,
        seq_len_kv: Tensor | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        sliding_window_length: int | None = None,
        diagonal_alignment: diagonal_alignment = diagonal_alignment.TOP_LEFT,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        dropout: Sequence[Any] | None = None,
        rng_dump: Tensor | None = None,
        paged_attention_k_table: Tensor | None = None,
        paged_attention_v_table: Tensor | None = None,
        paged_attention_max_seq_len_kv: int | None = None,
        max_total_seq_len_q: int | None = None,
        max_total_seq_len_kv: int | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
        score_mod: ScoreModifier | None = None,
        generate_stats: bool | None = None,
        implementation: attention_implementation = attention_implementation.AUTO,
        score_max: Tensor | None = None,
        score_sum_exp: Tensor | None = None,
        sink_token: Tensor | None = None,
        unfuse_fma: bool = False,
        cu_seq_len_q: Tensor | None = None,
        cu_seq_len_kv: Tensor | None = None,
        stats_use_log2: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(O, Stats): softmax(masked(attn_scale * q k^T + bias)) v, and the log-sum-exp of each query's scores.

        q (B, H, S_q, D), k (B, H_k, S_kv, D), v (B, H_v, S_kv, D_v), O (B, H, S_q, D_v), Stats (B, H, S_q, 1) in FLOAT
        where generate_stats is True (or is_inference False), otherwise None. H_k and H_v divide H. HALF or BFLOAT16.

        attn_scale: 1 where there is none.  bias: added to the scores, with 1 where it repeats.
        use_causal_mask: a query sees the keys up to its own place; use_causal_mask_bottom_right: counted from the last
        query and key on.  diagonal_band_left_bound (or sliding_window_length): how many keys up to its place it sees;
        diagonal_band_right_bound: how many behind it; places are counted by diagonal_alignment.
        use_alibi_mask: adds slope * (key - query), with 2^(-8 (h + 1) / H) as the slope of head h.
        use_padding_mask: keys from seq_len_kv and queries from seq_len_q (B, 1, 1, 1) on do not exist.
        dropout: (probability, seed, offset) or (mask, scale).
        score_mod: called with this graph and the scores, gives other scores; it stands in the place of all masks.
        A query that sees no key has O 0 and Stats minus infinity.

        Raises BadParamError for contradicting masks, NotSupportedError for block_mask, rng_dump, paged, cumulative and
        ragged lengths, score_max, score_sum_exp, sink_token, unfuse_fma, stats_use_log2 and UNIFIED.
        """
        _refuse(
            block_mask=block_mask,
            rng_dump=rng_dump,
            paged_attention_k_table=paged_attention_k_table,
            paged_attention_v_table=paged_attention_v_table,
            paged_attention_max_seq_len_kv=paged_attention_max_seq_len_kv,
            score_max=score_max,
            score_sum_exp=score_sum_exp,
            sink_token=sink_token,
            unfuse_fma=boolean(unfuse_fma, "sdpa.unfuse_fma") or None,
            cu_seq_len_q=cu_seq_len_q,
            cu_seq_len_kv=cu_seq_len_kv,
            stats_use_log2=boolean(stats_use_log2, "sdpa.stats_use_log2") or None,
        )
        if member(attention_implementation, implementation, "sdpa.implementation") is attention_implementation.UNIFIED:
            raise NotSupportedError.at("sdpa.implementation", expected="AUTO or COMPOSITE", got="UNIFIED")
        writer = _Writer(self, _Sizes.of(q, k, v), name)
        band = _Band.of(
            writer.sizes,
            use_causal_mask,
            use_causal_mask_bottom_right,
            diagonal_alignment,
            diagonal_band_left_bound if sliding_window_length is None else sliding_window_length,
            diagonal_band_right_bound,
        )
        lengths = _lengths(use_padding_mask, seq_len_q, seq_len_kv)
        scores = writer.scores(q, k)
        if attn_scale is not None:
            scores = writer.pointwise(PointwiseMode.MUL, scores, attn_scale)
        if bias is not None:
            scores = writer.pointwise(PointwiseMode.ADD, scores, bias)
        if score_mod is not None:
            if band.is_mask or lengths or use_alibi_mask:
                raise BadParamError.at("sdpa.score_mod", expected="no other mask beside it", got="one")
            scores = score_mod(self, scores)
        if boolean(use_alibi_mask, "sdpa.use_alibi_mask"):
            scores = writer.with_alibi(scores)
        scores = writer.masked(scores, band, lengths)
        has_stats = _has_stats(is_inference, generate_stats)
        weights, stats = writer.softmax(scores, has_stats)
        if dropout is not None:
            weights = writer.dropped(weights, tuple(dropout))
        return writer.product(weights, q, v), stats


@dataclass(frozen=True)
class _Sizes:
    """Of what q, k and v say: batch, heads, queries, keys."""

    dims: tuple[int, int, int, int]

    @staticmethod
    def of(q: Tensor, k: Tensor, v: Tensor) -> _Sizes:
        for label, tensor in {"q": q, "k": k, "v": v}.items():
            if not isinstance(tensor, Tensor) or len(tensor.get_dim()) != 4:
                got = tensor.get_dim() if isinstance(tensor, Tensor) else type(tensor).__name__
                raise BadParamError.at(f"sdpa.{label}", expected="a tensor with 4 dims", got=got)
        batch, heads, queries, _ = q.get_dim()
        return _Sizes((batch, heads, queries, k.get_dim()[2]))

    @property
    def shift(self) -> int:
        """Of places counted from the last query and key on."""
        return self.dims[_KEY] - self.dims[_QUERY]


@dataclass(frozen=True)
class _Band:
    """A query sees the keys from its place minus ``left`` to its place plus ``right``; None: no bound."""

    left: int | None
    right: int | None
    is_bottom_right: bool

    @property
    def is_mask(self) -> bool:
        return self.left is not None or self.right is not None

    @staticmethod
    def of(
        sizes: _Sizes,
        is_causal: bool,
        is_causal_bottom_right: bool,
        alignment: diagonal_alignment,
        left_bound: int | None,
        right_bound: int | None,
    ) -> _Band:
        """``left_bound`` counts the key at the query's place."""
        is_causal = boolean(is_causal, "sdpa.use_causal_mask")
        is_causal_bottom_right = boolean(is_causal_bottom_right, "sdpa.use_causal_mask_bottom_right")
        if is_causal and is_causal_bottom_right:
            raise BadParamError.at("sdpa.use_causal_mask", expected="one causal mask", got="two")
        if (is_causal or is_causal_bottom_right) and right_bound is not None:
            raise BadParamError.at(
                "sdpa.diagonal_band_right_bound", expected="None with a causal mask", got=right_bound
            )
        chosen = member(diagonal_alignment, alignment, "sdpa.diagonal_alignment")
        left = None if left_bound is None else integer(left_bound, "sdpa.diagonal_band_left_bound", 1) - 1
        right = None if right_bound is None else integer(right_bound, "sdpa.diagonal_band_right_bound", 0)
        if is_causal or is_causal_bottom_right:
            right = 0
        return _Band(left, right, is_causal_bottom_right or chosen is diagonal_alignment.BOTTOM_RIGHT)


@dataclass(frozen=True)
class _Writer:
    """Adds the nodes of one attention to a graph."""

    graph: GraphBuilder
    sizes: _Sizes
    name: str

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        node = TransposeNode((k,), (_BATCH, _HEAD, _KEY, _QUERY), keeps_type=True)
        return self._add(MatmulNode((q, self._add(node, NOT_SET, "K_T")), 0.0), data_type.FLOAT, "S")

    def softmax(self, scores: Tensor, has_stats: bool) -> tuple[Tensor, Tensor | None]:
        made = ("y", "stats") if has_stats else ("y",)
        node = SoftmaxNode({"x": scores}, made, (_KEY,), False)
        weights, *stats = self.graph._add_all(node, data_type.FLOAT, self._label("softmax"))
        for tensor in (weights, *stats):
            tensor.set_data_type(data_type.FLOAT)
        return weights, stats[0] if stats else None

    def product(self, weights: Tensor, q: Tensor, v: Tensor) -> Tensor:
        """O, of weights in q's type."""
        node = PointwiseNode(PointwiseMode.IDENTITY, (weights,), PointwiseParameters(), type_of=q)
        rounded = self._add(node, NOT_SET, "P", compute=data_type.FLOAT)
        return self._add(MatmulNode((rounded, v), 0.0), NOT_SET, "O", compute=data_type.FLOAT)

    def pointwise(
        self, mode: PointwiseMode, *operands: Operand, kind: data_type = data_type.FLOAT, result: data_type = NOT_SET
    ) -> Tensor:
        """In arithmetic of type ``kind``, which is the result's unless that is given."""
        tensors = tuple(self.graph._operand("sdpa", operand) for operand in operands)
        node = PointwiseNode(mode, tensors, PointwiseParameters())
        return self._add(node, result or kind, mode.name, compute=kind)

    def index(self, scores: Tensor, axis: int, kind: data_type = data_type.INT32) -> Tensor:
        node = PointwiseNode(PointwiseMode.GEN_INDEX, (scores,), PointwiseParameters(axis=axis))
        return self._add(node, kind, "index", compute=kind)

    def masked(self, scores: Tensor, band: _Band, lengths: tuple[Tensor, Tensor] | None) -> Tensor:
        """Minus infinity where a query does not see a key."""
        if band.right is not None:
            place = self._plus(self._place(scores, band, lengths), band.right)
            scores = self._select(scores, PointwiseMode.CMP_GE, place, self.index(scores, _KEY))
        if band.left is not None:
            place = self._plus(self._place(scores, band, lengths), -band.left)
            scores = self._select(scores, PointwiseMode.CMP_LE, place, self.index(scores, _KEY))
        if lengths is not None:
            scores = self._select(scores, PointwiseMode.CMP_LT, self.index(scores, _QUERY), lengths[0])
            scores = self._select(scores, PointwiseMode.CMP_LT, self.index(scores, _KEY), lengths[1])
        return scores

    def with_alibi(self, scores: Tensor) -> Tensor:
        """Plus slope * (key - query). Of H heads, 2^n the greatest power of two in H, the first 2^n have the slopes
        2^(-8 (h + 1) / 2^n), the others 2^(-4 (2 (h - 2^n) + 1) / 2^n). Source: Press et al., "Train short, test long".
        """
        heads = self.sizes.dims[_HEAD]
        power = 1 << (max(heads, 1).bit_length() - 1)
        head, key, query = (self.index(scores, axis, data_type.FLOAT) for axis in (_HEAD, _KEY, _QUERY))
        exponent = self.pointwise(PointwiseMode.MUL, self.pointwise(PointwiseMode.ADD, head, 1.0), -8 / power)
        if heads > power:
            later = self.pointwise(PointwiseMode.MUL, self.pointwise(PointwiseMode.ADD, head, 0.5 - power), -8 / power)
            is_first = self.pointwise(PointwiseMode.CMP_LT, head, float(power), result=data_type.BOOLEAN)
            exponent = self.pointwise(PointwiseMode.BINARY_SELECT, exponent, later, is_first)
        slope = self.pointwise(PointwiseMode.EXP, self.pointwise(PointwiseMode.MUL, exponent, log(2)))
        distance = self.pointwise(PointwiseMode.SUB, key, query)
        return self.pointwise(PointwiseMode.ADD, scores, self.pointwise(PointwiseMode.MUL, slope, distance))

    def dropped(self, weights: Tensor, dropout: tuple[Any, ...]) -> Tensor:
        """Weights times a mask and its scale."""
        if len(dropout) == 2:
            mask, scale = dropout
            return self.pointwise(PointwiseMode.MUL, self.pointwise(PointwiseMode.MUL, weights, mask), scale)
        if len(dropout) != 3:
            expected = "(probability, seed, offset) or (mask, scale)"
            raise BadParamError.at("sdpa.dropout", expected=expected, got=f"{len(dropout)} values")
        probability = float(number(dropout[0], "sdpa.dropout.probability"))
        if not 0 <= probability < 1:
            raise BadParamError.at("sdpa.dropout.probability", expected="0 to 1, not 1", got=probability)
        for label, tensor in {"seed": dropout[1], "offset": dropout[2]}.items():
            if not isinstance(tensor, Tensor):
                raise BadParamError.at(f"sdpa.dropout.{label}", expected="a tensor", got=type(tensor).__name__)
        kept = Rng(RngDistribution.BERNOULLI, probability=1 - probability)
        node = RngNode(dropout[1:], seed=None, distribution=kept, dims=self.sizes.dims)
        mask = self._add(node, data_type.FLOAT, "dropout")
        return self.pointwise(
            PointwiseMode.MUL, self.pointwise(PointwiseMode.MUL, weights, mask), 1 / (1 - probability)
        )

    def _place(self, scores: Tensor, band: _Band, lengths: tuple[Tensor, Tensor] | None) -> Tensor:
        """Of each query, among the keys."""
        query = self.index(scores, _QUERY)
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
        return f"{self.name}::{label}" if self.name else ""


def _refuse(**arguments: object) -> None:
    for argument, value in arguments.items():
        if value is not None:
            got = repr(value) if isinstance(value, Tensor) else value
            raise NotSupportedError.at(f"sdpa.{argument}", expected="the default", got=got)


def _lengths(use_padding: bool, queries: Tensor | None, keys: Tensor | None) -> tuple[Tensor, Tensor] | None:
    if boolean(use_padding, "sdpa.use_padding_mask") != (queries is not None and keys is not None):
        raise BadParamError.at(
            "sdpa.use_padding_mask", expected="True with seq_len_q and seq_len_kv, False without", got=use_padding
        )
    return None if queries is None or keys is None else (queries, keys)


def _has_stats(is_inference: bool | None, generate_stats: bool | None) -> bool:
    if is_inference is not None and generate_stats is not None:
        raise BadParamError.at("sdpa.is_inference", expected="None where generate_stats is given", got=is_inference)
    if generate_stats is not None:
        return boolean(generate_stats, "sdpa.generate_stats")
    return is_inference is not None and not boolean(is_inference, "sdpa.is_inference")
