"""Matrix products bit for bit on whole numbers; softmax and its logarithm with their gradients."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_products_are_equal(face: Face, dtype: Any) -> None:
    a, b = face.integers(5, 8, dtype=dtype), face.integers(8, 16, dtype=dtype)
    face.check(torch.mm, a, b, taken=["mm"], exact=True)
    face.check(lambda a, b: torch.mm(b.t(), a.t()), a, b, taken=["mm"], exact=True)
    batches = face.integers(3, 5, 8, dtype=dtype), face.integers(3, 8, 16, dtype=dtype)
    face.check(torch.bmm, *batches, taken=["bmm"], exact=True)


@pytest.mark.parametrize("dims", [(6,), (4, 1), (4, 6)])
def test_sums_of_products_are_equal(face: Face, dims: tuple[int, ...]) -> None:
    c, a, b = (face.integers(*own, dtype=torch.float32) for own in (dims, (4, 5), (5, 6)))
    face.check(lambda *leaves: torch.addmm(*leaves, beta=0.5, alpha=2), c, a, b, taken=["addmm", "mm"], exact=True)
    face.check(lambda *leaves: torch.addmm(*leaves, beta=0), c, a, b, taken=["addmm", "mm"], exact=True)
    batches = [own.expand(2, *own.shape).clone() for own in (a, b)]
    face.check(lambda *leaves: torch.baddbmm(*leaves, alpha=2), c, *batches, taken=["baddbmm", "bmm"], exact=True)


def test_a_summand_times_0_is_not_read(face: Face) -> None:
    a, b = face.integers(4, 5, dtype=torch.float32), face.integers(5, 6, dtype=torch.float32)
    with face.enable(["matmul"]):
        found = torch.addmm(torch.full((6,), torch.nan, device=a.device), a, b, beta=0)
    assert torch.equal(found.double(), a.double() @ b.double())


def test_results_go_where_the_caller_says(face: Face) -> None:
    a, b, out = (face.integers(*dims, dtype=torch.float32) for dims in ((4, 5), (5, 6), (4, 12)))
    expected, kept = a.double() @ b.double(), out[:, 1::2].clone()
    with face.enable(["matmul"]):
        returned = torch.mm(a, b, out=out[:, ::2])
        resized = torch.mm(a, b, out=torch.empty(0, device=a.device))
    assert returned.data_ptr() == out.data_ptr()
    assert torch.equal(out[:, ::2].double(), expected)
    assert torch.equal(out[:, 1::2], kept)
    assert torch.equal(resized.double(), expected)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax(face: Face, name: str, axis: int) -> None:
    x = face.reals(3, 5, 4, dtype=torch.float32)
    names = [f"_{name}", f"_{name}_backward_data"]
    face.check(lambda x: getattr(torch, name)(x, axis), x, taken=names, tolerance=1e-5)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("columns", [4, 700])
def test_rows_of_minus_infinity(face: Face, name: str, columns: int) -> None:
    """PyTorch gives NaN, also as gradients: there is no largest element to subtract."""
    x = face.reals(3, columns, dtype=torch.float32)
    x[1] = -torch.inf
    before = face.counts()
    with face.enable(["softmax"]):
        leaf = x.requires_grad_()
        y = getattr(torch, name)(leaf, -1)
        (gradient,) = torch.autograd.grad(y[:, :2].sum(), leaf)
    assert face.counts() != before
    for own in (y.detach(), gradient):
        assert torch.equal(own.isnan().all(1).cpu(), torch.tensor([False, True, False]))
        assert not own[::2].isnan().any()


def test_softmax_of_narrow_types(face: Face) -> None:
    x = face.reals(6, 33, dtype=torch.bfloat16)
    names = ["_softmax", "_softmax_backward_data"]
    face.check(lambda x: torch.softmax(x, -1), x, taken=names, tolerance=2e-2)
