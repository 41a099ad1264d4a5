"""Names, positional orders, defaults and enum numbers of cudnn-frontend's Python package, for what lowdnn has of it."""

from __future__ import annotations

import inspect

import pytest

import lowdnn.frontend as cudnn
from lowdnn.enums import OWN_NUMBERS, KnobType

UNARY = [
    "abs",
    "ceil",
    "cos",
    "elu",
    "erf",
    "exp",
    "floor",
    "gelu",
    "gelu_approx_tanh",
    "identity",
    "log",
    "logical_not",
    "neg",
    "reciprocal",
    "rsqrt",
    "sigmoid",
    "sin",
    "softplus",
    "sqrt",
    "tan",
    "tanh",
]
COMPARISONS = ["cmp_eq", "cmp_ge", "cmp_gt", "cmp_le", "cmp_lt", "cmp_neq"]
BACKWARD = ["elu", "gelu_approx_tanh", "gelu", "sigmoid", "softplus", "tanh"]
COMMON = ["compute_data_type", "name"]
OVERRIDES = ["override_uids", "override_shapes", "override_strides"]

#: Arguments of each method in their positional order.
ORDERS = {
    **{name: ["input", *COMMON] for name in UNARY},
    **{name: ["a", "b", *COMMON] for name in ("add", "add_square", "div", "logical_and", "logical_or", "mul", "sub")},
    **{name: ["input0", "input1", *COMMON] for name in ("max", "min", "mod", "pow")},
    **{name: ["input", "comparison", *COMMON] for name in COMPARISONS},
    **{f"{name}_backward": ["loss", "input", *COMMON] for name in BACKWARD},
    "bias": ["input", "bias", *COMMON],
    "scale": ["input", "scale", *COMMON],
    "binary_select": ["input0", "input1", "mask", *COMMON],
    "gen_index": ["input", "axis", *COMMON],
    "relu": ["input", "negative_slope", "lower_clip", "upper_clip", *COMMON],
    "leaky_relu": ["input", "negative_slope", *COMMON],
    "swish": ["input", "swish_beta", *COMMON],
    "relu_backward": ["loss", "input", "negative_slope", "lower_clip", "upper_clip", *COMMON],
    "leaky_relu_backward": ["loss", "input", "negative_slope", *COMMON],
    "swish_backward": ["loss", "input", "compute_data_type", "swish_beta", "name"],
    "tensor_like": ["template", "name", "is_virtual"],
    "matmul": ["A", "B", "compute_data_type", "padding", "name"],
    "moe_grouped_matmul": [
        "token",
        "weight",
        "first_token_offset",
        "token_index",
        "token_ks",
        "mode",
        "compute_data_type",
        "top_k",
        "name",
        "top_k_scores",
    ],
    "moe_grouped_matmul_bwd": ["doutput", "token", "first_token_offset", *COMMON],
    "reduction": ["input", "mode", *COMMON, "group_offset"],
    "conv_fprop": ["image", "weight"],
    "conv_dgrad": ["loss", "filter"],
    "conv_wgrad": ["image", "loss"],
    "genstats": ["input", *COMMON],
    "batchnorm": [
        *("input", "scale", "bias", "in_running_mean", "in_running_var", "epsilon", "momentum", "peer_stats"),
        *COMMON,
    ],
    "batchnorm_inference": ["input", "mean", "inv_variance", "scale", "bias", *COMMON],
    "batchnorm_backward": ["grad", "input", "scale", "mean", "inv_variance", "peer_stats", *COMMON],
    **{
        name: ["norm_forward_phase", "input", "scale", "bias", "epsilon", *COMMON]
        for name in ("layernorm", "adalayernorm", "instancenorm", "rmsnorm")
    },
    **{
        f"{name}_backward": ["grad", "input", "scale", "mean", "inv_variance", *COMMON]
        for name in ("layernorm", "adalayernorm", "instancenorm")
    },
    "rmsnorm_backward": ["grad", "input", "scale", "inv_variance", "has_dbias", *COMMON],
    "reshape": ["input", "name", "reshape_mode"],
    "transpose": ["input", "permutation", *COMMON],
    "slice": ["input", "slices", *COMMON],
    "rope": ["input", "freqs", "output_scale", "rope_dim", *COMMON],
    "rope_backward": ["dY", "freqs", "output_scale", "rope_dim", *COMMON],
    "block_scale_quantize": ["input", "block_size", "axis", "transpose", *COMMON],
    "block_scale_dequantize": ["input", "descale", "block_size", "is_negative_scale", *COMMON],
    "concatenate": ["inputs", "axis", "in_place_index", "name"],
    "tensor": [
        "dim",
        "stride",
        "data_type",
        "is_virtual",
        "is_pass_by_value",
        "ragged_offset",
        "reordering_type",
        "name",
        "uid",
        "ragged_offset_multiplier",
        "alignment_value",
    ],
    "tensor_scalar": ["value", "scalar_type"],
    "execute": ["tensor_dict", "workspace", "handle", *OVERRIDES, "tensor_uids"],
    "execute_plan_at_index": ["tensor_dict", "workspace", "index", "handle", *OVERRIDES],
    "get_workspace_size": ["handle", *OVERRIDES],
    "get_workspace_size_plan_at_index": ["index", "handle", *OVERRIDES],
    "populate_cuda_graph": ["handle"],
    "update_cuda_graph": ["handle"],
    "deselect_engines": ["engine_names"],
    "deselect_workspace_greater_than": ["workspace_limit"],
    "__init__": [
        "name",
        "io_data_type",
        "intermediate_data_type",
        "compute_data_type",
        "handle",
        "sm_count",
        "sm_version",
        "kernel_cache",
        "device_property",
        "is_dynamic_shape_enabled",
        "is_override_shape_enabled",
        "cuda_graph_retention",
    ],
}

NUMBERS = {
    "data_type": """NOT_SET 0 FLOAT 1 DOUBLE 2 HALF 3 INT8 4 INT32 5 INT8x4 6 UINT8 7 UINT8x4 8 INT8x32 9
        BFLOAT16 10 INT64 11
        BOOLEAN 12 FP8_E4M3 14 FP8_E5M2 15 FAST_FLOAT_FOR_FP8 16 FP8_E8M0 17 FP8_E5M3 18 FP4_E2M1 19 INT4 20""",
    "heur_mode": "A 0 B 1 FALLBACK 2 OPENSOURCE 3",
    "build_plan_policy": "HEURISTICS_CHOICE 0 ALL 1",
    "behavior_note": """RUNTIME_COMPILATION 1 REQUIRES_FILTER_INT8x32_REORDER 2 REQUIRES_BIAS_INT8x32_REORDER 3
        SUPPORTS_CUDA_GRAPH_NATIVE_API 4 CUBLASLT_DEPENDENCY 5""",
    "reduction_mode": "NOT_SET 0 ADD 1 MUL 2 MIN 3 MAX 4 AMAX 5 AVG 6 NORM1 7 NORM2 8 MUL_NO_ZEROS 9",
    "norm_forward_phase": "NOT_SET 0 INFERENCE 1 TRAINING 2",
    "convolution_mode": "CONVOLUTION 1 CROSS_CORRELATION 2",
    "moe_grouped_matmul_mode": "NONE 1 GATHER 2 SCATTER 3 COMBINE 4",
    "tensor_reordering": "NONE 0 INT8x32 1 F16x16 2 F8_128x4 3",
    "reshape_mode": "VIEW_ONLY 1 LOGICAL 2",
    "cuda_graph_retention": "PER_GRAPH 0 NONE 1",
    "scalar_type": "RUNTIME_PARAM 0 COMPILE_TIME_CONST 1",
    "resample_mode": """NOT_SET 0 AVGPOOL_EXCLUDE_PADDING 1 AVGPOOL_INCLUDE_PADDING 2 BILINEAR 3 NEAREST 4
        MAXPOOL 5""",
    "padding_mode": "NOT_SET 0 EDGE_VAL_PAD 1 NEG_INF_PAD 2 ZERO_PAD 3",
}


@pytest.mark.parametrize(("method", "order"), ORDERS.items(), ids=list(ORDERS))
def test_positional_order(method: str, order: list[str]) -> None:
    found = list(inspect.signature(getattr(cudnn.pygraph, method)).parameters)
    assert found[1 : 1 + len(order)] == order


@pytest.mark.parametrize(("enum", "numbers"), NUMBERS.items(), ids=list(NUMBERS))
def test_enum_numbers(enum: str, numbers: str) -> None:
    words = numbers.split()
    expected = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    assert {member.name: member.value for member in getattr(cudnn, enum)} == expected


def test_knob_numbers() -> None:
    numbers = {member.name: member.value for member in cudnn.knob_type}
    own = {member.name: member.value for member in KnobType if member >= OWN_NUMBERS}
    theirs = [int(kind) for kind in cudnn.knob_type if cudnn.is_frontend_knob_type(kind)]
    assert theirs == list(range(cudnn.FRONTEND_KNOB_TYPE_BASE, 1010))
    assert list(numbers.values()) == [*range(33), *own.values(), *theirs]
    assert own.items() <= numbers.items()
    assert [int(cudnn.knob_type[name]) for name in ("TILE_M", "STREAM_K", "TILE_CGA")] == [26, 24, 32]


def test_numerical_note_numbers() -> None:
    assert [member.value for member in cudnn.numerical_note] == list(range(1, 11))
    assert [int(cudnn.numerical_note[name]) for name in ("TENSOR_CORE", "STRICT_NAN_PROP")] == [1, 10]


def test_tensors_have_every_setter_and_getter() -> None:
    setters = [
        "output",
        "data_type",
        "dim",
        "stride",
        "name",
        "uid",
        "is_virtual",
        "is_pass_by_value",
        "ragged_offset",
        "ragged_offset_multiplier",
        "reordering_type",
        "alignment",
        "vector_count_and_dimension",
    ]
    getters = [
        "dim",
        "stride",
        "data_type",
        "name",
        "uid",
        "is_virtual",
        "is_pass_by_value",
        "alignment",
        "ragged_offset_multiplier",
        "reordering_type",
        "vector_count",
        "vector_dimension",
        "has_compile_time_constant",
    ]
    names = [f"set_{name}" for name in setters] + [f"get_{name}" for name in getters]
    assert [name for name in names if not hasattr(cudnn.Tensor, name)] == []
