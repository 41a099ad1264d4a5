"""Where native kernels stay although lowdnn could compute the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from lowdnn.status import BadParamError

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
preference: Any = pytest.importorskip("lowdnn.torch.preference", reason="it needs torch")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The emulated device in the part of a GPU, where every launch is one too many."""
    from lowdnn.torch.memory import EmulatedMemory

    found: Any = EmulatedMemory()
    found.is_gpu = True
    monkeypatch.setattr(preference, "_MOST_LAUNCHES", 0)
    yield found
    found.close()


def called(memory: Any, **changed: Any) -> tuple[Callable[..., Any], Any, Any]:
    """The kernel of ``mm``, one of its operands, and the counts; the native kernel answers "native".

    changed: fields of the operation's declaration.
    """
    from lowdnn.torch.catalog import OVERLOADS
    from lowdnn.torch.counts import PathCounts
    from lowdnn.torch.taken import Plans, kernel

    counts = PathCounts()
    product = next(overload for overload in OVERLOADS if overload.name == "mm")
    function = kernel(Plans(replace(product, **changed), memory, counts), lambda *_: "native")
    return function, torch.eye(16), counts


def test_long_chains_stay_native(memory: Any) -> None:
    function, x, counts = called(memory)
    assert [function(x, x) for _ in range(2)] == ["native", "native"]
    (path,) = counts.snapshot()
    assert (path.calls, path.reason) == (2, "a chain of 1 launches, where 0 at most are expected to pay")


def test_gradients_that_the_native_kernel_cannot_compute_run_on_lowdnn(memory: Any) -> None:
    function, x, _ = called(memory, fallback=lambda native, *args: native(*args))
    assert torch.equal(function(x, x), x)


def test_lowdnn_may_be_preferred(memory: Any) -> None:
    memory.prefers_fastest = False
    function, x, _ = called(memory)
    assert torch.equal(function(x, x), x)


def test_the_innermost_enable_decides() -> None:
    import lowdnn.torch
    from lowdnn.torch.registry import Registry

    registry: Registry = lowdnn.torch.registry.REGISTRY
    with lowdnn.torch.enable("emulated", ["softmax"]):
        memory = registry._memories["emulated"]
        x = torch.ones(2, 4)
        torch.softmax(x, -1)
        plans = registry._plans["emulated", "_softmax"]
        assert memory.prefers_fastest
        assert plans._known
        with lowdnn.torch.enable("emulated", ["softmax"], prefer="lowdnn"):
            assert not memory.prefers_fastest
            assert not plans._known
            assert torch.equal(torch.softmax(x, -1), x / 4)
        assert memory.prefers_fastest
    with pytest.raises(BadParamError, match=r"torch\.enable\.prefer"):
        lowdnn.torch.enable("emulated", prefer="native")
    lowdnn.torch.reset()
