"""Attention of packed sequences and its gradients, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")

_NAMES = {"_flash_attention_forward", "_flash_attention_backward"}


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


@pytest.mark.parametrize(
    ("of_q", "of_k", "heads", "window"),
    [
        ([5, 17, 40], [5, 17, 40], 2, (-1, -1)),
        ([5, 1, 40], [9, 20, 64], 1, (-1, 0)),
        ([33, 130], [33, 140], 2, (6, 2)),
    ],
)
def test_packed_sequences(face: Face, of_q: list[int], of_k: list[int], heads: int, window: tuple[int, int]) -> None:
    device, size = face.torch_device, 32
    q = face.reals(sum(of_q), 2, size, dtype=torch.bfloat16)
    k, v = (face.reals(sum(of_k), heads, size, dtype=torch.bfloat16) for _ in range(2))
    cu_q, cu_k = ends(of_q, device), ends(of_k, device)

    def flash(q: Any, k: Any, v: Any) -> Any:
        left, right = (None if bound < 0 else bound for bound in window)
        return torch.ops.aten._flash_attention_forward(
            q, k, v, cu_q, cu_k, max(of_q), max(of_k), 0.0, window == (-1, 0), False, window_size_left=left,
            window_size_right=right,
        )[0]  # fmt: skip

    leaves = [leaf.requires_grad_() for leaf in (q, k, v)]
    before = face.counts()
    with face.enable(["attention"]):
        o = flash(*leaves)
        weights = torch.arange(o.numel(), device=device).remainder(3).reshape(o.shape)
        gradients = torch.autograd.grad((o.double() * weights).sum(), leaves)
    assert {key[0] for key, calls in face.counts().items() if not key[1] and calls != before.get(key, 0)} == _NAMES
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    shared = [wide[0], *(leaf.repeat_interleave(2 // heads, 1) for leaf in wide[1:])]
    wanted = attended(*shared, cu_q, cu_k, window)
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
