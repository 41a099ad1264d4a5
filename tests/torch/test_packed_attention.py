"""Attention of packed sequences and its gradients, against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")


def ends(lengths: Sequence[int], device: str) -> Any:
    return torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)


def attended(q: Any, k: Any, v: Any, of_q: Any, of_k: Any, window: tuple[int, int]) -> Any:
    """Each sequence by itself, in float64; k and v have a head for each one of q."""
    found = []
    for batch in range(len(of_q) - 1):
        rows, columns = (slice(int(cu[batch]), int(cu[batch + 1])) for cu in (of_q, of_k))
        own_q, own_k, own_v = (tensor[part].transpose(0, 1) for tensor, part in ((q, rows), (k, columns), (v, columns)))
        scores = own_q @ own_k.transpose(1, 2) * q.shape[2] ** -0.5
        queries, keys = scores.shape[1:]
        place = torch.arange(queries, device=q.device)[:, None] + keys - queries
        distance = place - torch.arange(keys, device=q.device)
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        hidden |= (distance > window[0]) & (window[0] >= 0)
        hidden |= (-distance > window[1]) & (window[1] >= 0)
        found.append((scores.masked_fill(hidden, -1e30).softmax(-1) @ own_v).transpose(0, 1))
    return torch.cat(found)


def flash(q: Any, k: Any, v: Any, cu: list[Any], longest: list[int], window: tuple[int, int]) -> Any:
    left, right = (None if bound < 0 else bound for bound in window)
    return torch.ops.aten._flash_attention_forward(
        q, k, v, *cu, *longest, 0.0, window == (-1, 0), False, window_size_left=left, window_size_right=right
    )[0]  # fmt: skip


def efficient(q: Any, k: Any, v: Any, cu: list[Any], longest: list[int], window: tuple[int, int]) -> Any:
    rows = (own[None] for own in (q, k, v))
    return torch.ops.aten._efficient_attention_forward(
        *rows, None, *cu, *longest, 0.0, 2 if window == (-1, 0) else 0, True
    )[0][0]  # fmt: skip


def cudnn(q: Any, k: Any, v: Any, cu: list[Any], longest: list[int], window: tuple[int, int]) -> Any:
    return torch.ops.aten._cudnn_attention_forward(
        q, k, v, None, *cu, *longest, True, 0.0, window == (-1, 0)
    )[0]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "of_q", "of_k", "heads", "window"),
    [
        (flash, [5, 17, 40], [5, 17, 40], 2, (-1, -1)),
        (flash, [5, 1, 40], [9, 20, 64], 1, (-1, 0)),
        (flash, [33, 130], [33, 140], 2, (6, 2)),
        (efficient, [5, 1, 40], [9, 20, 64], 2, (-1, 0)),
        (efficient, [33, 70], [20, 90], 2, (-1, -1)),
        (cudnn, [5, 17, 40], [5, 17, 40], 2, (-1, 0)),
        (cudnn, [5, 1, 40], [9, 20, 64], 1, (-1, -1)),
    ],
)
def test_packed_sequences(
    face: Face, entry: Callable[..., Any], of_q: list[int], of_k: list[int], heads: int, window: tuple[int, int]
) -> None:
    device, size = face.torch_device, 32
    q = face.reals(sum(of_q), 2, size, dtype=torch.bfloat16)
    k, v = (face.reals(sum(of_k), heads, size, dtype=torch.bfloat16) for _ in range(2))
    cu = [ends(of_q, device), ends(of_k, device)]
    leaves = [leaf.requires_grad_() for leaf in (q, k, v)]
    before = face.counts()
    with face.enable(["attention"]):
        o = entry(*leaves, cu, [max(of_q), max(of_k)], window)
        weights = torch.arange(o.numel(), device=device).remainder(3).reshape(o.shape)
        gradients = torch.autograd.grad((o.double() * weights).sum(), leaves)
    names = {f"_{entry.__name__}_attention_{part}" for part in ("forward", "backward")}
    assert {key[0] for key, calls in face.counts().items() if not key[1] and calls != before.get(key, 0)} == names
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    shared = [wide[0], *(leaf.repeat_interleave(2 // heads, 1) for leaf in wide[1:])]
    wanted = attended(*shared, *cu, window)
    exact = torch.autograd.grad((wanted * weights).sum(), wide)
    for own, other in zip((o, *gradients), (wanted, *exact), strict=True):
        assert own.shape == other.shape
        assert (own.double() - other).abs().max() <= 2e-2 * max(1.0, other.abs().max().item())


def test_varlen_attn(face: Face) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen", reason="this torch has no varlen_attn")
    of_q = [7, 30]
    q, k, v = (face.reals(37, 2, 32, dtype=torch.float16) for _ in range(3))
    cu = ends(of_q, face.torch_device)
    with face.enable(["attention"]):
        o = varlen.varlen_attn(q, k, v, cu, cu, 30, 30)
    wanted = attended(q.double(), k.double(), v.double(), cu, cu, (-1, -1))
    assert (o.double() - wanted).abs().max() <= 5e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["efficient", "cudnn"])
def test_entries_of_packed_sequences_take_batches(face: Face, kind: str, causal: bool) -> None:
    """Memory-efficient attention has rows in front of heads, cuDNN's behind them."""
    q, k, v = (face.reals(2, 24, 24, 32, dtype=torch.float16) for _ in range(3))
    leaves = [leaf.requires_grad_() for leaf in (q, k, v)]
    before = face.counts()
    with face.enable(["attention"]):
        if kind == "efficient":
            o = torch.ops.aten._efficient_attention_forward(*leaves, *[None] * 5, 0.0, int(causal), True)[0]
        else:
            o = torch.ops.aten._cudnn_attention_forward(*leaves, *[None] * 3, 24, 24, True, 0.0, causal)[0]
        gradients = torch.autograd.grad(o.double().square().sum(), leaves)
    names = {f"_{kind}_attention_{part}" for part in ("forward", "backward")}
    assert {key[0] for key, calls in face.counts().items() if not key[1] and calls != before.get(key, 0)} == names
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    moved = [leaf.transpose(1, 2) if kind == "efficient" else leaf for leaf in wide]
    wanted = torch.nn.functional.scaled_dot_product_attention(*moved, is_causal=causal)
    wanted = wanted.transpose(1, 2) if kind == "efficient" else wanted
    exact = torch.autograd.grad(wanted.square().sum(), wide)
    for own, other in zip((o, *gradients), (wanted, *exact), strict=True):
        assert own.shape == other.shape
        assert (own.double() - other).abs().max() <= 1e-2 * max(1.0, other.abs().max().item())


@pytest.mark.parametrize("is_packed", [True, False])
def test_what_entries_of_gpus_return(is_packed: bool) -> None:
    """Shapes, strides and types are those that torch announces, or cuDNN's entry has, for which it announces none."""
    from lowdnn.torch.operations.lengths_attention import OVERLOADS
    from lowdnn.torch.sketch import Sketch

    lengths = (ends([5, 7], "cpu"), ends([9, 3], "cpu"), 7, 9) if is_packed else (None, None, 12, 12)
    q, k, v = (torch.empty(1, 12, 2, 32, dtype=torch.bfloat16) for _ in range(3))
    arguments = {
        "_efficient_attention_forward": (q, k, v, None, *lengths, 0.0, 1, True),
        "_cudnn_attention_forward": (*((q[0], k[0], v[0]) if is_packed else (q, k, v)), None, *lengths, True),
    }
    found = {}
    for overload in OVERLOADS:
        if overload.name in arguments:
            tensors, numbers = overload.read(*arguments[overload.name])
            sketch = Sketch(tensors, 16)
            places = overload.sketch(sketch, *numbers)
            found[overload.name] = [
                sketch.new[place - len(tensors)] if isinstance(place, int) else getattr(place, "value", None)
                for place in places
            ]
    metas = [own.to("meta") if isinstance(own, torch.Tensor) else own
             for own in arguments["_efficient_attention_forward"]]  # fmt: skip
    announced = torch.ops.aten._efficient_attention_forward(*metas)
    for own, wanted in zip(found["_efficient_attention_forward"], announced, strict=True):
        if isinstance(wanted, torch.Tensor):
            assert (own.shape, own.strides, own.dtype) == (tuple(wanted.shape), wanted.stride(), wanted.dtype)
        else:
            assert own == wanted
    o, stats, *rest = found["_cudnn_attention_forward"]
    assert o.shape == ((12, 2, 32) if is_packed else (1, 12, 2, 32))
    assert stats.shape == ((12, 2, 1) if is_packed else (1, 12, 2, 1))
    assert rest[:4] == [None, None, *((7, 9) if is_packed else (2, 2))]
    assert rest[6] is None


@pytest.mark.parametrize("kind", ["efficient", "cudnn"])
def test_log_sum_exp_of_packed_sequences(face: Face, kind: str) -> None:
    """(sequences, heads, rows for the longest) in memory-efficient attention, (rows, heads, 1) in cuDNN's."""
    lengths = [5, 17]
    q, k = (face.reals(22, 2, 32, dtype=torch.float16) for _ in range(2))
    cu = ends(lengths, face.torch_device)
    with face.enable(["attention"]):
        if kind == "efficient":
            rows = (own[None] for own in (q, k, k))
            stats = torch.ops.aten._efficient_attention_forward(*rows, None, cu, cu, 17, 17, 0.0, 0, True)[1]
        else:
            stats = torch.ops.aten._cudnn_attention_forward(q, k, k, None, cu, cu, 17, 17, True)[1]
    assert tuple(stats.shape) == ((2, 2, 32) if kind == "efficient" else (22, 2, 1))
    for number, (begin, length) in enumerate(((0, 5), (5, 17))):
        own_q, own_k = (own[begin : begin + length].transpose(0, 1).double() for own in (q, k))
        wanted = (own_q @ own_k.mT * 32**-0.5).logsumexp(-1)
        found = stats[number, :, :length] if kind == "efficient" else stats[begin : begin + length, :, 0].t()
        torch.testing.assert_close(found.double(), wanted, rtol=2e-3, atol=2e-3)


def test_statistics_of_padded_sequences_are_complete_for_torchs_gradient() -> None:
    """Behind the last query of each sequence torch's kernel expects infinity."""
    from lowdnn.torch.operations.lengths_attention import efficient_backward_native

    seen: list[Any] = []
    for cu, lengths in ((ends([5, 20], "cpu"), [5, 20]), (None, [25])):
        q, stats = torch.zeros(1, 25, 2, 8), torch.zeros(len(lengths), 2, 32)
        arguments = (q, q, q, q, None, q, cu, cu, 20, 20, stats)
        efficient_backward_native(lambda keys, *args: seen.append(args[10]), None, *arguments)
        for own, length in zip(seen[-1], lengths, strict=True):
            assert torch.equal(own.isinf(), (torch.arange(32) >= length).expand(2, -1))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dropout": 0.5}, "dropout, whose random numbers are torch's own"),
        ({"window": 4}, "a window of the caller's"),
        ({"bias": True}, "a bias of packed sequences"),
        ({"cu": torch.int64}, "offsets of int64"),
        ({"dtype": torch.float32}, "float32 of dims [1, 12, 2, 32]"),
        ({"batch": 2}, "float16 of dims [2, 12, 2, 32]"),
    ],
)
def test_calls_that_efficient_attention_computes(face: Face, changed: dict[str, Any], reason: str) -> None:
    q = face.reals(changed.get("batch", 1), 12, 2, 32, dtype=changed.get("dtype", torch.float16))
    cu = ends([12], face.torch_device).to(changed.get("cu", torch.int32))
    bias = face.reals(1, 2, 12, 12, dtype=torch.float16) if "bias" in changed else None
    key = "_efficient_attention_forward", reason
    before = face.counts().get(key, 0)
    with face.enable(["attention"]), suppress(NotImplementedError, RuntimeError):
        torch.ops.aten._efficient_attention_forward(
            q, q, q, bias, cu, cu, 12, 12, changed.get("dropout", 0.0), 0, window_size=changed.get("window")
        )
    assert face.counts()[key] == before + 1


@pytest.mark.parametrize("changed", ["dropout", "types", "not packed"])
def test_calls_that_flash_attention_computes(face: Face, changed: str) -> None:
    q = face.reals(12, 2, 32, dtype=torch.float32 if changed == "types" else torch.float16)
    cu = None if changed == "not packed" else ends([12], face.torch_device)
    reasons = {
        "dropout": "dropout, whose random numbers are torch's own",
        "types": "float32 of dims [12, 2, 32]",
        "not packed": "sequences that are not packed",
    }
    key = "_flash_attention_forward", reasons[changed]
    before = face.counts().get(key, 0)
    dropout = 0.5 if changed == "dropout" else 0.0
    try:
        with face.enable(["attention"]):
            torch.ops.aten._flash_attention_forward(q, q, q, cu, cu, 12, 12, dropout, False, False)
    except (NotImplementedError, RuntimeError, IndexError):
        pass  # there is no such kernel for CPU tensors, and none for these types
    assert face.counts()[key] == before + 1
