"""Tensors that the forward pass of a recurrent network saves for its gradients, computed step by step in fp32."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_weights import WeightSpace
from lowdnn.rnn_enums import RNNMode

Tensors = dict[str, torch.Tensor]


def saved_states(rnn: Rnn, drawn: Mapping[str, torch.Tensor]) -> Tensors:
    """By port, gates, cells, outputs between layers and y of a network with one direction and both biases.

    ``drawn``: x, w, hx, and cx of an LSTM. States are rounded to the type of x from step to step.
    """
    every = parameters(WeightSpace(rnn), drawn["w"].float())
    found: dict[str, list[torch.Tensor]] = {}
    sequence = drawn["x"]
    for layer in range(rnn.num_layers):
        w, r, input_bias, recurrent_bias = every[4 * layer : 4 * layer + 4]
        walk = _Layer(rnn, r, recurrent_bias, torch.matmul(sequence.float(), w.t()) + input_bias, sequence.dtype)
        cells = drawn["cx"][layer].float() if rnn.is_lstm else None
        sequence = walk.run(drawn["hx"][layer], cells)
        for name, values in {**walk.saved, "states": sequence}.items():
            found.setdefault(name, []).append(values)
    states = found.pop("states")
    between = {"outputs": torch.stack(states[:-1])} if rnn.num_layers > 1 else {}
    return {name: torch.stack(values) for name, values in found.items()} | between | {"y": states[-1]}


def parameters(space: WeightSpace, values: torch.Tensor) -> list[torch.Tensor]:
    """W, R, bW and bR of each layer as parts of the weight space ``values``."""
    regions = (
        region for found in space.layers for region in (found.w, found.r, found.input_bias, found.recurrent_bias)
    )
    return [values[region.offset : region.end].view(region.dims) for region in regions if region is not None]


class _Layer:
    """One layer: ``products`` (T, B, G * H) of its input, with the bias; ``saved``: gates, and cells of an LSTM."""

    def __init__(
        self, rnn: Rnn, r: torch.Tensor, bias: torch.Tensor, products: torch.Tensor, kind: torch.dtype
    ) -> None:
        self._rnn, self._r, self._bias, self._products, self._kind = rnn, r.t(), bias, products, kind
        rows, width = products.shape[:2], rnn.hidden_size
        self.saved: Tensors = {"gates": products.new_empty((*rows, rnn.blocks * width))}
        if rnn.is_lstm:
            self.saved["cells"] = products.new_empty((*rows, width))

    def run(self, h: torch.Tensor, c: torch.Tensor | None) -> torch.Tensor:
        """The states (T, B, H) of all steps from the first ones."""
        states = h.new_empty((self._rnn.max_length, *h.shape))
        for step, products in enumerate(self._products):
            recurrent = torch.addmm(self._bias, h.float(), self._r)
            h, c = self._step(step, products, recurrent, h, c)
            states[step] = h
        return states

    def _step(
        self, step: int, products: torch.Tensor, recurrent: torch.Tensor, h: torch.Tensor, c: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        mode, gates = self._rnn.cell_mode, self.saved["gates"][step]
        if mode is RNNMode.GRU:
            r, z = torch.sigmoid(products + recurrent).chunk(3, -1)[:2]
            behind = recurrent.chunk(3, -1)[2]
            n = torch.tanh(products.chunk(3, -1)[2] + r * behind)
            torch.cat((r, z, n, behind), -1, out=gates)
            return ((1 - z) * n + z * h.float()).to(self._kind), None
        if mode is RNNMode.LSTM:
            i, f, g, o = (products + recurrent).chunk(4, -1)
            i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
            torch.cat((i, f, g, o), -1, out=gates)
            c = f * c + i * g
            self.saved["cells"][step] = c
            return (o * torch.tanh(c)).to(self._kind), c
        function = torch.relu if mode is RNNMode.RNN_RELU else torch.tanh
        gates.copy_(function(products + recurrent))
        return gates.to(self._kind), None
