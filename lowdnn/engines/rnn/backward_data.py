"""The launches of the gradient of a network's data; see ``sequences``."""

from __future__ import annotations

from lowdnn.engines.rnn.array import Array
from lowdnn.engines.rnn.layers import BackwardLayer
from lowdnn.engines.rnn.network import needed
from lowdnn.engines.rnn.row_moves import Move
from lowdnn.engines.rnn.sequences import SMALL_BYTES, Sequences


def add_backward_data(sequences: Sequences) -> None:
    """Adds all launches."""
    network, rnn = sequences.network, sequences.rnn
    dx = network.arrays["dx"]
    doutputs, dinputs = sequences.padded(network.arrays["dy"]), sequences.target(dx)
    last = sequences.padded(network.arrays["y"]) if rnn.is_gru else None
    transposed = _Transposed(sequences)
    carried = sequences.reserved(rnn.directions, rnn.batch_size, rnn.hidden_size, data_type=network.compute_type)
    between = sequences.reserved(*network.steps(rnn.output_size)) if rnn.num_layers > 1 else dinputs
    partial = _partial(sequences)
    for layer in reversed(range(rnn.num_layers)):
        outputs = last if layer == rnn.num_layers - 1 or last is None else network.arrays["outputs"].at(layer)
        found = BackwardLayer(
            rnn=rnn,
            recurrent=transposed.recurrent(layer),
            projection=transposed.projection(layer),
            dy=network.by_direction(doutputs),
            gates=needed(network.of_layer("gates", layer)),
            dgates=needed(network.of_layer("dgates", layer)),
            cells=network.of_layer("cells", layer),
            output=None if outputs is None else network.by_direction(outputs),
            **{port: network.of_layer(port, layer) for port in ("hx", "cx", "dhy", "dcy", "dhx", "dcx")},
            dprojected=network.of_layer("dprojected", layer),
            carried=carried,
            lengths=network.lengths,
        )
        sequences.recurrence.backward(sequences.parts, found)
        doutputs = between if layer else dinputs
        _add_input_gradient(sequences, found.dgates, layer, doutputs, partial)
        if layer and rnn.drops:
            sequences.move(Move(doutputs, doutputs, dropped_layer=layer - 1))
    sequences.finish(dinputs, dx)


class _Transposed:
    """Transposed weights: of all layers at once where these are small, otherwise each layer's in the place of the one
    before."""

    def __init__(self, sequences: Sequences) -> None:
        rnn = sequences.rnn
        self._sequences = sequences
        self._all = _all_transposed(sequences) if sequences.recurrence.reads_transposed else None
        self._recurrent = (
            sequences.reserved(rnn.directions, rnn.state_size, rnn.gates * rnn.hidden_size)
            if sequences.recurrence.reads_transposed and self._all is None
            else None
        )
        self._projection = (
            sequences.reserved(rnn.directions, rnn.hidden_size, rnn.projection_size) if rnn.projection_size else None
        )

    def recurrent(self, layer: int) -> Array:
        """R of a layer, transposed: (D, S, G * H); where the recurrence reads it either way, as it lies."""
        if self._all is not None:
            directions = self._sequences.rnn.directions
            dims, strides = (directions, *self._all.dims[1:]), self._all.strides
            return self._all.part(layer * directions * strides[0], dims, strides)
        if self._recurrent is None:
            return needed(self._sequences.network.weights("w", layer, "r")).permuted(0, 2, 1)
        return self._transpose(layer, "r", self._recurrent)

    def projection(self, layer: int) -> Array | None:
        """The projection of a layer, transposed: (D, H, P)."""
        return None if self._projection is None else self._transpose(layer, "projection", self._projection)

    def _transpose(self, layer: int, name: str, target: Array) -> Array:
        weights = needed(self._sequences.network.weights("w", layer, name))
        self._sequences.delegate.copy(weights.permuted(0, 2, 1), target)
        return target


def _all_transposed(sequences: Sequences) -> Array | None:
    """R of all layers, transposed, (L * D, S, G * H), by one launch; None where they are large or lie apart."""
    rnn = sequences.rnn
    weights = sequences.network.stacked_weights("w", range(rnn.pseudo_layers), "r")
    if weights is None or rnn.num_layers == 1 or weights.size_bytes > SMALL_BYTES:
        return None
    target = sequences.reserved(rnn.pseudo_layers, rnn.state_size, rnn.gates * rnn.hidden_size)
    sequences.delegate.copy(weights.permuted(0, 2, 1), target)
    return target


def _partial(sequences: Sequences) -> Array | None:
    """Room for the first of two directions' gradients of an input, in the type of the arithmetic."""
    network, rnn = sequences.network, sequences.rnn
    layers = [layer for layer in range(rnn.num_layers) if not rnn.skips_product(layer)]
    if rnn.directions == 1 or not layers:
        return None
    most = max(rnn.size_into(layer) for layer in layers)
    return sequences.reserved(*network.steps(most), data_type=network.compute_type)


def _add_input_gradient(sequences: Sequences, dgates: Array, layer: int, target: Array, partial: Array | None) -> None:
    """``target`` (T, B, elements) = the sum over all directions of dgates * W, or of dgates without W."""
    network, rnn = sequences.network, sequences.rnn
    weights, of_input = network.weights("w", layer, "w"), dgates.columns(0, rnn.gates * rnn.hidden_size)
    if weights is None:
        step, sequence, element = target.strides
        total = target.part(0, (1, *target.dims[:2], 1, target.dims[2]), (0, step, sequence, 0, element))
        sequences.delegate.sum_rows(of_input.split(3, rnn.hidden_size), total)
    elif partial is None:
        sequences.delegate.multiply(of_input.at(0), weights.at(0), target)
    else:
        first = partial.columns(0, target.dims[2])
        sequences.delegate.multiply(of_input.at(0), weights.at(0), first)
        sequences.delegate.multiply(of_input.at(1), weights.at(1), target, first)
