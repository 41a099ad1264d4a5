"""Enums of the headers beside cudnn_graph.h, those of recurrent networks apart, with cuDNN's names and values; a class
has the name of its C type."""

from __future__ import annotations

from lowdnn.enums import CudnnEnum


# cudnn_ops.h
class Determinism(CudnnEnum, c_prefix="CUDNN_"):
    NON_DETERMINISTIC = 0
    DETERMINISTIC = 1


class FoldingDirection(CudnnEnum, c_prefix="CUDNN_TRANSFORM_"):
    FOLD = 0
    UNFOLD = 1


class OpTensorOp(CudnnEnum, c_prefix="CUDNN_OP_TENSOR_"):
    ADD = 0
    MUL = 1
    MIN = 2
    MAX = 3
    SQRT = 4
    NOT = 5


class ReduceTensorIndices(CudnnEnum, c_prefix="CUDNN_REDUCE_TENSOR_"):
    NO_INDICES = 0
    FLATTENED_INDICES = 1


class IndicesType(CudnnEnum, c_prefix="CUDNN_"):
    """The C names have the number before the word."""

    BITS_32 = 0
    BITS_64 = 1
    BITS_16 = 2
    BITS_8 = 3

    @property
    def c_name(self) -> str:
        return f"CUDNN_{self.name.removeprefix('BITS_')}BIT_INDICES"


class SoftmaxAlgorithm(CudnnEnum, c_prefix="CUDNN_SOFTMAX_"):
    FAST = 0
    ACCURATE = 1
    LOG = 2


class SoftmaxMode(CudnnEnum, c_prefix="CUDNN_SOFTMAX_MODE_"):
    INSTANCE = 0
    CHANNEL = 1


class PoolingMode(CudnnEnum, c_prefix="CUDNN_POOLING_"):
    MAX = 0
    AVERAGE_COUNT_INCLUDE_PADDING = 1
    AVERAGE_COUNT_EXCLUDE_PADDING = 2
    MAX_DETERMINISTIC = 3


class LRNMode(CudnnEnum, c_prefix="CUDNN_LRN_"):
    CROSS_CHANNEL_DIM1 = 0


class DivNormMode(CudnnEnum, c_prefix="CUDNN_DIVNORM_"):
    PRECOMPUTED_MEANS = 0


class BatchNormMode(CudnnEnum, c_prefix="CUDNN_BATCHNORM_"):
    PER_ACTIVATION = 0
    SPATIAL = 1
    SPATIAL_PERSISTENT = 2


class BatchNormOps(CudnnEnum, c_prefix="CUDNN_BATCHNORM_OPS_"):
    BN = 0
    BN_ACTIVATION = 1
    BN_ADD_ACTIVATION = 2


class NormMode(CudnnEnum, c_prefix="CUDNN_NORM_"):
    PER_ACTIVATION = 0
    PER_CHANNEL = 1


class NormAlgo(CudnnEnum, c_prefix="CUDNN_NORM_ALGO_"):
    STANDARD = 0
    PERSIST = 1


class NormOps(CudnnEnum, c_prefix="CUDNN_NORM_OPS_"):
    NORM = 0
    NORM_ACTIVATION = 1
    NORM_ADD_ACTIVATION = 2


class SamplerType(CudnnEnum, c_prefix="CUDNN_SAMPLER_"):
    BILINEAR = 0


class ConvolutionFwdAlgo(CudnnEnum, c_prefix="CUDNN_CONVOLUTION_FWD_ALGO_"):
    IMPLICIT_GEMM = 0
    IMPLICIT_PRECOMP_GEMM = 1
    GEMM = 2
    DIRECT = 3
    FFT = 4
    FFT_TILING = 5
    WINOGRAD = 6
    WINOGRAD_NONFUSED = 7
    COUNT = 8


class ConvolutionBwdFilterAlgo(CudnnEnum, c_prefix="CUDNN_CONVOLUTION_BWD_FILTER_"):
    ALGO_0 = 0
    ALGO_1 = 1
    ALGO_FFT = 2
    ALGO_3 = 3
    ALGO_WINOGRAD = 4
    ALGO_WINOGRAD_NONFUSED = 5
    ALGO_FFT_TILING = 6
    ALGO_COUNT = 7


class ConvolutionBwdDataAlgo(CudnnEnum, c_prefix="CUDNN_CONVOLUTION_BWD_DATA_"):
    ALGO_0 = 0
    ALGO_1 = 1
    ALGO_FFT = 2
    ALGO_FFT_TILING = 3
    ALGO_WINOGRAD = 4
    ALGO_WINOGRAD_NONFUSED = 5
    ALGO_COUNT = 6


class CTCLossAlgo(CudnnEnum, c_prefix="CUDNN_CTC_LOSS_ALGO_"):
    DETERMINISTIC = 0
    NON_DETERMINISTIC = 1


# cudnn_cnn.h
class FusedOps(CudnnEnum, c_prefix="CUDNN_FUSED_"):
    SCALE_BIAS_ACTIVATION_CONV_BNSTATS = 0
    SCALE_BIAS_ACTIVATION_WGRAD = 1
    BN_FINALIZE_STATISTICS_TRAINING = 2
    BN_FINALIZE_STATISTICS_INFERENCE = 3
    CONV_SCALE_BIAS_ADD_ACTIVATION = 4
    SCALE_BIAS_ADD_ACTIVATION_GEN_BITMASK = 5
    DACTIVATION_FORK_DBATCHNORM = 6


class FusedOpsConstParamLabel(CudnnEnum, c_prefix="CUDNN_PARAM_"):
    XDESC = 0
    XDATA_PLACEHOLDER = 1
    BN_MODE = 2
    BN_EQSCALEBIAS_DESC = 3
    BN_EQSCALE_PLACEHOLDER = 4
    BN_EQBIAS_PLACEHOLDER = 5
    ACTIVATION_DESC = 6
    CONV_DESC = 7
    WDESC = 8
    WDATA_PLACEHOLDER = 9
    DWDESC = 10
    DWDATA_PLACEHOLDER = 11
    YDESC = 12
    YDATA_PLACEHOLDER = 13
    DYDESC = 14
    DYDATA_PLACEHOLDER = 15
    YSTATS_DESC = 16
    YSUM_PLACEHOLDER = 17
    YSQSUM_PLACEHOLDER = 18
    BN_SCALEBIAS_MEANVAR_DESC = 19
    BN_SCALE_PLACEHOLDER = 20
    BN_BIAS_PLACEHOLDER = 21
    BN_SAVED_MEAN_PLACEHOLDER = 22
    BN_SAVED_INVSTD_PLACEHOLDER = 23
    BN_RUNNING_MEAN_PLACEHOLDER = 24
    BN_RUNNING_VAR_PLACEHOLDER = 25
    ZDESC = 26
    ZDATA_PLACEHOLDER = 27
    BN_Z_EQSCALEBIAS_DESC = 28
    BN_Z_EQSCALE_PLACEHOLDER = 29
    BN_Z_EQBIAS_PLACEHOLDER = 30
    ACTIVATION_BITMASK_DESC = 31
    ACTIVATION_BITMASK_PLACEHOLDER = 32
    DXDESC = 33
    DXDATA_PLACEHOLDER = 34
    DZDESC = 35
    DZDATA_PLACEHOLDER = 36
    BN_DSCALE_PLACEHOLDER = 37
    BN_DBIAS_PLACEHOLDER = 38


class FusedOpsPointerPlaceHolder(CudnnEnum, c_prefix="CUDNN_"):
    PTR_NULL = 0
    PTR_ELEM_ALIGNED = 1
    PTR_16B_ALIGNED = 2


class FusedOpsVariantParamLabel(CudnnEnum, c_prefix="CUDNN_"):
    PTR_XDATA = 0
    PTR_BN_EQSCALE = 1
    PTR_BN_EQBIAS = 2
    PTR_WDATA = 3
    PTR_DWDATA = 4
    PTR_YDATA = 5
    PTR_DYDATA = 6
    PTR_YSUM = 7
    PTR_YSQSUM = 8
    PTR_WORKSPACE = 9
    PTR_BN_SCALE = 10
    PTR_BN_BIAS = 11
    PTR_BN_SAVED_MEAN = 12
    PTR_BN_SAVED_INVSTD = 13
    PTR_BN_RUNNING_MEAN = 14
    PTR_BN_RUNNING_VAR = 15
    PTR_ZDATA = 16
    PTR_BN_Z_EQSCALE = 17
    PTR_BN_Z_EQBIAS = 18
    PTR_ACTIVATION_BITMASK = 19
    PTR_DXDATA = 20
    PTR_DZDATA = 21
    PTR_BN_DSCALE = 22
    PTR_BN_DBIAS = 23
    SCALAR_SIZE_T_WORKSPACE_SIZE_IN_BYTES = 100
    SCALAR_INT64_T_BN_ACCUMULATION_COUNT = 101
    SCALAR_DOUBLE_BN_EXP_AVG_FACTOR = 102
    SCALAR_DOUBLE_BN_EPSILON = 103


# cudnn_adv.h
class SeqDataAxis(CudnnEnum, c_prefix="CUDNN_SEQDATA_"):
    TIME_DIM = 0
    BATCH_DIM = 1
    BEAM_DIM = 2
    VECT_DIM = 3


class MultiHeadAttnWeightKind(CudnnEnum, c_prefix="CUDNN_MH_ATTN_"):
    Q_WEIGHTS = 0
    K_WEIGHTS = 1
    V_WEIGHTS = 2
    O_WEIGHTS = 3
    Q_BIASES = 4
    K_BIASES = 5
    V_BIASES = 6
    O_BIASES = 7


class LossNormalizationMode(CudnnEnum, c_prefix="CUDNN_LOSS_NORMALIZATION_"):
    NONE = 0
    SOFTMAX = 1


# cudnn_gnn_ops.h
class GnnAggOp(CudnnEnum, c_prefix="CUDNN_GNN_AGG_"):
    SUM = 0
    MEAN = 1
    MAX = 2
    MIN = 3


class GnnActivationOp(CudnnEnum, c_prefix="CUDNN_GNN_ACT_"):
    LINEAR = 0
    RELU = 1
    SIGMOID = 2
    TANH = 3
    ELU = 4
    SCALAR = 5
    LEAKY_RELU = 6
