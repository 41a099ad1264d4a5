"""The gradient of a recurrent network for its input and its first states.

    dx, dhx, dcx = the gradients of sum(dy * y) + sum(dhy * hy) + sum(dcy * cy) for x, hx and cx

Tensors are those of ``rnn_forward``; dy, dhy, dcy, dx, dhx and dcx have the dims of y, hy, cy, x, hx and cx. dhy and
dcy are 0 where they are not there. gates, cells and outputs come from a training forward (``rnn_saved``); a GRU reads
hx and the states y and outputs, an LSTM reads cx. dgates and dprojected are saved for the gradient of the weights;
dgates may lie where gates do. dx is 0 past the end of a sequence. Where a clip cuts a cell state, no gradient goes
through what reads it; dcy reaches the last state all the same.
Source: cudnn_adv.h, cudnnRNNBackwardData_v8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from lowdnn.enums import DataType
from lowdnn.ops.base import Values
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_operation import RecurrentOperation
from lowdnn.ops.rnn_reference import Walk
from lowdnn.ops.rnn_sequences import from_steps, to_steps
from lowdnn.ops.rnn_tensors import Needs, check, check_needs, dropout_needs, ports_of, taken
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import tensor_input, tensor_output

_WHERE = "rnn_backward_data"


@dataclass(frozen=True)
class RnnBackwardData(RecurrentOperation):
    """See the module's docstring."""

    rnn: Rnn
    dy: Tensor = tensor_input()
    w: Tensor = tensor_input()
    gates: Tensor = tensor_input()
    dx: Tensor = tensor_output()
    dgates: Tensor = tensor_output()
    cells: Tensor | None = tensor_input(default=None)
    y: Tensor | None = tensor_input(default=None)
    outputs: Tensor | None = tensor_input(default=None)
    seq_lengths: Tensor | None = tensor_input(default=None)
    hx: Tensor | None = tensor_input(default=None)
    cx: Tensor | None = tensor_input(default=None)
    dhy: Tensor | None = tensor_input(default=None)
    dcy: Tensor | None = tensor_input(default=None)
    dropout_seed: Tensor | None = tensor_input(default=None)
    dropout_offset: Tensor | None = tensor_input(default=None)
    dhx: Tensor | None = tensor_output(default=None)
    dcx: Tensor | None = tensor_output(default=None)
    dprojected: Tensor | None = tensor_output(default=None)

    def __post_init__(self) -> None:
        tensors = ports_of(self)
        check_needs(_WHERE, tensors, _needs(self.rnn))
        check(_WHERE, self.rnn, tensors)

    @classmethod
    def of(cls, rnn: Rnn, tensors: Mapping[str, Tensor]) -> RnnBackwardData:
        """The operation on ``tensors`` by port, without those that ``rnn`` does not use."""
        return cls(rnn, **taken(cls, tensors, _needs(rnn)))

    @property
    def data_type(self) -> DataType:
        return self.dy.data_type

    def results(self, walk: Walk, inputs: Values) -> dict[str, NDArray[Any]]:
        y = to_steps(inputs["y"], walk.rows) if self.y is not None else None
        found = walk.backward_data(to_steps(inputs["dy"], walk.rows), y)
        return found | {"dx": from_steps(found["dx"], walk.rows, self.dx.dims)}


def _needs(rnn: Rnn) -> Needs:
    of_cell = f"of a {rnn.cell_mode.name}"
    needs = {
        "cells": (rnn.is_lstm, of_cell),
        "y": (rnn.is_gru, of_cell),
        "outputs": (rnn.is_gru and rnn.num_layers > 1, f"{of_cell} with {rnn.num_layers} layers"),
        "dprojected": (rnn.projection_size > 0, f"with projection size {rnn.projection_size}"),
    }
    if not rnn.is_lstm:
        needs |= dict.fromkeys(("cx", "dcy", "dcx"), (False, of_cell))
    if not rnn.is_gru:
        needs["hx"] = (False, of_cell)
    return {**needs, **dropout_needs(rnn)}
