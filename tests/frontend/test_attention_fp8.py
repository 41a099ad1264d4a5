"""``pygraph.sdpa_fp8`` and its gradients, end to end, against attention written out in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowdnn.frontend as cudnn
from lowdnn import dtypes
from lowdnn.backend.handle import Handle
from lowdnn.enums import DataType
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.python_graph import pygraph
from lowdnn.status import AttributeTypeError, BadParamError
from tests.frontend.attention_reference import FLOAT, HALF, HK, KEY, QUERY, SCALE, SKV, SQ, B, D, H, expected
from tests.support.data import fresh_seed
from tests.support.errors import raises

#: Descales, then scales, in the order of ``sdpa_fp8_backward``.
_GRADIENT_SCALES = {
    "q": 0.5,
    "k": 2.0,
    "v": 4.0,
    "o": 0.25,
    "d_o": 2.0,
    "s": 1 / 256,
    "dp": 0.5,
    "scale_s": 256.0,
    "scale_dq": 0.5,
    "scale_dk": 0.25,
    "scale_dv": 2.0,
    "scale_dp": 2.0,
}


@pytest.mark.parametrize("is_measured", [True, False])
def test_fp8(handle: Handle, is_measured: bool) -> None:
    """Scales of either operand cancel in the weights; the largest magnitudes need not be outputs."""
    rng = np.random.default_rng(fresh_seed())
    graph = pygraph("sdpa", cudnn.data_type.FP8_E4M3, FLOAT, FLOAT, handle)
    shapes = {"q": (B, H, SQ, D), "k": (B, HK, SKV, D), "v": (B, HK, SKV, D)}
    bits = {n: dtypes.from_float64(rng.standard_normal(shape), DataType.FP8_E4M3) for n, shape in shapes.items()}
    data = {name: dtypes.to_values(array, DataType.FP8_E4M3) for name, array in bits.items()}
    scales = {"q": 0.5, "k": 2.0, "v": 4.0, "descale_s": 1 / 256, "scale_s": 256.0, "scale_o": 8.0}
    values: dict[Tensor, Any] = {}
    operands, numbers = [], []
    for array in bits.values():
        operands.append(graph.tensor(array.shape))
        values[operands[-1]] = cudnn.from_numpy(array, handle)
    for scale in scales.values():
        one = cudnn.from_numpy(np.full((1, 1, 1, 1), scale, np.float32), handle)
        numbers.append(graph.tensor_like(one))
        values[numbers[-1]] = one
    o, stats, *amaxes = graph.sdpa_fp8(
        *operands, *numbers, attn_scale=SCALE, use_causal_mask_bottom_right=True, generate_stats=True
    )
    assert stats is not None
    wanted, wanted_stats = expected(data, seen=KEY <= QUERY + SKV - SQ)
    made = {o.set_data_type(HALF): np.zeros((B, H, SQ, D), np.float16), stats: np.zeros((B, H, SQ, 1), np.float32)}
    if is_measured:
        made |= {amax: np.zeros((1, 1, 1, 1), np.float32) for amax in amaxes}
    for tensor, zeros in made.items():
        values[tensor.set_output(True)] = cudnn.from_numpy(zeros, handle)
    graph.build([cudnn.heur_mode.A])
    graph.execute(values, cudnn.from_numpy(np.zeros(max(1, graph.get_workspace_size()), np.uint8), handle))
    assert graph.get_plan_name_at_index(0).startswith("eng32_attention_wgmma")
    np.testing.assert_allclose(values[stats].numpy(), wanted_stats, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(values[o].numpy().astype(float) / 32, wanted, rtol=0.05, atol=0.05)
    if is_measured:
        largest = np.abs(values[o].numpy().astype(float)).max() / 8
        np.testing.assert_allclose(values[amaxes[1]].numpy(), largest, rtol=2e-3)


@pytest.mark.parametrize("is_measured", [True, False])
def test_fp8_backward(handle: Handle, is_measured: bool) -> None:
    """Against what sdpa_backward's reference makes of the same numbers; a sink joins the statistics alone."""
    rng = np.random.default_rng(fresh_seed())
    graph = pygraph("sdpa", cudnn.data_type.FP8_E4M3, FLOAT, FLOAT, handle)
    q_dims, k_dims = (B, H, SQ, D), (B, HK, SKV, D)
    kinds = {"q": DataType.FP8_E4M3, "k": DataType.FP8_E4M3, "v": DataType.FP8_E4M3, "d_o": DataType.FP8_E5M2}
    bits = {
        name: dtypes.from_float64(rng.standard_normal(k_dims if name in "kv" else q_dims), kind)
        for name, kind in kinds.items()
    }
    scales = _GRADIENT_SCALES
    real = {name: scales[name] * dtypes.to_values(array, kinds[name]).astype(float) for name, array in bits.items()}
    o, stats = expected(real, seen=KEY <= QUERY)
    bits["o"] = dtypes.from_float64(o / scales["o"], DataType.FP8_E4M3)
    real["o"] = scales["o"] * dtypes.to_values(bits["o"], DataType.FP8_E4M3).astype(float)
    sink = rng.standard_normal((1, H, 1, 1)).astype(np.float32)
    values: dict[Tensor, Any] = {}

    def given(array: np.ndarray, data_type: Any) -> Tensor:
        tensor = graph.tensor(array.shape, data_type=data_type)
        values[tensor] = cudnn.from_numpy(array, handle)
        return tensor

    e4m3 = cudnn.data_type.FP8_E4M3
    operands = [given(bits[name], e4m3) for name in ("q", "k", "v", "o")]
    operands.append(given(bits["d_o"], cudnn.data_type.FP8_E5M2))
    operands.append(given(stats.astype(np.float32), FLOAT))
    numbers = [given(np.full((1, 1, 1, 1), scale, np.float32), FLOAT) for scale in scales.values()]
    d_sink = graph.tensor((1, H, 1, 1), data_type=FLOAT)
    results = graph.sdpa_fp8_backward(
        *operands,
        *numbers,
        attn_scale=SCALE,
        use_causal_mask=True,
        sink_token=given(sink, FLOAT) if is_measured else None,
        dSink_token=d_sink if is_measured else None,
    )
    stored = [tensor.set_data_type(HALF) for tensor in results[:3]]
    made = {t: np.zeros(dims, np.float16) for t, dims in zip(stored, (q_dims, k_dims, k_dims), strict=True)}
    if is_measured:
        made |= {tensor: np.zeros((1, 1, 1, 1), np.float32) for tensor in results[3:]}
        made[d_sink] = np.zeros((1, H, 1, 1), np.float32)
    for tensor, zeros in made.items():
        values[tensor.set_output(True)] = cudnn.from_numpy(zeros, handle)
    graph.build([cudnn.heur_mode.A])
    graph.execute(values, cudnn.from_numpy(np.zeros(max(1, graph.get_workspace_size()), np.uint8), handle))

    wanted = _gradients(real, stats, sink)
    for tensor, name in zip(stored, ("dq", "dk", "dv"), strict=True):
        gradient = wanted[name]
        found = values[tensor].numpy().astype(float) / scales[f"scale_{name}"]
        size = np.abs(gradient).max()
        np.testing.assert_allclose(found / size, gradient / size, atol=0.15)  # an e5m2 is an eighth off at most
        if is_measured:
            largest = values[results[3 + stored.index(tensor)]].numpy().item()
            assert largest == pytest.approx(np.abs(found).max(), rel=2e-3)
    if is_measured:
        assert values[results[6]].numpy().item() == pytest.approx(np.abs(wanted["dp"]).max(), rel=1e-3)
        np.testing.assert_allclose(values[d_sink].numpy(), wanted["sink"], rtol=1e-3, atol=1e-3)


def _gradients(real: dict[str, np.ndarray], stats: np.ndarray, sink: np.ndarray) -> dict[str, np.ndarray]:
    """dq, dk, dv, dp (before its scale) and the gradient of a sink that is no part of the statistics, in float64."""
    q, k, v, o, d_o = (real[name] for name in ("q", "k", "v", "o", "d_o"))
    k, v = (np.repeat(array, H // HK, axis=1) for array in (k, v))
    weights = np.where(KEY <= QUERY, np.exp(q @ np.swapaxes(k, -1, -2) * SCALE - stats), 0)
    centre = (d_o * o).sum(-1, keepdims=True)
    dp = SCALE * weights * (d_o @ np.swapaxes(v, -1, -2) - centre)
    dk, dv = (
        (np.swapaxes(left, -1, -2) @ right).reshape(B, HK, H // HK, SKV, D).sum(2)
        for left, right in ((dp, q), (weights, d_o))
    )
    of_sink = -(np.exp(sink - stats) * centre).sum((0, 2), keepdims=True)
    return {"dq": dp @ k, "dk": dk, "dv": dv, "dp": dp, "sink": of_sink}


def test_errors_of_fp8_name_its_method() -> None:
    graph = pygraph("sdpa", cudnn.data_type.FP8_E4M3, FLOAT, FLOAT, sm_version=90)
    q, one = graph.tensor((1, 1, 8, 16)), graph.tensor((1, 1, 1, 1), data_type=FLOAT)
    numbers = (one,) * 6
    with raises(BadParamError, "sdpa_fp8.rng_dump", expected="None without dropout"):
        graph.sdpa_fp8(q, q, q, *numbers, rng_dump=q)
    with raises(BadParamError, "sdpa_fp8.fn", expected="no other mask beside it"):
        graph.sdpa_fp8(q, q, q, *numbers, use_causal_mask=True, fn=lambda graph, scores: scores)
    with raises(BadParamError, "sdpa_fp8.k.dim", expected="4 extents", got="[1, 8, 16]"):
        graph.sdpa_fp8(q, graph.tensor((1, 8, 16)), q, *numbers)
    with raises(AttributeTypeError, "sdpa_fp8_backward.scale_dP", expected="a tensor of a graph", got="1.0"):
        graph.sdpa_fp8_backward(q, q, q, q, q, one, *numbers, *numbers[1:], 1.0)  # type: ignore[arg-type]
    with raises(BadParamError, "sdpa_fp8_backward.use_padding_mask", expected="True with seq_len_q"):
        graph.sdpa_fp8_backward(q, q, q, q, q, one, *numbers, *numbers, use_padding_mask=True)


def test_fp8_has_all_its_scales() -> None:
    graph = pygraph("sdpa", cudnn.data_type.FP8_E4M3, FLOAT, FLOAT, sm_version=90)
    q, one = graph.tensor((1, 1, 8, 16)), graph.tensor((1, 1, 1, 1), data_type=FLOAT)
    with raises(AttributeTypeError, "sdpa_fp8.scale_o", expected="a tensor of a graph", got="1.0"):
        graph.sdpa_fp8(q, q, q, one, one, one, one, one, 1.0)  # type: ignore[arg-type]
