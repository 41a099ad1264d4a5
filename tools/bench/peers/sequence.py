"""Causal convolutions along sequences through PyTorch: a padded convolution, cut off, and the activation."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lowdnn.cases.families.causal_conv1d import CausalConv1dCase
from tools.bench.data import CaseData

_aten = torch.ops.aten

Peer = Callable[[int], list[torch.Tensor]]


def causal_peers(case: CausalConv1dCase, data: CaseData) -> dict[str, Peer]:
    """torch's composition, of the gradients too, whose sums it computes again as lowdnn does."""
    if case.lengths or case.sizes or case.states != "none" or case.bias != "yes":
        raise ValueError(f"{case}: expected a bias, whole sequences and no states, for the peer's sake")
    return {"torch": _forward(case, data) if case.dir == "fwd" else _backward(case, data)}


def _forward(case: CausalConv1dCase, data: CaseData) -> Peer:
    sums = _sums(case, data)
    if case.act == "none":
        return lambda slot: [sums(slot)[..., : case.l]]
    return lambda slot: [torch.nn.functional.silu(sums(slot)[..., : case.l])]


def _backward(case: CausalConv1dCase, data: CaseData) -> Peer:
    sums, x, weight, dy = _sums(case, data), data["x"], data["weight"], data["dy"]
    shape, mask = _shape(case), [True, True, True]

    def gradients(slot: int) -> list[torch.Tensor]:
        g = dy[slot] if case.act == "none" else _aten.silu_backward(dy[slot], sums(slot)[..., : case.l])
        padded = torch.nn.functional.pad(g, (0, case.k - 1))
        filters = weight[slot].unsqueeze(1)
        dx, dweight, dbias = _aten.convolution_backward(padded, x[slot], filters, [case.c], *shape, mask)
        return [dx, dweight.squeeze(1), dbias]

    return gradients


def _sums(case: CausalConv1dCase, data: CaseData) -> Callable[[int], torch.Tensor]:
    """The convolution with padding on both sides: K - 1 elements more than a causal one."""
    x, weight, bias, shape = data["x"], data["weight"], data["bias"], _shape(case)
    return lambda slot: _aten.convolution(x[slot], weight[slot].unsqueeze(1), bias[slot], *shape)


def _shape(case: CausalConv1dCase) -> tuple[object, ...]:
    """Strides, paddings, dilations, no transposition, paddings of the output, groups."""
    return [1], [case.k - 1], [1], False, [0], case.c
