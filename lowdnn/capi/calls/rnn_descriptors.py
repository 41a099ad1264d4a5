"""Descriptors of recurrent networks and of their sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from lowdnn import dtypes
from lowdnn.adv.rnn_descriptors import Dropout, RNNDataDescriptor, RNNDescriptor, clip_of
from lowdnn.capi.calls.shared import change, life_of, member
from lowdnn.capi.descriptors import DropoutDescriptor, TensorDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, checked, read_array, write_array, write_bytes, write_outputs, write_wanted
from lowdnn.capi.state import State
from lowdnn.enums import DataType, MathType, NanPropagation
from lowdnn.ops.rnn import Clip
from lowdnn.ops.rnn_weights import Region
from lowdnn.rnn_enums import (
    DirectionMode,
    RNNAlgo,
    RNNBiasMode,
    RNNClipMode,
    RNNDataLayout,
    RNNInputMode,
    RNNMode,
)
from lowdnn.runtime.parameters import read_host_value
from lowdnn.status import BadParamError, LowdnnError

#: The descriptor of a matrix and its offset in bytes, None where there is none, and those of a bias.
LinearLayer = tuple[TensorDescriptor, int | None, TensorDescriptor, int | None]


@dataclass(frozen=True)
class RnnDescriptor:
    """network: the values that were set, with the clip.  clip: may be set first.  dropout: the pointer of its
    descriptor."""

    network: RNNDescriptor | None = None
    clip: Clip | None = None
    dropout: Address = None

    @property
    def is_set(self) -> bool:
        return self.network is not None

    @cached_property
    def weight_space_bytes(self) -> int:
        return 0 if self.network is None else self.network.weight_space_bytes

    @cached_property
    def linear_layers(self) -> Mapping[tuple[int, int], LinearLayer]:
        """By pseudo-layer and linLayerID; none where the descriptor was not set."""
        return {} if self.network is None else _linear_layers(self.network)


@dataclass(frozen=True)
class RnnDataDescriptor:
    """sequences: the values that were set."""

    sequences: RNNDataDescriptor | None = None

    @property
    def is_set(self) -> bool:
        return self.sequences is not None


def network_of(state: State, descriptor: Address, where: str) -> RNNDescriptor:
    """Raises BadParamError where the descriptor was not set."""
    found = state.objects.get(descriptor, RnnDescriptor, where).network
    if found is None:
        raise _unset_error(where)
    return found


def sequences_of(state: State, descriptor: Address, where: str) -> RNNDataDescriptor:
    """Raises BadParamError where the descriptor was not set."""
    found = state.objects.get(descriptor, RnnDataDescriptor, where).sequences
    if found is None:
        raise _unset_error(where)
    return found


def set_descriptor(
    state: State, descriptor: Address, algo: int, cell_mode: int, bias_mode: int, dir_mode: int, input_mode: int,
    data_type: int, math_prec: int, math_type: int, input_size: int, hidden_size: int, proj_size: int,
    num_layers: int, dropout_desc: Address, aux_flags: int,
) -> None:  # fmt: skip
    where = "cudnnSetRNNDescriptor_v8"

    def new(old: RnnDescriptor) -> RnnDescriptor:
        kinds = (algo, cell_mode, bias_mode, dir_mode, input_mode, data_type, math_prec, math_type)
        sizes = (input_size, hidden_size, proj_size, num_layers)
        dropout = _dropout(state, dropout_desc, f"{where}.dropoutDesc")
        return RnnDescriptor(_network(kinds, sizes, dropout, aux_flags, old.clip), old.clip, dropout_desc)

    change(state, descriptor, RnnDescriptor, f"{where}.rnnDesc", new)


def get_descriptor(
    state: State, descriptor: Address, algo: Address, cell_mode: Address, bias_mode: Address, dir_mode: Address,
    input_mode: Address, data_type: Address, math_prec: Address, math_type: Address, input_size: Address,
    hidden_size: Address, proj_size: Address, num_layers: Address, dropout_desc: Address, aux_flags: Address,
) -> None:  # fmt: skip
    """Any output may be left out with NULL."""
    where = "cudnnGetRNNDescriptor_v8"
    network = network_of(state, descriptor, f"{where}.rnnDesc")
    dropout = _holder(state, descriptor, f"{where}.rnnDesc").dropout
    write_wanted(
        (algo, "i", network.algo, f"{where}.algo"),
        (cell_mode, "i", network.cell_mode, f"{where}.cellMode"),
        (bias_mode, "i", network.bias_mode, f"{where}.biasMode"),
        (dir_mode, "i", network.dir_mode, f"{where}.dirMode"),
        (input_mode, "i", network.input_mode, f"{where}.inputMode"),
        (data_type, "i", network.data_type, f"{where}.dataType"),
        (math_prec, "i", network.math_prec, f"{where}.mathPrec"),
        (math_type, "i", network.math_type, f"{where}.mathType"),
        (input_size, "i", network.input_size, f"{where}.inputSize"),
        (hidden_size, "i", network.hidden_size, f"{where}.hiddenSize"),
        (proj_size, "i", network.proj_size, f"{where}.projSize"),
        (num_layers, "i", network.num_layers, f"{where}.numLayers"),
        (dropout_desc, "Q", dropout or 0, f"{where}.dropoutDesc"),
        (aux_flags, "I", network.aux_flags, f"{where}.auxFlags"),
    )


def set_clip_v9(state: State, descriptor: Address, mode: int, lclip: float, rclip: float) -> None:
    """A NaN stays one."""
    _set_clip(state, "cudnnRNNSetClip_v9", descriptor, mode, NanPropagation.PROPAGATE_NAN, lclip, rclip)


def set_clip_v8(state: State, descriptor: Address, mode: int, nan: int, lclip: float, rclip: float) -> None:
    _set_clip(state, "cudnnRNNSetClip_v8", descriptor, mode, nan, lclip, rclip)


def get_clip_v9(state: State, descriptor: Address, mode: Address, lclip: Address, rclip: Address) -> None:
    _get_clip(state, "cudnnRNNGetClip_v9", descriptor, mode, lclip, rclip)


def get_clip_v8(state: State, descriptor: Address, mode: Address, nan: Address, lclip: Address, rclip: Address) -> None:
    where = "cudnnRNNGetClip_v8"
    clip = _holder(state, descriptor, f"{where}.rnnDesc").clip
    propagates = (
        NanPropagation.PROPAGATE_NAN if clip is None or clip.propagates_nan else NanPropagation.NOT_PROPAGATE_NAN
    )
    _get_clip(state, where, descriptor, mode, lclip, rclip)
    write_wanted((nan, "i", propagates, f"{where}.clipNanOpt"))


def set_data_descriptor(
    state: State, descriptor: Address, data_type: int, layout: int, max_seq_length: int, batch_size: int,
    vector_size: int, seq_length_array: Address, padding_fill: Address,
) -> None:  # fmt: skip
    """padding_fill: an element on the host; NULL for 0."""
    where = "cudnnSetRNNDataDescriptor"

    def new(_: RnnDataDescriptor) -> RnnDataDescriptor:
        kind = member(DataType, data_type, f"{where}.dataType")
        if batch_size < 1:
            raise BadParamError.at(f"{where}.batchSize", expected="1 or more", got=batch_size)
        lengths = read_array(seq_length_array, "i", batch_size, f"{where}.seqLengthArray")
        found = _sequences(kind, layout, max_seq_length, batch_size, vector_size, lengths)
        if padding_fill:
            found = replace(found, padding_fill=read_host_value(padding_fill, kind))
        return RnnDataDescriptor(found)

    change(state, descriptor, RnnDataDescriptor, f"{where}.rnnDataDesc", new)


def get_data_descriptor(
    state: State, descriptor: Address, data_type: Address, layout: Address, max_seq_length: Address,
    batch_size: Address, vector_size: Address, requested: int, seq_length_array: Address, padding_fill: Address,
) -> None:  # fmt: skip
    """At most ``requested`` lengths; padding_fill may be NULL."""
    where = "cudnnGetRNNDataDescriptor"
    found = sequences_of(state, descriptor, f"{where}.rnnDataDesc")
    if requested < 0:
        raise BadParamError.at(f"{where}.arrayLengthRequested", expected="0 or more", got=requested)
    lengths = (found.seq_length_array or ())[:requested]
    if lengths:
        checked(seq_length_array, f"{where}.seqLengthArray")
    write_outputs(
        (data_type, "i", found.data_type, f"{where}.dataType"),
        (layout, "i", found.layout, f"{where}.layout"),
        (max_seq_length, "i", found.max_seq_length, f"{where}.maxSeqLength"),
        (batch_size, "i", found.batch_size, f"{where}.batchSize"),
        (vector_size, "i", found.vector_size, f"{where}.vectorSize"),
    )
    write_array(seq_length_array, "i", lengths, f"{where}.seqLengthArray")
    if padding_fill:
        stored = dtypes.from_float64(np.array([found.padding_fill]), found.data_type)
        write_bytes(padding_fill, stored.tobytes(), f"{where}.paddingFill")


@lru_cache(maxsize=256)
def _network(
    kinds: tuple[int, ...], sizes: tuple[int, ...], dropout: Dropout | None, aux_flags: int, clip: Clip | None
) -> RNNDescriptor:
    """PyTorch describes the same network anew for each call: what follows from it is worked out once."""
    where = "cudnnSetRNNDescriptor_v8"
    algo, cell_mode, bias_mode, dir_mode, input_mode, data_type, math_prec, math_type = kinds
    input_size, hidden_size, proj_size, num_layers = sizes
    return RNNDescriptor(
        member(RNNAlgo, algo, f"{where}.algo"),
        member(RNNMode, cell_mode, f"{where}.cellMode"),
        member(RNNBiasMode, bias_mode, f"{where}.biasMode"),
        member(DirectionMode, dir_mode, f"{where}.dirMode"),
        member(RNNInputMode, input_mode, f"{where}.inputMode"),
        member(DataType, data_type, f"{where}.dataType"),
        member(DataType, math_prec, f"{where}.mathPrec"),
        member(MathType, math_type, f"{where}.mathType"),
        input_size,
        hidden_size,
        proj_size,
        num_layers,
        dropout,
        aux_flags,
        clip,
    )


@lru_cache(maxsize=256)
def _sequences(
    data_type: DataType, layout: int, max_seq_length: int, batch_size: int, vector_size: int, lengths: tuple[int, ...]
) -> RNNDataDescriptor:
    """Sequences whose padding is filled with 0; they are described anew for each call, too."""
    kind = member(RNNDataLayout, layout, "cudnnSetRNNDataDescriptor.layout")
    return RNNDataDescriptor(data_type, kind, max_seq_length, batch_size, vector_size, lengths)


@lru_cache(maxsize=256)
def _linear_layers(network: RNNDescriptor) -> Mapping[tuple[int, int], LinearLayer]:
    """By pseudo-layer and linLayerID."""
    element_bytes, data_type = network.element_bytes, network.data_type
    return {
        key: (*_described(matrix, data_type, element_bytes), *_described(bias, data_type, element_bytes))
        for key, (matrix, bias) in network.weight_space.places.items()
    }


def _described(region: Region | None, data_type: DataType, element_bytes: int) -> tuple[TensorDescriptor, int | None]:
    """A descriptor has three dimensions: (1, rows, columns), with one column for a bias."""
    if region is None:
        return TensorDescriptor(data_type), None
    rows, columns = (*region.dims, 1)[:2]
    described = TensorDescriptor(data_type, (1, rows, columns), (rows * columns, columns, 1))
    return described, region.offset * element_bytes


def _unset_error(where: str) -> LowdnnError:
    return BadParamError.at(where, expected="a descriptor that was set", got="one that was only created")


def _holder(state: State, descriptor: Address, where: str) -> RnnDescriptor:
    return state.objects.get(descriptor, RnnDescriptor, where)


def _dropout(state: State, descriptor: Address, where: str) -> Dropout | None:
    """The descriptor, None for NULL.

    One that was only created drops nothing: XLA describes a network without dropout by it.
    """
    if not descriptor:
        return None
    found = state.objects.get(descriptor, DropoutDescriptor, where)
    return Dropout(found.dropout, found.states)


def _set_clip(state: State, where: str, descriptor: Address, mode: int, nan: int, lclip: float, rclip: float) -> None:
    def new(old: RnnDescriptor) -> RnnDescriptor:
        propagates = member(NanPropagation, nan, f"{where}.clipNanOpt")
        clip = clip_of(member(RNNClipMode, mode, f"{where}.clipMode"), lclip, rclip, propagates)
        network = old.network and replace(old.network, clip=clip)
        return replace(old, clip=clip, network=network)

    change(state, descriptor, RnnDescriptor, f"{where}.rnnDesc", new)


def _get_clip(state: State, where: str, descriptor: Address, mode: Address, lclip: Address, rclip: Address) -> None:
    """Any output may be left out with NULL."""
    clip = _holder(state, descriptor, f"{where}.rnnDesc").clip
    write_wanted(
        (mode, "i", RNNClipMode.NONE if clip is None else RNNClipMode.MINMAX, f"{where}.clipMode"),
        (lclip, "d", 0.0 if clip is None else clip.lower, f"{where}.lclip"),
        (rclip, "d", 0.0 if clip is None else clip.upper, f"{where}.rclip"),
    )


CALLS: Mapping[str, Call] = {
    **life_of(RnnDescriptor, "RNN", "rnnDesc"),
    **life_of(RnnDataDescriptor, "RNNData", "rnnDataDesc"),
    "cudnnSetRNNDescriptor_v8": set_descriptor,
    "cudnnGetRNNDescriptor_v8": get_descriptor,
    "cudnnRNNSetClip_v9": set_clip_v9,
    "cudnnRNNSetClip_v8": set_clip_v8,
    "cudnnRNNGetClip_v9": get_clip_v9,
    "cudnnRNNGetClip_v8": get_clip_v8,
    "cudnnSetRNNDataDescriptor": set_data_descriptor,
    "cudnnGetRNNDataDescriptor": get_data_descriptor,
}
