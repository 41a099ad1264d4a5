"""One valid call of every method of pygraph that adds operations, for tests that run through all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import lowdnn.frontend as cudnn
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.python_graph import pygraph
from lowdnn.frontend.refused_methods import RefusedMethods

FLOAT, HALF, INT32 = cudnn.data_type.FLOAT, cudnn.data_type.HALF, cudnn.data_type.INT32
TRAINING = cudnn.norm_forward_phase.TRAINING
#: A function of a new graph that returns the arguments of one call, by name.
Arguments = Callable[[pygraph], dict[str, Any]]

#: How names of pygraph's methods that add no operation begin.
OTHERS = (
    *("tensor", "get_", "build", "execute", "select_", "deselect_", "create_", "check_", "query_", "explain"),
    *("validate", "key", "serialize", "deserialize", "handle", "nodes", "find_tensor", "inspect", "run"),
    *("populate_cuda_graph", "update_cuda_graph", "plan", "pareto_plans", "context", "backend_plan_entries"),
    *("selected_engine", "autotune"),
)

#: The others.
METHODS = tuple(
    name
    for name in dir(pygraph)
    if not name.startswith(("_", "scaled_dot_product_", *OTHERS)) and name not in vars(RefusedMethods)
)


def new_graph() -> pygraph:
    """A graph in FLOAT that plans for compute capability 9.0 without a device."""
    return pygraph("g", FLOAT, FLOAT, FLOAT, sm_version=90)


def parameters(method: str) -> Mapping[str, inspect.Parameter]:
    """The parameters of a method but ``self``."""
    found = dict(inspect.signature(getattr(pygraph, method)).parameters)
    return {name: item for name, item in found.items() if name != "self" and item.kind is not item.VAR_POSITIONAL}


def parameters_of_type(*annotations: str) -> list[tuple[str, str]]:
    """(method, parameter) wherever the annotation is one of these."""
    return [
        (method, name)
        for method in CALLS
        for name, item in parameters(method).items()
        if item.annotation in annotations
    ]


def call(graph: pygraph, method: str, **changed: Any) -> Any:
    """The method's valid call, with some of its arguments replaced."""
    return getattr(graph, method)(**(CALLS[method](graph) | changed))


def outputs_of(result: Any) -> list[Tensor]:
    """The tensors that a call returned."""
    return [result] if isinstance(result, Tensor) else [tensor for tensor in result if tensor is not None]


def _unary(graph: pygraph) -> dict[str, Any]:
    return {"input": graph.tensor((2, 3, 4))}


def _alike(method: str) -> Arguments:
    names = [name for name, item in parameters(method).items() if item.annotation == "Tensor"]
    return lambda graph: {name: graph.tensor((2, 3, 4, 4)) for name in names}


def _binary(*names: str) -> Arguments:
    return lambda graph: {name: graph.tensor((2, 3, 4)) for name in names}


def _norm(graph: pygraph, dims: tuple[int, ...] = (1, 3, 4)) -> dict[str, Any]:
    scale = {name: graph.tensor(dims) for name in ("scale", "bias")}
    return {
        "norm_forward_phase": TRAINING,
        "input": graph.tensor((2, 3, 4)),
        "epsilon": graph.tensor_scalar(1e-5),
    } | scale


def _gradients(
    graph: pygraph, scale: tuple[int, ...] = (1, 3, 4), statistics: tuple[int, ...] = (2, 1, 1)
) -> dict[str, Any]:
    return {
        "grad": graph.tensor((2, 3, 4)),
        "input": graph.tensor((2, 3, 4)),
        "scale": graph.tensor(scale),
        "mean": graph.tensor(statistics),
        "inv_variance": graph.tensor(statistics),
    }


def _without(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != name}


def _channels(graph: pygraph, *names: str) -> dict[str, Any]:
    return {name: graph.tensor((1, 3, 1)) for name in names}


def _scalars(graph: pygraph, *names: str) -> dict[str, Any]:
    return {name: graph.tensor_scalar(0.5) for name in names}


def _heads(graph: pygraph, kind: Any = HALF, *names: str) -> dict[str, Any]:
    return {name: graph.tensor((2, 4, 16, 16), data_type=kind) for name in names}


def _statistics(graph: pygraph) -> dict[str, Any]:
    return {"stats": graph.tensor((2, 4, 16, 1), data_type=FLOAT)}


def _gated(graph: pygraph) -> dict[str, Any]:
    dims = {"x": (2, 6, 9), "weights_proj": (6, 4), "weights_mixer": (2, 5), "skip_bias": (2,)}
    return {name: graph.tensor(extents) for name, extents in dims.items()}


def _numbers(graph: pygraph, *names: str) -> dict[str, Any]:
    return {name: graph.tensor((1, 1, 1, 1), data_type=FLOAT) for name in names}


def _tokens(graph: pygraph) -> dict[str, Any]:
    return {
        "token": graph.tensor((1, 8, 16)),
        "first_token_offset": graph.tensor((2, 1, 1), data_type=INT32),
    }


def _window(graph: pygraph) -> dict[str, Any]:
    return {"mode": cudnn.resample_mode.AVGPOOL_INCLUDE_PADDING, "window": [2, 2], "stride": [2, 2]}


_E4M3 = cudnn.data_type.FP8_E4M3
_UNARY = (
    "abs ceil cos elu erf exp floor gelu gelu_approx_tanh identity log logical_not neg reciprocal rsqrt sigmoid sin"
)
_COMPARISONS = ("cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le")
_GRADIENTS = "elu gelu gelu_approx_tanh sigmoid softplus tanh relu swish"

LISTED: Mapping[str, Arguments] = {
    **dict.fromkeys((*_UNARY.split(), "softplus", "sqrt", "tan", "tanh", "relu", "swish"), _unary),
    **dict.fromkeys(("add", "add_square", "div", "logical_and", "logical_or", "mul", "sub"), _binary("a", "b")),
    **dict.fromkeys(("max", "min", "mod", "pow"), _binary("input0", "input1")),
    **dict.fromkeys(_COMPARISONS, _binary("input", "comparison")),
    **{f"{name}_backward": _binary("loss", "input") for name in _GRADIENTS.split()},
    "bias": _binary("input", "bias"),
    "scale": _binary("input", "scale"),
    "binary_select": _binary("input0", "input1", "mask"),
    "gen_index": lambda g: _unary(g) | {"axis": 1},
    "leaky_relu": lambda g: _unary(g) | {"negative_slope": 0.5},
    "leaky_relu_backward": lambda g: _binary("loss", "input")(g) | {"negative_slope": 0.5},
    "conv_fprop": lambda g: {"image": g.tensor((2, 8, 6, 6)), "weight": g.tensor((4, 8, 3, 3)), "padding": [1, 1]},
    "conv_dgrad": lambda g: {"loss": g.tensor((2, 4, 6, 6)), "filter": g.tensor((4, 8, 3, 3)), "padding": [1, 1]},
    "conv_wgrad": lambda g: {"image": g.tensor((2, 8, 6, 6)), "loss": g.tensor((2, 4, 6, 6)), "padding": [1, 1]},
    "matmul": lambda g: {"A": g.tensor((2, 3, 4)), "B": g.tensor((2, 4, 5))},
    "moe_grouped_matmul": lambda g: _tokens(g) | {"weight": g.tensor((2, 16, 8))},
    "moe_grouped_matmul_bwd": lambda g: _tokens(g) | {"doutput": g.tensor((1, 8, 8))},
    "reduction": lambda g: _unary(g) | {"mode": cudnn.reduction_mode.ADD},
    "genstats": lambda g: {"input": g.tensor((2, 3, 4, 4))},
    "layernorm": _norm,
    "adalayernorm": lambda g: _norm(g, (2, 1, 4)),
    "instancenorm": lambda g: _norm(g, (1, 3, 1)),
    "groupnorm": lambda g: _norm(g, (1, 3, 1)) | {"group_count": 3},
    "rmsnorm": _norm,
    "batchnorm": lambda g: (
        {"input": g.tensor((2, 3, 4))}
        | _channels(g, "scale", "bias", "in_running_mean", "in_running_var")
        | _scalars(g, "epsilon", "momentum")
    ),
    "bn_finalize": lambda g: (
        _channels(g, "sum", "sq_sum", "scale", "bias", "in_running_mean", "in_running_var")
        | _scalars(g, "epsilon", "momentum")
        | {"accum_count": g.tensor_scalar(8)}
    ),
    "batchnorm_inference": lambda g: _unary(g) | _channels(g, "mean", "inv_variance", "scale", "bias"),
    "layernorm_backward": _gradients,
    "adalayernorm_backward": lambda g: _gradients(g, (2, 1, 4), (2, 3, 1)),
    "instancenorm_backward": lambda g: _gradients(g, (1, 3, 1), (2, 3, 1)),
    "groupnorm_backward": lambda g: _gradients(g, (1, 3, 1), (2, 3, 1)),
    "batchnorm_backward": lambda g: _gradients(g, (1, 3, 1), (1, 3, 1)),
    "rmsnorm_backward": lambda g: _without("mean", _gradients(g)) | {"has_dbias": True},
    "softmax": _unary,
    "softmax_backward": _binary("grad", "output"),
    "resample": lambda g: {"input": g.tensor((2, 3, 8, 8))} | _window(g),
    "resample_to": lambda g: {"input": g.tensor((2, 3, 8, 8)), "mode": cudnn.resample_mode.BILINEAR, "size": [4, 4]},
    "resample_backward": lambda g: {"loss": g.tensor((2, 3, 4, 4)), "input": g.tensor((2, 3, 8, 8))} | _window(g),
    "resample_to_backward": lambda g: {
        "loss": g.tensor((2, 3, 4, 4)),
        "input": g.tensor((2, 3, 8, 8)),
        "mode": cudnn.resample_mode.BILINEAR,
    },
    "reshape": _unary,
    "transpose": lambda g: _unary(g) | {"permutation": [0, 2, 1]},
    "slice": lambda g: _unary(g) | {"slices": [slice(0, 1), slice(None), slice(0, 4, 2)]},
    "concatenate": lambda g: {"inputs": [g.tensor((2, 3, 4)), g.tensor((2, 5, 4))], "axis": 1},
    "rng": lambda g: {"dim": (2, 3, 4), "seed": 3, "offset": 1},
    "block_scale_quantize": lambda g: {"input": g.tensor((2, 4, 32)), "block_size": 8},
    "block_scale_dequantize": lambda g: {
        "input": g.tensor((2, 4, 32), data_type=_E4M3),
        "descale": g.tensor((2, 4, 4)),
        "block_size": [8],
    },
    "sdpa": lambda g: _heads(g, HALF, "q", "k", "v") | {"generate_stats": True},
    "sdpa_backward": lambda g: _heads(g, HALF, "q", "k", "v", "o", "dO") | _statistics(g),
    "sdpa_fp8": lambda g: (
        _heads(g, _E4M3, "q", "k", "v")
        | _numbers(g, "descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
        | {"generate_stats": True}
    ),
    "sdpa_fp8_backward": lambda g: (
        _heads(g, _E4M3, "q", "k", "v", "o", "dO")
        | _statistics(g)
        | _numbers(g, "descale_q", "descale_k", "descale_v", "descale_o", "descale_dO", "descale_s", "descale_dP")
        | _numbers(g, "scale_s", "scale_dQ", "scale_dK", "scale_dV", "scale_dP")
    ),
    "causal_conv1d": lambda g: {"x": g.tensor((2, 6, 9)), "weight": g.tensor((6, 4))},
    "causal_conv1d_backward": lambda g: {
        "dy": g.tensor((2, 6, 9)),
        "x": g.tensor((2, 6, 9)),
        "weight": g.tensor((6, 4)),
    },
    "causal_conv1d_update": lambda g: {
        "x": g.tensor((2, 6, 1)),
        "conv_state": g.tensor((2, 6, 3)),
        "weight": g.tensor((6, 4)),
    },
    "b2b_causal_conv1d": _gated,
    "b2b_causal_conv1d_backward": lambda g: _gated(g) | {name: g.tensor((2, 2, 9)) for name in ("dy", "y")},
    "fft_causal_conv1d": lambda g: {"x": g.tensor((2, 6, 9)), "weight": g.tensor((6, 4))},
    "fft_causal_conv1d_backward": lambda g: {
        "dy": g.tensor((2, 6, 9)),
        "x": g.tensor((2, 6, 9)),
        "weight": g.tensor((6, 4)),
    },
    "rope": lambda g: {"input": g.tensor((2, 4, 6, 16)), "freqs": g.tensor((6, 1, 1, 16))},
    "rope_backward": lambda g: {"dY": g.tensor((2, 4, 6, 16)), "freqs": g.tensor((6, 1, 1, 16))},
}

#: Methods without a call above take tensors of equal dims, and have defaults for all else.
CALLS: Mapping[str, Arguments] = {method: LISTED.get(method, _alike(method)) for method in METHODS}

#: Dims of the outputs that inputs do not determine, in the order of the outputs.
DIMS: Mapping[str, tuple[int, ...]] = {
    "conv_dgrad": (2, 8, 6, 6),
    "conv_wgrad": (4, 8, 3, 3),
    "reduction": (2, 1, 4),
    "reshape": (6, 4),
}


def finished(graph: pygraph, method: str, result: Any) -> list[Tensor]:
    """Marks the outputs of a call as the graph's, and sets the dims that inputs do not determine."""
    outputs = outputs_of(result)
    for output in outputs:
        output.set_output(True)
        if method in DIMS:
            output.set_dim(DIMS[method])
    if method == "block_scale_quantize":
        outputs[0].set_data_type(_E4M3)
    return outputs
