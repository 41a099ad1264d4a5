"""The common part of the three operations of recurrent networks: the network, and the tensors that it runs on.

A cell makes the next state from a row x and the last state h, with σ(v) = 1 / (1 + e^-v) and v = W x + bW + R h + bR,
a block of H rows for each gate:

    RNN_RELU, RNN_TANH    h' = max(v, 0), h' = tanh(v)
    LSTM                  c' = σ(v_f) * c + σ(v_i) * tanh(v_g),  h' = σ(v_o) * tanh(c')       blocks i, f, g, o
    GRU                   h' = (1 - z) * n + z * h,  r = σ(v_r),  z = σ(v_z)                  blocks r, z, n
                          n = tanh(W_n x + bW_n + r * (R_n h + bR_n)), or without ``reset_after``
                          n = tanh(W_n x + bW_n + R_n (r * h) + bR_n)

A clip cuts c and c' where these formulas read them; c' itself, and with it cy, is not cut. A projection makes h' = P h'
of H elements h', so that states have P of them.
Layer l + 1 reads the states of layer l, those of both directions one after the other, times the mask of dropout.
Source: cudnn_adv.h, cudnnSetRNNDescriptor_v8, cudnnRNNSetClip_v9; Hochreiter and Schmidhuber, "Long short-term memory",
1997; Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014; Sak et al., "Long short-term memory
recurrent neural network architectures for large scale acoustic modeling", 2014.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import ClassVar

from lowdnn.enums import DescriptorType
from lowdnn.rnn_enums import DirectionMode, RNNBiasMode, RNNInputMode, RNNMode
from lowdnn.status import BadParamError

#: Extents and counts are 32-bit integers in cuDNN's functions.
MAX_SIZE = 2**31 - 1

_GATES = {RNNMode.RNN_RELU: 1, RNNMode.RNN_TANH: 1, RNNMode.LSTM: 4, RNNMode.GRU: 3}
_BLOCKS = {RNNMode.RNN_RELU: 1, RNNMode.RNN_TANH: 1, RNNMode.LSTM: 4, RNNMode.GRU: 4}


@dataclass(frozen=True)
class Clip:
    """The range of an LSTM's cell states: min(max(c, lower), upper).

    propagates_nan: a NaN stays one; otherwise it becomes ``lower``.
    """

    descriptor_type: ClassVar[DescriptorType | None] = None

    lower: float
    upper: float
    propagates_nan: bool = True

    def __post_init__(self) -> None:
        if isnan(self.lower) or isnan(self.upper) or self.lower > self.upper:
            raise BadParamError.at("rnn.clip", expected="lower <= upper", got=f"{self.lower} and {self.upper}")


@dataclass(frozen=True)
class Rnn:
    """See the module's docstring.

    max_length: T, steps of the longest sequence.  batch_size: B.  input_size: I, elements of a row of x.
    hidden_size: H.  projection_size: P, smaller than H; 0 without a projection.
    input_mode: with SKIP_INPUT the first layer adds x itself to each gate in place of W x, and I = H.
    dropout_probability: the probability of an element between layers to become 0; the others are divided by what is
    left of 1.
    uses_tf32: products of operands in FLOAT may round these to TF32.
    """

    descriptor_type: ClassVar[DescriptorType | None] = None

    cell_mode: RNNMode
    max_length: int
    batch_size: int
    input_size: int
    hidden_size: int
    projection_size: int = 0
    num_layers: int = 1
    direction_mode: DirectionMode = DirectionMode.UNIDIRECTIONAL
    bias_mode: RNNBiasMode = RNNBiasMode.DOUBLE_BIAS
    input_mode: RNNInputMode = RNNInputMode.LINEAR_INPUT
    clip: Clip | None = None
    dropout_probability: float = 0.0
    reset_after: bool = True
    uses_tf32: bool = False

    def __post_init__(self) -> None:
        for field in ("max_length", "batch_size", "input_size", "hidden_size", "num_layers"):
            _check_range(field, getattr(self, field), 1, MAX_SIZE)
        if self.projection_size:
            self._check_lstm("projection_size", self.projection_size)
            _check_range("projection_size", self.projection_size, 1, self.hidden_size - 1)
        if self.input_mode is RNNInputMode.SKIP_INPUT and self.input_size != self.hidden_size:
            expected = f"the hidden size {self.hidden_size} with SKIP_INPUT"
            raise BadParamError.at("rnn.input_size", expected=expected, got=self.input_size)
        if self.clip is not None:
            self._check_lstm("clip", f"{self.clip.lower} to {self.clip.upper}")
        if not 0 <= self.dropout_probability <= 1:
            raise BadParamError.at("rnn.dropout_probability", expected="0 to 1", got=self.dropout_probability)
        if not self.reset_after and self.cell_mode is not RNNMode.GRU:
            raise BadParamError.at("rnn.reset_after", expected="true but for a GRU", got=False)

    @property
    def directions(self) -> int:
        """D: 1 or 2."""
        return 1 + self.direction_mode.value

    @property
    def gates(self) -> int:
        """G: blocks of H rows in W and R."""
        return _GATES[self.cell_mode]

    @property
    def blocks(self) -> int:
        """Blocks of H elements that training saves of each row (``rnn_saved``)."""
        return _BLOCKS[self.cell_mode]

    @property
    def state_size(self) -> int:
        """S: elements of a state h, P or H."""
        return self.projection_size or self.hidden_size

    @property
    def output_size(self) -> int:
        """D * S: elements of a row of y, the states of both directions."""
        return self.directions * self.state_size

    @property
    def pseudo_layers(self) -> int:
        """L * D: layers by direction; l * D + d is layer l in direction d, 1 being backwards in time."""
        return self.num_layers * self.directions

    @property
    def is_lstm(self) -> bool:
        return self.cell_mode is RNNMode.LSTM

    @property
    def is_gru(self) -> bool:
        return self.cell_mode is RNNMode.GRU

    @property
    def drops(self) -> bool:
        """Whether elements between layers are dropped."""
        return self.dropout_probability > 0 and self.num_layers > 1

    @property
    def dropout_scale(self) -> float:
        """The factor of elements that are kept; 0 where none are."""
        kept = 1 - self.dropout_probability
        return 1 / kept if kept else 0.0

    def size_into(self, layer: int) -> int:
        """Elements of a row that layer ``layer`` reads."""
        return self.input_size if layer == 0 else self.output_size

    def skips_product(self, layer: int) -> bool:
        """Whether ``layer`` has no W."""
        return layer == 0 and self.input_mode is RNNInputMode.SKIP_INPUT

    def _check_lstm(self, field: str, got: object) -> None:
        if not self.is_lstm:
            raise BadParamError.at(f"rnn.{field}", expected=f"none in a {self.cell_mode.name}", got=got)


def _check_range(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise BadParamError.at(f"rnn.{field}", expected=f"{least} to {most}", got=value)
