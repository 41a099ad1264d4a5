"""The launches of a forward pass; see ``sequences``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from lowdnn.engines.rnn.array import Array
from lowdnn.engines.rnn.layers import ForwardLayer
from lowdnn.engines.rnn.network import needed, unkept
from lowdnn.engines.rnn.row_moves import Move
from lowdnn.engines.rnn.sequences import Sequences
from lowdnn.enums import DataType
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.ops.rnn_saved import cell_type


def add_forward(sequences: Sequences, operation: RnnForward) -> None:
    """Adds all launches of ``operation``."""
    network, rnn = sequences.network, sequences.rnn
    memory = _Memory(sequences, is_training=operation.is_training)
    y = network.arrays["y"]
    inputs, last = sequences.padded(network.arrays["x"]), sequences.target(y)
    for layer in range(rnn.num_layers):
        is_last = layer == rnn.num_layers - 1
        output = last if is_last else memory.output(layer)
        found = ForwardLayer(
            rnn=rnn,
            recurrent=needed(network.weights("w", layer, "r")),
            projection=network.weights("w", layer, "projection"),
            input_bias=network.weights("w", layer, "input_bias"),
            recurrent_bias=network.weights("w", layer, "recurrent_bias"),
            products=_products(sequences, memory, inputs, layer),
            output=network.by_direction(output),
            hx=network.of_layer("hx", layer),
            cx=network.of_layer("cx", layer),
            hy=network.of_layer("hy", layer),
            cy=network.of_layer("cy", layer),
            gates=memory.gates(layer),
            cells=memory.cells(layer),
            unprojected=memory.unprojected(layer),
            lengths=network.lengths,
            fill=operation.padding_fill if is_last and last is y else 0.0,
        )
        sequences.recurrence.forward(sequences.parts, found)
        inputs = output
        if rnn.drops and not is_last:
            inputs = memory.dropped
            sequences.move(Move(output, inputs, dropped_layer=layer))
    sequences.finish(last, y)


def _products(sequences: Sequences, memory: _Memory, inputs: Array, layer: int) -> Array:
    """Products of ``inputs`` (T, B, elements) with W, or ``inputs`` for each gate without W: (D, T, B, G, H)."""
    network, rnn = sequences.network, sequences.rnn
    weights = network.weights("w", layer, "w")
    if weights is None:
        step, sequence, element = inputs.strides
        dims = (rnn.directions, *inputs.dims[:2], rnn.gates, rnn.hidden_size)
        return replace(inputs, dims=dims, strides=(0, step, sequence, 0, element))
    products = memory.products(layer)
    for direction in range(rnn.directions):
        sequences.delegate.multiply(inputs, weights.at(direction).permuted(1, 0), products.at(direction))
    return products.split(3, rnn.hidden_size)


@dataclass(frozen=True)
class _Memory:
    """The places of intermediates: in what training saves, or in the workspace, which all layers share."""

    sequences: Sequences
    is_training: bool

    def output(self, layer: int) -> Array:
        """The states of a layer before the last one: (T, B, D * S)."""
        if self.is_training:
            return self.sequences.network.arrays["outputs"].at(layer)
        return self._outputs.at(layer % 2)

    def products(self, layer: int) -> Array:
        """The products with the input of a layer: (D, T, B, G * H)."""
        saved = self.sequences.network.of_layer("gates", layer)
        rnn = self.sequences.rnn
        return self._products if saved is None else saved.columns(0, rnn.gates * rnn.hidden_size)

    def gates(self, layer: int) -> Array | None:
        saved = self.sequences.network.of_layer("gates", layer)
        return saved or (None if self.sequences.rnn.reset_after else unkept(self._gates))

    def cells(self, layer: int) -> Array | None:
        saved = self.sequences.network.of_layer("cells", layer)
        return saved or (unkept(self._cells) if self.sequences.rnn.is_lstm else None)

    def unprojected(self, layer: int) -> Array | None:
        saved = self.sequences.network.of_layer("unprojected", layer)
        return saved or (unkept(self._unprojected) if self.sequences.rnn.projection_size else None)

    @cached_property
    def dropped(self) -> Array:
        return self.sequences.reserved(*self.sequences.network.steps(self.sequences.rnn.output_size))

    @cached_property
    def _outputs(self) -> Array:
        return self.sequences.reserved(2, *self.sequences.network.steps(self.sequences.rnn.output_size))

    @cached_property
    def _products(self) -> Array:
        rnn = self.sequences.rnn
        return self.sequences.reserved(rnn.directions, *self.sequences.network.steps(rnn.gates * rnn.hidden_size))

    @cached_property
    def _gates(self) -> Array:
        return self._state(self.sequences.rnn.blocks)

    @cached_property
    def _cells(self) -> Array:
        return self._state(1, cell_type(self.sequences.network.data_type))

    @cached_property
    def _unprojected(self) -> Array:
        return self._state(1)

    def _state(self, blocks: int, data_type: DataType | None = None) -> Array:
        rnn = self.sequences.rnn
        return self.sequences.reserved(rnn.directions, rnn.batch_size, blocks * rnn.hidden_size, data_type=data_type)
