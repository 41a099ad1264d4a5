"""The emulated driver: ``Driver`` over a ``Machine`` that runs PTX on the CPU.

Work runs in the order of the calls, before the call returns, so a fault is raised by the launch that caused it. As on
a GPU the fault sticks: later calls fail with the same CUresult until the last reference to the primary context is
released. Event times are the device's count of its work (``DeviceClock``). Calls that a GPU refuses while a stream is
being captured are refused here too.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from lowdnn.driver.base import (
    CaptureMode,
    DeviceAttribute,
    EventFlags,
    FunctionAttribute,
    LaunchConfig,
    PointerInfo,
    StreamFlags,
)
from lowdnn.driver.emulated.device import CUDA_VERSION, PTX_ISA, emulated_device
from lowdnn.driver.emulated.faults import EmulationFault, LaneFault
from lowdnn.driver.emulated.launching import (
    LoadedFunction,
    active_clusters,
    blocks_per_multiprocessor,
    function_attribute,
    image_problem,
    launch_problem,
    potential_cluster_size,
)
from lowdnn.driver.emulated.machine import Machine
from lowdnn.driver.emulated.memory.arena import Arena
from lowdnn.driver.emulated.memory.tensor_map import TensorMap, decode, encode, problem_of
from lowdnn.driver.emulated.options import Options
from lowdnn.driver.emulated.recording import (
    Capture,
    DeviceState,
    EventState,
    Graph,
    KernelWork,
    OtherWork,
    StreamState,
    Work,
)
from lowdnn.driver.emulated.results import CuResult, driver_error
from lowdnn.driver.emulated.running.clock import DeviceClock
from lowdnn.driver.tensor_map import (
    TENSOR_MAP_BYTES,
    Im2colMap,
    TiledMap,
    address_problem,
    im2col_map_problem,
    tiled_map_problem,
)

#: DLPack's kDLExtDev: memory that only this driver can read.
_DLPACK_EXTENSION = 12
_CONTEXT = 0xE000

T = TypeVar("T")


class EmulatedDriver:
    """One emulated device of ``arch``, ``sm_80`` or ``sm_90a``. See the package's docstring."""

    kind = "emulated"
    dlpack_device_type = _DLPACK_EXTENSION

    def __init__(
        self,
        arch: str = "sm_90a",
        policy: str = "lockstep",
        *,
        checks: bool = True,
        landing: str | None = None,
        lane_budget: int = Options.lane_budget,
        timeout_s: float = Options.timeout_s,
        races: bool = False,
    ) -> None:
        """What may be chosen is told in ``Options``. Raises ArchMismatchError, BadParamError for what there is not."""
        self._device = emulated_device(arch)
        self._options = Options(policy, checks, landing, lane_budget, timeout_s, races)
        self._handles = itertools.count(0xE100, 16)
        self._lock = threading.RLock()
        self._current = threading.local()
        self._references = 0
        self._state: DeviceState | None = None
        self._is_initialised = False

    # -- device ---------------------------------------------------------------------------------------------
    def init(self) -> None:
        self._is_initialised = True

    def driver_version(self) -> int:
        return CUDA_VERSION

    def ptx_isa_version(self) -> tuple[int, int]:
        return PTX_ISA

    def device_count(self) -> int:
        self._check_initialised("cuDeviceGetCount")
        return 1

    def device_name(self, device: int) -> str:
        self._check_device("cuDeviceGetName", device)
        return self._device.name

    def device_total_memory_bytes(self, device: int) -> int:
        self._check_device("cuDeviceTotalMem", device)
        return self._device.memory_bytes

    def device_attribute(self, device: int, attribute: DeviceAttribute) -> int:
        self._check_device("cuDeviceGetAttribute", device)
        return self._device.attributes[attribute]

    # -- context --------------------------------------------------------------------------------------------
    def primary_context_retain(self, device: int) -> int:
        self._check_device("cuDevicePrimaryCtxRetain", device)
        with self._lock:
            if self._state is None:
                memory = Arena(limit_bytes=self._device.memory_bytes)
                sm_count = self._device.attributes[DeviceAttribute.MULTIPROCESSOR_COUNT]
                clock_khz = self._device.attributes[DeviceAttribute.CLOCK_RATE_KHZ]
                clock = DeviceClock(clock_khz, sm_count, self._device.copy_bytes_per_ns)
                machine = Machine(memory, self._device.arch, self._options, sm_count, clock)
                self._state = DeviceState(memory, machine)
            self._references += 1
        return _CONTEXT

    def primary_context_release(self, device: int) -> None:
        self._check_device("cuDevicePrimaryCtxRelease", device)
        with self._lock:
            if self._references == 0:
                raise driver_error("cuDevicePrimaryCtxRelease", CuResult.INVALID_CONTEXT)
            self._references -= 1
            if self._references == 0:
                self._state = None

    def context_get_current(self) -> int:
        current: int = getattr(self._current, "context", 0)
        return current

    def context_set_current(self, context: int) -> None:
        self._check_initialised("cuCtxSetCurrent")
        if context not in (0, _CONTEXT) or (context and self._state is None):
            raise driver_error("cuCtxSetCurrent", CuResult.INVALID_CONTEXT, f"{context:#x}")
        self._current.context = context

    def context_synchronize(self) -> None:
        with self._entered("cuCtxSynchronize", captures=False):
            pass

    # -- memory ---------------------------------------------------------------------------------------------
    def mem_get_info(self) -> tuple[int, int]:
        with self._entered("cuMemGetInfo") as state:
            return state.memory.limit_bytes - state.memory.live_bytes, state.memory.limit_bytes

    def mem_alloc(self, size_bytes: int, label: str = "") -> int:
        with self._entered("cuMemAlloc", size_bytes, captures=False) as state:
            return state.memory.allocate(size_bytes, label)

    def mem_free(self, address: int) -> None:
        with self._entered("cuMemFree", address, captures=False) as state:
            if address:
                state.memory.free(address)

    def mem_alloc_async(self, size_bytes: int, stream: int, label: str = "") -> int:
        with self._entered("cuMemAllocAsync", size_bytes, captures=False) as state:
            self._stream(state, stream)
            return state.memory.allocate(size_bytes, label)

    def mem_free_async(self, address: int, stream: int) -> None:
        with self._entered("cuMemFreeAsync", address, captures=False) as state:
            self._stream(state, stream)
            state.memory.free(address)

    def pointer_info(self, address: int) -> PointerInfo | None:
        with self._entered("cuPointerGetAttribute", address) as state:
            found = state.memory.allocation_at(address)
            return None if found is None else PointerInfo(found.address, found.size, 0)

    def memcpy_htod_async(self, destination: int, source_host: int, size_bytes: int, stream: int) -> None:
        with self._entered("cuMemcpyHtoDAsync", destination, size_bytes) as state:
            if size_bytes:
                copy = state.memory.host_write
                self._submit(
                    state,
                    stream,
                    OtherWork(lambda: copy(destination, _host_bytes(source_host, size_bytes)), size_bytes),
                )

    def memcpy_dtoh_async(self, destination_host: int, source: int, size_bytes: int, stream: int) -> None:
        with self._entered("cuMemcpyDtoHAsync", source, size_bytes) as state:
            if size_bytes:
                read = state.memory.host_read

                def copy() -> None:
                    _host_bytes(destination_host, size_bytes)[:] = read(source, size_bytes)

                self._submit(state, stream, OtherWork(copy, size_bytes))

    def memcpy_dtod_async(self, destination: int, source: int, size_bytes: int, stream: int) -> None:
        with self._entered("cuMemcpyDtoDAsync", destination, source, size_bytes) as state:
            if size_bytes:
                copy = state.memory.copy
                self._submit(state, stream, OtherWork(lambda: copy(destination, source, size_bytes), size_bytes))

    def memset_d8_async(self, destination: int, value: int, count: int, stream: int) -> None:
        self._fill("cuMemsetD8Async", destination, value, count, 1, stream)

    def memset_d32_async(self, destination: int, value: int, count: int, stream: int) -> None:
        self._fill("cuMemsetD32Async", destination, value, count, 4, stream)

    def _fill(self, call: str, destination: int, value: int, count: int, width_bytes: int, stream: int) -> None:
        with self._entered(call, destination, value, count) as state:
            if count:
                fill = state.memory.fill
                work = OtherWork(lambda: fill(destination, value, count, width_bytes), count * width_bytes)
                self._submit(state, stream, work)

    # -- tensor maps ----------------------------------------------------------------------------------------
    def tensor_map_encode_tiled(self, tiled: TiledMap) -> bytes:
        return self._encode("cuTensorMapEncodeTiled", tiled, tiled_map_problem(tiled))

    def tensor_map_encode_im2col(self, im2col: Im2colMap) -> bytes:
        return self._encode("cuTensorMapEncodeIm2col", im2col, im2col_map_problem(im2col))

    def tensor_map_replace_address(self, tensor_map: bytes, address: int) -> bytes:
        call = "cuTensorMapReplaceAddress"
        old = decode(tensor_map) if len(tensor_map) == TENSOR_MAP_BYTES else None
        if old is None:
            raise driver_error(call, CuResult.INVALID_VALUE, f"{address:#x}", "the bytes are no tensor map")
        return self._encode(call, replace(old, address=address), address_problem(address, old.interleave))

    def _encode(self, call: str, tensor_map: TensorMap, problem: str) -> bytes:
        self._check_initialised(call)
        result = CuResult.INVALID_VALUE
        if not problem:
            result, problem = CuResult.NOT_SUPPORTED, problem_of(tensor_map)
        if problem:
            raise driver_error(call, result, tensor_map, problem)
        return encode(tensor_map)

    # -- stream and event -----------------------------------------------------------------------------------
    def stream_create(self, flags: StreamFlags = StreamFlags.NON_BLOCKING, priority: int = 0) -> int:
        with self._entered("cuStreamCreateWithPriority") as state:
            return self._add(state.streams, StreamState())

    def stream_destroy(self, stream: int) -> None:
        with self._entered("cuStreamDestroy", stream) as state:
            _find(state.streams, "cuStreamDestroy", stream)
            del state.streams[stream]

    def stream_synchronize(self, stream: int) -> None:
        with self._entered("cuStreamSynchronize", stream) as state:
            self._refuse_in_capture(self._stream(state, stream).capture, "cuStreamSynchronize")

    def stream_query(self, stream: int) -> bool:
        with self._entered("cuStreamQuery", stream) as state:
            self._refuse_in_capture(self._stream(state, stream).capture, "cuStreamQuery")
            return True

    def stream_wait_event(self, stream: int, event: int) -> None:
        with self._entered("cuStreamWaitEvent", stream, event) as state:
            waited = _find(state.events, "cuStreamWaitEvent", event)
            if waited.capture in state.captures:
                self._stream(state, stream).capture = waited.capture

    def stream_context(self, stream: int) -> int:
        with self._entered("cuStreamGetCtx", stream) as state:
            self._stream(state, stream)
            return _CONTEXT

    def stream_begin_capture(self, stream: int, mode: CaptureMode = CaptureMode.THREAD_LOCAL) -> None:
        with self._entered("cuStreamBeginCapture", stream) as state:
            found = self._stream(state, stream)
            if stream == 0 or found.capture is not None:
                raise driver_error("cuStreamBeginCapture", CuResult.STREAM_CAPTURE_UNSUPPORTED, f"{stream:#x}")
            found.capture = Capture(Graph(), stream, mode)
            state.captures.append(found.capture)

    def stream_end_capture(self, stream: int) -> int:
        with self._entered("cuStreamEndCapture", stream) as state:
            capture = self._stream(state, stream).capture
            if capture is None or capture.origin != stream:
                raise driver_error("cuStreamEndCapture", CuResult.ILLEGAL_STATE, f"{stream:#x}")
            state.captures.remove(capture)
            for joined in state.streams.values():
                if joined.capture is capture:
                    joined.capture = None
            if capture.invalid:
                raise driver_error("cuStreamEndCapture", CuResult.STREAM_CAPTURE_INVALIDATED, f"{stream:#x}")
            return self._add(state.graphs, capture.graph)

    def stream_is_capturing(self, stream: int) -> bool:
        with self._entered("cuStreamIsCapturing", stream) as state:
            return self._stream(state, stream).capture is not None

    def event_create(self, flags: EventFlags = EventFlags.DEFAULT) -> int:
        with self._entered("cuEventCreate") as state:
            return self._add(state.events, EventState(timed=EventFlags.DISABLE_TIMING not in flags))

    def event_destroy(self, event: int) -> None:
        with self._entered("cuEventDestroy", event) as state:
            _find(state.events, "cuEventDestroy", event)
            del state.events[event]

    def event_record(self, event: int, stream: int) -> None:
        with self._entered("cuEventRecord", event, stream) as state:
            recorded = _find(state.events, "cuEventRecord", event)
            recorded.capture = self._stream(state, stream).capture
            if recorded.capture is None:
                recorded.time_ns = state.machine.clock.record_event()

    def event_synchronize(self, event: int) -> None:
        with self._entered("cuEventSynchronize", event) as state:
            found = _find(state.events, "cuEventSynchronize", event)
            self._refuse_in_capture(found.capture, "cuEventSynchronize")

    def event_query(self, event: int) -> bool:
        with self._entered("cuEventQuery", event) as state:
            self._refuse_in_capture(_find(state.events, "cuEventQuery", event).capture, "cuEventQuery")
            return True

    def event_elapsed_ms(self, start: int, end: int) -> float:
        with self._entered("cuEventElapsedTime", start, end) as state:
            first, last = (_find(state.events, "cuEventElapsedTime", event) for event in (start, end))
            if not first.timed or not last.timed or first.time_ns is None or last.time_ns is None:
                raise driver_error(
                    "cuEventElapsedTime", CuResult.INVALID_HANDLE, explanation="event not recorded, or untimed"
                )
            return (last.time_ns - first.time_ns) * 1e-6

    # -- module and launch ----------------------------------------------------------------------------------
    def module_load_data(self, image: bytes) -> int:
        with self._entered("cuModuleLoadDataEx", f"{len(image)} bytes", captures=False) as state:
            problem = image_problem(image, self._device)
            if problem is not None:
                raise driver_error("cuModuleLoadDataEx", *problem)
            module = state.machine.load(image.rstrip(b"\0").decode())
            return self._add(state.modules, module)

    def module_unload(self, module: int) -> None:
        with self._entered("cuModuleUnload", module, captures=False) as state:
            state.machine.unload(_find(state.modules, "cuModuleUnload", module))
            del state.modules[module]

    def module_get_function(self, module: int, name: str) -> int:
        with self._entered("cuModuleGetFunction", module, name) as state:
            function = _find(state.modules, "cuModuleGetFunction", module).functions.get(name)
            if function is None:
                raise driver_error("cuModuleGetFunction", CuResult.NOT_FOUND, f"{module:#x}, {name}")
            return self._add(state.functions, LoadedFunction(function))

    def function_get_attribute(self, function: int, attribute: FunctionAttribute) -> int:
        with self._entered("cuFuncGetAttribute", function) as state:
            return function_attribute(_find(state.functions, "cuFuncGetAttribute", function), attribute, self._device)

    def function_set_attribute(self, function: int, attribute: FunctionAttribute, value: int) -> None:
        with self._entered("cuFuncSetAttribute", function, attribute.name, value) as state:
            found = _find(state.functions, "cuFuncSetAttribute", function)
            problem = found.set_attribute(attribute, value, self._device)
            if problem:
                raise driver_error("cuFuncSetAttribute", CuResult.INVALID_VALUE, f"{attribute.name}, {value}", problem)

    def occupancy_max_active_blocks(self, function: int, block_threads: int, shared_bytes: int) -> int:
        call = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        with self._entered(call, function, block_threads, shared_bytes) as state:
            found = _find(state.functions, call, function)
            return blocks_per_multiprocessor(found, block_threads, shared_bytes, self._device)

    def occupancy_max_active_clusters(self, function: int, config: LaunchConfig) -> int:
        call = "cuOccupancyMaxActiveClusters"
        with self._entered(call, f"{function:#x}", config) as state:
            found = _find(state.functions, call, function)
            if found.function.kernel.clusters.chosen(config.cluster) == (1, 1, 1):
                raise driver_error(call, CuResult.INVALID_CLUSTER_SIZE, config, "cluster: expected more than one block")
            self._check_launch(state, function, config)
            return active_clusters(found, config, self._device)

    def occupancy_max_potential_cluster_size(self, function: int, config: LaunchConfig) -> int:
        call = "cuOccupancyMaxPotentialClusterSize"
        with self._entered(call, f"{function:#x}", config) as state:
            return potential_cluster_size(_find(state.functions, call, function), config, self._device)

    def prepare_launch(self, function: int, config: LaunchConfig, parameters: int) -> Callable[[int], None]:
        with self._entered("cuLaunchKernel", f"{function:#x}", config) as state:
            self._check_launch(state, function, config)

        def launch(stream: int) -> None:
            with self._entered("cuLaunchKernel", f"{function:#x}", config) as state:
                self._submit(state, stream, _kernel_work(state, function, config, parameters))

        return launch

    # -- graph ----------------------------------------------------------------------------------------------
    def graph_create(self) -> int:
        with self._entered("cuGraphCreate") as state:
            return self._add(state.graphs, Graph())

    def graph_destroy(self, graph: int) -> None:
        with self._entered("cuGraphDestroy", graph) as state:
            _find(state.graphs, "cuGraphDestroy", graph)
            del state.graphs[graph]

    def graph_add_kernel_node(
        self, graph: int, dependencies: Sequence[int], function: int, config: LaunchConfig, parameters: int
    ) -> int:
        with self._entered("cuGraphAddKernelNode", graph) as state:
            found = _find(state.graphs, "cuGraphAddKernelNode", graph)
            for dependency in dependencies:
                _find(found.nodes, "cuGraphAddKernelNode", dependency)
            self._check_launch(state, function, config)
            node = self._add(found.nodes, _kernel_work(state, function, config, parameters))
            found.dependencies[node] = tuple(dependencies)
            return node

    def graph_instantiate(self, graph: int) -> int:
        with self._entered("cuGraphInstantiate", graph) as state:
            return self._add(state.executables, _find(state.graphs, "cuGraphInstantiate", graph).copied())

    def graph_exec_update(self, graph_exec: int, graph: int) -> None:
        call = "cuGraphExecUpdate"
        with self._entered(call, graph_exec, graph) as state:
            executable, source = _find(state.executables, call, graph_exec), _find(state.graphs, call, graph)
            difference = executable.difference(source)
            if difference:
                raise driver_error(call, CuResult.GRAPH_EXEC_UPDATE_FAILURE, f"{graph_exec:#x}, {graph:#x}", difference)
            executable.nodes = dict(zip(executable.nodes, source.nodes.values(), strict=True))

    def graph_exec_kernel_node_set_params(
        self, graph_exec: int, node: int, function: int, config: LaunchConfig, parameters: int
    ) -> None:
        call = "cuGraphExecKernelNodeSetParams"
        with self._entered(call, graph_exec, node) as state:
            nodes = _find(state.executables, call, graph_exec).nodes
            if not isinstance(_find(nodes, call, node), KernelWork):
                raise driver_error(call, CuResult.INVALID_VALUE, f"{node:#x}", "not a kernel node")
            self._check_launch(state, function, config)
            nodes[node] = _kernel_work(state, function, config, parameters)

    def graph_launch(self, graph_exec: int, stream: int) -> None:
        with self._entered("cuGraphLaunch", graph_exec, stream) as state:
            for work in _find(state.executables, "cuGraphLaunch", graph_exec).nodes.values():
                self._submit(state, stream, work)

    def graph_exec_destroy(self, graph_exec: int) -> None:
        with self._entered("cuGraphExecDestroy", graph_exec) as state:
            _find(state.executables, "cuGraphExecDestroy", graph_exec)
            del state.executables[graph_exec]

    # -- inside ---------------------------------------------------------------------------------------------
    @contextmanager
    def _entered(self, call: str, *arguments: object, captures: bool = True) -> Iterator[DeviceState]:
        """Every call that needs the context: one at a time, faults as ``DriverError``.

        ``captures=False`` marks what a GPU does not allow while the thread captures a stream.
        """
        text = ", ".join(f"{value:#x}" if isinstance(value, int) else str(value) for value in arguments)
        with self._lock:
            self._check_initialised(call)
            state = self._state
            if state is None or self.context_get_current() != _CONTEXT:
                raise driver_error(call, CuResult.INVALID_CONTEXT, text, "the context is not current in this thread")
            if state.fault is not None:
                first_line = state.fault.explanation.partition("\n")[0]
                raise driver_error(
                    call, state.fault.result, text, f"since {state.fault.call}: {first_line}; open a new handle"
                )
            if not captures:
                self._refuse_in_capture(next(iter(state.strict_captures()), None), call)
            try:
                yield state
            except EmulationFault as error:
                fault = driver_error(call, error.result, text, str(error.report), error.report.facts())
                if error.result >= CuResult.ILLEGAL_ADDRESS:
                    state.fault = fault
                raise fault from error
            except MemoryError as error:
                raise driver_error(call, CuResult.OUT_OF_MEMORY, text, str(error)) from error
            except (LaneFault, ValueError) as error:
                raise driver_error(call, CuResult.INVALID_VALUE, text, str(error)) from error

    def _submit(self, state: DeviceState, stream: int, work: Work) -> None:
        capture = self._stream(state, stream).capture
        if capture is not None:
            self._add(capture.graph.nodes, work)
        elif isinstance(work, OtherWork):
            work.run()
            state.machine.clock.copy(work.size_bytes)
        else:
            state.machine.launch(work.function, work.config, work.parameters)

    def _check_launch(self, state: DeviceState, function: int, config: LaunchConfig) -> None:
        found = _find(state.functions, "cuLaunchKernel", function)
        problem = launch_problem(found, config, self._device)
        if problem is not None:
            raise driver_error("cuLaunchKernel", problem[0], f"{found.function.kernel.name}, {config}", problem[1])

    def _stream(self, state: DeviceState, stream: int) -> StreamState:
        return _find(state.streams, "stream", stream)

    def _refuse_in_capture(self, capture: Capture | None, call: str) -> None:
        if capture is not None:
            capture.invalid = True
            raise driver_error(call, CuResult.STREAM_CAPTURE_UNSUPPORTED, explanation="a stream is being captured")

    def _add(self, table: dict[int, T], value: T) -> int:
        handle = next(self._handles)
        table[handle] = value
        return handle

    def _check_initialised(self, call: str) -> None:
        if not self._is_initialised:
            raise driver_error(call, CuResult.NOT_INITIALIZED)

    def _check_device(self, call: str, device: int) -> None:
        self._check_initialised(call)
        if device != 0:
            raise driver_error(call, CuResult.INVALID_DEVICE, device)


def _find(table: dict[int, T], call: str, handle: int) -> T:
    if handle not in table:
        raise driver_error(call, CuResult.INVALID_HANDLE, f"{handle:#x}")
    return table[handle]


def _kernel_work(state: DeviceState, function: int, config: LaunchConfig, parameters: int) -> KernelWork:
    """The launch with its parameter values read from the ``void*[]`` at ``parameters``."""
    found = _find(state.functions, "cuLaunchKernel", function).function
    wanted = found.kernel.parameters
    pointers = (ctypes.c_void_p * len(wanted)).from_address(parameters) if wanted else ()
    values = tuple(
        ctypes.string_at(pointer or 0, parameter.size) for pointer, parameter in zip(pointers, wanted, strict=True)
    )
    return KernelWork(found, config, values)


def _host_bytes(address: int, size_bytes: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))
