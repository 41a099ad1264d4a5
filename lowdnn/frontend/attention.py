"""Attention in pygraph, written node by node.

The nodes are a product, pointwise operations on the scores, a softmax, dropout and a product. Engines find the pattern
(``graph.attention_pattern``); a graph that none takes whole runs as a chain of plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lowdnn.enums import PointwiseMode
from lowdnn.frontend.arguments import boolean, integer, member, real
from lowdnn.frontend.attention_arguments import (
    Argument,
    Band,
    ScoreModifier,
    Sizes,
    dropout_parts,
    has_statistics,
    lengths_of,
    one_left_bound,
    refuse_masks,
    refuse_ragged,
)
from lowdnn.frontend.attention_nodes import (
    AttentionWriter,
    Fp8AttentionWriter,
    Statistics,
)
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.enums import attention_implementation, diagonal_alignment
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.moves import PagedCacheLoadNode
from lowdnn.status import BadParamError

NOT_SET = data_type.NOT_SET


class AttentionMethods(GraphBuilder):
    """See the module's docstring."""

    @operation
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
        use_alibi_mask: adds slope * (key - query). With P the greatest power of two up to H, the slope of head h is
        2^(-8 (h + 1) / P) where h < P, otherwise 2^(-4 (2 (h - P) + 1) / P).
        block_mask: a UINT8 tensor (B, H, ceil(S_q / 128), ceil(ceil(S_kv / 128) / 8)); bit t % 8 of byte t / 8 says
        whether 128 queries see the t-th 128 keys.
        use_padding_mask: keys from seq_len_kv and queries from seq_len_q (B, 1, 1, 1) on do not exist; both are needed.
        In place of either there may be cu_seq_len_kv, cu_seq_len_q (B + 1, 1, 1, 1): the sums of the lengths before
        each batch.
        paged_attention_k_table, paged_attention_v_table: (B, 1, pages of a sequence, 1) in INT32; k, v are then pages
        (pages, H_k, rows of a page, D) of a cache, a power of two of rows each, and need seq_len_kv.
        paged_attention_max_seq_len_kv: S_kv; by default as many rows as the pages of a sequence have.
        dropout: (probability, seed, offset) or (mask, scale).  rng_dump: a tensor (B, H, S_q, S_kv) that gets the mask
        which is drawn.
        sink_token: a FLOAT tensor (1, H, 1, 1), one more logit of each query's softmax, with no value of its own;
        queries from seq_len_q on have none.
        score_max, score_sum_exp: FLOAT tensors (B, H, S_q, 1) that get the largest score of each query and the sum of
        exponentials relative to it; stats_use_log2: Stats to base 2.
        compute_data_type, implementation, unfuse_fma, max_total_seq_len_q, max_total_seq_len_kv: change nothing.
        score_mod: called with this graph and the scores, gives other scores; it stands in place of all masks.
        A query that sees no key has O 0, and Stats minus infinity or its sink.
        q, k, v, O and Stats may have ragged offsets, with use_padding_mask; their strides of rows reach past all heads.

        Raises BadParamError for contradicting masks.
        """
        boolean(unfuse_fma, "sdpa.unfuse_fma")
        member(attention_implementation, implementation, "sdpa.implementation")
        writer = AttentionWriter(self, "sdpa", Sizes.of("sdpa", q, k, v), self._label(name))
        queries = _single(writer, "seq_len_q", seq_len_q, cu_seq_len_q)
        keys = _single(writer, "seq_len_kv", seq_len_kv, cu_seq_len_kv)
        modifier = Argument("score_mod", score_mod)
        lengths = lengths_of("sdpa", use_padding_mask, queries, keys, modifier)
        refuse_ragged("sdpa", {"q": q, "k": k, "v": v}, lengths)
        tables = (paged_attention_k_table, paged_attention_v_table)
        k, v = self._keys_and_values(writer.method, k, v, tables, keys, paged_attention_max_seq_len_kv)
        band = Band.of(
            "sdpa",
            use_causal_mask,
            use_causal_mask_bottom_right,
            diagonal_alignment,
            one_left_bound(
                "sdpa",
                Argument("sliding_window_length", sliding_window_length),
                Argument("diagonal_band_left_bound", diagonal_band_left_bound),
            ),
            Argument("diagonal_band_right_bound", diagonal_band_right_bound),
        )
        has_stats, uses_log2 = (
            has_statistics("sdpa", is_inference, generate_stats),
            boolean(stats_use_log2, "sdpa.stats_use_log2"),
        )
        return self._attention(
            replace(writer, sizes=Sizes.checked(writer.method, q, k, v)),
            (q, k, v),
            attn_scale=attn_scale,
            bias=bias,
            score_mod=modifier,
            use_alibi_mask=use_alibi_mask,
            band=band,
            lengths=lengths,
            block_mask=block_mask,
            statistics=Statistics(has_stats, uses_log2, score_max, score_sum_exp),
            sink_token=sink_token,
            dropout=dropout,
            rng_dump=rng_dump,
        )

    @operation
    def sdpa_fp8(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        descale_q: Tensor,
        descale_k: Tensor,
        descale_v: Tensor,
        descale_s: Tensor,
        scale_s: Tensor,
        scale_o: Tensor,
        is_inference: bool | None = None,
        attn_scale: Tensor | float | None = None,
        bias: Tensor | None = None,
        use_alibi_mask: bool = False,
        use_padding_mask: bool = False,
        seq_len_q: Tensor | None = None,
        seq_len_kv: Tensor | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        sliding_window: int | None = None,
        diagonal_alignment: diagonal_alignment = diagonal_alignment.TOP_LEFT,
        left_bound: int | None = None,
        right_bound: int | None = None,
        dropout: Sequence[Any] | None = None,
        rng_dump: Tensor | None = None,
        paged_attention_k_table: Tensor | None = None,
        paged_attention_v_table: Tensor | None = None,
        paged_attention_max_seq_len_kv: int | None = None,
        max_total_seq_len_q: int | None = None,
        max_total_seq_len_kv: int | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
        fn: ScoreModifier | None = None,
        generate_stats: bool | None = None,
        score_max: Tensor | None = None,
        score_sum_exp: Tensor | None = None,
        sink_token: Tensor | None = None,
        unfuse_fma: bool = False,
        implementation: attention_implementation = attention_implementation.AUTO,
        cu_seq_len_q: Tensor | None = None,
        cu_seq_len_kv: Tensor | None = None,
        stats_use_log2: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """(O, Stats, Amax_S, Amax_O) of q, k and v in FP8_E4M3 or FP8_E5M2, each of which is a tensor times a scale:

            s = softmax(masked(attn_scale * descale_q * descale_k * q k^T))
            o = descale_s * descale_v * fp8(scale_s * s) v,    O = scale_o * o
            Amax_S = max |s|,    Amax_O = max |o|

        The scales are FLOAT tensors of one element, positive, dims (1, 1, 1, 1); so are Amax_S and Amax_O, which need
        not be outputs. O is stored in its own data type, fp8 or a wider one.
        sliding_window, left_bound, right_bound, fn: ``sdpa``'s sliding_window_length, diagonal_band_left_bound,
        diagonal_band_right_bound, score_mod. Other arguments and errors: those of ``sdpa``.
        """
        boolean(unfuse_fma, "sdpa_fp8.unfuse_fma")
        member(attention_implementation, implementation, "sdpa_fp8.implementation")
        scales = {
            "descale_q": descale_q,
            "descale_k": descale_k,
            "descale_v": descale_v,
            "descale_s": descale_s,
            "scale_s": scale_s,
            "scale_o": scale_o,
        }
        writer = Fp8AttentionWriter.of(self, "sdpa_fp8", Sizes.of("sdpa_fp8", q, k, v), self._label(name), scales)
        queries = _single(writer, "seq_len_q", seq_len_q, cu_seq_len_q)
        keys = _single(writer, "seq_len_kv", seq_len_kv, cu_seq_len_kv)
        modifier = Argument("fn", fn)
        lengths = lengths_of("sdpa_fp8", use_padding_mask, queries, keys, modifier)
        refuse_ragged("sdpa_fp8", {"q": q, "k": k, "v": v}, lengths)
        tables = (paged_attention_k_table, paged_attention_v_table)
        k, v = self._keys_and_values(writer.method, k, v, tables, keys, paged_attention_max_seq_len_kv)
        band = Band.of(
            "sdpa_fp8",
            use_causal_mask,
            use_causal_mask_bottom_right,
            diagonal_alignment,
            one_left_bound("sdpa_fp8", Argument("sliding_window", sliding_window), Argument("left_bound", left_bound)),
            Argument("right_bound", right_bound),
        )
        has_stats = has_statistics("sdpa_fp8", is_inference, generate_stats)
        uses_log2 = boolean(stats_use_log2, "sdpa_fp8.stats_use_log2")
        o, stats = self._attention(
            replace(writer, sizes=Sizes.checked(writer.method, q, k, v)),
            (q, k, v),
            attn_scale=attn_scale,
            bias=bias,
            score_mod=modifier,
            use_alibi_mask=use_alibi_mask,
            band=band,
            lengths=lengths,
            block_mask=None,
            statistics=Statistics(has_stats, uses_log2, score_max, score_sum_exp),
            sink_token=sink_token,
            dropout=dropout,
            rng_dump=rng_dump,
        )
        return o, stats, writer.amax_s, writer.amax_o

    def _attention(
        self,
        writer: AttentionWriter,
        inputs: tuple[Tensor, Tensor, Tensor],
        *,
        attn_scale: Tensor | float | None,
        bias: Tensor | None,
        score_mod: Argument,
        use_alibi_mask: bool,
        band: Band,
        lengths: tuple[Tensor, Tensor] | None,
        block_mask: Tensor | None,
        statistics: Statistics,
        sink_token: Tensor | None,
        dropout: Sequence[Any] | None,
        rng_dump: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """(O, Stats), as ``sdpa`` has them."""
        q, k, v = inputs
        scores = writer.scores(q, k)
        if attn_scale is not None:
            if not isinstance(attn_scale, Tensor):
                attn_scale = real(attn_scale, f"{writer.method}.attn_scale", expected="a tensor of a graph or a number")
            scores = writer.pointwise(PointwiseMode.MUL, scores, attn_scale)
        refuse_masks(writer.method, score_mod, band, lengths, use_alibi_mask)
        scores = writer.modified(scores, bias, score_mod, use_alibi_mask)
        scores = writer.masked(scores, band, lengths, block_mask)
        if sink_token is not None and lengths is not None:
            sink_token = writer.cut_sink(sink_token, lengths[0])
        weights, stats = writer.softmax(scores, statistics, sink_token)
        if dropout is not None:
            weights = writer.dropped(weights, dropout_parts(writer.method, dropout), rng_dump)
        elif rng_dump is not None:
            raise BadParamError.at(f"{writer.method}.rng_dump", expected="None without dropout", got=repr(rng_dump))
        o = writer.product(weights, q, v)
        writer.name_outputs({"O": o, "Stats": stats})
        return o, stats

    def _keys_and_values(
        self,
        method: str,
        k: Tensor,
        v: Tensor,
        tables: tuple[Tensor | None, Tensor | None],
        lengths: Tensor | None,
        longest: int | None,
    ) -> tuple[Tensor, Tensor]:
        """k and v, loaded from pages where they have tables.  lengths: lengths of the sequences, as below."""
        k_table, v_table = tables
        return (
            self._loaded(k, k_table, lengths, longest, method, "paged_attention_k_table"),
            self._loaded(v, v_table, lengths, longest, method, "paged_attention_v_table"),
        )

    def _loaded(
        self,
        x: Tensor,
        table: Tensor | None,
        lengths: Tensor | None,
        longest: int | None,
        method: str,
        argument: str,
    ) -> Tensor:
        """k or v: ``x`` itself, or sequences of rows from its pages.  method, argument: their names in errors."""
        where = f"{method}.{argument}"
        if table is None:
            return x
        if lengths is None:
            raise BadParamError.at(where, expected="None without seq_len_kv", got=repr(table))
        for label, tensor in {"the container": x, where: table}.items():
            if not isinstance(tensor, Tensor) or len(tensor.get_dim()) != 4:
                got = tensor.get_dim() if isinstance(tensor, Tensor) else type(tensor).__name__
                raise BadParamError.at(where, expected=f"4 dims of {label}", got=got)
        rows = table.get_dim()[2] * x.get_dim()[2]
        if longest is not None:
            rows = integer(longest, f"{method}.paged_attention_max_seq_len_kv", 1)
        node = PagedCacheLoadNode((x, table, lengths), rows)
        return self._add(node, NOT_SET, f"{self._call.name}::{argument}").set_dim(node.dims)

    #: cudnn-frontend's older name.
    scaled_dot_product_flash_attention = sdpa


def _single(writer: AttentionWriter, label: str, single: Tensor | None, sums: Tensor | None) -> Tensor | None:
    """The lengths, which were given themselves or as cumulated sums."""
    if single is not None and sums is not None:
        raise BadParamError.at(f"{writer.method}.{label}", expected=f"None beside cu_{label}", got=repr(single))
    return single if sums is None else writer.lengths(sums, f"cu_{label}")
