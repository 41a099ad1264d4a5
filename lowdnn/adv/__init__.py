"""Recurrent networks with cuDNN's names, as Python objects: descriptors, sizes, addresses of weights, calls.

    rnn_desc = RNNDescriptor(RNNAlgo.STANDARD, RNNMode.LSTM, ...)
    x_desc = RNNDataDescriptor(DataType.HALF, RNNDataLayout.SEQ_MAJOR_UNPACKED, T, B, I, (T,) * B)
    work_space_size, reserve_space_size = get_rnn_temp_space_sizes(handle, rnn_desc, ForwardMode.TRAINING, x_desc)
    rnn_forward(handle, rnn_desc, ForwardMode.TRAINING, 0, x_desc, x, ...)

Descriptors are frozen values: what cuDNN sets, a new one has.
"""

from __future__ import annotations

from lowdnn.adv.rnn import (
    build_rnn_dynamic,
    get_rnn_temp_space_sizes,
    rnn_backward_data,
    rnn_backward_weights,
    rnn_forward,
)
from lowdnn.adv.rnn_descriptors import (
    PADDED_IO_ENABLED,
    Dropout,
    RNNDataDescriptor,
    RNNDescriptor,
    rnn_set_clip,
)
from lowdnn.adv.rnn_weights import (
    RNNWeightParams,
    get_rnn_weight_params,
    get_rnn_weight_space_size,
    weights_from_torch,
    weights_to_torch,
)
from lowdnn.rnn_enums import (
    DirectionMode,
    ForwardMode,
    RNNAlgo,
    RNNBiasMode,
    RNNClipMode,
    RNNDataLayout,
    RNNInputMode,
    RNNMode,
    WgradMode,
)

__all__ = [
    "PADDED_IO_ENABLED",
    "DirectionMode",
    "Dropout",
    "ForwardMode",
    "RNNAlgo",
    "RNNBiasMode",
    "RNNClipMode",
    "RNNDataDescriptor",
    "RNNDataLayout",
    "RNNDescriptor",
    "RNNInputMode",
    "RNNMode",
    "RNNWeightParams",
    "WgradMode",
    "build_rnn_dynamic",
    "get_rnn_temp_space_sizes",
    "get_rnn_weight_params",
    "get_rnn_weight_space_size",
    "rnn_backward_data",
    "rnn_backward_weights",
    "rnn_forward",
    "rnn_set_clip",
    "weights_from_torch",
    "weights_to_torch",
]
