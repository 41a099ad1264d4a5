from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.driver import open_driver
from lowdnn.driver.base import DriverError
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.plan import Plan, Struct
from lowdnn.runtime.ahead import Ahead
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.context import Context
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.modules import ModuleCache
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    CudaGraphMismatchError,
    MisalignedPointerError,
    NotInitializedError,
    NullPointerError,
    SizeInsufficientError,
)
from tests.support.runtime import ALPHA, X, Y, download, open_runtime, scale_plan, scale_sources, upload

COUNT = 300


@dataclass
class Scale:
    """A loaded ``scale_plan`` with its buffers; ``alpha`` is the by-value tensor's host memory."""

    runtime: Runtime
    x: NDArray[np.float32]
    x_buffer: DeviceBuffer
    y_buffer: DeviceBuffer
    alpha: NDArray[np.float64]

    def load(self, plan: Plan) -> LoadedPlan:
        return self.runtime.load(plan)

    @property
    def pointers(self) -> tuple[int, ...]:
        return (self.x_buffer.address, self.y_buffer.address, self.alpha.ctypes.data)

    def expected(self, alpha: float, beta: float = 0.5) -> NDArray[Any]:
        return np.float32(alpha) * self.x + np.float32(beta)

    def result(self) -> NDArray[Any]:
        return download(self.y_buffer, np.float32)


@pytest.fixture
def scale(device: Runtime, tmp_path: Path) -> Iterator[Scale]:
    runtime = Runtime(device.driver, config=device.config, sources=scale_sources(tmp_path))
    x = np.arange(COUNT, dtype=np.float32)
    with runtime:
        yield Scale(
            runtime,
            x,
            upload(runtime, x, "x"),
            upload(runtime, np.full(COUNT, np.nan, np.float32), "y"),
            np.array([2.0]),
        )


def test_runs_and_follows_changes_of_pointers_and_values(scale: Scale) -> None:
    loaded = scale.load(scale_plan(COUNT))
    loaded.execute(scale.pointers)
    assert np.array_equal(scale.result(), scale.expected(2))

    scale.alpha[0] = -3
    loaded.execute(scale.pointers)
    assert np.array_equal(scale.result(), scale.expected(-3))

    other = upload(scale.runtime, np.zeros(COUNT, np.float32), "other")
    loaded.execute((scale.x_buffer.address, other.address, scale.alpha.ctypes.data))
    assert np.array_equal(download(other, np.float32), scale.expected(-3))


def test_takes_pointers_by_uid(scale: Scale) -> None:
    loaded = scale.load(scale_plan(COUNT))
    loaded.execute(dict(zip((X, Y, ALPHA), scale.pointers, strict=True)))
    assert np.array_equal(scale.result(), scale.expected(2))


def test_workspace_reaches_the_kernel_with_its_offset(scale: Scale) -> None:
    loaded = scale.load(scale_plan(COUNT, uses_workspace=True, factor=7))
    context = scale.runtime.context
    with Workspace(context, 512) as first, Workspace(context, 512) as second:
        for workspace in (first, second):
            loaded.execute(scale.pointers, workspace.address)
            assert download(DeviceBuffer(context, workspace.address + 256, 8), np.float64)[0] == 7


@pytest.mark.parametrize("is_mapping", [False, True])
def test_null_and_misaligned_pointers_are_named_and_leave_the_plan_usable(scale: Scale, is_mapping: bool) -> None:
    loaded = scale.load(scale_plan(COUNT))
    x, y, alpha = scale.pointers

    def execute(*pointers: Any) -> None:
        loaded.execute(dict(zip((X, Y, ALPHA), pointers, strict=True)) if is_mapping else pointers)

    with pytest.raises(NullPointerError, match=r"uid 22 \(y\)"):
        execute(x, 0, alpha)
    with pytest.raises(NullPointerError, match=r"uid 33 \(alpha\)"):
        execute(x, y, 0)
    with pytest.raises(MisalignedPointerError, match=r"uid 11 \(x\)\]: expected a multiple of 16 bytes"):
        execute(x + 4, y, alpha)
    with pytest.raises(BadParamError, match=r"uid 33 \(alpha\)\]: expected a host address, .*, got 2"):
        execute(x, y, 2)
    for wrong in (None, "address", 2.5, 2**64, -16, True, np.int64(x), np.uint64(x)):
        with pytest.raises(BadParamError, match=r"uid 11 \(x\)"):
            execute(wrong, y, alpha)
    execute(x, y, alpha)
    assert np.array_equal(scale.result(), scale.expected(2))


def test_missing_and_unknown_uids(scale: Scale) -> None:
    loaded = scale.load(scale_plan(COUNT))
    x, y, alpha = scale.pointers
    with pytest.raises(BadParamError, match=r"22 \('y'\)"):
        loaded.execute({X: x, ALPHA: alpha})
    with pytest.raises(BadParamError, match="99"):
        loaded.execute({X: x, Y: y, ALPHA: alpha, 99: x})
    for wrong in ((x, y), (x, y, alpha, alpha)):
        with pytest.raises(BadParamError, match=f"expected 3 addresses, got {len(wrong)}"):
            loaded.execute(wrong)
    loaded.execute(scale.pointers)
    with pytest.raises(BadParamError, match="expected 3 addresses, got 2"):
        loaded.execute((x, y))


def test_workspace_is_checked(scale: Scale) -> None:
    loaded = scale.load(scale_plan(COUNT, uses_workspace=True))
    with Workspace(scale.runtime.context, 512) as workspace:
        with pytest.raises(NullPointerError, match="512 bytes"):
            loaded.execute(scale.pointers, 0)
        for _ in range(2):
            with pytest.raises(AttributeTypeError):
                loaded.execute(scale.pointers, 2**64 - 255)
        with pytest.raises(AttributeTypeError):
            loaded.execute(scale.pointers, "workspace")  # type: ignore[arg-type]
        loaded.execute(scale.pointers, workspace.address)
    assert np.array_equal(scale.result(), scale.expected(2))


@pytest.mark.parametrize("is_debug", [False, True])
def test_a_workspace_is_checked_once_for_each_address(
    device: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_debug: bool
) -> None:
    config = replace(device.config, debug=is_debug)
    runtime = Runtime(device.driver, config=config, sources=scale_sources(tmp_path))
    asked: list[int] = []
    info = device.driver.pointer_info
    with runtime, Workspace(runtime.context, 512) as one, Workspace(runtime.context, 768) as other:
        loaded, alpha = runtime.load(scale_plan(COUNT, uses_workspace=True)), np.array([1.0])
        x, y = (upload(runtime, np.ones(COUNT, np.float32)) for _ in range(2))
        monkeypatch.setattr(device.driver, "pointer_info", lambda address: asked.append(address) or info(address))
        places = (one.address, other.address, other.address + 1, one.address, other.address + 1)
        for place in places:
            loaded.execute((x.address, y.address, alpha.ctypes.data), place)
        workspaces = [address for address in asked if address not in (x.address, y.address)]
        assert workspaces == [*places[: 5 if is_debug else 3]]


def test_a_refused_execute_leaves_nothing_of_its_own(scale: Scale) -> None:
    loaded = scale.load(scale_plan(COUNT, uses_workspace=True))
    x, y, alpha = scale.pointers
    with Workspace(scale.runtime.context, 512) as workspace:
        loaded.execute(scale.pointers, workspace.address)
        other = upload(scale.runtime, np.zeros(COUNT, np.float32))
        with pytest.raises(NullPointerError, match="512 bytes"):
            loaded.execute((x, other.address, alpha), 0)
        scale.alpha[0] = 3
        loaded.execute((x, y, alpha), workspace.address)
    assert np.array_equal(scale.result(), scale.expected(3))
    assert not download(other, np.float32).any()


def test_small_workspace_is_refused(device: Runtime, tmp_path: Path) -> None:
    if device.driver.kind == "cuda":
        pytest.skip("the driver rounds allocations up; their exact size is known on the emulated device only")
    runtime = Runtime(device.driver, config=device.config, sources=scale_sources(tmp_path))
    with runtime, Workspace(runtime.context, 511) as workspace:
        loaded = runtime.load(scale_plan(4, uses_workspace=True))
        alpha = np.array([1.0])
        x, y = upload(runtime, np.ones(4, np.float32)), upload(runtime, np.ones(4, np.float32))
        with pytest.raises(SizeInsufficientError, match="expected 512 bytes, got 511"):
            loaded.execute((x.address, y.address, alpha.ctypes.data), workspace.address)


def test_debug_mode_finds_a_buffer_that_is_too_short(device: Runtime, tmp_path: Path) -> None:
    config = replace(device.config, debug=True)
    with Runtime(device.driver, config=config, sources=scale_sources(tmp_path)) as runtime:
        big = 3 << 20
        loaded = runtime.load(scale_plan(big))
        x, alpha = upload(runtime, np.ones(4, np.float32)), np.array([1.0])
        with pytest.raises(SizeInsufficientError, match=r"uid 11 \(x\)"):
            loaded.execute((x.address, x.address, alpha.ctypes.data))


@pytest.mark.parametrize("fields", [slice(0, 4), slice(1, 6)])
def test_arguments_of_another_size_than_the_parameter_are_refused(scale: Scale, fields: slice) -> None:
    plan = scale_plan(COUNT)
    (arguments,) = plan.launches[0].arguments
    assert isinstance(arguments, Struct)
    launch = replace(plan.launches[0], arguments=(Struct(arguments.fields[fields]),))
    with pytest.raises(BadParamError, match=r"launches\[0\].arguments\[0\]: expected 40 bytes.*got 32 bytes"):
        scale.load(replace(plan, launches=(launch,)))


def test_an_empty_tensor_may_be_null(scale: Scale) -> None:
    plan = scale_plan(COUNT)
    empty = replace(plan, launches=(), tensors=tuple(replace(t, size_bytes=0) for t in plan.tensors[:2]))
    scale.load(empty).execute((0, 0))


def test_a_thread_without_a_context_gets_the_primary_one(scale: Scale) -> None:
    loaded = scale.load(scale_plan(COUNT))
    driver = scale.runtime.driver
    driver.context_set_current(0)
    loaded.execute(scale.pointers)
    assert driver.context_get_current() == scale.runtime.context.handle
    assert np.array_equal(scale.result(), scale.expected(2))


class TwoContexts(EmulatedDriver):
    """An emulated device in a process where somebody has a context of their own."""

    THEIRS = 0x20

    def __init__(self) -> None:
        super().__init__()
        self.is_theirs = False

    def context_get_current(self) -> int:
        return self.THEIRS if self.is_theirs else super().context_get_current()

    def context_set_current(self, context: int) -> None:
        self.is_theirs = context == self.THEIRS
        if not self.is_theirs:
            super().context_set_current(context)


def test_another_context_stays_current(device: Runtime, tmp_path: Path) -> None:
    driver = TwoContexts()
    driver.init()
    with Runtime(driver, config=device.config, sources=scale_sources(tmp_path)) as runtime:
        loaded = runtime.load(scale_plan(4))
        x, y, alpha = upload(runtime, np.ones(4, np.float32)), upload(runtime, np.zeros(4, np.float32)), np.array([2.0])
        driver.context_set_current(TwoContexts.THEIRS)
        for _ in range(2):
            loaded.execute((x.address, y.address, alpha.ctypes.data))
            assert driver.context_get_current() == TwoContexts.THEIRS
        assert (download(y, np.float32) == 2.5).all()


def test_execute_is_captured_and_replayed(scale: Scale) -> None:
    loaded = scale.load(scale_plan(COUNT, launches=2))
    driver, context = scale.runtime.driver, scale.runtime.context
    with Stream.create(context) as stream:
        stream.begin_capture()
        loaded.execute(scale.pointers, 0, stream.handle)
        graph = stream.end_capture()
        assert np.isnan(scale.result()).all(), "nothing runs while the stream is captured"
        with context.activated():
            graph_exec = driver.graph_instantiate(graph)
            driver.graph_launch(graph_exec, stream.handle)
        stream.synchronize()
        assert np.array_equal(scale.result(), scale.expected(2))
        with context.activated():
            driver.graph_exec_destroy(graph_exec)
            driver.graph_destroy(graph)


def test_a_dependent_launch_that_does_not_wait_is_a_race(device: Runtime, tmp_path: Path) -> None:
    if device.driver.kind == "cuda":
        pytest.skip("the emulated device looks for races")
    driver = open_driver("emulated", policy="lockstep,races")
    with open_runtime(driver, tmp_path / "cache", sources=scale_sources(tmp_path)) as runtime:
        plan = scale_plan(COUNT, launches=2)
        overlapping = replace(plan, launches=(plan.launches[0], replace(plan.launches[1], overlaps_previous=True)))
        x, y = (upload(runtime, np.zeros(COUNT, np.float32)) for _ in range(2))
        alpha = np.array([2.0])
        pointers = (x.address, y.address, alpha.ctypes.data)
        runtime.load(plan).execute(pointers)
        with pytest.raises(DriverError, match=r"(?s)data-race.*griddepcontrol\.wait"):
            runtime.load(overlapping).execute(pointers)


def test_graph_nodes_take_new_addresses(scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = scale.load(scale_plan(COUNT, launches=2))
    driver, context = scale.runtime.driver, scale.runtime.context
    other = upload(scale.runtime, np.zeros(COUNT, np.float32))
    added: list[tuple[int, ...]] = []
    add = driver.graph_add_kernel_node

    def noted(graph: int, dependencies: Any, *node: Any) -> int:
        added.append(tuple(dependencies))
        return add(graph, dependencies, *node)

    monkeypatch.setattr(driver, "graph_add_kernel_node", noted)
    with Stream.create(context) as stream:
        with context.activated():
            graph = driver.graph_create()
        nodes = loaded.add_to_graph(graph, scale.pointers)
        assert len(nodes) == 2
        assert added == [(), nodes[:1]]
        with context.activated():
            graph_exec = driver.graph_instantiate(graph)
        loaded.update_graph(graph_exec, nodes, (scale.x_buffer.address, other.address, scale.alpha.ctypes.data))
        with pytest.raises(CudaGraphMismatchError, match="expected 2 nodes, got 1"):
            loaded.update_graph(graph_exec, nodes[:1], scale.pointers)
        with context.activated():
            driver.graph_launch(graph_exec, stream.handle)
        stream.synchronize()
        assert np.isnan(scale.result()).all()
        assert np.array_equal(download(other, np.float32), scale.expected(2))
        with context.activated():
            driver.graph_exec_destroy(graph_exec)
            driver.graph_destroy(graph)


def test_threads_share_a_plan(scale: Scale) -> None:
    loaded = scale.load(scale_plan(COUNT))
    outputs = [upload(scale.runtime, np.zeros(COUNT, np.float32)) for _ in range(4)]
    alphas = [np.array([float(index)]) for index in range(4)]

    def run(index: int) -> None:
        for _ in range(5):
            loaded.execute((scale.x_buffer.address, outputs[index].address, alphas[index].ctypes.data))

    threads = [Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, output in enumerate(outputs):
        assert np.array_equal(download(output, np.float32), scale.expected(index))


def test_launches_are_logged_before_they_happen(scale: Scale, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="lowdnn.launch"):
        scale.load(scale_plan(COUNT)).execute(scale.pointers)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "lowdnn.launch"]
    assert line.startswith("launch kernel=test_scale_f32_sm80 plan=eng0_test_scale grid=3x1x1 block=128x1x1")
    assert np.array_equal(scale.result(), scale.expected(2))


def test_each_execute_is_one_profiler_range(scale: Scale) -> None:
    ranges: list[tuple[str, str]] = []

    @contextmanager
    def annotate(name: str, payload: str) -> Iterator[None]:
        ranges.append((name, payload))
        yield

    runtime = scale.runtime
    loaded = LoadedPlan(scale_plan(COUNT, launches=2), runtime.context, runtime.modules, annotate=annotate)
    loaded.execute(scale.pointers)
    loaded.command = lambda: "lowdnn run"
    loaded.execute(scale.pointers)
    assert ranges == [("eng0_test_scale", ""), ("eng0_test_scale", "lowdnn run")]


def test_a_closed_runtime_is_told(scale: Scale) -> None:
    loaded = scale.load(scale_plan(COUNT))
    pointers = scale.pointers
    loaded.execute(pointers)
    scale.runtime.close()
    with pytest.raises(NotInitializedError, match="closed"):
        loaded.execute(pointers)
    with pytest.raises(NotInitializedError):
        scale.runtime.load(scale_plan(COUNT))


class CountingDriver:
    """Delegates to a driver and counts calls by name."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self.driver, name)


def test_the_second_execute_makes_no_driver_call_but_the_launch(scale: Scale) -> None:
    counting = CountingDriver(scale.runtime.driver)
    context = Context(counting)  # type: ignore[arg-type]
    modules = ModuleCache(context, scale.runtime.compiler, scale.runtime.counters, Ahead(0))
    loaded = LoadedPlan(scale_plan(COUNT), context, modules)
    with context.activated():
        loaded.execute(scale.pointers)
        counting.calls.clear()
        loaded.execute(scale.pointers)
        assert counting.calls == []
    modules.close()
    context.close()


def test_a_fault_names_kernel_block_and_buffer(scale: Scale) -> None:
    if scale.runtime.driver.kind == "cuda":
        pytest.skip("would leave the GPU's context broken")
    loaded = scale.load(scale_plan(COUNT + 1))
    with pytest.raises(DriverError, match=r"(?s)ILLEGAL_ADDRESS.*x \(1200 bytes\).*test_scale_f32_sm80") as caught:
        loaded.execute(scale.pointers)
    assert "block (2, 0, 0)" in caught.value.explanation
    with pytest.raises(DriverError, match="since cuLaunchKernel"):
        loaded.execute(scale.pointers)
