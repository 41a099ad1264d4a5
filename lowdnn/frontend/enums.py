"""The frontend's enums, with cudnn-frontend's names and numbers, and their backend counterparts."""

from __future__ import annotations

from lowdnn.enums import (
    BehaviorNote,
    ConvolutionMode,
    HeurMode,
    KnobType,
    MoeGroupedMatmulMode,
    NormFwdPhase,
    PaddingMode,
    ReduceTensorOp,
    ResampleMode,
    ReshapeMode,
    RngDistribution,
)
from lowdnn.frontend.arguments import NumberedEnum, member
from lowdnn.status import BadParamError, NotSupportedError


class heur_mode(NumberedEnum):
    """cudnn.heur_mode. OPENSOURCE names engines of another library; asking for it raises NotSupportedError."""

    A = 0
    B = 1
    FALLBACK = 2
    OPENSOURCE = 3


class build_plan_policy(NumberedEnum):
    """cudnn.build_plan_policy: load the first plan that works, or all."""

    HEURISTICS_CHOICE = 0
    ALL = 1


class cuda_graph_retention(NumberedEnum):
    """cudnn.cuda_graph_retention: whether CUDA graphs outlive the plan. They do here, as long as the handle is open."""

    PER_GRAPH = 0
    NONE = 1


class behavior_note(NumberedEnum):
    """cudnn.behavior_note."""

    RUNTIME_COMPILATION = 1
    REQUIRES_FILTER_INT8x32_REORDER = 2
    REQUIRES_BIAS_INT8x32_REORDER = 3
    SUPPORTS_CUDA_GRAPH_NATIVE_API = 4
    CUBLASLT_DEPENDENCY = 5


class numerical_note(NumberedEnum):
    """cudnn.numerical_note."""

    TENSOR_CORE = 1
    DOWN_CONVERT_INPUTS = 2
    REDUCED_PRECISION_REDUCTION = 3
    FFT = 4
    NONDETERMINISTIC = 5
    WINOGRAD = 6
    WINOGRAD_TILE_4x4 = 7
    WINOGRAD_TILE_6x6 = 8
    WINOGRAD_TILE_13x13 = 9
    STRICT_NAN_PROP = 10


class norm_forward_phase(NumberedEnum):
    """cudnn.norm_forward_phase."""

    NOT_SET = 0
    INFERENCE = 1
    TRAINING = 2


class reduction_mode(NumberedEnum):
    """cudnn.reduction_mode."""

    NOT_SET = 0
    ADD = 1
    MUL = 2
    MIN = 3
    MAX = 4
    AMAX = 5
    AVG = 6
    NORM1 = 7
    NORM2 = 8
    MUL_NO_ZEROS = 9


class convolution_mode(NumberedEnum):
    """cudnn.convolution_mode."""

    CONVOLUTION = 1
    CROSS_CORRELATION = 2


class resample_mode(NumberedEnum):
    """cudnn_frontend::ResampleMode_t, which its Python package lacks."""

    NOT_SET = 0
    AVGPOOL_EXCLUDE_PADDING = 1
    AVGPOOL_INCLUDE_PADDING = 2
    BILINEAR = 3
    NEAREST = 4
    MAXPOOL = 5


class padding_mode(NumberedEnum):
    """cudnn_frontend::PaddingMode_t, which its Python package lacks."""

    NOT_SET = 0
    EDGE_VAL_PAD = 1
    NEG_INF_PAD = 2
    ZERO_PAD = 3


class moe_grouped_matmul_mode(NumberedEnum):
    """cudnn.moe_grouped_matmul_mode. COMBINE has no backend value; asking for it raises NotSupportedError."""

    NONE = 1
    GATHER = 2
    SCATTER = 3
    COMBINE = 4


class reshape_mode(NumberedEnum):
    """cudnn.reshape_mode."""

    VIEW_ONLY = 1
    LOGICAL = 2


class diagonal_alignment(NumberedEnum):
    """cudnn.diagonal_alignment: from the first or from the last ones on places of queries and keys are counted."""

    TOP_LEFT = 0
    BOTTOM_RIGHT = 1


class attention_implementation(NumberedEnum):
    """cudnn.attention_implementation."""

    AUTO = 0
    COMPOSITE = 1
    UNIFIED = 2


class rng_distribution(NumberedEnum):
    """The numbers are those of cudnn-frontend's C++ RngDistribution_t."""

    NOT_SET = 0
    BERNOULLI = 1
    UNIFORM = 2
    NORMAL = 3


class tensor_reordering(NumberedEnum):
    """cudnn.tensor_reordering."""

    NONE = 0
    INT8x32 = 1
    F16x16 = 2
    F8_128x4 = 3


class scalar_type(NumberedEnum):
    """cudnn.scalar_type: a value given at execute, or fixed in the graph."""

    RUNTIME_PARAM = 0
    COMPILE_TIME_CONST = 1


class knob_type(NumberedEnum):
    """cudnn.knob_type, and lowdnn's own types by the backend's numbers.

    The types from 1000 to 1009 are of engines that cudnn-frontend has beside its backend, and of no engine here.
    """

    NOT_SET = 0
    SWIZZLE = 1
    TILE_SIZE = 2
    EDGE = 3
    MULTIPLY = 4
    SPLIT_K_BUF = 5
    TILEK = 6
    STAGES = 7
    REDUCTION_MODE = 8
    SPLIT_K_SLC = 9
    IDX_MODE = 10
    SPECFILT = 11
    KERNEL_CFG = 12
    WORKSPACE = 13
    TILE_CGA_M = 14
    TILE_CGA_N = 15
    BLOCK_SIZE = 16
    OCCUPANCY = 17
    ARRAY_SIZE_PER_THREAD = 18
    SPLIT_COLS = 19
    TILE_ROWS = 20
    TILE_COLS = 21
    LOAD_SIZE = 22
    CTA_COUNT = 23
    STREAM_K = 24
    SPLIT_P_SLC = 25
    TILE_M = 26
    TILE_N = 27
    WARP_SPEC_CFG = 28
    SWAP_AB = 29
    INPUT_TMA_ENABLE = 30
    OUTPUT_TMA_ENABLE = 31
    TILE_CGA = 32

    THREADS_PER_ROW = 10000
    READ_AHEAD = 10001
    TILE_CGA_K = 10002
    CHANNEL_LANES = 10003
    BLOCK_CHANNELS = 10004
    BLOCK_BATCHES = 10005
    BLOCK_ROWS = 10006
    BLOCK_COLS = 10007
    WARP_TILES = 10008
    PACK_SIZE = 10009
    TRANSFORMS = 10010

    SCHED_POLICY = 1000
    PACK_GQA = 1001
    SPLIT_KV = 1002
    PIPELINE_ARCH = 1003
    MMA_TILE_M = 1004
    MMA_TILE_N = 1005
    MMA_TILE_K = 1006
    CTA_GROUP = 1007
    WARPS_M = 1008
    WARPS_N = 1009


class gnn_agg_op(NumberedEnum):
    """cudnn.gnn_agg_op, of functions that raise NotSupportedError."""

    SUM = 0
    MEAN = 1
    MAX = 2
    MIN = 3


class gnn_activation_op(NumberedEnum):
    """cudnn.gnn_activation_op, of functions that raise NotSupportedError."""

    LINEAR = 0
    RELU = 1
    SIGMOID = 2
    TANH = 3
    ELU = 4
    SCALAR = 5
    LEAKY_RELU = 6


def backend_mode(mode: heur_mode) -> HeurMode:
    if member(heur_mode, mode, "heur_mode") is heur_mode.OPENSOURCE:
        raise NotSupportedError.at("heur_mode", expected="A, B or FALLBACK", got="OPENSOURCE")
    return HeurMode[mode.name]


def backend_reduction(mode: reduction_mode) -> ReduceTensorOp:
    if member(reduction_mode, mode, "reduction.mode") is reduction_mode.NOT_SET:
        raise BadParamError.at("reduction.mode", expected="a reduction mode", got="NOT_SET")
    return ReduceTensorOp[mode.name]


def backend_norm_phase(phase: norm_forward_phase, method: str) -> NormFwdPhase:
    where = f"{method}.norm_forward_phase"
    if member(norm_forward_phase, phase, where) is norm_forward_phase.NOT_SET:
        raise BadParamError.at(where, expected="INFERENCE or TRAINING", got="NOT_SET")
    return NormFwdPhase[phase.name]


def backend_reshape(mode: reshape_mode) -> ReshapeMode:
    return ReshapeMode[member(reshape_mode, mode, "reshape.reshape_mode").name]


def backend_distribution(distribution: rng_distribution) -> RngDistribution:
    if member(rng_distribution, distribution, "rng.distribution") is rng_distribution.NOT_SET:
        raise BadParamError.at("rng.distribution", expected="a distribution", got="NOT_SET")
    return RngDistribution[distribution.name]


def backend_convolution(mode: convolution_mode, method: str) -> ConvolutionMode:
    return ConvolutionMode[member(convolution_mode, mode, f"{method}.convolution_mode").name]


def backend_resample(mode: resample_mode, method: str) -> ResampleMode:
    if member(resample_mode, mode, f"{method}.mode") is resample_mode.NOT_SET:
        raise BadParamError.at(f"{method}.mode", expected="a resample mode", got="NOT_SET")
    return ResampleMode[mode.name]


def backend_padding(mode: padding_mode, method: str) -> PaddingMode:
    if member(padding_mode, mode, f"{method}.padding_mode") is padding_mode.NOT_SET:
        raise BadParamError.at(f"{method}.padding_mode", expected="a padding mode", got="NOT_SET")
    return PaddingMode[mode.name]


def backend_routing(mode: moe_grouped_matmul_mode) -> MoeGroupedMatmulMode:
    where = "moe_grouped_matmul.mode"
    if member(moe_grouped_matmul_mode, mode, where) is moe_grouped_matmul_mode.COMBINE:
        raise NotSupportedError.at(where, expected="NONE, GATHER or SCATTER", got="COMBINE")
    return MoeGroupedMatmulMode[mode.name]


def backend_knob(knob: knob_type, where: str) -> KnobType:
    if member(knob_type, knob, where) is knob_type.NOT_SET:
        raise BadParamError.at(where, expected="a knob", got="NOT_SET")
    if knob.name not in KnobType.__members__:
        raise NotSupportedError.at(where, expected="a knob that an engine has", got=knob.name)
    return KnobType[knob.name]


def frontend_knob(knob: KnobType) -> knob_type:
    return knob_type[knob.name]


def frontend_behavior_note(note: BehaviorNote) -> behavior_note:
    return behavior_note[note.name]
