"""The launches of the gradient of a network's weights; see ``sequences``."""

from __future__ import annotations

from lowdnn.engines.rnn.array import Array
from lowdnn.engines.rnn.biases import add_bias_gradients
from lowdnn.engines.rnn.network import needed
from lowdnn.engines.rnn.row_moves import Move
from lowdnn.engines.rnn.sequences import SMALL_BYTES, Sequences


def add_backward_weights(sequences: Sequences, *, is_added: bool) -> None:
    """Adds all launches. is_added: whether the gradient is added to what is there."""
    network, rnn = sequences.network, sequences.rnn
    groups = _groups(sequences)
    most = max(len(layers) for layers in groups)
    states = sequences.reserved(most, *network.steps(rnn.state_size))
    dropped = sequences.reserved(most, *network.steps(rnn.output_size)) if rnn.drops else None
    for layers in groups:
        inputs = _inputs(sequences, layers, dropped)
        for direction in range(rnn.directions):
            for index, layer in enumerate(layers):
                _move_states(sequences, layer, direction, states.at(index))
            gradients = _Gradients(sequences, layers, direction, is_added=is_added)
            gradients.add_products(inputs, _stacked(states, 0, len(layers)))
    add_bias_gradients(sequences, is_added=is_added)


def _groups(sequences: Sequences) -> list[range]:
    """Layers whose products are one launch: all but the first where their rows are small, otherwise each by itself."""
    rnn = sequences.rnn
    row_bytes = (rnn.state_size + rnn.output_size * rnn.drops) * sequences.network.arrays["x"].element_bytes
    if rnn.num_layers * rnn.max_length * rnn.batch_size * row_bytes > SMALL_BYTES:
        return [range(layer, layer + 1) for layer in range(rnn.num_layers)]
    return [layers for layers in (range(1), range(1, rnn.num_layers)) if layers]


def _inputs(sequences: Sequences, layers: range, dropped: Array | None) -> Array:
    """The inputs of the layers, (N, T * B, elements); dropped: memory for those with elements dropped."""
    first = layers[0] - 1
    if first < 0:
        rows = _in_order(sequences, sequences.network.arrays["x"]).merged()
        return rows.part(0, (1, *rows.dims), (0, *rows.strides))
    outputs = sequences.network.arrays["outputs"]
    if dropped is None:
        return _stacked(outputs, first, len(layers))
    for index, layer in enumerate(layers):
        sequences.move(Move(outputs.at(layer - 1), dropped.at(index), dropped_layer=layer - 1))
    return _stacked(dropped, 0, len(layers))


def _stacked(array: Array, first: int, count: int, step: int = 1) -> Array:
    """``count`` elements of the first axis of (N, T, B, elements), each ``step``-th, with rows of one axis."""
    rows = array.at(first).merged()
    return rows.part(0, (count, *rows.dims), (step * array.strides[0] if count > 1 else 0, *rows.strides))


def _in_order(sequences: Sequences, x: Array) -> Array:
    """Rows of x, all finite past the end of a sequence, that lie one behind the other: a copy where they do not."""
    network = sequences.network
    if network.lengths is None and x.is_mergeable:
        return x
    copy = sequences.reserved(*network.steps(x.dims[-1]))
    sequences.move(Move(x, copy))
    return copy


def _move_states(sequences: Sequences, layer: int, direction: int, target: Array) -> None:
    """``target`` (T, B, S) = h before each step."""
    network, rnn = sequences.network, sequences.rnn
    outputs = network.arrays["y"] if layer == rnn.num_layers - 1 else network.arrays["outputs"].at(layer)
    own, first = outputs.columns(direction * rnn.state_size, rnn.state_size), network.of_layer("hx", layer)
    sequences.move(Move(own, target, 1 if direction else -1, first and first.at(direction)))


class _Gradients:
    """Gradients of some layers in one direction, from dgates of all rows; the layers are the first axis of arrays."""

    def __init__(self, sequences: Sequences, layers: range, direction: int, *, is_added: bool) -> None:
        directions = sequences.rnn.directions
        first = layers[0] * directions + direction
        self._sequences, self._is_added = sequences, is_added
        self._pseudo_layers = range(first, first + len(layers) * directions, directions)
        self._dgates = needed(self._saved("dgates"))

    def add_products(self, inputs: Array, states: Array) -> None:
        """Adds the gradients of W, R and P, from the rows of the layers' inputs and of the states before each step."""
        self._multiply(self._of_input, inputs, self._region("w"))
        for gradients, (first, count), is_reset in self._recurrent_parts:
            rows, region = self._reset if is_reset else states, needed(self._region("r"))
            self._multiply(gradients, rows, region.rows(first, count))
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
        """The saved tensor at ``port`` for the layers: (N, T * B, elements)."""
        array, layers = self._sequences.network.arrays.get(port), self._pseudo_layers
        return array and _stacked(array, layers.start, len(layers), layers.step)

    def _region(self, name: str) -> Array | None:
        return self._sequences.network.stacked_weights("dw", self._pseudo_layers, name)

    def _multiply(self, gradients: Array, rows: Array, target: Array | None) -> None:
        if target is not None:
            added = target if self._is_added else None
            self._sequences.delegate.multiply(gradients.permuted(0, 2, 1), rows, target, added)
