"""Grouped matrix products through PyTorch: its own grouped kernel, and one cuBLAS product for each expert."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lowdnn.cases.families.moe import MoeCase
from tools.bench.data import CaseData

Peer = Callable[[int], torch.Tensor]


def moe_peers(case: MoeCase, data: CaseData) -> dict[str, Peer]:
    """The peers of a plain product or weight gradient of one batch; others have none.

    ``torch grouped``: ``torch._grouped_mm``, where this torch has it; sizes are read on the device. ``cublas loop``:
    ``torch.mm`` for each expert, with sizes that the host knows.
    """
    if case.mode != "none" or case.epilogue or case.batches > 1 or case.ends or not case.sizes:
        return {}
    peers: dict[str, Peer] = {"cublas loop": _loop(case, data)}
    if hasattr(torch, "_grouped_mm"):
        peers["torch grouped"] = _grouped(case, data)
    return peers


def _grouped(case: MoeCase, data: CaseData) -> Peer:
    ends = torch.tensor(case.sizes, device="cuda").cumsum(0).to(torch.int32)
    token = data["token"]
    if case.dir == "wgrad":
        doutput = data["doutput"]
        return lambda slot: torch._grouped_mm(token[slot][0].t(), doutput[slot][0], offs=ends)
    weight = data["weight"]
    return lambda slot: torch._grouped_mm(token[slot][0], weight[slot], offs=ends).unsqueeze(0)


def _loop(case: MoeCase, data: CaseData) -> Peer:
    token, out = data["token"], data.fresh_outputs()
    other = data["doutput" if case.dir == "wgrad" else "weight"]

    def launch(slot: int) -> torch.Tensor:
        first = 0
        for expert, size in enumerate(case.sizes):
            rows = slice(first, first + size)
            if case.dir == "wgrad":
                torch.mm(token[slot][0, rows].t(), other[slot][0, rows], out=out[slot][expert])
            else:
                torch.mm(token[slot][0, rows], other[slot][expert], out=out[slot][0, rows])
            first += size
        return out[slot]

    return launch
