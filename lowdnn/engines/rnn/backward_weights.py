"""The launches of the gradient of a network's weights; see ``sequences``."""

from __future__ import annotations

from lowdnn.engines.rnn.array import Array
from lowdnn.engines.rnn.biases import add_bias_gradients
from lowdnn.engines.rnn.network import needed
from lowdnn.engines.rnn.row_moves import Move
from lowdnn.engines.rnn.sequences import Sequences


def add_backward_weights(sequences: Sequences, *, is_added: bool) -> None:
    """Adds all launches. is_added: whether the gradient is added to what is there."""
    network, rnn = sequences.network, sequences.rnn
    states = sequences.reserved(*network.steps(rnn.state_size))
    dropped = sequences.reserved(*network.steps(rnn.output_size)) if rnn.drops else None
    inputs = _in_order(sequences, network.arrays["x"])
    for layer in range(rnn.num_layers):
        if layer:
            inputs = network.arrays["outputs"].at(layer - 1)
        if layer and dropped is not None:
            sequences.move(Move(inputs, dropped, dropped_layer=layer - 1))
            inputs = dropped
        outputs = network.arrays["y"] if layer == rnn.num_layers - 1 else network.arrays["outputs"].at(layer)
        for direction in range(rnn.directions):
            _move_states(sequences, outputs, layer, direction, states)
            gradients = _Gradients(sequences, layer, direction, is_added=is_added)
            gradients.add_products(inputs.merged(), states.merged())
    add_bias_gradients(sequences, is_added=is_added)


def _in_order(sequences: Sequences, x: Array) -> Array:
    """Rows of x, all finite past the end of a sequence, that lie one behind the other: a copy where they do not."""
    network = sequences.network
    if network.lengths is None and x.is_mergeable:
        return x
    copy = sequences.reserved(*network.steps(x.dims[-1]))
    sequences.move(Move(x, copy))
    return copy


def _move_states(sequences: Sequences, outputs: Array, layer: int, direction: int, target: Array) -> None:
    """``target`` (T, B, S) = h before each step."""
    network, size = sequences.network, sequences.rnn.state_size
    own, first = outputs.columns(direction * size, size), network.of_layer("hx", layer)
    sequences.move(Move(own, target, 1 if direction else -1, first and first.at(direction)))


class _Gradients:
    """Gradients of one layer in one direction, from dgates of all rows."""

    def __init__(self, sequences: Sequences, layer: int, direction: int, *, is_added: bool) -> None:
        self._sequences, self._layer, self._direction, self._is_added = sequences, layer, direction, is_added
        self._dgates = needed(self._saved("dgates"))

    def add_products(self, inputs: Array, states: Array) -> None:
        """Adds the gradients of W, R and P, from the rows of the layer's input and of the states before each step."""
        self._multiply(self._of_input, inputs, self._region("w"))
        for gradients, (first, count), is_reset in self._recurrent_parts:
            rows = self._reset if is_reset else states
            self._multiply(gradients, rows, _rows_of(self._region("r"), first, count))
        dprojected, unprojected = self._saved("dprojected"), self._saved("unprojected")
        if dprojected is not None:
            self._multiply(dprojected, needed(unprojected), self._region("projection"))

    @property
    def _of_input(self) -> Array:
        rnn = self._sequences.rnn
        return self._dgates.columns(0, rnn.gates * rnn.hidden_size)

    @property
    def _reset(self) -> Array:
        """The rows r * h."""
        hidden = self._sequences.rnn.hidden_size
        return self._dgates.columns(3 * hidden, hidden)

    @property
    def _recurrent_parts(self) -> list[tuple[Array, tuple[int, int], bool]]:
        """Gradients of R h + bR, the rows of R that they are of, and whether these multiply r * h."""
        rnn, hidden = self._sequences.rnn, self._sequences.rnn.hidden_size
        if not rnn.is_gru:
            return [(self._of_input, (0, rnn.gates * hidden), False)]
        new = 3 if rnn.reset_after else 2
        return [
            (self._dgates.columns(0, 2 * hidden), (0, 2 * hidden), False),
            (self._dgates.columns(new * hidden, hidden), (2 * hidden, hidden), not rnn.reset_after),
        ]

    def _saved(self, port: str) -> Array | None:
        """The saved tensor at ``port`` for the layer and direction: (T * B, elements)."""
        array = self._sequences.network.of_layer(port, self._layer)
        return array and array.at(self._direction).merged()

    def _region(self, name: str) -> Array | None:
        region = self._sequences.network.weights("dw", self._layer, name)
        return region and region.at(self._direction)

    def _multiply(self, gradients: Array, rows: Array, target: Array | None) -> None:
        if target is not None:
            added = target if self._is_added else None
            self._sequences.delegate.multiply(gradients.permuted(1, 0), rows, target, added)


def _rows_of(array: Array | None, first: int, count: int) -> Array | None:
    """``count`` elements along the first axis."""
    if array is None:
        return None
    return array.part(first * array.strides[0], (count, *array.dims[1:]), array.strides)
