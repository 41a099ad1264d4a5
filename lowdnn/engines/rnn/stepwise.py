"""The recurrence of a layer as one launch for each step, or two where a cell multiplies twice.

The second product of a step is that of an LSTM's projection, and of a GRU whose reset gate lies before the product.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowdnn.engines.launch import i32, i64
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.array import Array, address_of
from lowdnn.engines.rnn.layers import BackwardLayer, ForwardLayer
from lowdnn.engines.rnn.network import needed
from lowdnn.engines.rnn.step_kernels import Phase, StepLauncher
from lowdnn.engines.rows.kernel import number
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_saved import cell_type
from lowdnn.plan import Argument
from lowdnn.rnn_enums import RNNMode

_FORWARD, _BACKWARD = "rnn_step_forward", "rnn_step_backward"
CELLS = {
    RNNMode.RNN_RELU: "ReluCell",
    RNNMode.RNN_TANH: "TanhCell",
    RNNMode.LSTM: "LstmCell",
    RNNMode.GRU: "GruCell",
}


@dataclass(frozen=True)
class Stepwise:
    """A ``Recurrence``."""

    launcher: StepLauncher

    reads_transposed = True

    def forward(self, parts: PlanParts, layer: ForwardLayer) -> None:
        self.launcher.add(parts, _forward_phases(layer), layer.rnn.max_length)

    def backward(self, parts: PlanParts, layer: BackwardLayer) -> None:
        phases = _backward_phases(layer)
        self.launcher.add(parts, phases, layer.rnn.max_length)
        if layer.dhx is not None:
            self.launcher.add_beyond(parts, phases[0])


def _forward_phases(layer: ForwardLayer) -> list[Phase]:
    rnn, hidden = layer.rnn, layer.rnn.hidden_size
    if rnn.projection_size:
        unprojected = needed(layer.unprojected)
        projection = _forward_phase(
            layer, "ProjectionCell", 1, rnn.projection_size, needed(layer.projection), unprojected, layer.output
        )
        own = _forward_phase(layer, "LstmCell", 4, hidden, layer.recurrent, layer.output, unprojected)
        return [own, projection]
    if not rnn.reset_after:
        reset = needed(layer.gates).columns(3 * hidden, hidden)
        return [
            _forward_phase(layer, "ResetCell", 2, hidden, layer.recurrent, layer.output, layer.output),
            _forward_phase(layer, "NewCell", 1, hidden, layer.recurrent, reset, layer.output),
        ]
    cell = CELLS[rnn.cell_mode]
    return [_forward_phase(layer, cell, rnn.gates, hidden, layer.recurrent, layer.output, layer.output)]


def layer_fields(layer: ForwardLayer, units: int, weights: Array, source: Array, output: Array) -> tuple[Argument, ...]:
    """The fields of ``Layer`` (``forward_layer.cuh``).

    output: the array that the cell writes, the layer's states or something before them.
    """
    rnn, kind = layer.rnn, cell_type(weights.data_type)
    makes_state = output is layer.output
    bias = layer.input_bias or layer.recurrent_bias
    return (
        *_weights(weights),
        *map(address_of, (layer.input_bias, layer.recurrent_bias)),
        *i64((bias.strides[0] if bias else 0,)),
        layer.products.pointer,
        *_rows(layer.products),
        *i64((layer.products.strides[3],)),
        source.pointer,
        *_rows(source),
        layer.output.pointer,
        *_rows(layer.output),
        address_of(layer.hx),
        *_ends(layer.hx, layer.hy),
        address_of(layer.hy if makes_state else None),
        output.pointer,
        *_rows(output),
        *_optional_rows(layer.gates),
        *_optional_rows(layer.cells),
        address_of(layer.cx),
        *_ends(layer.cx, layer.cy),
        *map(address_of, (layer.cy, layer.lengths)),
        *(number(value, kind) for value in (layer.fill if makes_state else 0.0, *_limits(rnn))),
        *i32((rnn.max_length, rnn.batch_size, units)),
    )


def _forward_phase(
    layer: ForwardLayer, cell: str, gates: int, units: int, weights: Array, source: Array, output: Array
) -> Phase:
    """A phase with ``gates`` rows of weights for each of ``units`` units, which multiplies rows of ``source``."""
    fields = layer_fields(layer, units, weights, source, output)
    operands = (weights, source, layer.hx)
    saves = (("SAVES", int(layer.gates is not None)),)
    return Phase(_FORWARD, cell, gates, units, (weights.dims[2],), operands, fields, saves)


def _backward_phases(layer: BackwardLayer) -> list[Phase]:
    rnn, hidden = layer.rnn, layer.rnn.hidden_size
    recurrent, of_gates = layer.recurrent, layer.dgates
    if rnn.projection_size:
        dprojected, projection = needed(layer.dprojected), needed(layer.projection)
        return [
            _backward_phase(layer, "ProjectedCell", recurrent, of_gates),
            _backward_phase(layer, "UnprojectedCell", projection, dprojected),
        ]
    if not rnn.is_gru:
        return [_backward_phase(layer, CELLS[rnn.cell_mode], recurrent, of_gates)]
    of_both, of_new = recurrent.columns(0, 2 * hidden), recurrent.columns(2 * hidden, hidden)
    if rnn.reset_after:
        return [_backward_phase(layer, "GruCell", of_both, of_gates, (hidden, 3 * hidden))]
    return [
        _backward_phase(layer, "NewCell", of_both, of_gates),
        _backward_phase(layer, "ResetCell", of_new, of_gates.columns(2 * hidden, hidden)),
    ]


def _backward_phase(
    layer: BackwardLayer, cell: str, weights: Array, source: Array, second: tuple[int, int] = (0, 0)
) -> Phase:
    """A phase that multiplies rows of ``source`` with the rows of ``weights``, one for each unit."""
    fields = backward_fields(layer, weights, source, second)
    return Phase(_BACKWARD, cell, 1, weights.dims[1], (weights.dims[2], second[0]), (weights, source), fields)


def backward_fields(
    layer: BackwardLayer, weights: Array, source: Array, second: tuple[int, int] = (0, 0)
) -> tuple[Argument, ...]:
    """The fields of ``Layer`` (``backward_layer.cuh``).

    second: elements of k behind those of ``weights``, and where they begin in a row of ``source``.
    """
    rnn, kind = layer.rnn, cell_type(weights.data_type)
    return (
        *_weights(weights),
        *i32(second),
        source.pointer,
        *_rows(source),
        layer.dy.pointer,
        *_rows(layer.dy),
        *map(address_of, (layer.dhy, layer.dhx)),
        *_ends(layer.dhy, layer.dhx, layer.hx),
        *map(address_of, (layer.dcy, layer.dcx, layer.cx)),
        *_ends(layer.dcy, layer.dcx, layer.cx),
        layer.gates.pointer,
        layer.dgates.pointer,
        *_rows(layer.gates),
        *_optional_rows(layer.cells),
        *_optional_rows(layer.output),
        address_of(layer.hx),
        *_optional_rows(layer.dprojected),
        layer.carried.pointer,
        *_ends(layer.carried),
        address_of(layer.lengths),
        *(number(value, kind) for value in _limits(rnn)),
        *i32((rnn.max_length, rnn.batch_size, weights.dims[1])),
    )


def _limits(rnn: Rnn) -> tuple[float, float]:
    """The bounds of a clip; they are not used without one."""
    return (rnn.clip.lower, rnn.clip.upper) if rnn.clip else (0.0, 0.0)


def _weights(array: Array) -> tuple[Argument, ...]:
    """The fields of ``Weights``."""
    direction, pitch, _ = array.strides
    return array.pointer, *i64((direction,)), *i32((pitch, array.dims[2]))


def _rows(array: Array) -> tuple[Argument, ...]:
    """The fields of ``Rows``: of an array (D, T, B, ...)."""
    direction, step, sequence = array.strides[:3]
    return i64((step, sequence, direction))


def _optional_rows(array: Array | None) -> tuple[Argument, ...]:
    """An address and its ``Rows``."""
    return address_of(array), *(i64((0, 0, 0)) if array is None else _rows(array))


def _ends(*arrays: Array | None) -> Iterable[Argument]:
    """The fields of ``Ends``: those of arrays (D, B, elements), of which any may be there."""
    found = next((array for array in arrays if array is not None), None)
    return i64((0, 0) if found is None else (found.strides[1], found.strides[0]))
