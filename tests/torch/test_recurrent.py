"""RNN, LSTM and GRU through PyTorch's entry to cuDNN, with their gradients, against PyTorch's networks on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from lowdnn.status import NotSupportedError
from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
nn = torch.nn

_INPUT, _HIDDEN, _BATCH, _LENGTH = 6, 8, 3, 5
_TAKEN = {"_cudnn_rnn", "_cudnn_rnn_backward"}


class Network:
    """One of torch's networks, with its weights also in one buffer as cuDNN has them."""

    def __init__(self, face: Face, kind: str, mode: int, dtype: Any, **options: Any) -> None:
        self.mode, self.device = mode, face.torch_device
        self.module = getattr(nn, kind)(_INPUT, _HIDDEN, **options).double()
        for parameter in self.module.parameters():
            parameter.data = parameter.data.to(dtype).double()
        flat = self.module._flat_weights
        self.per_layer = 2 + 2 * self.module.bias + bool(self.module.proj_size)
        layers = [flat[first : first + self.per_layer] for first in range(0, len(flat), self.per_layer)]
        is_matrix = [weight for layer in layers for weight in layer if weight.dim() == 2]
        is_bias = [weight for layer in layers for weight in layer if weight.dim() == 1]
        inside = [weight.detach().to(self.device, dtype) for weight in (*is_matrix, *is_bias)]
        self.buffer = torch.cat([weight.reshape(-1) for weight in inside])
        places, first = {}, 0
        for own, weight in zip((*is_matrix, *is_bias), inside, strict=True):
            places[own] = self.buffer[first : first + weight.numel()].view(weight.shape).requires_grad_()
            first += weight.numel()
        self.weights = [places[weight] for weight in flat]

    def inputs(self, dtype: Any) -> list[Any]:
        module = self.module
        rows = (_BATCH, _LENGTH) if module.batch_first else (_LENGTH, _BATCH)
        count = module.num_layers * (2 if module.bidirectional else 1)
        shapes = [(*rows, _INPUT), (count, _BATCH, module.proj_size or _HIDDEN)]
        shapes += [(count, _BATCH, _HIDDEN)] if self.mode == 2 else []
        return [torch.randn(shape, dtype=torch.float64).to(dtype).to(self.device).requires_grad_() for shape in shapes]

    def call(
        self, inputs: list[Any], *, training: bool = True, dropout: float = 0.0, batch_sizes: Sequence[int] = ()
    ) -> tuple[Any, ...]:
        module, (x, hx, *cx) = self.module, inputs
        return torch.ops.aten._cudnn_rnn(
            x, self.weights, self.per_layer, self.buffer, hx, cx[0] if cx else None, self.mode, _HIDDEN,
            module.proj_size, module.num_layers, module.batch_first, dropout, training, module.bidirectional,
            batch_sizes, None,
        )  # fmt: skip

    def reference(self, inputs: list[Any], batch_sizes: Sequence[int] = ()) -> tuple[list[Any], list[Any]]:
        leaves = [leaf.detach().cpu().double().requires_grad_() for leaf in inputs]
        x, *states = leaves
        rows = nn.utils.rnn.PackedSequence(x, torch.tensor(batch_sizes)) if batch_sizes else x
        y, last = self.module(rows, tuple(states) if self.mode == 2 else states[0])
        y = y.data if batch_sizes else y
        results = [y, *(last if self.mode == 2 else [last])]
        return results, torch.autograd.grad(weighted(results), [*leaves, *self.module._flat_weights])


def weighted(results: list[Any]) -> Any:
    total = 0.0
    for result in results:
        weights = torch.arange(result.numel(), device=result.device).remainder(3).reshape(result.shape)
        total = total + (result.double() * weights).sum()
    return total


NETWORKS = {
    "LSTM of two layers": ("LSTM", 2, {"num_layers": 2}),
    "LSTM with projections": ("LSTM", 2, {"proj_size": 5, "bidirectional": True}),
    "GRU in both directions": ("GRU", 3, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "RNN with tanh": ("RNN", 1, {"batch_first": True}),
    "RNN with relu": ("RNN", 0, {"nonlinearity": "relu", "bias": False}),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("dtype", "batch_sizes"), [(torch.float32, []), (torch.bfloat16, []), (torch.float32, [3, 3, 2, 2, 1])]
)
def test_networks_and_their_gradients(face: Face, name: str, dtype: Any, batch_sizes: list[int]) -> None:
    """batch_sizes: how many sequences each step has, where they are packed."""
    kind, mode, options = NETWORKS[name]
    network = Network(face, kind, mode, dtype, **options)
    inputs = network.inputs(dtype)
    if batch_sizes:
        rows = inputs[0].detach().reshape(-1, _INPUT)[: sum(batch_sizes)]
        inputs[0] = rows.clone().requires_grad_()
    wanted, gradients = network.reference(inputs, batch_sizes)
    before = face.counts()
    with face.enable(["rnn"]), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        y, hy, cy, _, _ = network.call(inputs, batch_sizes=batch_sizes)
        found = [y, hy, *([cy] if mode == 2 else [])]
        own = torch.autograd.grad(weighted(found), [*inputs, *network.weights])
    assert {key[0] for key, calls in face.counts().items() if not key[1] and calls != before.get(key, 0)} == _TAKEN
    for value, other in zip((*found, *own), (*wanted, *gradients), strict=True):
        assert value.shape == other.shape
        error = (value.detach().cpu().double() - other.detach()).abs().max().item()
        assert error <= 40 * torch.finfo(dtype).eps * max(1.0, other.abs().max().item())


def test_gradients_have_the_shapes_of_the_weights(face: Face) -> None:
    """Under autocast cuDNN's form of weights comes, which are columns."""
    network = Network(face, "LSTM", 2, torch.float32)
    inputs = network.inputs(torch.float32)
    matrices = network.weights
    network.weights = [weight.detach().view(-1, 1).requires_grad_() for weight in matrices]
    _, wanted = network.reference(inputs)
    with face.enable(["rnn"]), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        y, hy, cy, _, _ = network.call(inputs)
        found = torch.autograd.grad(weighted([y, hy, cy]), network.weights)
    for gradient, weight, other in zip(found, network.weights, wanted[len(inputs) :], strict=True):
        assert gradient.shape == weight.shape
        torch.testing.assert_close(gradient.flatten().cpu(), other.flatten().float(), rtol=1e-4, atol=1e-5)


def test_inference_keeps_nothing(face: Face) -> None:
    network = Network(face, "LSTM", 2, torch.float32)
    inputs = network.inputs(torch.float32)
    with face.enable(["rnn"]), torch.no_grad():
        y, _, _, reserve, buffer = network.call(inputs, training=False)
    assert reserve.numel() == 0
    assert buffer.data_ptr() == network.buffer.data_ptr()
    torch.testing.assert_close(y.cpu(), network.reference(inputs)[0][0].detach().float(), rtol=2e-3, atol=2e-3)


def test_dropout_between_layers(face: Face) -> None:
    """The second layer hands on what the mask leaves of the first one's states, which are not negative."""
    network = Network(face, "RNN", 0, torch.float64, nonlinearity="relu", bias=False, num_layers=2)
    x, hx = network.inputs(torch.float64)
    with torch.no_grad():
        network.weights[2].copy_(torch.eye(_HIDDEN))
        network.weights[3].zero_()
    hx.data[1] = 0
    with face.enable(["rnn"]):
        plain = network.call([x, hx])[0]
        results = []
        for seed in (3, 3, 4):
            torch.manual_seed(seed)
            results.append(network.call([x, hx], dropout=0.25)[0])
        (gradient,) = torch.autograd.grad(results[0].sum(), network.weights[2])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    kept = plain > 1e-9
    shares = (results[0] / plain)[kept]
    is_kept = shares.abs() > 0.5
    torch.testing.assert_close(shares[is_kept], torch.full_like(shares[is_kept], 4 / 3))
    torch.testing.assert_close(shares[~is_kept], torch.zeros_like(shares[~is_kept]))
    assert 0 < is_kept.sum() < kept.sum()
    # y = mask * W h: the gradient for W is mask * h, summed over all rows where y is positive.
    torch.testing.assert_close((gradient * torch.eye(_HIDDEN, device=x.device)).sum(), results[0].sum())


def test_calls_that_cudnn_computes(face: Face) -> None:
    """Weights of several types or outside of the buffer; on the CPU there is no cuDNN to turn to."""
    network = Network(face, "LSTM", 2, torch.float32, num_layers=2)
    inputs = network.inputs(torch.float32)
    before = face.counts()
    with face.enable(["rnn"]), suppress(NotImplementedError, RuntimeError):
        network.call([inputs[0].double(), *inputs[1:]])
    network.weights[0] = network.weights[0].detach().clone()
    with face.enable(["rnn"]), suppress(NotImplementedError, RuntimeError):
        network.call(inputs)
    reasons = {key[1] for key, calls in face.counts().items() if calls != before.get(key, 0)}
    assert reasons >= {
        "float64 and float32 in one call", "weights that do not lie in one buffer: see flatten_parameters"
    }  # fmt: skip


def test_cudnn_does_not_read_what_lowdnn_has_saved(face: Face) -> None:
    network = Network(face, "GRU", 3, torch.float32)
    inputs = network.inputs(torch.float32)
    with face.enable(["rnn"]):
        y, *_ = network.call(inputs)
        reserve = y.grad_fn._saved_result3
        arguments = (
            inputs[0][:, :2], network.weights, 4, network.buffer, inputs[1][:, :2], None, y[:, :2], y[:, :2], None,
            None, 3, _HIDDEN, 0, 1, False, 0.0, True, False, [], None, reserve, [True] * 4,
        )  # fmt: skip
        with torch.no_grad(), pytest.raises(NotSupportedError, match=r"keep lowdnn\.torch enabled"):
            torch.ops.aten._cudnn_rnn_backward(*arguments)
