"""Scaled dot product attention and its gradients, no further from fp64 than torch's own kernels allow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")


def names(face: Face, kind: str = "flash") -> list[str]:
    forward = f"_scaled_dot_product_{kind}_attention" + ("_for_cpu" if face.device == "emulated" else "")
    return [forward, f"{forward}_backward"]


def test_deterministic_algorithms_are_asked_of_the_gradients(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowdnn.torch import planning

    asked: list[bool] = []
    sketch = planning.Sketch

    def noted(*given: Any, **settings: Any) -> Any:
        asked.append(settings["is_deterministic"])
        return sketch(*given, **settings)

    monkeypatch.setattr(planning, "Sketch", noted)
    q = face.reals(1, 1, 16, 32, dtype=torch.bfloat16).requires_grad_()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION), face.enable(["attention"]):
        for wanted in (False, True):
            torch.use_deterministic_algorithms(wanted, warn_only=True)
            try:
                torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
            finally:
                torch.use_deterministic_algorithms(False)
    assert asked == [False, False, True, True]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradients(face: Face, causal: bool) -> None:
    q, k, v = (face.reals(2, 2, 40, 32, dtype=torch.bfloat16) for _ in range(3))

    def attended(q: Any, k: Any, v: Any) -> Any:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    face.check(attended, q, k, v, taken=names(face), tolerance=5e-2)


def test_heads_behind_each_other_in_memory(face: Face) -> None:
    """q, k and v as a model cuts them out of one product."""
    rows = face.reals(2, 24, 3, 2, 32, dtype=torch.float16)

    def attended(rows: Any) -> Any:
        q, k, v = rows.permute(2, 0, 3, 1, 4)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.25)

    face.check(attended, rows, taken=names(face), tolerance=2e-2)


def test_a_bias_that_repeats(face: Face) -> None:
    q, k, v = (face.reals(2, 2, rows, 32, dtype=torch.float16) for rows in (24, 40, 40))
    bias = face.reals(1, 1, 24, 40, dtype=torch.float16)
    kind, backend = ("flash", "FLASH_ATTENTION") if face.device == "emulated" else ("efficient", "EFFICIENT_ATTENTION")

    def attended(q: Any, k: Any, v: Any) -> Any:
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    face.check(attended, q, k, v, taken=names(face, kind), tolerance=2e-2)


def test_the_native_kernel_takes_other_types(face: Face) -> None:
    q = face.reals(1, 2, 8, 16, dtype=torch.float32)
    name = names(face, "flash" if face.device == "emulated" else "efficient")[0]
    reason = "float32, where float16 or bfloat16 is expected"
    before = face.counts().get((name, reason), 0)
    face.check(
        lambda q: torch.nn.functional.scaled_dot_product_attention(q.detach(), q.detach(), q.detach()), q, taken=()
    )
    assert face.counts()[name, reason] == before + 1
