"""A program that makes every call of the driver protocol, in steps that can each be repeated after a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from lowdnn.backend.handle import Handle
from lowdnn.driver.base import CaptureMode, DeviceAttribute, Driver, EventFlags, FunctionAttribute, LaunchConfig
from lowdnn.driver.fault_injection import CALLS
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.context import Context
from lowdnn.runtime.event import Event
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.sources import SourceTree
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import LowdnnError
from lowdnn.tensor_map import Im2colMap, TensorMapDataType, TiledMap
from tests.support.runtime import ALPHA, X, Y, open_runtime, scale_plan

COUNT = 300
#: Calls for which a second device or process is needed.
PEER_CALLS = frozenset(
    {
        "device_can_access_peer",
        "context_enable_peer_access",
        "context_disable_peer_access",
        "memcpy_peer_async",
        "ipc_get_mem_handle",
        "ipc_open_mem_handle",
        "ipc_close_mem_handle",
        "ipc_get_event_handle",
        "ipc_open_event_handle",
    }
)


class WholeProgram:
    """The steps in order; ``close`` gives back all that they leave behind."""

    def __init__(self, driver: Driver, cache_dir: Path, sources: SourceTree) -> None:
        self.driver = driver
        self.cache_dir = cache_dir
        self.sources = sources
        self.handle: Handle | None = None
        self.peer: Context | None = None
        self.steps: tuple[Callable[[], None], ...] = (
            driver.init,
            self.open,
            self.copy,
            self.execute,
            self.synchronise,
            self.capture,
            self.build_graph,
            self.allocate_in_stream,
            self.encode_maps,
            self.ask_device,
            self.ask_function,
            self.reach_peer,
        )

    @staticmethod
    def run(*steps: Callable[[], None]) -> list[LowdnnError]:
        """Runs the steps, and a step that fails once more; returns the failures. A second failure is raised."""
        failures = []
        for step in steps:
            try:
                step()
            except LowdnnError as error:
                failures.append(error)
                step()
        return failures

    def close(self) -> None:
        if self.handle is not None:
            self.handle.close()
        if self.peer is not None:
            self.peer.close()

    @property
    def runtime(self) -> Runtime:
        if self.handle is None:
            raise RuntimeError("open comes first")
        return self.handle.runtime

    def open(self) -> None:
        runtime = open_runtime(self.driver, self.cache_dir, sources=self.sources, debug=True)
        try:
            self.handle = Handle(runtime)
        except LowdnnError:
            runtime.close()
            raise

    def copy(self) -> None:
        context, sent = self.runtime.context, np.arange(COUNT, dtype=np.float32)
        with (
            DeviceBuffer.allocate(context, sent.nbytes) as first,
            DeviceBuffer.allocate(context, sent.nbytes) as second,
            Workspace(context, 64) as workspace,
        ):
            first.copy_from_host(sent)
            second.fill_bytes(1)
            second.copy_from(first, Stream.borrow(context, 0))
            np.testing.assert_array_equal(second.to_host().view(np.float32), sent)
            with context.activated():
                self.driver.memset_d32_async(first.address, 7, COUNT, 0)
            assert (first.to_host().view(np.uint32) == 7).all()
            workspace.grow(128)
            context.synchronize()

    def execute(self) -> None:
        with self.operands() as (loaded, pointers, y):
            loaded.execute(pointers)
            self.check(y)

    def synchronise(self) -> None:
        context = self.runtime.context
        with (
            Stream.create(context) as stream,
            Event.create(context) as start,
            Event.create(context) as end,
            self.operands() as (loaded, pointers, y),
        ):
            Stream.borrow(context, stream)
            start.record(stream)
            loaded.execute(pointers, stream=stream.handle)
            end.record(stream)
            Stream.borrow(context, 0).wait(end)
            end.synchronize()
            assert end.is_done()
            assert self.driver.event_peek(end.handle, context.handle)
            with context.activated():
                before = self.driver.thread_exchange_capture_mode(CaptureMode.RELAXED)
                assert self.driver.thread_exchange_capture_mode(before) is CaptureMode.RELAXED
            assert end.elapsed_ms(start) >= 0
            stream.synchronize()
            assert stream.is_done()
            self.check(y)

    def capture(self) -> None:
        driver, context = self.driver, self.runtime.context
        with self.operands() as (loaded, pointers, y), Stream.create(context) as stream:
            work = partial(loaded.execute, pointers, stream=stream.handle)
            with (
                context.activated(),
                self.owning(self.captured(stream, work), driver.graph_destroy) as graph,
                self.owning(driver.graph_instantiate(graph), driver.graph_exec_destroy) as executable,
            ):
                driver.graph_exec_update(executable, graph)
                driver.graph_launch(executable, stream.handle)
                stream.synchronize()
            self.check(y)

    def captured(self, stream: Stream, work: Callable[[], None]) -> int:
        """The captured graph of ``work``; the capture ends even if it fails."""
        stream.begin_capture()
        try:
            assert stream.is_capturing
            work()
        except LowdnnError:
            with suppress(LowdnnError), self.runtime.context.activated():
                self.driver.graph_destroy(stream.end_capture())
            raise
        return stream.end_capture()

    def build_graph(self) -> None:
        driver, context = self.driver, self.runtime.context
        with self.operands() as (loaded, pointers, y), context.activated():
            with self.owning(driver.graph_create(), driver.graph_destroy) as graph:
                nodes = loaded.add_to_graph(graph, pointers)
                loaded.update_nodes(graph, driver.graph_nodes(graph), pointers)
                with self.owning(driver.graph_instantiate(graph), driver.graph_exec_destroy) as executable:
                    loaded.update_graph(executable, nodes, pointers)
                    driver.graph_launch(executable, 0)
                    context.synchronize()
            self.check(y)

    def allocate_in_stream(self) -> None:
        driver, context = self.driver, self.runtime.context
        with context.activated(), Stream.create(context) as stream:
            address = driver.mem_alloc_async(1024, stream.handle)
            try:
                driver.memset_d8_async(address, 0, 1024, stream.handle)
                found = driver.pointer_info(address)
                assert found is not None
                assert found.size_bytes >= 1024
            finally:
                driver.mem_free_async(address, stream.handle)
            stream.synchronize()

    def encode_maps(self) -> None:
        driver, context = self.driver, self.runtime.context
        with DeviceBuffer.allocate(context, 4096) as buffer, context.activated():
            kind, address = TensorMapDataType.UINT32, buffer.address
            tiled = driver.tensor_map_encode_tiled(TiledMap(kind, address, (8, 4), (32,), (8, 4), (1, 1)))
            assert driver.tensor_map_replace_address(tiled, address + 1024) != tiled
            driver.tensor_map_encode_im2col(Im2colMap(kind, address, (8, 8, 4), (32, 256), (0,), (0,), 8, 4, (1, 1, 1)))

    def ask_device(self) -> None:
        driver, context = self.driver, self.runtime.context
        assert driver.driver_version() >= 12000
        assert driver.ptx_isa_version() >= (8, 0)
        assert driver.device_count() >= 1
        assert driver.device_name(0)
        assert driver.device_attribute(0, DeviceAttribute.WARP_SIZE) == 32
        with context.activated():
            assert driver.context_get_device() == 0
            free_bytes, total_bytes = driver.mem_get_info()
            assert free_bytes <= total_bytes <= driver.device_total_memory_bytes(0)

    def ask_function(self) -> None:
        driver, runtime = self.driver, self.runtime
        function = runtime.modules.function(scale_plan(COUNT).kernels[0], shared_bytes=20_000)
        config = LaunchConfig((8, 1, 1), (128, 1, 1), 0, (2, 1, 1))
        with runtime.context.activated():
            assert driver.function_get_attribute(function, FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES) >= 20_000
            driver.function_set_attribute(function, FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, 20_000)
            assert driver.occupancy_max_active_blocks(function, 128, 0) > 0
            assert driver.occupancy_max_active_clusters(function, config) > 0
            assert driver.occupancy_max_potential_cluster_size(function, config) >= 2

    def reach_peer(self) -> None:
        """Device 0 uses memory and events of device 1, where there is one."""
        driver, context = self.driver, self.runtime.context
        if driver.device_count() < 2:
            return
        assert driver.device_can_access_peer(0, 1)
        peer = self.peer = self.peer or Context(driver, 1)
        with (
            DeviceBuffer.allocate(context, 64) as first,
            DeviceBuffer.allocate(peer, 64) as second,
            context.activated(),
        ):
            driver.context_enable_peer_access(peer.handle)
            driver.context_disable_peer_access(peer.handle)
            second.fill_bytes(3)
            peer.synchronize()
            driver.memcpy_peer_async(first.address, context.handle, second.address, peer.handle, 64, 0)
            assert (first.to_host() == 3).all()
            if driver.kind == "emulated":  # a GPU opens handles in other processes only
                self.open_handles(first.address)

    def open_handles(self, address: int) -> None:
        driver, flags = self.driver, EventFlags.INTERPROCESS | EventFlags.DISABLE_TIMING
        opened = driver.ipc_open_mem_handle(driver.ipc_get_mem_handle(address))
        driver.ipc_close_mem_handle(opened)
        with self.owning(driver.event_create(flags), driver.event_destroy) as event:
            driver.event_destroy(driver.ipc_open_event_handle(driver.ipc_get_event_handle(event)))

    @contextmanager
    def operands(self) -> Iterator[tuple[LoadedPlan, dict[int, int], DeviceBuffer]]:
        """A plan that is loaded, its pointers, and the buffer of its result."""
        context, alpha = self.runtime.context, np.full(1, 2.0)
        with (
            DeviceBuffer.allocate(context, 4 * COUNT) as x,
            DeviceBuffer.allocate(context, 4 * COUNT) as y,
        ):
            x.copy_from_host(np.arange(COUNT, dtype=np.float32))
            y.fill_bytes(0xFF)
            loaded = self.runtime.load(scale_plan(COUNT))
            yield loaded, {X: x.address, Y: y.address, ALPHA: alpha.ctypes.data}, y

    @staticmethod
    def check(y: DeviceBuffer) -> None:
        np.testing.assert_array_equal(y.to_host().view(np.float32), 2 * np.arange(COUNT) + 0.5)

    @staticmethod
    @contextmanager
    def owning(handle: int, destroy: Callable[[int], None]) -> Iterator[int]:
        try:
            yield handle
        finally:
            destroy(handle)


class CountingDriver:
    """``Driver`` over another one that counts its calls by name."""

    def __init__(self, driver: Driver) -> None:
        self.kind, self.dlpack_device_type = driver.kind, driver.dlpack_device_type
        self.takes_machine_code = driver.takes_machine_code
        self.host_functions = driver.host_functions
        self.block_places = driver.block_places
        self.counts: Counter[str] = Counter()
        for call in CALLS.keys() - {"launch", "prepare_launch"}:
            setattr(self, call, self._counted(call, getattr(driver, call)))
        self._prepare = self._counted("prepare_launch", driver.prepare_launch)

    def prepare_launch(self, function: int, config: LaunchConfig, parameters: int) -> Callable[[int], None]:
        return cast(Callable[[int], None], self._counted("launch", self._prepare(function, config, parameters)))

    def _counted(self, call: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: object, **options: object) -> Any:
            self.counts[call] += 1
            return function(*arguments, **options)

        return counted
