"""A recurrent network over sequences.

    y, hy, cy = the states of the last layer at each step, and those of all layers after the last step of a sequence

``rnn`` has the network, its formulas and its sizes. Sequences are x (T, B, I) and y (T, B, D * S), or packed
(``rnn_sequences``). seq_lengths (B,) in INT32: the steps of each sequence; without them all have T. w: the weight space
(``rnn_weights``). States hx, hy (L * D, B, S) and cx, cy (L * D, B, H); without hx and cx they begin with 0. y is
padding_fill past the end of a sequence. A training forward saves the tensors of ``rnn_saved`` for the gradients.
Element i, row-major, of the outputs between layers (L - 1, T, B, D * S) is dropped where word i of the random numbers
with dropout_seed and dropout_offset says so (``rng``); both hold one INT64.
Sums, gates and cell states are computed in FLOAT, or in DOUBLE for an x in DOUBLE; states are rounded to the type of x.
Source: cudnn_adv.h, cudnnRNNForward.
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

_WHERE = "rnn_forward"


@dataclass(frozen=True)
class RnnForward(RecurrentOperation):
    """See the module's docstring."""

    rnn: Rnn
    x: Tensor = tensor_input()
    w: Tensor = tensor_input()
    y: Tensor = tensor_output()
    seq_lengths: Tensor | None = tensor_input(default=None)
    hx: Tensor | None = tensor_input(default=None)
    cx: Tensor | None = tensor_input(default=None)
    dropout_seed: Tensor | None = tensor_input(default=None)
    dropout_offset: Tensor | None = tensor_input(default=None)
    hy: Tensor | None = tensor_output(default=None)
    cy: Tensor | None = tensor_output(default=None)
    gates: Tensor | None = tensor_output(default=None)
    cells: Tensor | None = tensor_output(default=None)
    outputs: Tensor | None = tensor_output(default=None)
    unprojected: Tensor | None = tensor_output(default=None)
    padding_fill: float = 0.0

    def __post_init__(self) -> None:
        tensors = ports_of(self)
        check_needs(_WHERE, tensors, _needs(self.rnn, self.is_training))
        check(_WHERE, self.rnn, tensors)

    @classmethod
    def of(
        cls, rnn: Rnn, tensors: Mapping[str, Tensor], *, is_training: bool = False, padding_fill: float = 0.0
    ) -> RnnForward:
        """The operation on ``tensors`` by port, without those that ``rnn`` and the phase do not use."""
        return cls(rnn, **taken(cls, tensors, _needs(rnn, is_training)), padding_fill=padding_fill)

    @property
    def is_training(self) -> bool:
        return self.gates is not None

    @property
    def data_type(self) -> DataType:
        return self.x.data_type

    def results(self, walk: Walk, inputs: Values) -> dict[str, NDArray[Any]]:
        found = walk.forward(to_steps(inputs["x"], walk.rows))
        return found | {"y": from_steps(found["y"], walk.rows, self.y.dims, self.padding_fill)}


def _needs(rnn: Rnn, is_training: bool) -> Needs:
    when, of_cell = "in training" if is_training else "in an inference", f"of a {rnn.cell_mode.name}"
    has_projection = rnn.projection_size > 0
    needs = {
        "gates": (is_training, when),
        "cells": (is_training and rnn.is_lstm, f"{when}, {of_cell}"),
        "outputs": (is_training and rnn.num_layers > 1, f"{when}, of {rnn.num_layers} layers"),
        "unprojected": (is_training and has_projection, f"{when}, with projection size {rnn.projection_size}"),
    }
    if not rnn.is_lstm:
        needs |= dict.fromkeys(("cx", "cy"), (False, of_cell))
    return {**needs, **dropout_needs(rnn)}
