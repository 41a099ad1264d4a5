"""The gradients of attention in pygraph, each one operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lowdnn.frontend.arguments import boolean, real
from lowdnn.frontend.attention_arguments import (
    Argument,
    Band,
    ScoreModifier,
    Sizes,
    dropout_parts,
    lengths_of,
    modified_by,
    one_left_bound,
    refuse_alone,
    refuse_masks,
    refuse_ragged,
)
from lowdnn.frontend.attention_nodes import (
    AttentionWriter,
    Inside,
    SdpaBackwardNode,
    SdpaFp8BackwardNode,
    largest_magnitudes,
)
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.enums import diagonal_alignment, scalar_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.ops.sdpa_fp8_backward import NUMBERS

NOT_SET = data_type.NOT_SET


class AttentionGradientMethods(GraphBuilder):
    """See the module's docstring."""

    @operation
    def sdpa_backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        dO: Tensor,
        stats: Tensor,
        attn_scale: Tensor | float | None = None,
        bias: Tensor | None = None,
        dBias: Tensor | None = None,
        use_alibi_mask: bool = False,
        use_padding_mask: bool = False,
        seq_len_q: Tensor | None = None,
        seq_len_kv: Tensor | None = None,
        max_total_seq_len_q: int | None = None,
        max_total_seq_len_kv: int | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        sliding_window_length: int | None = None,
        diagonal_alignment: diagonal_alignment = diagonal_alignment.TOP_LEFT,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        dropout: Sequence[Any] | None = None,
        rng_dump: Tensor | None = None,
        use_deterministic_algorithm: bool = False,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
        score_mod: ScoreModifier | None = None,
        score_mod_bprop: ScoreModifier | None = None,
        sink_token: Tensor | None = None,
        dSink_token: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(dQ, dK, dV) from the inputs of ``sdpa``, its O and Stats (FLOAT), and the gradient dO of O.

        Arguments as those of ``sdpa``. use_deterministic_algorithm: each plan gives the same bits in every run; without
        it, plans that add faster in any order have the note NONDETERMINISTIC. max_total_seq_len_q and
        max_total_seq_len_kv change nothing. dBias: a tensor (B, H, S_q, S_kv), with 1 for B or H where bias repeats,
        that gets the gradient of bias. dropout: (probability, seed, offset) or (mask, scale, inverse of scale), of
        which the last is not read. score_mod_bprop: called with this graph and the gradient of what score_mod gave,
        gives that of the scores; it may use what score_mod made. None: it is derived from what score_mod did.
        dSink_token: a FLOAT tensor (1, H, 1, 1) that gets the gradient of sink_token; without it that is not read,
        since Stats have it. All tensors of heads and stats may have ragged offsets, with use_padding_mask. Raises
        BadParamError for contradicting masks, and for dBias, dSink_token, rng_dump and score_mod_bprop without bias,
        sink_token, dropout and score_mod.
        """
        given = {"q": q, "k": k, "v": v, "o": o, "d_o": dO, "stats": stats}
        modifier = Argument("score_mod", score_mod)
        lengths = lengths_of("sdpa_backward", use_padding_mask, seq_len_q, seq_len_kv, modifier)
        band = Band.of(
            "sdpa_backward",
            use_causal_mask,
            use_causal_mask_bottom_right,
            diagonal_alignment,
            one_left_bound(
                "sdpa_backward",
                Argument("sliding_window_length", sliding_window_length),
                Argument("diagonal_band_left_bound", diagonal_band_left_bound),
            ),
            Argument("diagonal_band_right_bound", diagonal_band_right_bound),
        )
        refuse_alone(
            "sdpa_backward",
            bias=(dBias, "dBias", bias),
            dropout=(rng_dump, "rng_dump", dropout),
            score_mod=(score_mod_bprop, "score_mod_bprop", score_mod),
        )
        refuse_masks("sdpa_backward", modifier, band, lengths, use_alibi_mask)
        writer = AttentionWriter(self, "sdpa_backward", Sizes.of("sdpa_backward", q, k, v), self._label(name))
        scores, gradient, weights = writer.inside()
        modified = writer.modified(scores, bias, modifier, use_alibi_mask)
        d_scores = modified_by("sdpa_backward", Argument("score_mod_bprop", score_mod_bprop), self, gradient)
        dropped, unread = _dropped(writer, weights, dropout, rng_dump)
        inside = Inside((scores, gradient, weights), (modified, d_scores, dropped))
        dq, dk, dv, *_ = self._attention_gradients(
            writer,
            SdpaBackwardNode,
            given,
            lengths,
            band,
            inside,
            unread,
            {} if dBias is None else {"dBias": dBias},
            attn_scale=attn_scale,
            use_deterministic_algorithm=use_deterministic_algorithm,
            sink_token=sink_token,
            dSink_token=dSink_token,
            compute_data_type=compute_data_type,
        )
        return dq, dk, dv

    @operation
    def sdpa_fp8_backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        dO: Tensor,
        stats: Tensor,
        descale_q: Tensor,
        descale_k: Tensor,
        descale_v: Tensor,
        descale_o: Tensor,
        descale_dO: Tensor,
        descale_s: Tensor,
        descale_dP: Tensor,
        scale_s: Tensor,
        scale_dQ: Tensor,
        scale_dK: Tensor,
        scale_dV: Tensor,
        scale_dP: Tensor,
        attn_scale: Tensor | float | None = None,
        use_padding_mask: bool = False,
        seq_len_q: Tensor | None = None,
        seq_len_kv: Tensor | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        diagonal_alignment: diagonal_alignment = diagonal_alignment.TOP_LEFT,
        left_bound: int | None = None,
        right_bound: int | None = None,
        use_deterministic_algorithm: bool = False,
        dropout: Sequence[Any] | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
        sink_token: Tensor | None = None,
        dSink_token: Tensor | None = None,
        max_total_seq_len_q: int | None = None,
        max_total_seq_len_kv: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(dQ, dK, dV, Amax_dQ, Amax_dK, Amax_dV, Amax_dP) from the inputs of ``sdpa_fp8``, its O in fp8 and Stats,
        and the gradient dO of O, each of which is a tensor times its descale:

            p = exp(masked(attn_scale * q k^T) - Stats)        dv = descale_s * fp8(scale_s * p)^T dO
            dp = attn_scale * p * (dO v^T - sum of dO * O)     dpr = descale_dP * fp8(scale_dP * dp)
            dq = dpr k,    dk = dpr^T q,    dQ = scale_dQ * dq,    dK = scale_dK * dk,    dV = scale_dV * dv
            Amax_dQ = max |dq|,    Amax_dK = max |dk|,    Amax_dV = max |dv|,    Amax_dP = max |dp|

        q, k, v and O are FP8_E4M3 or FP8_E5M2, the same for all, and so is dO, perhaps the other one; p is rounded to
        the type of q, dp to that of dO. Scales and magnitudes: as in ``sdpa_fp8``. dQ, dK and dV are stored in their
        own data type, fp8 or a wider one. left_bound, right_bound: ``sdpa``'s diagonal_band_left_bound and
        diagonal_band_right_bound. Other arguments and errors: those of ``sdpa_backward``.
        """
        numbers = {
            "descale_q": descale_q,
            "descale_k": descale_k,
            "descale_v": descale_v,
            "descale_o": descale_o,
            "descale_dO": descale_dO,
            "descale_s": descale_s,
            "descale_dP": descale_dP,
            "scale_s": scale_s,
            "scale_dQ": scale_dQ,
            "scale_dK": scale_dK,
            "scale_dV": scale_dV,
            "scale_dP": scale_dP,
        }
        given = {"q": q, "k": k, "v": v, "o": o, "d_o": dO, "stats": stats}
        given |= dict(zip(NUMBERS, numbers.values(), strict=True))
        lengths = lengths_of("sdpa_fp8_backward", use_padding_mask, seq_len_q, seq_len_kv, Argument("score_mod", None))
        band = Band.of(
            "sdpa_fp8_backward",
            use_causal_mask,
            use_causal_mask_bottom_right,
            diagonal_alignment,
            Argument("left_bound", left_bound),
            Argument("right_bound", right_bound),
        )
        sizes = Sizes.of("sdpa_fp8_backward", q, k, v)
        writer = AttentionWriter(self, "sdpa_fp8_backward", sizes, self._label(name))
        scores, gradient, weights = writer.inside()
        dropped, unread = _dropped(writer, weights, dropout, None)
        dq, dk, dv, *largest = self._attention_gradients(
            writer,
            SdpaFp8BackwardNode,
            given,
            lengths,
            band,
            Inside((scores, gradient, weights), (scores, gradient, dropped)),
            unread,
            largest_magnitudes(self, writer.name, ("dQ", "dK", "dV", "dP")),
            attn_scale=attn_scale,
            use_deterministic_algorithm=use_deterministic_algorithm,
            sink_token=sink_token,
            dSink_token=dSink_token,
            compute_data_type=compute_data_type,
        )
        amax_dq, amax_dk, amax_dv, amax_dp = largest
        return dq, dk, dv, amax_dq, amax_dk, amax_dv, amax_dp

    def _attention_gradients(
        self,
        writer: AttentionWriter,
        node: type[SdpaBackwardNode],
        given: dict[str, Tensor],
        lengths: tuple[Tensor, Tensor] | None,
        band: Band,
        inside: Inside,
        unread: tuple[Tensor, ...],
        results: Mapping[str, Tensor],
        *,
        attn_scale: Tensor | float | None,
        use_deterministic_algorithm: bool,
        sink_token: Tensor | None,
        dSink_token: Tensor | None,
        compute_data_type: DataTypeLike,
    ) -> tuple[Tensor, ...]:
        """The outputs of ``node``.

        given: the inputs by port of the operation, without lengths and scale.
        results: the outputs beside dQ, dK and dV, by suffix.
        """
        method = writer.method
        is_deterministic = boolean(use_deterministic_algorithm, f"{method}.use_deterministic_algorithm")
        if attn_scale is not None:
            if not isinstance(attn_scale, Tensor):
                attn_scale = self._constant(attn_scale, f"{method}.attn_scale")
            given["scale"] = attn_scale
        if lengths is not None:
            given |= {"seq_len_q": lengths[0], "seq_len_kv": lengths[1]}
        refuse_ragged(method, {port: given[port] for port in "qkv"}, lengths)
        refuse_alone(method, sink_token=(dSink_token, "dSink_token", sink_token))
        made = node(
            given,
            band,
            is_deterministic,
            inside=None if inside.given == inside.made else inside,
            has_dbias="dBias" in results,
            unread=unread if sink_token is None else (*unread, sink_token),
        )
        outputs = self._add_all(made, compute_data_type, writer.name, results)
        if dSink_token is not None and sink_token is not None:
            writer.sink_gradient(sink_token, given, dSink_token)
        return outputs

    def _constant(self, value: object, where: str) -> Tensor:
        scale = real(value, where, expected="a tensor of a graph or a number")
        return self.tensor_scalar(scale, scalar_type.COMPILE_TIME_CONST)

    #: cudnn-frontend's older name.
    scaled_dot_product_flash_attention_backward = sdpa_backward


def _dropped(
    writer: AttentionWriter, weights: Tensor, dropout: object, dump: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(the dropped weights, the inverse of a mask's scale, which is not read)."""
    if dropout is None:
        return weights, ()
    parts = dropout_parts(writer.method, dropout)
    if len(parts) == 3 and isinstance(parts[0], Tensor):
        return writer.dropped(weights, parts[:2], dump), parts[2:]
    return writer.dropped(weights, parts, dump), ()
