"""cudnn.NodeType: the kinds of operations of a graph's nodes."""

from __future__ import annotations

from lowdnn.frontend.arguments import NumberedEnum


class NodeType(NumberedEnum):
    """cudnn.NodeType. Methods of pygraph that cudnn-frontend lacks are COMPOSITE."""

    COMPOSITE = 1
    CONV_FPROP = 2
    CONV_DGRAD = 3
    CONV_WGRAD = 4
    GENSTATS = 5
    RESHAPE = 6
    SLICE = 7
    CONCATENATE = 8
    TRANSPOSE = 9
    ROPE = 10
    ROPE_BWD = 11
    MOE_GROUPED_MATMUL_BWD = 12
    MATMUL = 13
    MATMUL_FP8 = 14
    POINTWISE = 15
    REDUCTION = 16
    RMSNORM = 17
    RMSNORM_BWD = 18
    LAYERNORM = 19
    LAYERNORM_BWD = 20
    ADALAYERNORM = 21
    ADALAYERNORM_BWD = 22
    INSTANCENORM = 23
    INSTANCENORM_BWD = 24
    BATCHNORM = 25
    BATCHNORM_INFERENCE = 26
    BATCHNORM_BWD = 27
    SDPA = 28
    SDPA_BWD = 29
    SDPA_FP8 = 30
    SDPA_FP8_BWD = 31
    SDPA_MXFP8 = 32
    SDPA_MXFP8_BWD = 33
    GDN = 34
    GDN_BWD = 35
    KDA = 36
    KDA_BWD = 37
    GDN2 = 38
    GDN2_BWD = 39
    MOE_GROUPED_MATMUL = 40
    BLOCK_SCALE_QUANTIZE = 41
    BLOCK_SCALE_DEQUANTIZE = 42
    GDP = 43
    GDP_BWD = 44
    GDN_SUMMARY = 45
    KDA_SUMMARY = 46
    GDN2_SUMMARY = 47
    GDP_SUMMARY = 48
    GDN_SUMMARY_BWD = 49
    KDA_SUMMARY_BWD = 50
    GDN2_SUMMARY_BWD = 51
    GDP_SUMMARY_BWD = 52
    MAMBA2 = 53
    MAMBA2_BWD = 54
    MAMBA2_SUMMARY = 55
    MAMBA2_SUMMARY_BWD = 56
