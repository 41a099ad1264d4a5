"""FlashAttention-2 forward through PyTorch, called below autograd."""

from __future__ import annotations

import torch

_aten = torch.ops.aten


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool, left: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, log-sum-exp) of heads (B, H, S, D); left: how far a query sees behind its place, -1 without bound."""
    heads = (rows_first(x) for x in (q, k, v))
    o, log_sum_exp, *_ = _aten._flash_attention_forward(
        *heads, None, None, q.shape[2], k.shape[2], 0.0, is_causal, False, scale=q.shape[3] ** -0.5, **window(left)
    )
    return rows_first(o), log_sum_exp


def packed_flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor, longest: int, *, is_causal: bool
) -> torch.Tensor:
    """o (T, H, D) of sequences that ``offsets`` (B + 1) begin in rows of q, k and v (T, H, D), up to ``longest``."""
    return _aten._flash_attention_forward(
        q, k, v, offsets, offsets, longest, longest, 0.0, is_causal, False, scale=q.shape[2] ** -0.5
    )[0]


def window(left: int) -> dict[str, int]:
    return {} if left < 0 else {"window_size_left": left, "window_size_right": 0}


def rows_first(heads: torch.Tensor) -> torch.Tensor:
    """(B, H, S, D) as (B, S, H, D), and back."""
    return heads.transpose(1, 2)
