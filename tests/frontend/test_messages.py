"""Errors speak of what the caller wrote: the method and its argument, whatever operation below finds the fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import lowdnn.frontend as cudnn
from lowdnn.frontend.python_graph import pygraph
from lowdnn.status import LowdnnError
from tests.support import calls

HALF, INT32 = cudnn.data_type.HALF, cudnn.data_type.INT32
Given = Callable[[pygraph], Any]


def tensor(*dims: int, **options: Any) -> Given:
    """An argument that is a tensor of the graph."""
    return lambda graph: graph.tensor(dims, **options)


def value(given: Any) -> Given:
    """An argument that is no tensor."""
    return lambda graph: given


def of_lengths(graph: pygraph) -> Any:
    return graph.tensor((2, 1, 1, 1), data_type=INT32)


#: The method, the arguments that are wrong, the place that the error names.
WRONG: list[tuple[str, dict[str, Given], str]] = [
    ("sdpa", {"q": tensor(2, 3, 16, 16, data_type=HALF), "k": tensor(2, 2, 16, 16, data_type=HALF)}, "sdpa.k.dim[1]"),
    ("sdpa", {"k": tensor(3, 4, 16, 16, data_type=HALF)}, "sdpa.k.dim[0]"),
    ("sdpa", {"k": tensor(2, 4, 16, 8, data_type=HALF)}, "sdpa.k.dim[3]"),
    ("sdpa", {"v": tensor(2, 4, 17, 16, data_type=HALF)}, "sdpa.v.dim[2]"),
    ("sdpa", {"v": tensor(2, 3, 16, 16, data_type=HALF)}, "sdpa.v.dim[1]"),
    ("sdpa", {"q": tensor(2, 4, 16)}, "sdpa.q.dim"),
    ("sdpa", {"q": value(None)}, "sdpa.q"),
    ("sdpa", {"bias": tensor(1, 3, 16, 16)}, "sdpa.bias.dims[1]"),
    ("sdpa", {"attn_scale": tensor(2, 1, 1, 3)}, "sdpa.attn_scale.dims[3]"),
    ("sdpa", {"attn_scale": value("half")}, "sdpa.attn_scale"),
    ("sdpa", {"sink_token": tensor(1, 3, 1, 1)}, "sdpa.sink_token.dims"),
    ("sdpa", {"score_max": tensor(2, 4, 15, 1)}, "sdpa.score_max.dims"),
    ("sdpa", {"score_sum_exp": tensor(2, 4, 15, 1)}, "sdpa.score_sum_exp.dims"),
    ("sdpa", {"block_mask": tensor(2, 4, 1, 1)}, "sdpa.block_mask.data_type"),
    ("sdpa", {"sliding_window_length": value(0)}, "sdpa.sliding_window_length"),
    ("sdpa", {"diagonal_band_left_bound": value(0)}, "sdpa.diagonal_band_left_bound"),
    ("sdpa", {"diagonal_band_right_bound": value(-1)}, "sdpa.diagonal_band_right_bound"),
    (
        "sdpa",
        {"sliding_window_length": value(3), "diagonal_band_left_bound": value(3)},
        "sdpa.sliding_window_length",
    ),
    (
        "sdpa",
        {
            "use_padding_mask": value(True),
            "seq_len_q": tensor(3, 1, 1, 1, data_type=INT32),
            "seq_len_kv": of_lengths,
        },
        "sdpa.seq_len_q.dims[0]",
    ),
    ("sdpa", {"score_mod": value("soft cap")}, "sdpa.score_mod"),
    ("sdpa", {"score_mod": value(lambda graph, scores: None)}, "sdpa.score_mod"),
    ("sdpa", {"dropout": value(0.5)}, "sdpa.dropout"),
    ("sdpa_fp8", {"sliding_window": value(0)}, "sdpa_fp8.sliding_window"),
    ("sdpa_fp8", {"left_bound": value(0)}, "sdpa_fp8.left_bound"),
    ("sdpa_fp8", {"right_bound": value(-1)}, "sdpa_fp8.right_bound"),
    ("sdpa_fp8", {"fn": value(3)}, "sdpa_fp8.fn"),
    ("sdpa_fp8", {"descale_q": tensor(2, 1)}, "sdpa_fp8.descale_q.dims"),
    ("sdpa_backward", {"k": tensor(2, 3, 16, 16, data_type=HALF)}, "sdpa_backward.k.dims[1]"),
    ("sdpa_backward", {"dO": tensor(2, 4, 16, 8, data_type=HALF)}, "sdpa_backward.dO.dims"),
    ("sdpa_backward", {"stats": tensor(2, 4, 15, 1)}, "sdpa_backward.stats.dims"),
    ("sdpa_backward", {"sliding_window_length": value(0)}, "sdpa_backward.sliding_window_length"),
    ("sdpa_fp8_backward", {"scale_dQ": tensor(3, 1, 1, 1)}, "sdpa_fp8_backward.scale_dQ.dims"),
    ("conv_fprop", {"weight": tensor(4, 7, 3, 3)}, "conv_fprop.weight.dims[1]"),
    ("conv_fprop", {"stride": value([0, 0])}, "conv_fprop.stride"),
    ("conv_fprop", {"dilation": value([1])}, "conv_fprop.dilation"),
    ("conv_fprop", {"padding": value([1.5, 1])}, "conv_fprop.padding"),
    ("conv_dgrad", {"filter": tensor(5, 8, 3, 3)}, "conv_dgrad.loss.dims"),
    ("conv_wgrad", {"loss": tensor(3, 4, 6, 6)}, "conv_wgrad.loss.dims"),
    ("matmul", {"B": tensor(2, 5, 4)}, "matmul.B.dims[-2]"),
    ("matmul", {"A": tensor(3, 3, 4)}, "matmul.B.dims[0]"),
    ("matmul", {"padding": value(1)}, "matmul.padding"),
    ("layernorm", {"scale": tensor(1, 3, 5)}, "layernorm.scale.dims[2]"),
    ("layernorm", {"bias": tensor(1, 3, 5)}, "layernorm.bias.dims"),
    ("layernorm", {"epsilon": tensor(2)}, "layernorm.epsilon"),
    ("layernorm", {"epsilon": value(None)}, "layernorm.epsilon"),
    ("batchnorm", {"in_running_mean": tensor(1, 4, 1)}, "batchnorm.in_running_mean.dims"),
    ("groupnorm", {"group_count": value(2)}, "groupnorm.group_count"),
    ("layernorm_backward", {"grad": tensor(2, 3, 5)}, "layernorm_backward.grad.dims"),
    ("layernorm_backward", {"mean": tensor(2, 3, 1)}, "layernorm_backward.mean.dims"),
    ("batchnorm_inference", {"mean": tensor(1, 5, 1)}, "batchnorm_inference.mean.dims[1]"),
    ("bn_finalize", {"sq_sum": tensor(1, 4, 1)}, "bn_finalize.sq_sum.dims"),
    ("bn_finalize", {"accum_count": value(1.5)}, "bn_finalize.accum_count"),
    ("add", {"b": tensor(2, 3, 5)}, "add.b.dims[2]"),
    ("add", {"a": value(2)}, "add.a"),
    ("bias", {"bias": tensor(2, 3, 5)}, "bias.bias.dims[2]"),
    ("relu", {"lower_clip": value("x")}, "pygraph.relu_fwd.lower_clip"),
    ("relu_backward", {"input": tensor(5, 5, 5)}, "relu_backward.input.dims[0]"),
    ("binary_select", {"mask": tensor(9)}, "binary_select.mask.dims"),
    ("softmax_backward", {"output": tensor(2, 3, 5)}, "softmax_backward.output.dims[2]"),
    ("rope", {"freqs": tensor(5, 1, 1, 16)}, "rope.freqs.dims"),
    ("causal_conv1d", {"weight": tensor(5, 4)}, "causal_conv1d.weight.dims"),
    ("causal_conv1d", {"activation": value("relu")}, "causal_conv1d.activation"),
    ("causal_conv1d_backward", {"dy": tensor(2, 6, 8)}, "causal_conv1d_backward.dy.dims"),
    ("causal_conv1d_update", {"conv_state": tensor(2, 6, 4)}, "causal_conv1d_update.conv_state.dims"),
    ("causal_conv1d_update", {"conv_state_indices": tensor(2)}, "causal_conv1d_update.conv_state_indices.data_type"),
    ("fft_causal_conv1d", {"weight": tensor(5, 4)}, "fft_causal_conv1d.weight.dims"),
    ("fft_causal_conv1d_backward", {"weight": tensor(5, 4)}, "fft_causal_conv1d_backward.weight.dims"),
    ("fft_causal_conv1d_backward", {"x": tensor(2, 9)}, "fft_causal_conv1d_backward.x.dims"),
    ("b2b_causal_conv1d", {"x": tensor(2, 6)}, "b2b_causal_conv1d.x.dims"),
    ("causal_conv1d_update", {"weight": tensor(6)}, "causal_conv1d_update.weight.dims"),
    ("causal_conv1d", {"cu_seqlens": tensor(2, 1)}, "causal_conv1d.cu_seqlens.dims"),
    ("fft_causal_conv1d_backward", {"dy": tensor(2, 6, 8)}, "fft_causal_conv1d_backward.dy.dims"),
    ("b2b_causal_conv1d", {"weights_mixer": tensor(3, 5)}, "b2b_causal_conv1d.x.dims"),
    ("b2b_causal_conv1d_backward", {"y": tensor(2, 6, 9)}, "b2b_causal_conv1d_backward.y.dims"),
    ("moe_grouped_matmul", {"weight": tensor(2, 15, 8)}, "moe_grouped_matmul.weight.dims[1]"),
    ("block_scale_dequantize", {"descale": tensor(2, 4, 5)}, "block_scale_dequantize.descale.dims"),
    ("rng", {"seed": tensor(2)}, "rng.seed.dims"),
    ("genstats", {"input": tensor(3)}, "genstats.input.dims"),
    ("resample", {"window": value([0, 1])}, "resample.window"),
    ("slice", {"slices": value(3)}, "slice.slices"),
    ("concatenate", {"inputs": value(3)}, "concatenate.inputs"),
    ("reduction", {"compute_data_type": value("x")}, "reduction.compute_data_type"),
]


@pytest.mark.parametrize(
    ("method", "arguments", "where"), WRONG, ids=lambda item: item if isinstance(item, str) else ""
)
def test_a_wrong_call_is_told_of_its_argument(method: str, arguments: dict[str, Given], where: str) -> None:
    graph = calls.new_graph()
    with pytest.raises(LowdnnError, match=rf"^[A-Z_]+ {re.escape(where)}: expected .+, got "):
        finish(graph, method, {name: given(graph) for name, given in arguments.items()})


def test_what_a_score_modifier_does_wrong_is_told_of_its_own_calls() -> None:
    graph = calls.new_graph()
    wrong = graph.tensor((2, 4, 16, 5))
    with pytest.raises(LowdnnError, match=re.escape("mul.b.dims[3]: expected 1 or 16, got 5")):
        finish(graph, "sdpa", {"score_mod": lambda own, scores: own.mul(scores, wrong)})


def test_outputs_are_told_by_their_names() -> None:
    graph = calls.new_graph()
    o, _ = calls.call(graph, "sdpa", name="attention")
    o.set_output(True).set_dim((2, 4, 16, 5))
    with pytest.raises(LowdnnError, match=re.escape("sdpa: tensor 'attention::O'.dims")):
        graph.validate()


def finish(graph: pygraph, method: str, arguments: dict[str, Any]) -> None:
    calls.finished(graph, method, calls.call(graph, method, **arguments))
    graph.validate()
