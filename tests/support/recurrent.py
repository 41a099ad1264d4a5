"""The three operations of a recurrent network, their values, and lengths of sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType
from lowdnn.ops.base import inputs_of
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.ops.rnn_saved import saved_dims
from lowdnn.ops.rnn_tensors import dims_by_port, type_of
from lowdnn.ops.tensor import Tensor, packed_strides

Array = NDArray[Any]

_STATES = ("hx", "hy", "dhy", "dhx")
_CELL_STATES = ("cx", "cy", "dcy", "dcx")


@dataclass(frozen=True)
class Training:
    """The operations of one training step, which share tensors."""

    forward: RnnForward
    backward_data: RnnBackwardData
    backward_weights: RnnBackwardWeights

    def reference(self, given: Mapping[str, Array]) -> dict[str, Array]:
        """All values by port, from those of x, w, dy and the states."""
        values = dict(given)
        for operation in (self.forward, self.backward_data, self.backward_weights):
            values |= operation.reference({port: values[port] for port in inputs_of(operation)})
        return values


def training(
    rnn: Rnn, data_type: DataType = DataType.DOUBLE, lengths: Array | None = None, *, is_packed: bool = False
) -> Training:
    """All tensors that there may be; sequences are packed, or padded with time outermost."""
    tensors = tensors_of(rnn, data_type, lengths, is_packed=is_packed)

    return Training(
        RnnForward.of(rnn, tensors, is_training=True),
        RnnBackwardData.of(rnn, tensors),
        RnnBackwardWeights.of(rnn, tensors),
    )


def tensors_of(rnn: Rnn, data_type: DataType, lengths: Array | None, *, is_packed: bool = False) -> dict[str, Tensor]:
    uids = count(1)
    ports = ["w", "dw", *_STATES, *saved_dims(rnn)]
    ports += _CELL_STATES if rnn.is_lstm else ()
    ports += ("dropout_seed", "dropout_offset") if rnn.drops else ()
    ports += ("seq_lengths",) if lengths is not None else ()
    dims = {port: dims_by_port(rnn)[port] for port in ports}
    rows = (int(np.sum(lengths)),) if is_packed else (rnn.max_length, rnn.batch_size)
    for port, size in {"x": rnn.input_size, "dx": rnn.input_size, "y": rnn.output_size, "dy": rnn.output_size}.items():
        dims[port] = (*rows, size)
    return {
        port: Tensor(next(uids), type_of(port, data_type), extents, packed_strides(extents), 16, name=port)
        for port, extents in dims.items()
    }


def draw(rng: np.random.Generator, operations: Training, lengths: Array | None) -> dict[str, Array]:
    """Values of what a training step is given."""
    forward, backward = operations.forward, operations.backward_data
    given = inputs_of(forward) | inputs_of(backward)
    names = ("x", "w", "hx", "cx", "dy", "dhy", "dcy")
    values = {name: rng.standard_normal(given[name].dims) for name in names if name in given}
    # Deviations of states, and roundings with them, would grow from step to step with larger weights.
    values["w"] /= np.sqrt(max(forward.rnn.hidden_size, 4))
    if lengths is not None:
        values["seq_lengths"] = lengths
    if forward.rnn.drops:
        values |= {"dropout_seed": np.array([7]), "dropout_offset": np.array([3])}
    return values


def batch_major(tensor: Tensor) -> Tensor:
    """The padded tensor (T, B, elements) with batch outermost in memory."""
    return replace(tensor, strides=packed_strides(tensor.dims, (1, 0, 2)))
