"""Handles: ownership, and behaviour once they are closed or shared."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from lowdnn.backend.handle import Handle
from lowdnn.config import Config
from lowdnn.enums import HeurMode, PointwiseMode
from lowdnn.heuristics.ranking import rank
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.status import ArchMismatchError, AttributeTypeError, BadParamError, NotInitializedError
from tests.support.builders import pointwise_graph


def plan_for(handle: Handle, columns: int = 8) -> Plan:
    graph = pointwise_graph(PointwiseMode.ADD, (4, columns))
    return rank(graph, handle.arch, HeurMode.A, handle.engines).candidates[0].plan


def test_a_loaded_plan_is_kept(handle: Handle) -> None:
    assert handle.load(plan_for(handle)) is handle.load(plan_for(handle))


def test_a_plan_of_another_architecture_is_refused(handle: Handle) -> None:
    other = "sm_80" if handle.arch.name == "sm_90a" else "sm_90a"
    with pytest.raises(ArchMismatchError, match=rf"plan.target_arch: expected {handle.arch.name}, got {other}"):
        handle.load(replace(plan_for(handle), target_arch=other))


def test_the_least_recently_used_plan_goes_first(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle.plan_cache, "max_plans", 2)
    first, second, third = (plan_for(handle, columns) for columns in (8, 16, 24))
    loaded = handle.load(first)
    handle.load(second)
    assert handle.load(first) is loaded
    handle.load(third)
    assert handle.load(first) is loaded
    assert handle.runtime.counters.snapshot()["plans_loaded"] == 3
    handle.load(second)
    assert handle.runtime.counters.snapshot()["plans_loaded"] == 4


def test_the_architecture_is_that_of_the_device(handle: Handle) -> None:
    assert handle.arch.compute_capability <= handle.runtime.context.compute_capability
    assert handle.arch.sm_count > 0


def test_streams(handle: Handle) -> None:
    with Stream.create(handle.runtime.context) as stream:
        handle.set_stream(stream)
        assert handle.stream == stream.handle
        handle.set_stream(stream.handle)
        handle.synchronize()
        handle.set_stream(0)
    assert handle.stream == 0
    with pytest.raises(AttributeTypeError, match="stream"):
        handle.set_stream("0")
    assert handle.stream == 0
    assert "stream" in handle.last_error


def test_a_closed_handle_refuses_every_call(handle: Handle) -> None:
    plan = plan_for(handle)
    handle.close()
    handle.close()
    assert not handle.is_open
    for call in (lambda: handle.load(plan), lambda: handle.set_stream(0), handle.synchronize, handle.borrowed_stream):
        with pytest.raises(NotInitializedError, match="expected an open handle, got a closed one"):
            call()


def test_two_threads_at_once_are_noticed_in_debug_mode(device: Runtime) -> None:
    debug = Runtime(device.driver, config=Config(debug=True, disk_cache=False))
    caught: list[Exception] = []

    def intrude(handle: Handle) -> None:
        try:
            handle.synchronize()
        except BadParamError as error:
            caught.append(error)

    with Handle(debug) as handle, handle.entered("execute"):
        thread = threading.Thread(target=intrude, args=(handle,))
        thread.start()
        thread.join()
    assert len(caught) == 1
    assert "handle.synchronize: expected one thread at a time" in str(caught[0])


def test_open_passes_the_emulated_devices_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated")
    monkeypatch.setenv("LOWDNN_EMULATED_ARCH", "sm_80")
    with Handle.open() as handle:
        assert handle.arch.name == "sm_80"
        assert handle.runtime.driver.kind == "emulated"
    with Handle.open("emulated", arch="sm_90a", policy="cta-reverse") as handle:
        assert handle.arch.name == "sm_90a"
        assert handle.runtime.config.emulated_policy == "cta-reverse"


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(BadParamError, match="expected auto, cuda or emulated"):
        Handle.open("tpu")


def test_the_representation_shows_the_state(handle: Handle) -> None:
    assert handle.arch.name in repr(handle)
    handle.close()
    assert "closed" in repr(handle)
