"""Operations that torch has for CUDA tensors alone, on the emulated device: their forms and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
aten = torch.ops.aten


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[..., Any]]:
    """Calls an operation on CPU tensors as the dispatcher would; declined calls fail."""
    from lowdnn.torch.catalog import OVERLOADS
    from lowdnn.torch.counts import PathCounts
    from lowdnn.torch.memory import EmulatedMemory
    from lowdnn.torch.taken import Plans, kernel

    memory, counts = EmulatedMemory(), PathCounts()
    plans = {overload.name: Plans(overload, memory, counts) for overload in OVERLOADS}

    def native(*_: Any, **__: Any) -> Any:
        pytest.fail(f"declined: {counts.snapshot()}")

    def called(name: str, *args: Any, **kwargs: Any) -> Any:
        return kernel(plans[name], native)(*args, **kwargs)

    yield called
    memory.close()


def facts(values: Any) -> list[Any]:
    return [
        (tuple(value.shape), value.stride(), value.dtype) if isinstance(value, torch.Tensor) else value
        for value in values
    ]


def meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def announced(name: str, *args: Any, **kwargs: Any) -> list[Any]:
    """The results' facts by torch's own kernel for tensors without values."""
    return facts(getattr(aten, name)(*map(meta, args), **kwargs))


def attended(q: Any, k: Any, v: Any, dy: Any, *, causal: bool, scale: float) -> list[Any]:
    """o and the gradients in fp64."""
    leaves = [own.double().requires_grad_() for own in (q, k, v)]
    scores = scale * leaves[0] @ leaves[1].transpose(-1, -2)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    o = scores.softmax(-1) @ leaves[2]
    return [o.detach(), *torch.autograd.grad((o * dy.double()).sum(), leaves)]


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_attention(run: Callable[..., Any], kind: str, is_transposed: bool) -> None:
    q, k, v, dy = (torch.randn(2, 2, 40, 32, dtype=torch.bfloat16) for _ in range(4))
    if is_transposed:
        q, k, v = (own.transpose(1, 2).contiguous().transpose(1, 2) for own in (q, k, v))
    name, causal = f"_scaled_dot_product_{kind}_attention", is_transposed
    arguments = (0.0, causal) if kind == "flash" else (None, True, 0.0, causal)
    forward = run(name, q, k, v, *arguments, scale=0.3)
    assert facts(forward) == announced(name, q, k, v, *arguments, scale=0.3)
    o, stats = forward[:2]
    empty = torch.empty(0)
    rest = {
        "flash": (empty, empty, 40, 40, 0.0, causal, empty, empty),
        "efficient": (empty, empty, 0.0, [True, True, True, False], causal),
        "cudnn": (empty, empty, None, empty, empty, 40, 40, 0.0, causal),
    }[kind]
    before = (None,) if kind == "efficient" else ()
    gradients = run(f"{name}_backward", dy, q, k, v, *before, o, stats, *rest, scale=0.3)
    assert len(gradients) == (4 if kind == "efficient" else 3)
    expected = attended(q, k, v, dy, causal=causal, scale=0.3)
    for own, wanted in zip((o, *gradients[:3]), expected, strict=True):
        torch.testing.assert_close(own.double(), wanted, rtol=3e-2, atol=3e-2)


def test_batch_norm_of_cudnn(run: Callable[..., Any]) -> None:
    x, dy, scale, bias = torch.randn(3, 4, 5, 2), torch.randn(3, 4, 5, 2), torch.randn(4), torch.randn(4)
    mean, var = torch.zeros(4), torch.ones(4)
    y, saved_mean, saved_root, reserve = run("cudnn_batch_norm", x, scale, bias, mean, var, True, 0.1, 1e-5)
    assert (
        facts((y, saved_mean, saved_root))
        == announced("cudnn_batch_norm", x, scale, bias, mean, var, True, 0.1, 1e-5)[:3]
    )
    assert reserve.shape == (0,)
    gradients = run("cudnn_batch_norm_backward", x, dy, scale, mean, var, saved_mean, saved_root, 1e-5, reserve)
    leaves = [own.double().requires_grad_() for own in (x, scale, bias)]
    running = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    wanted = torch.nn.functional.batch_norm(leaves[0], *running, *leaves[1:], training=True)
    expected = wanted, *torch.autograd.grad((wanted * dy.double()).sum(), leaves), *running
    for own, other in zip((y, *gradients, mean, var), expected, strict=True):
        torch.testing.assert_close(own.double(), other.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("allows_tf32", [True, False])
def test_fp32_is_rounded_only_where_torch_allows_it(allows_tf32: bool) -> None:
    from lowdnn.enums import NumericalNote
    from lowdnn.torch.memory import EmulatedMemory
    from lowdnn.torch.operation import ABSENT
    from lowdnn.torch.operations.convolution import OVERLOADS
    from lowdnn.torch.planning import prepare
    from lowdnn.torch.settings import Settings

    memory = EmulatedMemory()
    tensors = torch.empty(8, 64, 32, 32), torch.empty(64, 64, 3, 3), ABSENT
    numbers = (1, 1), (1, 1), (1, 1), False, (0, 0), 1
    prepared = prepare(OVERLOADS[0], tensors, numbers, 16, Settings(allows_tf32=allows_tf32), memory)
    notes = prepared.steps[0].loaded.plan.numerical_notes
    assert (NumericalNote.TF32_INPUTS in notes) == allows_tf32
    memory.close()


def test_efficient_statistics_are_complete_for_torchs_gradient() -> None:
    """Behind the last query torch's kernel expects infinity."""
    from lowdnn.torch.operations.attention import efficient_backward_native

    stats, q, seen = torch.zeros(1, 1, 32), torch.zeros(1, 1, 20, 8), []
    arguments = (q, q, q, q, None, q, stats)
    efficient_backward_native(lambda keys, *args: seen.append(args[6]), None, *arguments)
    assert torch.equal(seen[0][0, 0].isinf(), torch.arange(32) >= 20)
