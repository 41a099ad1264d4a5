"""Attention through PyTorch: cuDNN's kernels and FlashAttention-2's, called below autograd, forward and backward."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

import torch

from lowdnn.cases.families.attention import AttentionCase
from lowdnn.cases.families.attention_backward import AttentionBackwardCase
from tools.bench.data import CaseData
from tools.bench.peers.cudnn import fp8_attention, paged_attention
from tools.bench.peers.flash import flash_attention, packed_flash_attention, rows_first, window

_aten = torch.ops.aten

Tensors = Sequence[torch.Tensor | None]
Peer = Callable[[int], Tensors]

_MOST_FP8_HEAD = 128


def attention_peers(case: AttentionCase, data: CaseData) -> dict[str, Peer]:
    """The peers of attention with a causal mask, a window behind the query too, or neither.

    Pages are read by cuDNN's frontend, where it is there, without windows and statistics; other peers get k and v of a
    full cache in one piece, which spares them the page tables.
    """
    has_own_lengths = case.lengths == "both" or (case.lengths == "yes" and not case.page and case.ragged == "no")
    is_masked_otherwise = has_own_lengths or case.right >= 0 or case.causal == "bottom_right"
    if case.scores or case.dropout or is_masked_otherwise or case.stats not in ("no", "lse"):
        raise ValueError(f"{case}: expected a causal mask from the top left and a window behind it, as the peers have")
    if case.ragged != "no":
        return _packed_peers(case, data)
    if case.is_fp8:
        return _fp8_peers(case, data)
    if case.page and _has_frontend() and case.left < 0 and case.stats == "no":
        return {"cudnn paged": paged_attention(case, data)}
    q, is_causal = data["q"], case.causal != "no"
    if case.page:
        k, v = (_gathered(data, name, case.kv or case.q) for name in ("k", "v"))
    else:
        k, v = [copy.transpose(2, 3) for copy in data["k"]], data["v"]

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


def _has_frontend() -> bool:
    return importlib.util.find_spec("cudnn") is not None


def _fp8_peers(case: AttentionCase, data: CaseData) -> dict[str, Peer]:
    """cuDNN's bf16 kernel on the same values and, where its Python and the heads allow it, its fp8 kernel."""
    if case.left >= 0 or case.page or case.stats != "lse":
        raise ValueError(f"{case}: expected attention with its log-sum-exp and without a window and pages")
    q, k, v = ([copy.bfloat16() for copy in data[name]] for name in ("q", "k", "v"))
    k = [copy.transpose(2, 3) for copy in k]

    def cudnn(slot: int) -> Tensors:
        o, log_sum_exp, *_ = _aten._scaled_dot_product_cudnn_attention(
            q[slot], k[slot], v[slot], None, True, 0.0, case.causal != "no", False, scale=case.d**-0.5
        )
        return [log_sum_exp, None, None, o]

    peers: dict[str, Peer] = {"cudnn bf16": cudnn}
    # cuDNN 9.19's fp8 kernel for larger heads reads an illegal address, after which nothing runs in the process.
    if _has_frontend() and case.d <= _MOST_FP8_HEAD:
        peers["cudnn graph"] = fp8_attention(case, data)
    return peers


def _packed_peers(case: AttentionCase, data: CaseData) -> dict[str, Peer]:
    """FlashAttention on sequences packed one after the other, without the statistics, which it has in a layout of its
    own; cuDNN's call asks the device for lengths, which no graph can capture."""
    if case.left >= 0 or case.lengths != "yes" or case.kv not in (0, case.q):
        raise ValueError(f"{case}: expected self-attention with lengths and without a window")
    heads = {name: [copy[0].transpose(0, 1) for copy in data[name]] for name in ("q", "k", "v")}
    offsets = [copy.flatten() for copy in data["q_ragged_offset"]]
    longest, is_causal = int(offsets[0].diff().max()), case.causal != "no"

    def results(o: torch.Tensor) -> Tensors:
        return [o.transpose(0, 1)] if case.stats == "no" else [None, o.transpose(0, 1)]

    def flash(slot: int) -> Tensors:
        operands = (copies[slot] for copies in heads.values())
        return results(packed_flash_attention(*operands, offsets[slot], longest, is_causal=is_causal))

    return {"flash": flash}


def _gathered(data: CaseData, name: str, rows: int) -> list[torch.Tensor]:
    """Copies of k or v (B, H, rows, D), in memory (B, rows, H, D), from their pages (N, H, P, D)."""

    def gathered(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return rows_first(pages[table.flatten(1).long()].transpose(2, 3).flatten(1, 2)[:, :rows].contiguous())

    return list(map(gathered, data[name], data[f"{name}page_table"]))


def attention_gradient_peers(case: AttentionBackwardCase, data: CaseData) -> dict[str, Peer]:
    """The peers of its gradients, given the output and the statistics; deterministic ones where the case is; of fp8
    those of the same numbers in bf16."""
    is_masked_otherwise = case.lengths != "no" or case.right > 0 or (case.left >= 0 and case.right < 0)
    has_more = case.bias != "no" or case.cap or case.alibi != "no" or case.dropout or case.ragged != "no"
    if is_masked_otherwise or has_more or case.scale != "constant":
        raise ValueError(f"{case}: expected a causal mask from the top left and a window behind it, as the peers have")
    q, k, v, o, d_o = (
        [copy.bfloat16() for copy in data[name]] if case.is_fp8 else data[name] for name in ("q", "k", "v", "o", "d_o")
    )
    stats, largest = data["stats"], [None] * (len(data.outputs()) - 3)  # no peer gives them
    is_causal, keys, scale = case.right == 0, case.kv or case.q, case.d**-0.5
    # The call takes a seed and an offset although nothing is dropped.
    seed, offset = torch.zeros(2, device="cuda", dtype=torch.uint64), torch.zeros((), device="cuda", dtype=torch.int64)

    def flash(slot: int) -> Tensors:
        heads = [rows_first(copies[slot]) for copies in (d_o, q, k, v, o)]
        gradients = _aten._flash_attention_backward(
            *heads, stats[slot].squeeze(3), None, None, case.q, keys, 0.0, is_causal, seed, offset,
            scale=scale, **window(case.left),
        )  # fmt: skip
        return [*map(rows_first, gradients), *largest]

    def cudnn(slot: int) -> Tensors:
        heads = [copies[slot] for copies in (d_o, q, k, v, o)]
        gradients = _aten._scaled_dot_product_cudnn_attention_backward(
            *heads, stats[slot], offset, offset, None, None, None, case.q, keys, 0.0, is_causal, scale=scale
        )
        return [*gradients, *largest]

    peers: dict[str, Peer] = {"flash": flash} if case.left >= 0 else {"flash": flash, "cudnn": cudnn}
    if case.deterministic == "yes":
        return {name: _deterministic(peer) for name, peer in peers.items()}
    return peers


def _deterministic(peer: Peer) -> Peer:
    """``peer`` with torch's deterministic algorithms; nothing is filled that it overwrites."""

    def run(slot: int) -> Tensors:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        try:
            return peer(slot)
        finally:
            torch.use_deterministic_algorithms(False)

    return run
