"""The peers of the memory-bound cases compute what lowdnn's references say: torch's CPU kernels in the GPU's place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.cases import parse_case
from lowdnn.cases.families.convolution import ConvolutionCase
from lowdnn.cases.oracle import evaluate

torch: Any = pytest.importorskip("torch", reason="the peers are torch's")

#: By case the peers that torch has on the CPU.
_CASES = {
    "pointwise dims=3x16x7x5 ops=scale+bias+residual+store+relu layout=nhwc out_layout=nhwc": "torch",
    "pointwise dims=40x72 ops=swish+mul dtype=bf16": "torch",
    "norm dims=40x72 mode=layer dtype=bf16 before=residual+store": "torch",
    "norm dims=40x72 mode=layer dir=bwd": "torch",
    "norm dims=40x72 mode=rms scale=scale dtype=fp16": "torch",
    "norm dims=3x16x7x5 mode=batch layout=nhwc dtype=bf16 epilogue=residual+relu": "torch",
    "norm dims=3x16x7x5 mode=batch dtype=fp16 dir=bwd": "torch",
    "norm dims=3x16x7x5 mode=instance layout=nhwc dtype=bf16": "torch, torch group norm",
    "norm dims=3x16x7x5 mode=instance dir=bwd": "torch, torch group norm",
    "norm dims=2x64x6x6 mode=group groups=32 layout=nhwc dtype=fp16 epilogue=swish": "torch",
    "norm dims=2x64x6x6 mode=group groups=32 dtype=bf16 dir=bwd": "torch",
    "softmax dims=4x20x40 dtype=bf16 before=add": "torch",
    "softmax dims=4x20x40 axes=1 log=yes": "torch",
    "softmax dims=40x72 dtype=fp16 dir=bwd": "torch",
    "softmax dims=40x72 log=yes dir=bwd": "torch",
    "reduction dims=40x72 axes=0 op=add dtype=bf16 out=fp32": "torch",
    "reduction dims=3x16x7x5 axes=2,3 op=avg dtype=bf16 layout=nhwc": "torch",
    "reduction dims=4x20x40 axes=1 op=max dtype=bf16": "torch",
    "reduction dims=5000 axes=0 op=norm2 dtype=bf16 out=fp32": "torch",
    "reduction dims=40x72 axes=0,1 op=amax dtype=bf16 out=fp32": "torch",
    "resample n=2 c=8 hw=12x12 mode=max window=3 stride=2 pad=1 dir=bwd index=int8": "torch",
    "causal_conv1d b=2 c=3 l=20 k=4 act=silu dtype=fp32": "torch",
    "causal_conv1d b=2 c=3 l=20 k=4 layout=nhwc dtype=bf16": "torch",
    "causal_conv1d b=2 c=3 l=20 k=4 dir=bwd act=silu dtype=fp32": "torch",
    "b2b_causal_conv1d b=2 c=3 l=20 proj=4 mixer=7 dtype=fp32": "torch",
    "b2b_causal_conv1d b=2 c=3 l=20 proj=4 mixer=7 save=no dtype=fp32": "torch",
    "b2b_causal_conv1d b=2 c=3 l=20 proj=3 mixer=5 dir=bwd dtype=fp32": "torch",
    "transform op=transpose dims=4x5x6x7 perm=0,2,1,3 dtype=bf16": "torch",
}


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)


@pytest.mark.parametrize("text", _CASES)
def test_every_peer_agrees_with_the_reference_in_every_output(text: str) -> None:
    data, outputs = _with_reference(text)
    for name in _CASES[text].split(", "):
        result = _peers(text, data)[name](0)
        assert isinstance(result, torch.Tensor) or len(result) == outputs
        assert data.disagreement(result) == ""


@pytest.mark.parametrize("text", ["norm dims=40x72 mode=layer dtype=bf16", "norm dims=40x72 mode=rms scale=scale"])
def test_an_error_in_any_output_is_found(text: str) -> None:
    data, outputs = _with_reference(text)
    for number in range(outputs):
        result = [values.clone() for values in _peers(text, data)["torch"](0)]
        result[number].view(-1)[3] += 0.2
        assert data.disagreement(result)
        result[number].view(-1)[3] = float("nan")
        assert data.disagreement(result)


def test_a_result_of_fp32_has_the_accuracy_of_fp32() -> None:
    data, _ = _with_reference("softmax dims=40x72")
    right = _peers("softmax dims=40x72", data)["torch"](0)[0]
    assert data.disagreement([right.bfloat16()]) == ""
    assert data.disagreement([right.bfloat16().float()])


def _peers(text: str, data: Any) -> Any:
    from tools.bench.peers.catalog import peers_of

    return peers_of(parse_case(text), data)


def _with_reference(text: str) -> tuple[Any, int]:
    """The data of a case, with lowdnn's reference as its outputs, and how many these are."""
    from tools.bench.data import CaseData

    torch.manual_seed(len(text))
    case = parse_case(text)
    graph = case.graph()
    data = CaseData(case, graph, 1, "cpu")
    given = dict(zip((t.uid for t in graph.inputs if t.constant_value is None), data.inputs(), strict=True))
    tensors = {tensor.uid: tensor for tensor in graph.inputs}
    inputs = {
        uid: dtypes.from_float64(copies[0].double().numpy(), tensors[uid].data_type)
        if copies[0].is_floating_point()
        else copies[0].numpy()
        for uid, copies in given.items()
    }
    for copies, values in zip(data.outputs(), _references(graph, inputs), strict=True):
        copies[0].copy_(torch.from_numpy(values))
    return data, len(graph.outputs)


def _references(graph: Any, inputs: Any) -> Iterator[Any]:
    found = evaluate(graph, inputs)
    for output in graph.outputs:
        yield np.ascontiguousarray(dtypes.to_values(found[output.uid], output.data_type)).astype(np.float64)


def test_filters_of_subquadratic_ops_begin_with_the_current_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its results, here those of a stand-in with its definition, are those of ``torch.fft``."""
    from tools.bench.data import CaseData
    from tools.bench.peers.conv import spectral_peer, subquadratic_peer

    case = parse_case("conv n=2 c=3 hw=20 k=3 rs=7 groups=3 pad=6:0 dtype=fp32 layout=nchw")
    data = CaseData(case, case.graph(), 1, "cpu")
    assert isinstance(case, ConvolutionCase)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert subquadratic_peer(case, data) is None

    def convolve(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        for q in range(weight.shape[1]):
            y[..., q:] += weight[:, q : q + 1] * x[..., : x.shape[2] - q]
        return y

    package = SimpleNamespace(fft_causal_conv1d=convolve)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: package)
    monkeypatch.setitem(sys.modules, "subquadratic_ops_torch", package)
    monkeypatch.setitem(sys.modules, "subquadratic_ops_torch.fft_causal_conv1d", package)
    peer = subquadratic_peer(case, data)
    assert peer is not None
    torch.testing.assert_close(peer(0), spectral_peer(case, data)(0), rtol=1e-4, atol=1e-5)
