"""Attention through PyTorch: cuDNN's kernels and FlashAttention-2's, called below autograd, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from bench_data import CaseData
from bench_flash import flash_attention, rows_first, window

from lowdnn.graph.cases import AttentionBackwardCase, AttentionCase

_aten = torch.ops.aten

Tensors = Sequence[torch.Tensor | None]
Peer = Callable[[int], Tensors]


def attention_peers(case: AttentionCase, data: CaseData) -> dict[str, Peer]:
    """The peers of attention with a causal mask, a window behind the query too, or neither."""
    is_masked_otherwise = case.lengths == "yes" or case.right >= 0 or case.causal == "bottom_right"
    if case.scores or case.dropout or is_masked_otherwise or case.stats not in ("no", "lse"):
        raise ValueError(f"{case}: expected a causal mask from the top left and a window behind it, as the peers have")
    q, v, is_causal = data["q"], data["v"], case.causal != "no"
    k = [copy.transpose(2, 3) for copy in data["k"]]

    def results(o: torch.Tensor, log_sum_exp: torch.Tensor) -> Tensors:
        return [o] if case.stats == "no" else [log_sum_exp, o]

    def flash(slot: int) -> Tensors:
        return results(*flash_attention(q[slot], k[slot], v[slot], is_causal=is_causal, left=case.left))

    def cudnn(slot: int) -> Tensors:
        o, log_sum_exp, *_ = _aten._scaled_dot_product_cudnn_attention(
            q[slot], k[slot], v[slot], None, case.stats != "no", 0.0, is_causal, False, scale=case.d**-0.5
        )
        return results(o, log_sum_exp)

    return {"flash": flash} if case.left >= 0 else {"flash": flash, "cudnn": cudnn}


def attention_gradient_peers(case: AttentionBackwardCase, data: CaseData) -> dict[str, Peer]:
    """The peers of its gradients, given the output and the statistics."""
    if case.lengths != "no" or case.right > 0 or (case.left >= 0 and case.right < 0) or case.scale != "constant":
        raise ValueError(f"{case}: expected a causal mask from the top left and a window behind it, as the peers have")
    q, k, v, o, d_o, stats = (data[name] for name in ("q", "k", "v", "o", "d_o", "stats"))
    is_causal, keys, scale = case.right == 0, case.kv or case.q, case.d**-0.5
    # What dropout would take.
    seed, offset = torch.zeros(2, device="cuda", dtype=torch.uint64), torch.zeros((), device="cuda", dtype=torch.int64)

    def flash(slot: int) -> Tensors:
        heads = [rows_first(copies[slot]) for copies in (d_o, q, k, v, o)]
        gradients = _aten._flash_attention_backward(
            *heads, stats[slot].squeeze(3), None, None, case.q, keys, 0.0, is_causal, seed, offset,
            scale=scale, **window(case.left),
        )  # fmt: skip
        return [rows_first(gradient) for gradient in gradients]

    def cudnn(slot: int) -> Tensors:
        heads = [copies[slot] for copies in (d_o, q, k, v, o)]
        gradients = _aten._scaled_dot_product_cudnn_attention_backward(
            *heads, stats[slot], offset, offset, None, None, None, case.q, keys, 0.0, is_causal, scale=scale
        )
        return list(gradients)

    return {"flash": flash} if case.left >= 0 else {"flash": flash, "cudnn": cudnn}
