"""Causal convolutions along sequences through PyTorch: padded convolutions, cut off, activations and gates."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lowdnn.cases.families.b2b_causal_conv1d import B2BCausalConv1dCase
from lowdnn.cases.families.causal_conv1d import CausalConv1dCase
from tools.bench.data import CaseData

_aten = torch.ops.aten

Peer = Callable[[int], list[torch.Tensor]]


def causal_peers(case: CausalConv1dCase, data: CaseData) -> dict[str, Peer]:
    """torch's composition, of the gradients too, whose sums it computes again as lowdnn does."""
    if case.lengths or case.sizes or case.states != "none" or case.bias != "yes":
        raise ValueError(f"{case}: expected a bias, whole sequences and no states, for the peer's sake")
    return {"torch": _forward(case, data) if case.dir == "fwd" else _backward(case, data)}


def gated_peers(case: B2BCausalConv1dCase, data: CaseData) -> dict[str, Peer]:
    """torch's composition of back-to-back convolutions, which computes the rows and gates again for the gradients."""
    forward = _gated(data)

    def outputs(slot: int) -> list[torch.Tensor]:
        own, _, _, _, y = forward(slot)
        named = {"y": y, "y_gated": y * own}
        return [named[name] for name in data.output_names]

    def gradients(slot: int) -> list[torch.Tensor]:
        own, one, other, g, _ = forward(slot)
        dy, mixer, skip = data["dy"][slot], data["weights_mixer"][slot], data["skip_bias"][slot]
        h = dy * own
        dg, dmixer = _gradients_of(h, g, mixer)
        dg = dg + skip[:, None] * h
        dp = torch.stack((dy * data["y"][slot], dg * other, dg * one), 2).flatten(1, 2)
        dx, dprojection = _gradients_of(dp, data["x"][slot], data["weights_proj"][slot])
        named = {"dx": dx, "dweights_proj": dprojection, "dweights_mixer": dmixer}
        named["dskip_bias"] = (h.float() * g.float()).sum((0, 2))
        return [named[name] for name in data.output_names]

    return {"torch": outputs if case.dir == "fwd" else gradients}


def _gated(data: CaseData) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """The rows p_0, p_1 and p_2 of a copy, g and y."""
    x, projection, mixer, skip = (data[name] for name in ("x", "weights_proj", "weights_mixer", "skip_bias"))

    def steps(slot: int) -> tuple[torch.Tensor, ...]:
        p = _filtered(x[slot], projection[slot])
        own, one, other = (p[:, i::3] for i in range(3))
        g = one * other
        return own, one, other, g, _filtered(g, mixer[slot]) + skip[slot][:, None] * g

    return steps


def _filtered(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A causal convolution with one filter for each channel."""
    return _aten.convolution(x, weight.unsqueeze(1), None, *_geometry(*weight.shape))[..., : x.shape[2]]


def _gradients_of(g: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of ``x`` and ``weight`` from that of ``_filtered``."""
    padded, shape = torch.nn.functional.pad(g, (0, weight.shape[1] - 1)), _geometry(*weight.shape)
    dx, dweight, _ = _aten.convolution_backward(padded, x, weight.unsqueeze(1), None, *shape, [True, True, False])
    return dx, dweight.squeeze(1)


def _forward(case: CausalConv1dCase, data: CaseData) -> Peer:
    sums = _sums(case, data)
    if case.act == "none":
        return lambda slot: [sums(slot)[..., : case.l]]
    return lambda slot: [torch.nn.functional.silu(sums(slot)[..., : case.l])]


def _backward(case: CausalConv1dCase, data: CaseData) -> Peer:
    sums, x, weight, dy = _sums(case, data), data["x"], data["weight"], data["dy"]
    shape, mask = _geometry(case.c, case.k), [True, True, True]

    def gradients(slot: int) -> list[torch.Tensor]:
        g = dy[slot] if case.act == "none" else _aten.silu_backward(dy[slot], sums(slot)[..., : case.l])
        padded = torch.nn.functional.pad(g, (0, case.k - 1))
        filters = weight[slot].unsqueeze(1)
        dx, dweight, dbias = _aten.convolution_backward(padded, x[slot], filters, [case.c], *shape, mask)
        return [dx, dweight.squeeze(1), dbias]

    return gradients


def _sums(case: CausalConv1dCase, data: CaseData) -> Callable[[int], torch.Tensor]:
    """The convolution with padding on both sides: K - 1 elements more than a causal one."""
    x, weight, bias, shape = data["x"], data["weight"], data["bias"], _geometry(case.c, case.k)
    return lambda slot: _aten.convolution(x[slot], weight[slot].unsqueeze(1), bias[slot], *shape)


def _geometry(channels: int, taps: int) -> tuple[object, ...]:
    """Strides, paddings, dilations, no transposition, paddings of the output, groups."""
    return [1], [taps - 1], [1], False, [0], channels
