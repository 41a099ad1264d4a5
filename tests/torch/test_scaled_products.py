"""Products of fp8 and of int8 matrices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")


def rows(face: Face, m: int, n: int, dtype: Any = torch.float8_e4m3fn) -> Any:
    return face.reals(m, n, dtype=torch.float32).to(dtype)


def accumulated(face: Face, a: Any, b: Any) -> Any:
    """How far sums of fp8 products may be off on a GPU, whose cores cut off of each term what lies 13 bits below the
    largest one."""
    if face.device != "cuda":
        return 0.0
    terms = a.double().abs()[:, :, None] * b.double().abs()[None]
    return 2.0**-13 * terms.shape[1] * terms.amax(1)


def taken(face: Face, name: str, call: Any) -> Any:
    before = face.counts().get((name, ""), 0)
    with face.enable(["quantised_matmul"]):
        found = call()
    assert face.counts().get((name, ""), 0) == before + 1, face.counts()
    return found


@pytest.mark.parametrize("other", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float16, torch.float32])
def test_scales_of_tensors(face: Face, other: Any, out: Any) -> None:
    a, b = rows(face, 32, 48), rows(face, 64, 48, other).t()
    scales = [torch.tensor(value, device=a.device) for value in (0.75, 0.3)]
    bias = None if out == torch.float32 else face.reals(64, dtype=out)
    y = taken(face, "_scaled_mm", lambda: torch._scaled_mm(a, b, *scales, bias=bias, out_dtype=out))
    wanted = a.double() @ b.double() * (0.75 * torch.tensor(0.3).double()) + (0 if bias is None else bias.double())
    assert y.dtype == out
    allowed = 2 * max(torch.finfo(out).eps, 2e-6) * wanted.abs().max() + 0.75 * 0.3 * accumulated(face, a, b)
    assert ((y.double() - wanted).abs() <= allowed).all()


def test_scales_of_rows_and_columns(face: Face) -> None:
    a, b = rows(face, 16, 32), rows(face, 48, 32).t()
    scales = face.reals(16, 1, dtype=torch.float32).abs(), face.reals(1, 48, dtype=torch.float32).abs()
    y = taken(face, "_scaled_mm", lambda: torch._scaled_mm(a, b, *scales, out_dtype=torch.bfloat16))
    wanted = scales[0].double() * scales[1] * (a.double() @ b.double())
    assert (y.double() - wanted).abs().max() <= 2**-8 * wanted.abs().max()


def test_scales_by_recipes(face: Face) -> None:
    if not hasattr(torch.ops.aten, "_scaled_mm_v2"):
        pytest.skip("this torch has no scaled_mm with recipes")
    a, b, one = rows(face, 16, 32), rows(face, 16, 32).t(), torch.ones((), device=face.torch_device)
    y = taken(
        face, "_scaled_mm_v2",
        lambda: torch.ops.aten._scaled_mm_v2(a, b, [one], [0], [0], [2 * one], [0], [0], None, torch.float32),
    )  # fmt: skip
    assert ((y.double() - 2 * (a.double() @ b.double())).abs() <= 1e-4 + 2 * accumulated(face, a, b)).all()


def test_integers(face: Face) -> None:
    a, b = (face.integers(*dims, dtype=torch.int8, most=127) for dims in ((32, 64), (64, 24)))
    y = taken(face, "_int_mm", lambda: torch._int_mm(a, b))
    assert torch.equal(y.cpu(), a.cpu().int() @ b.cpu().int())
    out = torch.zeros_like(y)
    assert torch.equal(taken(face, "_int_mm.out", lambda: torch._int_mm(a, b, out=out)), y)


def test_blocks_of_scales_run_natively(face: Face) -> None:
    a, b, one = rows(face, 16, 32), rows(face, 16, 32).t(), torch.ones((), device=face.torch_device)
    reason = "a scale of the result, or scales of blocks"
    before = face.counts().get(("_scaled_mm", reason), 0)
    with face.enable(["quantised_matmul"]):
        y = torch._scaled_mm(a, b, one, one, scale_result=one, out_dtype=torch.bfloat16)
    assert face.counts()["_scaled_mm", reason] == before + 1
    torch.testing.assert_close(y.double(), a.double() @ b.double(), rtol=2e-2, atol=2e-2)
