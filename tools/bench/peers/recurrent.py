"""Recurrent networks through cuDNN, by the functions of PyTorch that ``torch.nn.LSTM``, ``GRU`` and ``RNN`` call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from lowdnn.cases.families.recurrent import RnnCase
from lowdnn.ops.rnn_weights import WeightSpace
from tools.bench.capture import Consuming
from tools.bench.data import CaseData
from tools.bench.saved_states import parameters

Tensors = Sequence[torch.Tensor | None]
Peer = Callable[[int], Tensors]

_aten = torch.ops.aten

#: Matrices and biases of a layer.
_WEIGHTS_OF_LAYER = 4


def recurrent_peers(case: RnnCase, data: CaseData) -> dict[str, Any]:
    """cuDNN's forward pass, or its two gradients one after the other. It takes the weight space as it is.

    The gradient of the data overwrites what the forward pass has saved.
    """
    if case.lengths or case.layout != "time" or case.states != "yes" or case.add == "yes" or not is_plain(case):
        raise ValueError(f"{case}: expected sequences of one length, time outermost, first states, and a plain network")
    network = _Network(case, data)
    if case.dir == "bwd":
        return {"cudnn": Consuming(network.backward, network.restore)}
    return {"cudnn": lambda slot: network.results(network.forward(slot))}


def exact_results(case: RnnCase, data: CaseData) -> Tensors:
    """The results of the peer on the first copy of the same numbers, computed in fp32 without TF32 throughout."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        network = _Network(case, _Widened(data))
        return network.backward(0) if case.dir == "bwd" else network.results(network.forward(0))


def is_plain(case: RnnCase) -> bool:
    """Whether the network has one direction, both biases, and none of the options that PyTorch lacks."""
    has_more = case.proj or case.clip or case.dropout or case.bi == "yes"
    return case.bias == "double" and case.input == "linear" and case.reset == "after" and not has_more


class _Widened:
    """The first copy of a case's inputs in fp32."""

    slots = 1

    def __init__(self, data: CaseData) -> None:
        self._data, self.output_names = data, data.output_names
        self._copies: dict[str, list[torch.Tensor]] = {}

    def __getitem__(self, name: str) -> list[torch.Tensor]:
        if name not in self._copies:
            self._copies[name] = [self._data[name][0].float()]
        return self._copies[name]


class _Network:
    """The calls of one case."""

    def __init__(self, case: RnnCase, data: CaseData | _Widened) -> None:
        self._case, self._data, self._space = case, data, WeightSpace(case.rnn)
        # Behind input and weights: mode, sizes, layers, batch outermost, dropout, training, two directions, packed.
        sizes = (case.rnn.cell_mode.value, case.h, 0, case.layers)
        self._settings = (*sizes, False, 0.0, case.dir != "fwd", False, ())

    def forward(self, slot: int) -> Sequence[torch.Tensor]:
        """y, hy, cy, and the reserve space, which is empty of an inference."""
        weights, space = self._weights(slot)
        found: Sequence[torch.Tensor] = _aten._cudnn_rnn(
            self._data["x"][slot], weights, _WEIGHTS_OF_LAYER, space, *self._states(slot, "x"), *self._settings, None
        )
        return found

    def results(self, found: Sequence[torch.Tensor]) -> Tensors:
        """The outputs in the order of the graph's, which saves tensors of its own."""
        by_port = dict(zip(("y", "hy", "cy"), found, strict=False))
        return [by_port.get(port) for port in self._data.output_names]

    @cached_property
    def passed(self) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """y of each copy, its reserve space, and what this held before the gradients overwrote it."""
        found = [self.forward(slot) for slot in range(self._data.slots)]
        return [(y, reserve, reserve.clone()) for y, _, _, reserve, _ in found]

    def restore(self) -> None:
        for _, reserve, kept in self.passed:
            reserve.copy_(kept)

    def backward(self, slot: int) -> Tensors:
        """dx, dhx, of an LSTM dcx, and dw."""
        y, reserve, _ = self.passed[slot]
        weights, space = self._weights(slot)
        dhy, dcy = self._states(slot, "y", "d")
        wanted = [True, True, self._case.rnn.is_lstm, True]
        dx, dhx, dcx, dw = _aten._cudnn_rnn_backward(
            self._data["x"][slot], weights, _WEIGHTS_OF_LAYER, space, *self._states(slot, "x"), y,
            self._data["dy"][slot], dhy, dcy, *self._settings, None, reserve, wanted,
        )  # fmt: skip
        # All gradients of weights lie in one buffer, as the weights do.
        whole = dw[0].as_strided((self._space.element_count,), (1,), 0)
        return [dx, dhx, dcx, whole] if self._case.rnn.is_lstm else [dx, dhx, whole]

    def _states(self, slot: int, end: str, prefix: str = "") -> tuple[torch.Tensor, torch.Tensor | None]:
        h = self._data[f"{prefix}h{end}"][slot]
        return h, self._data[f"{prefix}c{end}"][slot] if self._case.rnn.is_lstm else None

    def _weights(self, slot: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The parameters of all layers, and the space that they lie in."""
        space = self._data["w"][slot]
        return parameters(self._space, space), space
