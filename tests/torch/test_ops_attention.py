"""Attention with score modifiers, block masks, lengths, pages and sinks, against float64."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from lowdnn.status import BadParamError, NotSupportedError
from tests.torch.own_operations import check_compiled, check_registration, check_values
from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
ops: Any = pytest.importorskip("lowdnn.torch.ops")

_B, _H, _S, _T, _D = 2, 4, 40, 56, 32
_TAKEN = ("attention", "attention_backward")


def heads(face: Face, dtype: Any = torch.bfloat16, *, of_keys: int = 2) -> tuple[Any, Any, Any]:
    """q lies by rows of all heads, as a product leaves it."""
    q = face.reals(_B, _S, _H, _D, dtype=dtype).transpose(1, 2)
    return q, *(face.reals(_B, of_keys, _T, _D, dtype=dtype) for _ in range(2))


def scores_of(q: Any, k: Any) -> Any:
    return q @ k.repeat_interleave(_H // k.shape[1], 1).transpose(-1, -2) * _D**-0.5


def weighted(scores: Any, v: Any) -> Any:
    return scores.softmax(-1).nan_to_num() @ v.repeat_interleave(_H // v.shape[1], 1)


def distances(face: Face) -> Any:
    """The place of each key behind that of each query, counted from the last ones."""
    rows, columns = (torch.arange(count, device=face.torch_device) for count in (_S, _T))
    return columns - rows[:, None] - (_T - _S)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_windows_and_soft_caps(face: Face, dtype: Any) -> None:
    q, k, v = heads(face, dtype)
    distance = distances(face)

    def reference(q: Any, k: Any, v: Any) -> Any:
        scores = 1.5 * (scores_of(q, k) / 1.5).tanh()
        return weighted(scores.masked_fill((distance > 0) | (distance < -20), -inf), v)

    check_values(
        face, lambda q, k, v: ops.attention(q, k, v, causal=True, window=(20, -1), softcap=1.5), reference, q, k, v,
        taken=_TAKEN,
    )  # fmt: skip


def test_linear_biases(face: Face) -> None:
    q, k, v = heads(face, of_keys=4)
    rows, columns = (torch.arange(count, device=face.torch_device) for count in (_S, _T))
    slopes = 2.0 ** (-2.0 * torch.arange(1, 5, device=face.torch_device, dtype=torch.float64))

    def reference(q: Any, k: Any, v: Any) -> Any:
        return weighted(scores_of(q, k) + slopes[:, None, None] * (columns - rows[:, None]), v)

    check_values(face, lambda q, k, v: ops.attention(q, k, v, alibi=True), reference, q, k, v, taken=_TAKEN)


def test_lengths_and_sinks(face: Face) -> None:
    q, k, v = heads(face)
    sink = face.reals(_H, dtype=torch.float32)
    of_q, of_k = (torch.tensor(own, dtype=torch.int32, device=face.torch_device) for own in ((40, 13), (30, 56)))
    rows, columns = (torch.arange(count, device=face.torch_device) for count in (_S, _T))
    exists = rows[:, None] < of_q[:, None, None, None]

    def reference(q: Any, k: Any, v: Any, sink: Any) -> Any:
        scores = scores_of(q, k).masked_fill(columns >= of_k[:, None, None, None], -inf)
        sinks = sink[:, None, None].expand(_B, _H, _S, 1)
        weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :_T]
        return torch.where(exists, weights, 0.0) @ v.repeat_interleave(2, 1)

    check_values(
        face, lambda q, k, v, sink: ops.attention(q, k, v, lengths_q=of_q, lengths_k=of_k, sink=sink), reference, q, k,
        v, sink, taken=_TAKEN, rounded_to=torch.bfloat16,
    )  # fmt: skip


def test_a_bias(face: Face) -> None:
    q, k, v = heads(face)
    bias = face.reals(1, _H, _S, _T, dtype=torch.bfloat16)
    check_values(
        face, lambda q, k, v: ops.attention(q, k, v, bias=bias, scale=0.5),
        lambda q, k, v: weighted(0.5 * _D**0.5 * scores_of(q, k) + bias.double(), v), q, k, v, taken=_TAKEN,
    )  # fmt: skip


def test_a_mask_of_blocks(face: Face) -> None:
    q = face.reals(1, 2, 200, _D, dtype=torch.bfloat16)
    k, v = (face.reals(1, 2, 300, _D, dtype=torch.bfloat16) for _ in range(2))
    mask = torch.tensor([[[5], [2]], [[7], [1]]], dtype=torch.uint8, device=q.device)[None]
    seen = torch.zeros(1, 2, 200, 300, dtype=torch.bool, device=q.device)
    for head, row, blocks in ((0, 0, (0, 2)), (0, 1, (1,)), (1, 0, (0, 1, 2)), (1, 1, (0,))):
        for block in blocks:
            seen[0, head, 128 * row : 128 * row + 128, 128 * block : 128 * block + 128] = True
    with torch.no_grad():
        check_values(
            face, lambda q, k, v: ops.attention(q.detach(), k.detach(), v.detach(), block_mask=mask),
            lambda q, k, v: ((q @ k.mT * _D**-0.5).masked_fill(~seen, -inf).softmax(-1) @ v).detach(), q, k, v,
            taken=("attention",),
        )  # fmt: skip


def test_pages(face: Face) -> None:
    q = face.reals(_B, _H, 3, _D, dtype=torch.float16)
    cache_k, cache_v = (face.reals(9, 2, 16, _D, dtype=torch.float16) for _ in range(2))
    pages = torch.tensor([[3, 0, 7], [8, 2, 5]], dtype=torch.int32, device=q.device)
    of_q, of_k = (torch.tensor(own, dtype=torch.int32, device=q.device) for own in ((3, 2), (40, 17)))

    def reference(q: Any, k: Any, v: Any) -> Any:
        k, v = (own[pages.long()].transpose(1, 2).flatten(2, 3) for own in (k, v))
        columns, rows = torch.arange(48, device=q.device), torch.arange(3, device=q.device)
        o = weighted(scores_of(q, k).masked_fill(columns >= of_k[:, None, None, None], -inf), v)
        return torch.where(rows[:, None] < of_q[:, None, None, None], o, 0.0).detach()

    check_values(
        face,
        lambda q, k, v: ops.attention(
            q.detach(), k.detach(), v.detach(), pages=pages, lengths_q=of_q, lengths_k=of_k
        ),
        reference, q, cache_k, cache_v, taken=("attention",),
    )  # fmt: skip


def test_registration(face: Face) -> None:
    q, k, v = (own.requires_grad_() for own in heads(face))
    sink = face.reals(_H, dtype=torch.float32).requires_grad_()
    lengths = torch.tensor((30, 40), dtype=torch.int32, device=face.torch_device)
    numbers = 0.2, True, -1, -1, 0.0, False
    check_registration(face, "attention", q, k, v, None, None, lengths, lengths, None, sink, *numbers)
    o, stats = torch.ops.lowdnn.attention(q, k, v, None, None, None, None, None, None, *numbers)
    given = (own.detach() for own in (o, o, stats, q, k, v))
    check_registration(
        face, "attention_backward", *given, *(None,) * 6, *numbers, without=("test_aot_dispatch_dynamic",)
    )


def test_compiled(face: Face) -> None:
    q, k, v = heads(face)
    check_compiled(face, lambda q, k, v: ops.attention(q, k, v, causal=True, softcap=2.0) * 2, q, k, v)


def test_wrong_arguments(face: Face) -> None:
    q, k, v = heads(face)
    lengths = torch.ones(_B, dtype=torch.int32, device=q.device)
    for text, call in {
        r"attention\.k\.shape: expected \[batch, heads, rows, size\]": lambda: ops.attention(q, k[0], v),
        r"attention\.sink: expected a tensor of float32": lambda: ops.attention(q, k, v, sink=q[0, :, 0, 0]),
        r"attention\.sink\.shape: expected \[4\]": lambda: ops.attention(q, k, v, sink=torch.zeros(3)),
        r"attention\.lengths_k: expected lengths of queries and of keys": lambda: ops.attention(
            q, k, v, lengths_q=lengths
        ),
        r"attention\.pages: expected a tensor of int32": lambda: ops.attention(q, k, v, pages=lengths[:, None].long()),
    }.items():
        with pytest.raises(BadParamError, match=text):
            call()
    mask = torch.full((_B, _H, 1, 1), 1, dtype=torch.uint8, device=q.device)
    o = ops.attention(q.requires_grad_(), k, v, block_mask=mask)
    with pytest.raises(NotSupportedError, match="detach q, k and v"):
        o.sum().backward()
