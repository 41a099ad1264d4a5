"""PyTorch's recurrent networks as modules with one output: what they give, one after the other."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tools.checks.frameworks.cases import Case

MODULES: dict[str, type[nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class Recurrent(nn.Module):
    """y, h and, of an LSTM, c, flat, from x and the first states.

    Settings of the case: t, b, i, h (sizes), layers, bi, proj, bias, batch_first, dropout, nonlinearity; lengths: of
    the sequences, which are packed, in any order.
    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        self._lengths = [int(length) for length in case.word("lengths").split("x") if length]
        options = {"proj_size": case.number("proj")} if case.work == "lstm" else {}
        if case.work == "rnn":
            options = {"nonlinearity": case.word("nonlinearity", "tanh")}
        self.network = MODULES[case.work](
            case.number("i"),
            case.number("h"),
            num_layers=case.number("layers", 1),
            bidirectional=bool(case.number("bi")),
            bias=bool(case.number("bias", 1)),
            batch_first=bool(case.number("batch_first")),
            dropout=float(case.word("dropout", "0")),
            **options,
        )

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        first = states if len(states) > 1 else states[0]
        if self._lengths:
            is_first = self.network.batch_first
            packed = pack_padded_sequence(x, self._lengths, batch_first=is_first, enforce_sorted=False)
            packed_y, last = self.network(packed, first)
            y, _ = pad_packed_sequence(packed_y, batch_first=is_first, total_length=x.shape[int(is_first)])
        else:
            y, last = self.network(x, first)
        ends = last if isinstance(last, tuple) else (last,)
        return torch.cat([tensor.flatten() for tensor in (y, *ends)])


def recurrent(case: Case) -> tuple[nn.Module, list[torch.Tensor]]:
    """The module and its inputs, x and the first states, drawn at random."""
    t, b, i, h = (case.number(name) for name in ("t", "b", "i", "h"))
    pseudo_layers = case.number("layers", 1) * (1 + case.number("bi"))
    shapes = [(b, t, i) if case.number("batch_first") else (t, b, i), (pseudo_layers, b, case.number("proj") or h)]
    if case.work == "lstm":
        shapes.append((pseudo_layers, b, h))
    return Recurrent(case), [torch.randn(shape) for shape in shapes]
