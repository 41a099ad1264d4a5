"""Enums of recurrent networks, with cuDNN's names and values; a class has the name of its C type.

Source: cudnn_adv.h of cuDNN 9.28.
"""

from __future__ import annotations

from lowdnn.enums import CudnnEnum


class RNNAlgo(CudnnEnum, c_prefix="CUDNN_RNN_ALGO_"):
    STANDARD = 0
    PERSIST_STATIC = 1
    PERSIST_DYNAMIC = 2
    PERSIST_STATIC_SMALL_H = 3
    COUNT = 4


class ForwardMode(CudnnEnum, c_prefix="CUDNN_FWD_MODE_"):
    INFERENCE = 0
    TRAINING = 1


class RNNMode(CudnnEnum, c_prefix="CUDNN_"):
    RNN_RELU = 0
    RNN_TANH = 1
    LSTM = 2
    GRU = 3


class RNNBiasMode(CudnnEnum, c_prefix="CUDNN_RNN_"):
    NO_BIAS = 0
    SINGLE_INP_BIAS = 1
    DOUBLE_BIAS = 2
    SINGLE_REC_BIAS = 3


class DirectionMode(CudnnEnum, c_prefix="CUDNN_"):
    UNIDIRECTIONAL = 0
    BIDIRECTIONAL = 1


class RNNInputMode(CudnnEnum, c_prefix="CUDNN_"):
    LINEAR_INPUT = 0
    SKIP_INPUT = 1


class RNNClipMode(CudnnEnum, c_prefix="CUDNN_RNN_CLIP_"):
    NONE = 0
    MINMAX = 1


class RNNDataLayout(CudnnEnum, c_prefix="CUDNN_RNN_DATA_LAYOUT_"):
    SEQ_MAJOR_UNPACKED = 0
    SEQ_MAJOR_PACKED = 1
    BATCH_MAJOR_UNPACKED = 2


class WgradMode(CudnnEnum, c_prefix="CUDNN_WGRAD_MODE_"):
    ADD = 0
    SET = 1
