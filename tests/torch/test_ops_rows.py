"""Rotary embedding, residual sums with norms, and cross entropy, against float64."""

from __future__ import annotations

from typing import Any

import pytest

from lowdnn.status import BadParamError
from tests.torch.own_operations import check_compiled, check_registration, check_values
from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
ops: Any = pytest.importorskip("lowdnn.torch.ops")
F = torch.nn.functional

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def rotated(x: Any, angles: Any, scale: float) -> Any:
    """By products of complex numbers."""
    count = angles.shape[1]
    passed, low, high = x.split((x.shape[-1] - count, count // 2, count // 2), -1)
    turned = torch.complex(low, high) * torch.polar(torch.ones_like(angles), angles)[:, : count // 2]
    return scale * torch.cat((passed, turned.real, turned.imag), -1)


def angles_of(face: Face, positions: int, count: int) -> Any:
    half = torch.outer(torch.arange(float(positions)), 100.0 ** -torch.linspace(0, 1, count // 2))
    return torch.cat((half, half), 1).to(face.torch_device)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [16, 6])
def test_rotary_embedding(face: Face, dtype: Any, count: int) -> None:
    """Heads between positions in memory, as a model cuts them out of a product; all or a part of each row."""
    x, angles = face.reals(2, 5, 3, 16, dtype=dtype).transpose(1, 2), angles_of(face, 5, count)
    check_values(
        face, lambda x: ops.rotary_embedding(x, angles, 0.5), lambda x: rotated(x, angles.double(), 0.5), x,
        taken=("rotary_embedding", "rotary_embedding_backward"),
    )  # fmt: skip


@pytest.mark.parametrize(("dtype", "residual"), [*((dtype, dtype) for dtype in TYPES), (torch.bfloat16, torch.float32)])
@pytest.mark.parametrize("centred", [False, True])
def test_residual_sum_and_norm(face: Face, dtype: Any, residual: Any, centred: bool) -> None:
    x, rest, weight, bias = (
        face.reals(*dims, dtype=own)
        for dims, own in (((3, 5, 24), dtype), ((3, 5, 24), residual), ((24,), dtype), ((24,), dtype))
    )

    def own(x: Any, rest: Any, weight: Any, bias: Any) -> Any:
        if centred:
            return ops.add_layer_norm(x, rest, weight, bias, eps=1e-3)
        return ops.add_rms_norm(x, rest, weight, eps=1e-3)

    def plain(x: Any, rest: Any, weight: Any, bias: Any) -> Any:
        total = x + rest
        if centred:
            return F.layer_norm(total, (24,), weight, bias, 1e-3), total
        return F.rms_norm(total, (24,), weight, 1e-3), total

    leaves = (x, rest, weight, bias) if centred else (x, rest, weight)
    arguments = (lambda *given: own(*given, None), lambda *given: plain(*given, None)) if not centred else (own, plain)
    check_values(face, *arguments, *leaves, taken=("add_norm", "add_norm_backward"), roundings=24)


def test_norm_without_parameters(face: Face) -> None:
    x, rest = face.reals(4, 8, dtype=torch.float32), face.reals(4, 8, dtype=torch.float32)
    taken = ("add_norm", "add_norm_backward")
    check_values(
        face, lambda x, rest: ops.add_rms_norm(x, rest)[0], lambda x, rest: F.rms_norm(x + rest, (8,), eps=1e-6), x,
        rest, taken=taken,
    )  # fmt: skip
    check_values(
        face, lambda x, rest: ops.add_layer_norm(x, rest), lambda x, rest: (F.layer_norm(x + rest, (8,)), x + rest), x,
        rest, taken=taken,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(face: Face, dtype: Any, reduction: str) -> None:
    x, target = 3 * face.reals(9, 21, dtype=dtype), torch.randint(21, (9,), device=face.torch_device)
    target[4] = 7
    check_values(
        face, lambda x: ops.cross_entropy(x, target, ignore_index=7, reduction=reduction),
        lambda x: F.cross_entropy(x, target, ignore_index=7, reduction=reduction), x,
        taken=("log_sum_exp", "cross_entropy_backward"),
    )  # fmt: skip


def test_log_sum_exp(face: Face) -> None:
    x = face.reals(2, 3, 17, dtype=torch.bfloat16)
    check_values(face, ops.log_sum_exp, lambda x: x.logsumexp(-1), x, taken=("log_sum_exp",))


def test_registration(face: Face) -> None:
    x, angles = face.reals(2, 3, 5, 8, dtype=torch.float32).requires_grad_(), angles_of(face, 5, 4)
    for name in ("rotary_embedding", "rotary_embedding_backward"):
        check_registration(face, name, x, angles, 2.0)
    rows, weight = x.detach().reshape(30, 8).requires_grad_(), face.reals(8, dtype=torch.float32).requires_grad_()
    check_registration(face, "add_norm", rows, rows, weight, weight, 1e-5, True)
    check_registration(face, "add_norm", rows, rows, None, None, 1e-5, False)
    stats = face.reals(30, 1, dtype=torch.float32).abs()
    check_registration(face, "add_norm_backward", rows, rows, rows, weight, stats, stats, 1e-5, True)
    check_registration(face, "add_norm_backward", rows, None, rows, None, stats[:0], stats, 1e-5, False)
    target = torch.arange(30, device=x.device).remainder(8)
    check_registration(face, "log_sum_exp", rows)
    check_registration(face, "cross_entropy", rows, target, -100)
    check_registration(face, "cross_entropy_backward", stats[:, 0], rows, target, stats[:, 0])


def test_second_gradients() -> None:
    x, angles = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True), torch.randn(3, 4)
    rows, weight = (torch.randn(dims, dtype=torch.float64, requires_grad=True) for dims in ((3, 5), (5,)))
    target = torch.tensor([0, 4, -100])
    for call, leaves in (
        (lambda x: ops.rotary_embedding(x, angles), (x,)),
        (lambda rows, weight: ops.add_layer_norm(rows, 2 * rows, weight, weight), (rows, weight)),
        (lambda rows, weight: ops.add_rms_norm(rows, 2 * rows, weight), (rows, weight)),
        (lambda rows: ops.cross_entropy(rows, target), (rows,)),
    ):
        assert torch.autograd.gradcheck(call, leaves)
        assert torch.autograd.gradgradcheck(call, leaves)


def test_compiled(face: Face) -> None:
    x, angles = face.reals(1, 2, 4, 8, dtype=torch.float32), angles_of(face, 4, 8)
    target = torch.tensor([0, 3, 7, 1, 2, 5, 4, 6], device=face.torch_device)

    def block(x: Any) -> Any:
        turned = ops.rotary_embedding(x, angles) * 2
        y, total = ops.add_rms_norm(turned, x, turned[0, 0, 0])
        return ops.cross_entropy((y + total).reshape(8, 8), target)

    check_compiled(face, block, x)


def test_wrong_arguments() -> None:
    x = torch.zeros(2, 3, 4, 8)
    rows = x[0, 0]
    for text, call in {
        r"rotary_embedding\.x\.shape: expected \[batch, heads, positions, size\], got \[4, 8\]": lambda: (
            ops.rotary_embedding(rows, rows)
        ),
        r"rotary_embedding\.angles\.shape: expected \[4, R\], got \[8, 4\]": lambda: ops.rotary_embedding(x, rows.T),
        r"angles\.shape\[1\]: expected an even number from 2 to 8, got 3": lambda: ops.rotary_embedding(x, rows[:, :3]),
        r"rotary_embedding\.x: expected a tensor of floats, got torch.int64": lambda: ops.rotary_embedding(
            x.long(), rows
        ),
        r"add_rms_norm\.residual\.shape: expected that of x": lambda: ops.add_rms_norm(x, rows),
        r"add_layer_norm\.bias\.shape: expected \[8\], got \[4\]": lambda: ops.add_layer_norm(x, x, None, rows[:, 0]),
        r"cross_entropy\.target: expected a tensor of int64, got list": lambda: ops.cross_entropy(rows, [0]),
        r"cross_entropy\.reduction: expected mean, sum, none, got 'max'": lambda: ops.cross_entropy(
            rows, torch.zeros(4, dtype=torch.int64), reduction="max"
        ),
        r"log_sum_exp\.x: expected a tensor of floats, got int": lambda: ops.log_sum_exp(3),
        r"rotary_embedding\.x: expected a tensor of floats, got NoneType": lambda: ops.rotary_embedding(None, rows),
        r"add_rms_norm\.residual: expected a tensor of floats, got NoneType": lambda: ops.add_rms_norm(x, None),
    }.items():
        with pytest.raises(BadParamError, match=text):
            call()
