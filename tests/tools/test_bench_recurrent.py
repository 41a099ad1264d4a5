"""The peer of recurrent networks computes what lowdnn's references say: PyTorch's CPU modules in cuDNN's place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lowdnn.cases import parse_case
from lowdnn.cases.families.recurrent import RnnCase
from tests.tools.test_bench_peers import _with_reference

torch: Any = pytest.importorskip("torch", reason="the peers are torch's")

_CELLS = ("relu", "tanh", "lstm", "gru")
_TEXT = "rnn cell={} t=5 b=3 i=8 h=8 layers={} dtype=fp32 dir={}"


class CpuFunctions:
    """The two functions that call cuDNN, with their arguments and results, by the CPU's functions and autograd."""

    def _cudnn_rnn(
        self, x: Any, weights: Sequence[Any], of_layer: int, space: Any, hx: Any, cx: Any, *rest: Any
    ) -> Any:
        mode, _, _, layers, is_batch_first, dropout, is_training, *_ = rest
        assert of_layer == 4
        function = {0: torch._VF.rnn_relu, 1: torch._VF.rnn_tanh, 2: torch._VF.lstm, 3: torch._VF.gru}[mode]
        states = hx if cx is None else (hx, cx)
        found = function(x, states, list(weights), True, layers, dropout, is_training, False, is_batch_first)
        return found[0], found[1], torch.empty(0) if cx is None else found[2], torch.full((4,), 5.0), space

    def _cudnn_rnn_backward(
        self, x: Any, weights: Any, of_layer: int, space: Any, hx: Any, cx: Any, y: Any, dy: Any, dhy: Any, dcy: Any,
        *rest: Any,
    ) -> Any:  # fmt: skip
        *settings, reserve, wanted = rest
        assert reserve.tolist() == [5.0] * 4, "the reserve space of the forward pass is used up"
        reserve.fill_(0)
        assert wanted == [True, True, cx is not None, True]
        places = [(w.shape, w.stride(), (w.data_ptr() - space.data_ptr()) // space.element_size()) for w in weights]
        with torch.enable_grad():
            leaves = [None if t is None else t.detach().clone().requires_grad_() for t in (x, hx, cx, space)]
            parts = [leaves[3].as_strided(*place) for place in places]
            found = self._cudnn_rnn(leaves[0], parts, of_layer, leaves[3], *leaves[1:3], *settings)
            torch.testing.assert_close(found[0], y)
            given = [values for values in (dy, dhy, dcy) if values is not None]
            there = [leaf for leaf in leaves if leaf is not None]
            dx, dhx, *dcx, dw = torch.autograd.grad(found[: len(given)], there, given)
        return dx, dhx, dcx[0] if dcx else torch.empty(0), [dw.as_strided(*place) for place in places]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.bench.peers import recurrent

    monkeypatch.setattr(recurrent, "_aten", CpuFunctions())


@pytest.mark.parametrize("cell", _CELLS)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("direction", ["fwd", "train", "bwd"])
def test_the_peer_agrees_with_the_reference(cell: str, layers: int, direction: str) -> None:
    from tools.bench.peers.catalog import peers_of

    text = _TEXT.format(cell, layers, direction)
    data, outputs = _with_reference(text)
    (peer,) = peers_of(parse_case(text), data).values()
    result = peer(0)
    assert len(result) == outputs
    assert sum(values is not None for values in result) == 2 + (cell == "lstm") + (direction == "bwd")
    assert data.disagreement(result) == ""
    for number, values in enumerate(result):
        if values is not None:
            wrong = [None if other is None else other.clone() for other in result]
            wrong[number].view(-1)[0] += 1
            assert data.disagreement(wrong)


@pytest.mark.parametrize("cell", _CELLS)
def test_states_are_saved_as_the_forward_pass_saves_them(cell: str) -> None:
    from tools.bench.saved_states import saved_states

    case = parse_case(_TEXT.format(cell, 3, "train"))
    assert isinstance(case, RnnCase)
    graph, (operation,) = case.graph(), case.graph().operations
    inputs = {tensor.name: case.inputs(3, exact=False)[tensor.uid] for tensor in graph.inputs}
    found = saved_states(case.rnn, {name: torch.from_numpy(values) for name, values in inputs.items()})
    wanted = operation.reference({name: values.astype(np.float64) for name, values in inputs.items()})
    assert {*found} == {"gates", "outputs", "y"} | ({"cells"} if cell == "lstm" else set())
    for name, values in found.items():
        np.testing.assert_allclose(values.numpy(), wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_what_a_peer_uses_up_is_restored() -> None:
    from tools.bench.capture import Consuming
    from tools.bench.peers.catalog import peers_of

    text = _TEXT.format("gru", 2, "bwd")
    data, _ = _with_reference(text)
    (peer,) = peers_of(parse_case(text), data).values()
    assert isinstance(peer, Consuming)
    first = [values.clone() for values in peer(0)]
    with pytest.raises(AssertionError, match="used up"):
        peer(0)
    peer.restore()
    for again, values in zip(peer(0), first, strict=True):
        torch.testing.assert_close(again, values)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_errors_are_compared_with_the_peers_own(direction: str) -> None:
    from tools.bench.peers.catalog import peers_of
    from tools.bench.peers.recurrent import exact_results

    text = _TEXT.format("lstm", 2, direction)
    case = parse_case(text)
    assert isinstance(case, RnnCase)
    data, outputs = _with_reference(text)
    (peer,) = peers_of(case, data).values()
    exact = exact_results(case, data)
    assert len(exact) == outputs
    for values, wanted in zip(peer(0), exact, strict=True):
        if values is not None:
            torch.testing.assert_close(wanted, values.reshape(wanted.shape))
    # A peer that errs as bf16 does, everywhere: ours may err by as much again, and not by three times as much.
    coarse = [None if values is None else values + 0.01 for values in exact]
    assert data.excess(coarse, exact) == ""
    ours = data.outputs()[outputs - 1][0]
    ours.view(-1)[0] += 0.03
    assert "greatest error of ours 0.03" in data.excess(coarse, exact)
    ours.copy_(exact[-1].reshape(ours.shape) + 0.019)
    assert data.excess(coarse, exact) == ""
    ours.view(-1)[0] = float("nan")
    assert "nan" in data.excess(coarse, exact)


@pytest.mark.parametrize("more", ["bi=yes", "bias=none", "lengths=5x4x3", "states=no", "reset=before", "layout=batch"])
def test_networks_that_the_peer_does_not_compute_are_refused(more: str) -> None:
    from tools.bench.peers.catalog import peers_of

    text = f"rnn cell=gru t=5 b=3 i=8 h=8 {more}"
    data, _ = _with_reference(text)
    with pytest.raises(ValueError, match=r"expected sequences of one length, .* and a plain network"):
        peers_of(parse_case(text), data)
