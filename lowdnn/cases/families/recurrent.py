"""Recurrent networks.

rnn cell=lstm t=5 b=3 i=12 h=16 layers=2 bi=yes dtype=bf16 dir=train
rnn cell=gru t=5 b=3 i=12 h=16 lengths=5x4x1 layout=packed dir=dgrad
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases import text
from lowdnn.cases.base import Case, Inputs
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.text import key
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation
from lowdnn.ops.rnn import Clip, Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.ops.rnn_sequences import is_row
from lowdnn.ops.rnn_tensors import dims_by_port, type_of
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.rnn_enums import DirectionMode, RNNBiasMode, RNNInputMode, RNNMode
from lowdnn.status import BadParamError

Array = NDArray[Any]

_CELLS = {"relu": RNNMode.RNN_RELU, "tanh": RNNMode.RNN_TANH, "lstm": RNNMode.LSTM, "gru": RNNMode.GRU}
_BIASES = {
    "double": RNNBiasMode.DOUBLE_BIAS,
    "none": RNNBiasMode.NO_BIAS,
    "input": RNNBiasMode.SINGLE_INP_BIAS,
    "recurrent": RNNBiasMode.SINGLE_REC_BIAS,
}
_SEQUENCES = ("x", "y", "dy", "dx")
#: Saved tensors, in which rows past the end of a sequence are 0.
_SAVED = ("gates", "cells", "outputs", "unprojected", "dgates", "dprojected")
#: Results of the gradient for the data that the gradient for the weights reads.
_BETWEEN = ("dgates", "dprojected")
_SEED, _OFFSET = 7, 3


@dataclass(frozen=True)
class RnnCase(Case):
    """A recurrent network: forward, without and with what training saves (dir=fwd, train), and its gradients for the
    data and for the weights (dgrad, wgrad; bwd: one after the other), from gates and states drawn at random.

    clip: the bound of cell states, from -clip to clip; 0 for none.  lengths: the sequences' steps; t each by default.
    layout: time or batch outermost, or packed.  states: whether there are first and last states.  add: to old dw.
    """

    family: ClassVar[str] = "rnn"

    cell: str = key(text.choice(*_CELLS))
    t: int = key(text.integer(1))
    b: int = key(text.integer(1))
    i: int = key(text.integer(1))
    h: int = key(text.integer(1))
    proj: int = key(text.integer(0), 0)
    layers: int = key(text.integer(1), 1)
    bi: str = key(text.choice("no", "yes"), "no")
    bias: str = key(text.choice(*_BIASES), "double")
    input: str = key(text.choice("linear", "skip"), "linear")
    reset: str = key(text.choice("after", "before"), "after")
    clip: float = key(text.number(), 0.0)
    dropout: float = key(text.share(), 0.0)
    lengths: tuple[int, ...] = key(text.extents(0, 1024), ())
    layout: str = key(text.choice("time", "batch", "packed"), "time")
    fill: float = key(text.number(), 0.0)
    states: str = key(text.choice("yes", "no"), "yes")
    dir: str = key(text.choice("fwd", "train", "dgrad", "wgrad", "bwd"), "fwd")
    add: str = key(text.choice("no", "yes"), "no")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    tf32: str = key(text.choice("no", "yes"), "no")
    align: int = key(text.integer(1), 16)

    @property
    def rnn(self) -> Rnn:
        """The network."""
        return Rnn(
            _CELLS[self.cell],
            max_length=self.t,
            batch_size=self.b,
            input_size=self.i,
            hidden_size=self.h,
            projection_size=self.proj,
            num_layers=self.layers,
            direction_mode=DirectionMode.BIDIRECTIONAL if self.bi == "yes" else DirectionMode.UNIDIRECTIONAL,
            bias_mode=_BIASES[self.bias],
            input_mode=RNNInputMode.SKIP_INPUT if self.input == "skip" else RNNInputMode.LINEAR_INPUT,
            clip=Clip(-self.clip, self.clip) if self.clip else None,
            dropout_probability=self.dropout,
            reset_after=self.reset == "after",
            uses_tf32=self.tf32 == "yes",
        )

    def graph(self) -> OperationGraph:
        self._check_lengths()
        self._check_direction()
        builder = CaseBuilder(alignment_bytes=self.align)
        for operation in self._operations(self._tensors(builder)):
            builder.add(operation)
        return builder.graph()

    def inputs(self, seed: int, exact: bool) -> Inputs:
        """Values that the ports may have: gates between 0 and 1, or -1 and 1, and 0 past the end of a sequence."""
        rng, graph = np.random.default_rng(seed), self.graph()
        rows = is_row(self.rnn, np.array(self.lengths) if self.lengths else None)[..., np.newaxis]
        needed = [*graph.inputs, *(t for t in graph.outputs if t.name == "dw" and self.add == "yes")]
        found: Inputs = {}
        for tensor in needed:
            values = self._drawn(rng, tensor)
            values = np.where(rows, values, 0) if tensor.name in _SAVED else values
            found[tensor.uid] = dtypes.from_float64(values, tensor.data_type)
        return found

    @property
    def length(self) -> int:
        """The number of terms of a gate or of a weight's gradient, whichever is larger."""
        of_gate, of_weight = max(self.i, self.h) + self.h, self.t * self.b
        return {"wgrad": of_weight, "bwd": max(of_gate, of_weight)}.get(self.dir, of_gate)

    @property
    def is_exact(self) -> bool:
        return False

    def _operations(self, tensors: Mapping[str, Tensor]) -> tuple[Operation, ...]:
        rnn, is_added = self.rnn, self.add == "yes"
        if self.dir == "bwd":
            between = {port: replace(tensors[port], is_virtual=True) for port in _BETWEEN if port in tensors}
            tensors = {**tensors, **between}
            return RnnBackwardData.of(rnn, tensors), RnnBackwardWeights.of(rnn, tensors, is_added=is_added)
        if self.dir == "dgrad":
            return (RnnBackwardData.of(rnn, tensors),)
        if self.dir == "wgrad":
            return (RnnBackwardWeights.of(rnn, tensors, is_added=is_added),)
        return (RnnForward.of(rnn, tensors, is_training=self.dir == "train", padding_fill=self.fill),)

    def _check_lengths(self) -> None:
        is_packed, where = self.layout == "packed", "rnn.lengths"
        if len(self.lengths) != self.b and (self.lengths or is_packed):
            raise BadParamError.at(where, expected=f"{self.b} lengths", got=len(self.lengths))
        if max(self.lengths, default=0) > self.t:
            raise BadParamError.at(where, expected=f"at most {self.t} steps", got=max(self.lengths))
        if is_packed and list(self.lengths) != sorted(self.lengths, reverse=True):
            raise BadParamError.at(where, expected="lengths that do not ascend where packed", got=list(self.lengths))

    def _check_direction(self) -> None:
        """Checks what the direction has no use for."""
        if self.add == "yes" and self.dir not in ("wgrad", "bwd"):
            raise BadParamError.at("rnn.add", expected="no but with dir=wgrad or bwd", got=self.add)
        if self.fill and self.dir not in ("fwd", "train"):
            raise BadParamError.at("rnn.fill", expected="0 but with dir=fwd or train", got=self.fill)

    def _tensors(self, builder: CaseBuilder) -> Mapping[str, Tensor]:
        """All tensors that the network may have, by port."""
        rnn, dims = self.rnn, dict(dims_by_port(self.rnn))
        left_out = [] if self.states == "yes" else ["hx", "cx", "hy", "cy", "dhy", "dcy", "dhx", "dcx"]
        left_out += [] if rnn.is_lstm else ["cx", "cy", "dcy", "dcx"]
        left_out += [] if rnn.drops else ["dropout_seed", "dropout_offset"]
        left_out += [] if self.lengths else ["seq_lengths"]
        rows = (sum(self.lengths),) if self.layout == "packed" else (rnn.max_length, rnn.batch_size)
        sizes = {"x": rnn.input_size, "dx": rnn.input_size}
        dims |= {port: (*rows, sizes.get(port, rnn.output_size)) for port in _SEQUENCES}
        found = {}
        for port in (port for port in dims if port not in left_out):
            swaps = self.layout == "batch" and port in _SEQUENCES
            strides = packed_strides(dims[port], (1, 0, 2)) if swaps else packed_strides(dims[port])
            found[port] = builder.tensor(dims[port], type_of(port, self.dtype), strides=strides, name=port)
        return found

    def _drawn(self, rng: np.random.Generator, tensor: Tensor) -> Array:
        match tensor.name:
            case "seq_lengths":
                return np.array(self.lengths)
            case "dropout_seed" | "dropout_offset":
                return np.full(1, _SEED if tensor.name == "dropout_seed" else _OFFSET)
            case "gates":
                return self._gates(rng, tensor.dims)
            case "w":
                weights: Array = rng.standard_normal(tensor.dims) / np.sqrt(max(self.i, self.h))
                return weights
            case "y" | "outputs" | "hx":
                return np.tanh(rng.standard_normal(tensor.dims))
        return rng.standard_normal(tensor.dims)

    def _gates(self, rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
        """σ or tanh of normal numbers by block."""
        rnn, values = self.rnn, rng.standard_normal(dims)
        if rnn.cell_mode is RNNMode.RNN_RELU:
            return np.maximum(values, 0)
        squashed = np.split(np.tanh(values), rnn.blocks, axis=-1)
        of_sigmoid = {RNNMode.LSTM: (0, 1, 3), RNNMode.GRU: (0, 1)}.get(rnn.cell_mode, ())
        for block in of_sigmoid:
            squashed[block] = (1 + squashed[block]) / 2
        return np.concatenate(squashed, axis=-1)
