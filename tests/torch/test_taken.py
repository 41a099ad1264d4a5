"""How calls of one operation are told apart: by a short key and Dynamo's check, or by the whole key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")


@pytest.fixture(autouse=True)
def anew(face: Face) -> None:
    """No plans of the tests before."""
    face.reset()


def plans_of(face: Face, name: str) -> Any:
    from lowdnn.torch.registry import REGISTRY

    return REGISTRY._plans[face.device, name]


def multiplied(a: Any, b: Any) -> None:
    expected = (a.double()[:, :, None] * b.double()).sum(1)
    assert torch.equal(torch.mm(a, b).double(), expected)


def test_calls_with_one_short_key_are_told_apart(face: Face) -> None:
    """The first tensor and the alignment are the same; the second differs in dims, strides or type."""
    a = face.integers(8, 8, dtype=torch.float32)
    others = [face.integers(8, 8, dtype=torch.float32), face.integers(8, 16, dtype=torch.float32)]
    others += [others[1].t().contiguous().t(), others[1][:, :8]]
    with face.enable(["matmul"]):
        for _ in range(3):
            for b in others:
                multiplied(a, b)
        with pytest.raises(RuntimeError):  # the native kernel's own
            torch.mm(a, others[0].half())
    plans = plans_of(face, "mm")
    (alike,) = [alike for short, alike in plans._alike.items() if short[0] == a.shape]
    assert len(alike) == len(others) + 1
    assert len(plans._known) == len(others) + 1


def test_one_tensor_in_two_places_needs_one_plan_and_no_check(face: Face) -> None:
    a, b = (face.integers(8, 8, dtype=torch.float32) for _ in range(2))
    with face.enable(["matmul"]):
        for _ in range(3):
            multiplied(a, a)
        plans = plans_of(face, "mm")
        assert (len(plans._known), len(plans._alike)) == (1, 0)
        multiplied(a, b)
        multiplied(a, a)
        assert (len(plans._known), len(plans._alike)) == (1, 1)


def test_needs_of_gradients_do_not_plan_anew(face: Face) -> None:
    x, w = face.integers(1, 3, 6, 6, dtype=torch.float32), face.integers(4, 3, 3, 3, dtype=torch.float32)
    expected = torch.conv2d(x.double(), w.double())
    with face.enable(["convolution"]):
        for _ in range(3):
            for need_x, need_w in ((False, False), (True, False), (False, True), (True, True)):
                for with_gradients in (True, False):
                    with torch.set_grad_enabled(with_gradients):
                        y = torch.conv2d(x.detach().requires_grad_(need_x), w.detach().requires_grad_(need_w))
                    assert torch.equal(y.double(), expected)
    plans = plans_of(face, "convolution")
    assert len(plans._known) == 1
    (alike,) = plans._alike.values()
    assert 1 < len(alike) <= 8


def test_calls_beyond_those_that_are_checked_are_right(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowdnn.torch import taken

    monkeypatch.setattr(taken, "_MAX_ALIKE", 2)
    a = face.integers(8, 8, dtype=torch.float32)
    with face.enable(["matmul"]):
        for _ in range(2):
            for columns in range(8, 40, 8):
                multiplied(a, face.integers(8, columns, dtype=torch.float32))
    plans = plans_of(face, "mm")
    assert len(plans._known) == 4
    assert [len(alike) for alike in plans._alike.values()] == [2]


def test_forgotten_calls_are_planned_again(face: Face) -> None:
    a, b = (face.integers(8, 8, dtype=torch.float32) for _ in range(2))
    with face.enable(["matmul"]):
        multiplied(a, b)
        plans = plans_of(face, "mm")
        (before,) = plans._known.values()
        plans.forget()
        assert not plans._alike
        multiplied(a, b)
        (after,) = plans._known.values()
        assert after is not before


def test_threads_have_their_own_numbers(face: Face) -> None:
    """One plan, whose momentum each call has anew."""
    x = face.reals(7, 5, dtype=torch.float32)
    mean = x.mean(0)

    def work(number: int) -> None:
        for step in range(20):
            momentum, running = (1 + number * 20 + step) / 100, torch.zeros_like(mean)
            torch.native_batch_norm(x, None, None, running, torch.ones_like(mean), True, momentum, 1e-5)
            torch.testing.assert_close(running, momentum * mean)

    with face.enable(["batch_norm"]), ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
        assert len(plans_of(face, "native_batch_norm")._known) == 1
