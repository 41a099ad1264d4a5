"""Where native kernels stay although lowdnn could compute the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lowdnn.status import BadParamError

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
preference: Any = pytest.importorskip("lowdnn.torch.preference", reason="it needs torch")


@dataclass
class Stream:
    """Whether the stream of the tests is being captured."""

    captures: bool = False


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def memory(stream: Stream) -> Iterator[Any]:
    """The emulated device in the part of a GPU."""
    from lowdnn.torch.memory import EmulatedMemory

    found: Any = EmulatedMemory()
    found.is_gpu, found.is_capturing = True, lambda device: stream.captures
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


@pytest.mark.parametrize(
    ("host", "is_native"),
    [
        ((1.0, 1e6), True),
        ((1.0, 0.5), False),  # the host is no slower
        ((100.0, 101.0), False),  # leaving the call costs more
        ((-100.0, 1e-9), False),  # the device takes longer than the host
    ],
)
def test_small_calls_stay_native_where_the_host_is_slower(
    memory: Any, monkeypatch: pytest.MonkeyPatch, host: tuple[float, float], is_native: bool
) -> None:
    monkeypatch.setattr(preference, "HOST_TIMES", {"mm": preference.HostTime(*host)})
    function, x, counts = called(memory)
    results = [function(None, x, x) for _ in range(2)]
    (path,) = counts.snapshot()
    assert (path.calls, bool(path.reason)) == (2, is_native), path
    assert all((result == "native") if is_native else torch.equal(result, x) for result in results)


def test_calls_in_a_capture_run_on_lowdnn(memory: Any, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preference, "HOST_TIMES", {"mm": preference.HostTime(1.0, 1e6)})
    function, x, counts = called(memory)
    assert function(None, x, x) == "native"
    stream.captures = True
    assert torch.equal(function(None, x, x), x)
    stream.captures = False
    assert function(None, x, x) == "native"
    assert {path.calls: bool(path.reason) for path in counts.snapshot()} == {2: True, 1: False}


def test_gradients_that_the_native_kernel_cannot_compute_run_on_lowdnn(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preference, "HOST_TIMES", {"mm": preference.HostTime(1.0, 1e6)})
    monkeypatch.setattr(preference, "_MOST_LAUNCHES", 0)
    function, x, _ = called(memory, fallback=lambda native, *args: native(*args))
    assert torch.equal(function(None, x, x), x)


def test_calls_that_stay_native_load_nothing_before_a_capture(
    memory: Any, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither their plans nor the kernels of their gradients."""
    from lowdnn.torch import planning

    seen: list[str] = []
    for name in ("load", "begin_gradients"):
        own = getattr(planning, name)
        monkeypatch.setattr(planning, name, lambda *given, name=name, own=own: seen.append(name) or own(*given))
    monkeypatch.setattr(preference, "HOST_TIMES", {"mm": preference.HostTime(1.0, 1e6)})
    function, x, _ = called(memory)
    x.requires_grad_()
    assert function(None, x, x) == "native"
    assert seen == []
    stream.captures = True
    for _ in range(2):
        assert torch.equal(function(None, x, x), x)
    assert seen == ["begin_gradients", "load"]


def test_a_plan_that_a_capture_cannot_load_is_left_to_the_native_kernel(
    memory: Any, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lowdnn.torch import planning

    def fail(*_: Any) -> Any:
        seen.append("load")
        raise BadParamError.at("test.load", expected="a plan that loads", got="another")

    seen: list[str] = []
    monkeypatch.setattr(planning, "load", fail)
    monkeypatch.setattr(preference, "HOST_TIMES", {"mm": preference.HostTime(1.0, 1e6)})
    function, x, counts = called(memory)
    stream.captures = True
    assert function(None, x, x) == "native"  # not known yet
    stream.captures = False
    assert function(None, x, x) == "native"
    stream.captures = True
    assert [function(None, x, x) for _ in range(2)] == ["native"] * 2
    assert seen == ["load"]
    assert all(path.reason for path in counts.snapshot())


def test_lowdnn_may_be_preferred(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.prefers_fastest = False
    monkeypatch.setattr(preference, "HOST_TIMES", {"mm": preference.HostTime(1.0, 1e6)})
    function, x, _ = called(memory)
    assert torch.equal(function(None, x, x), x)


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
