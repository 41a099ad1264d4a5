"""Descriptors of recurrent networks and of their sequences: frozen values, with the fields of cuDNN's functions.

Source: cudnn_adv.h, cudnnSetRNNDescriptor_v8, cudnnRNNSetClip_v9, cudnnSetRNNDataDescriptor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite

from lowdnn import dtypes
from lowdnn.adv.argument_types import NONE, REAL, Types, check_integers, check_types
from lowdnn.enums import DataType, MathType, NanPropagation
from lowdnn.ops.rnn import MAX_SIZE, Clip, Rnn
from lowdnn.ops.rnn_tensors import DATA_TYPES
from lowdnn.ops.rnn_weights import WeightSpace
from lowdnn.rnn_enums import (
    DirectionMode,
    RNNAlgo,
    RNNBiasMode,
    RNNClipMode,
    RNNDataLayout,
    RNNInputMode,
    RNNMode,
)
from lowdnn.status import BadParamError, UnsupportedDataTypeError

#: CUDNN_RNN_PADDED_IO_ENABLED: sequences of several lengths may be padded.
PADDED_IO_ENABLED = 1

_MATH_TYPES = {
    DataType.FLOAT: (DataType.FLOAT,),
    DataType.DOUBLE: (DataType.DOUBLE,),
    DataType.HALF: (DataType.HALF, DataType.FLOAT),
    DataType.BFLOAT16: (DataType.BFLOAT16, DataType.FLOAT),
}


@dataclass(frozen=True)
class Dropout:
    """Dropout between layers (cudnnDropoutDescriptor_t).

    dropout: the probability of an element to become 0.  states: the device address of two INT64, the seed and how many
    forward calls have used it; each such call of training adds 1.
    """

    dropout: float = 0.0
    states: int = 0

    def __post_init__(self) -> None:
        check_types("Dropout", vars(self), {"dropout": REAL, "states": int})
        if not 0 <= self.dropout <= 1:
            raise BadParamError.at("Dropout.dropout", expected="0 to 1", got=self.dropout)


@dataclass(frozen=True)
class RNNDescriptor:
    """A network (cudnnRNNDescriptor_t); the fields are the arguments of cudnnSetRNNDescriptor_v8, and

    clip: see ``rnn_set_clip``; it counts for an LSTM.  reset_after: the reset gate of a GRU comes behind the recurrent
    product, as in cuDNN; False is lowdnn's own.
    algo: with STANDARD the fastest engine runs, with the others ``rnn_persistent`` where it takes the network. Sums are
    in FLOAT where math_prec is HALF or BFLOAT16. Products of FLOAT operands may round these to TF32 unless math_type is
    FMA_MATH. Without a projection proj_size is hidden_size.
    """

    algo: RNNAlgo
    cell_mode: RNNMode
    bias_mode: RNNBiasMode
    dir_mode: DirectionMode
    input_mode: RNNInputMode
    data_type: DataType
    math_prec: DataType
    math_type: MathType
    input_size: int
    hidden_size: int
    proj_size: int
    num_layers: int
    dropout_desc: Dropout | None = None
    aux_flags: int = 0
    clip: Clip | None = None
    reset_after: bool = True

    def __post_init__(self) -> None:
        where = "rnn_descriptor"
        check_types(where, vars(self), _NETWORK_TYPES)
        if self.algo is RNNAlgo.COUNT:
            raise BadParamError.at(f"{where}.algo", expected="an algorithm", got=self.algo.name)
        if self.data_type not in DATA_TYPES:
            names = ", ".join(kind.name for kind in DATA_TYPES)
            raise UnsupportedDataTypeError.at(f"{where}.data_type", expected=names, got=self.data_type.name)
        if self.math_prec not in _MATH_TYPES[self.data_type]:
            names = " or ".join(kind.name for kind in _MATH_TYPES[self.data_type])
            expected = f"{names} for {self.data_type.name}"
            raise UnsupportedDataTypeError.at(f"{where}.math_prec", expected=expected, got=self.math_prec.name)
        if self.aux_flags not in (0, PADDED_IO_ENABLED):
            raise BadParamError.at(f"{where}.aux_flags", expected=f"0 or {PADDED_IO_ENABLED}", got=self.aux_flags)
        if not 1 <= self.proj_size <= self.hidden_size:
            expected = f"1 to the hidden size {self.hidden_size}"
            raise BadParamError.at(f"{where}.proj_size", expected=expected, got=self.proj_size)
        _ = self.weight_space

    def __hash__(self) -> int:
        """A hash of only those fields in which networks usually differ: it is cheap, since every call looks up its
        network."""
        return hash((self.cell_mode.value, self.input_size, self.hidden_size, self.num_layers))

    @property
    def persists(self) -> bool:
        """Whether the algorithm is one that keeps the weights on chip."""
        return self.algo is not RNNAlgo.STANDARD

    @property
    def dropout(self) -> float:
        return 0.0 if self.dropout_desc is None else self.dropout_desc.dropout

    @cached_property
    def weight_space(self) -> WeightSpace:
        """The layout of the network's weights; checks its sizes."""
        return WeightSpace(self.network(1, 1, is_training=False))

    @cached_property
    def element_bytes(self) -> int:
        return dtypes.info(self.data_type).size_bytes

    @cached_property
    def weight_space_bytes(self) -> int:
        return self.weight_space.element_count * self.element_bytes

    def network(self, max_length: int, batch_size: int, *, is_training: bool) -> Rnn:
        """The network on sequences of this shape; elements are dropped in training only."""
        return Rnn(
            self.cell_mode,
            max_length=max_length,
            batch_size=batch_size,
            input_size=self.input_size,
            hidden_size=self.hidden_size,
            projection_size=0 if self.proj_size == self.hidden_size else self.proj_size,
            num_layers=self.num_layers,
            direction_mode=self.dir_mode,
            bias_mode=self.bias_mode,
            input_mode=self.input_mode,
            clip=self.clip if self.cell_mode is RNNMode.LSTM else None,
            dropout_probability=self.dropout if is_training else 0.0,
            reset_after=self.reset_after,
            uses_tf32=self.data_type is DataType.FLOAT and self.math_type is not MathType.FMA_MATH,
        )


@dataclass(frozen=True)
class RNNDataDescriptor:
    """Sequences (cudnnRNNDataDescriptor_t); the fields are the arguments of cudnnSetRNNDataDescriptor.

    seq_length_array: the steps of each sequence, 1 to max_seq_length, which do not ascend where packed; None where the
    device alone knows them, which packed sequences do not allow.
    padding_fill: elements of an output past the end of a sequence.
    """

    data_type: DataType
    layout: RNNDataLayout
    max_seq_length: int
    batch_size: int
    vector_size: int
    seq_length_array: tuple[int, ...] | None = None
    padding_fill: float = 0.0

    def __post_init__(self) -> None:
        where = "rnn_data_descriptor"
        check_types(where, vars(self), _SEQUENCE_TYPES)
        check_integers(f"{where}.seq_length_array", self.seq_length_array or ())
        if self.data_type not in DATA_TYPES:
            names = ", ".join(kind.name for kind in DATA_TYPES)
            raise UnsupportedDataTypeError.at(f"{where}.data_type", expected=names, got=self.data_type.name)
        for field in ("max_seq_length", "batch_size", "vector_size"):
            if not 1 <= getattr(self, field) <= MAX_SIZE:
                raise BadParamError.at(f"{where}.{field}", expected=f"1 to {MAX_SIZE}", got=getattr(self, field))
        if self.seq_length_array is not None:
            self._check_lengths(f"{where}.seq_length_array", self.seq_length_array)
        elif self.is_packed:
            raise BadParamError.at(f"{where}.seq_length_array", expected="lengths where packed", got="none")

    @property
    def is_packed(self) -> bool:
        return self.layout is RNNDataLayout.SEQ_MAJOR_PACKED

    @cached_property
    def is_full(self) -> bool:
        """Whether all sequences are known to have max_seq_length steps."""
        return self.seq_length_array is not None and min(self.seq_length_array) == self.max_seq_length

    @cached_property
    def row_count(self) -> int:
        """Rows of packed sequences."""
        return sum(self.seq_length_array or ())

    def _check_lengths(self, where: str, lengths: tuple[int, ...]) -> None:
        if len(lengths) != self.batch_size:
            raise BadParamError.at(where, expected=f"{self.batch_size} lengths", got=len(lengths))
        for index, length in enumerate(lengths):
            if not 1 <= length <= self.max_seq_length:
                raise BadParamError.at(f"{where}[{index}]", expected=f"1 to {self.max_seq_length}", got=length)
            if self.is_packed and index and length > lengths[index - 1]:
                expected = f"at most the {lengths[index - 1]} before it where packed"
                raise BadParamError.at(f"{where}[{index}]", expected=expected, got=length)


def rnn_set_clip(
    rnn_desc: RNNDescriptor,
    clip_mode: RNNClipMode,
    lclip: float,
    rclip: float,
    clip_nan_opt: NanPropagation = NanPropagation.PROPAGATE_NAN,
) -> RNNDescriptor:
    """The network with its cell states cut to lclip to rclip, or with NONE not cut (cudnnRNNSetClip_v9 and _v8).

    A state is cut where a step reads it, the first one too; cy is not cut.
    clip_nan_opt: with NOT_PROPAGATE_NAN a NaN becomes lclip.
    """
    given = {"rnn_desc": rnn_desc, "clip_mode": clip_mode, "lclip": lclip, "rclip": rclip, "clip_nan_opt": clip_nan_opt}
    check_types("rnn_set_clip", given, _CLIP_TYPES)
    return replace(rnn_desc, clip=clip_of(clip_mode, lclip, rclip, clip_nan_opt))


def clip_of(clip_mode: RNNClipMode, lclip: float, rclip: float, clip_nan_opt: NanPropagation) -> Clip | None:
    """The clip, None for NONE; raises BadParamError for numbers that are not finite and for lclip > rclip."""
    if clip_mode is RNNClipMode.NONE:
        return None
    for field, value in (("lclip", lclip), ("rclip", rclip)):
        if not isfinite(value):
            raise BadParamError.at(f"rnn_set_clip.{field}", expected="a finite number", got=value)
    return Clip(lclip, rclip, clip_nan_opt is NanPropagation.PROPAGATE_NAN)


_NETWORK_TYPES: Mapping[str, Types] = {
    "algo": RNNAlgo,
    "cell_mode": RNNMode,
    "bias_mode": RNNBiasMode,
    "dir_mode": DirectionMode,
    "input_mode": RNNInputMode,
    "data_type": DataType,
    "math_prec": DataType,
    "math_type": MathType,
    "input_size": int,
    "hidden_size": int,
    "proj_size": int,
    "num_layers": int,
    "dropout_desc": (Dropout, NONE),
    "aux_flags": int,
    "clip": (Clip, NONE),
    "reset_after": bool,
}
_SEQUENCE_TYPES: Mapping[str, Types] = {
    "data_type": DataType,
    "layout": RNNDataLayout,
    "max_seq_length": int,
    "batch_size": int,
    "vector_size": int,
    "seq_length_array": (tuple, NONE),
    "padding_fill": REAL,
}
_CLIP_TYPES: Mapping[str, Types] = {
    "rnn_desc": RNNDescriptor,
    "clip_mode": RNNClipMode,
    "lclip": REAL,
    "rclip": REAL,
    "clip_nan_opt": NanPropagation,
}
