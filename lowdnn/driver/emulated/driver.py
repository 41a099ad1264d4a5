"""The emulated driver: ``Driver`` over a ``Machine`` that runs PTX on the CPU.

With one device work runs in the order of the calls, before the call returns, so a fault is raised by the launch that
caused it; with several devices it runs when the host waits, as ``queues`` says, and a call that waits raises the fault.
As on a GPU the fault sticks: later calls fail with the same CUresult until the last reference to the primary context is
released. Event times are the device's count of its work (``DeviceClock``). Calls that a GPU refuses while a stream is
being captured are refused here too. So is one that a GPU allows: stream-ordered allocation in a captured
stream, which would be a node of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from lowdnn.driver.base import (
    CaptureMode,
    DeviceAttribute,
    EventFlags,
    FunctionAttribute,
    LaunchConfig,
    PointerInfo,
    StreamFlags,
)
from lowdnn.driver.emulated.context import Contexts
from lowdnn.driver.emulated.copying.tensor_map import TensorMap, decode, encode, problem_of
from lowdnn.driver.emulated.device import CUDA_VERSION, PTX_ISA, emulated_device
from lowdnn.driver.emulated.graph_calls import GraphCalls, added, destroyed
from lowdnn.driver.emulated.graphs import Graph, KernelWork, Node, kernel_work
from lowdnn.driver.emulated.host_calls import HostCalls
from lowdnn.driver.emulated.launching import (
    LoadedFunction,
    active_clusters,
    blocks_per_multiprocessor,
    function_attribute,
    image_problem,
    launch_problem,
    potential_cluster_size,
)
from lowdnn.driver.emulated.moves import fill, on_device, to_device, to_host
from lowdnn.driver.emulated.options import Options
from lowdnn.driver.emulated.peers import PeerCalls
from lowdnn.driver.emulated.queues import Kind, Marker
from lowdnn.driver.emulated.results import driver_error
from lowdnn.driver.emulated.state import DeviceState, EventState, event_of, find, stream_of
from lowdnn.driver.emulated.streams import (
    begin_capture,
    check_own_stream,
    checked_event,
    checked_stream,
    destroy_event,
    destroy_stream,
    elapsed_ms,
    end_capture,
    exchange_capture_mode,
    finish,
    record_event,
    refuse_in_capture,
    submit,
    wait_event,
)
from lowdnn.driver.results import CuResult
from lowdnn.tensor_map import (
    TENSOR_MAP_BYTES,
    Im2colMap,
    TiledMap,
    address_problem,
    im2col_map_problem,
    tiled_map_problem,
)

#: DLPack's kDLExtDev: memory that only this driver can read.
_DLPACK_EXTENSION = 12


class EmulatedDriver(PeerCalls):
    """Emulated devices of one ``arch``: ``sm_80``, ``sm_90a``, ``sm_120``... See the package's docstring."""

    kind = "emulated"
    dlpack_device_type = _DLPACK_EXTENSION
    takes_machine_code = False

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
        devices: int = 1,
    ) -> None:
        """``Options`` lists the choices. Raises ArchMismatchError, BadParamError for what there is not."""
        self._device = emulated_device(arch)
        options = Options(policy, checks, landing, lane_budget, timeout_s, races, devices)
        self._devices = devices
        super().__init__(Contexts(self._device, options))
        self.host_functions = HostCalls(self._context)
        #: Calls beyond ``Driver``.
        self.graph_calls = GraphCalls(self._context)

    # -- device ---------------------------------------------------------------------------------------------
    def init(self) -> None:
        self._context.initialise()

    def driver_version(self) -> int:
        return CUDA_VERSION

    def ptx_isa_version(self) -> tuple[int, int]:
        return PTX_ISA

    def device_count(self) -> int:
        self._context.check_initialised("cuDeviceGetCount")
        return self._devices

    def device_name(self, device: int) -> str:
        self._context.check_device("cuDeviceGetName", device)
        return self._device.name

    def device_total_memory_bytes(self, device: int) -> int:
        self._context.check_device("cuDeviceTotalMem", device)
        return self._device.memory_bytes

    def device_attribute(self, device: int, attribute: DeviceAttribute) -> int:
        self._context.check_device("cuDeviceGetAttribute", device)
        return self._device.attributes[attribute]

    # -- context --------------------------------------------------------------------------------------------
    def primary_context_retain(self, device: int) -> int:
        self._context.check_device("cuDevicePrimaryCtxRetain", device)
        return self._context.retain(device)

    def primary_context_release(self, device: int) -> None:
        self._context.check_device("cuDevicePrimaryCtxRelease", device)
        self._context.release(device)

    def context_get_current(self) -> int:
        return self._context.current()

    def context_set_current(self, context: int) -> None:
        self._context.set_current(context)

    def context_get_device(self) -> int:
        with self._context.entered("cuCtxGetDevice") as state:
            return state.number

    def context_synchronize(self) -> None:
        with self._context.entered("cuCtxSynchronize") as state:
            refuse_in_capture(next(iter(state.captures), None), "cuCtxSynchronize")
            state.system.queues.finish_device(state.number)

    # -- memory ---------------------------------------------------------------------------------------------
    def mem_get_info(self) -> tuple[int, int]:
        with self._context.entered("cuMemGetInfo") as state:
            return state.memory.limit_bytes - state.memory.live_bytes, state.memory.limit_bytes

    def mem_alloc(self, size_bytes: int, label: str = "") -> int:
        with self._context.entered("cuMemAlloc", size_bytes, captures=False) as state:
            return state.memory.allocate(size_bytes, label)

    def mem_free(self, address: int) -> None:
        with self._context.entered("cuMemFree", address, captures=False) as state:
            owner = state.system.space.at(address)
            if owner is not None:
                state.system.queues.finish_device(owner.device)
            if address:
                state.memory.free(address)

    def mem_alloc_async(self, size_bytes: int, stream: int, label: str = "") -> int:
        with self._context.entered("cuMemAllocAsync", size_bytes, captures=False) as state:
            refuse_in_capture(stream_of(state, stream).capture, "cuMemAllocAsync")
            return state.memory.allocate(size_bytes, label, pooled=True) if size_bytes else 0

    def mem_free_async(self, address: int, stream: int) -> None:
        with self._context.entered("cuMemFreeAsync", address, captures=False) as state:
            refuse_in_capture(stream_of(state, stream).capture, "cuMemFreeAsync")
            if address:
                state.memory.require(address, 1)
                submit(state, stream, Marker(partial(state.memory.free, address)))

    def pointer_info(self, address: int) -> PointerInfo | None:
        with self._context.entered("cuPointerGetAttribute", address) as state:
            found = state.system.space.at(address)
            return None if found is None else PointerInfo(found.address, found.size, found.device)

    def memcpy_htod_async(self, destination: int, source_host: int, size_bytes: int, stream: int) -> None:
        with self._context.entered("cuMemcpyHtoDAsync", destination, size_bytes) as state:
            if size_bytes:
                keeps = state.system.queues.defers and stream_of(state, stream).capture is None
                submit(state, stream, to_device(state.memory, destination, source_host, size_bytes, keeps=keeps))

    def memcpy_dtoh_async(self, destination_host: int, source: int, size_bytes: int, stream: int) -> None:
        with self._context.entered("cuMemcpyDtoHAsync", source, size_bytes) as state:
            if size_bytes:
                # As a copy to pageable memory, it returns when the bytes are there.
                copied = submit(state, stream, to_host(state.memory, destination_host, source, size_bytes))
                state.system.queues.finish([copied])

    def memcpy_dtod_async(self, destination: int, source: int, size_bytes: int, stream: int) -> None:
        with self._context.entered("cuMemcpyDtoDAsync", destination, source, size_bytes) as state:
            if size_bytes:
                submit(state, stream, on_device(state.memory, destination, source, size_bytes))

    def memset_d8_async(self, destination: int, value: int, count: int, stream: int) -> None:
        self._fill("cuMemsetD8Async", destination, value, count, 1, stream)

    def memset_d32_async(self, destination: int, value: int, count: int, stream: int) -> None:
        self._fill("cuMemsetD32Async", destination, value, count, 4, stream)

    def _fill(self, call: str, destination: int, value: int, count: int, width_bytes: int, stream: int) -> None:
        with self._context.entered(call, destination, value, count) as state:
            if count:
                submit(state, stream, fill(state.memory, destination, value, count, width_bytes))

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
        with self._context.entered(call, tensor_map):
            result = CuResult.INVALID_VALUE
            if not problem:
                result, problem = CuResult.NOT_SUPPORTED, problem_of(tensor_map)
            if problem:
                raise driver_error(call, result, tensor_map, problem)
            return encode(tensor_map)

    # -- stream and event -----------------------------------------------------------------------------------
    def stream_create(self, flags: StreamFlags = StreamFlags.NON_BLOCKING, priority: int = 0) -> int:
        kind = Kind.FREE if StreamFlags.NON_BLOCKING in flags else Kind.BLOCKING
        with self._context.entered("cuStreamCreateWithPriority") as state:
            return state.add(state.streams, state.new_stream(kind))

    def stream_destroy(self, stream: int) -> None:
        with self._context.entered("cuStreamDestroy", stream) as state:
            destroy_stream(state, stream)

    def stream_synchronize(self, stream: int) -> None:
        call = "cuStreamSynchronize"
        with self._context.entered(call, stream) as state:
            queue = checked_stream(state, stream, call).queue
            finish(state, call, queue.device, [queue.tail])

    def stream_query(self, stream: int) -> bool:
        with self._context.entered("cuStreamQuery", stream) as state:
            return state.system.queues.is_done(checked_stream(state, stream, "cuStreamQuery").queue.tail)

    def stream_wait_event(self, stream: int, event: int) -> None:
        with self._context.entered("cuStreamWaitEvent", stream, event) as state:
            wait_event(state, stream, event)

    def stream_context(self, stream: int) -> int:
        with self._context.entered("cuStreamGetCtx", stream) as state:
            return state.system.states[stream_of(state, stream).device].context

    def stream_begin_capture(self, stream: int, mode: CaptureMode = CaptureMode.THREAD_LOCAL) -> None:
        with self._context.entered("cuStreamBeginCapture", stream) as state:
            begin_capture(state, stream, mode)

    def stream_end_capture(self, stream: int) -> int:
        with self._context.entered("cuStreamEndCapture", stream) as state:
            return end_capture(state, stream)

    def stream_is_capturing(self, stream: int) -> bool:
        with self._context.entered("cuStreamIsCapturing", stream) as state:
            return stream_of(state, stream).capture is not None

    def thread_exchange_capture_mode(self, mode: CaptureMode) -> CaptureMode:
        with self._context.entered("cuThreadExchangeStreamCaptureMode", mode) as state:
            return exchange_capture_mode(state, mode)

    def event_create(self, flags: EventFlags = EventFlags.DEFAULT) -> int:
        with self._context.entered("cuEventCreate") as state:
            timed, shared = EventFlags.DISABLE_TIMING not in flags, EventFlags.INTERPROCESS in flags
            return state.add(state.events, EventState(state.number, timed, shared))

    def event_destroy(self, event: int) -> None:
        with self._context.entered("cuEventDestroy", event) as state:
            destroy_event(state, event)

    def event_record(self, event: int, stream: int) -> None:
        with self._context.entered("cuEventRecord", event, stream) as state:
            record_event(state, event, stream)

    def event_synchronize(self, event: int) -> None:
        call = "cuEventSynchronize"
        with self._context.entered(call, event) as state:
            found = checked_event(state, event, call)
            finish(state, call, found.device, [found.task])

    def event_query(self, event: int) -> bool:
        with self._context.entered("cuEventQuery", event) as state:
            return state.system.queues.is_done(checked_event(state, event, "cuEventQuery").task)

    def event_peek(self, event: int, context: int) -> bool:
        found = event_of(self._context.seen_state("cuEventQuery", context), "cuEventQuery", event)
        return found.task is None or found.task.is_done

    def event_elapsed_ms(self, start: int, end: int) -> float:
        with self._context.entered("cuEventElapsedTime", start, end) as state:
            return elapsed_ms(state, start, end)

    def block_places(self, context: int, timeout_s: float) -> str:
        return self._context.state_of("block_places", context).machine.inquiry.ask(timeout_s)

    # -- module and launch ----------------------------------------------------------------------------------
    def module_load_data(self, image: bytes) -> int:
        with self._context.entered("cuModuleLoadDataEx", f"{len(image)} bytes") as state:
            problem = image_problem(image, self._device)
            if problem is not None:
                raise driver_error("cuModuleLoadDataEx", *problem)
            module = state.machine.load(image.rstrip(b"\0").decode())
            return state.add(state.modules, module)

    def module_unload(self, module: int) -> None:
        with self._context.entered("cuModuleUnload", module, captures=False) as state:
            unloaded = find(state.modules, "cuModuleUnload", module)
            state.system.queues.finish_device(state.number)
            state.machine.unload(unloaded)
            del state.modules[module]
            for function in state.functions_of.pop(module, {}).values():
                del state.functions[function]

    def module_get_function(self, module: int, name: str) -> int:
        with self._context.entered("cuModuleGetFunction", module, name) as state:
            function = find(state.modules, "cuModuleGetFunction", module).functions.get(name)
            if function is None:
                raise driver_error("cuModuleGetFunction", CuResult.NOT_FOUND, f"{module:#x}, {name}")
            known = state.functions_of.setdefault(module, {})
            if name not in known:
                known[name] = state.add(state.functions, LoadedFunction(function))
            return known[name]

    def function_parameter_bytes(self, function: int, index: int) -> int:
        call = "cuFuncGetParamInfo"
        with self._context.entered(call, function, index) as state:
            parameters = find(state.functions, call, function).function.kernel.parameters
            if index >= len(parameters):
                problem = f"the kernel has {len(parameters)} parameters"
                raise driver_error(call, CuResult.INVALID_VALUE, f"{function:#x}, {index}", problem)
            return parameters[index].size

    def function_get_attribute(self, function: int, attribute: FunctionAttribute) -> int:
        with self._context.entered("cuFuncGetAttribute", function) as state:
            return function_attribute(find(state.functions, "cuFuncGetAttribute", function), attribute, self._device)

    def function_set_attribute(self, function: int, attribute: FunctionAttribute, value: int) -> None:
        with self._context.entered("cuFuncSetAttribute", function, attribute.name, value) as state:
            found = find(state.functions, "cuFuncSetAttribute", function)
            problem = found.set_attribute(attribute, value, self._device)
            if problem:
                raise driver_error("cuFuncSetAttribute", CuResult.INVALID_VALUE, f"{attribute.name}, {value}", problem)

    def occupancy_max_active_blocks(self, function: int, block_threads: int, shared_bytes: int) -> int:
        call = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        with self._context.entered(call, function, block_threads, shared_bytes) as state:
            found = find(state.functions, call, function)
            return blocks_per_multiprocessor(found, block_threads, shared_bytes, self._device)

    def occupancy_max_active_clusters(self, function: int, config: LaunchConfig) -> int:
        call = "cuOccupancyMaxActiveClusters"
        with self._context.entered(call, f"{function:#x}", config) as state:
            self._check_launch(state, function, config)
            return active_clusters(find(state.functions, call, function), config, self._device)

    def occupancy_max_potential_cluster_size(self, function: int, config: LaunchConfig) -> int:
        call = "cuOccupancyMaxPotentialClusterSize"
        with self._context.entered(call, f"{function:#x}", config) as state:
            self._check_launch(state, function, config)
            return potential_cluster_size(find(state.functions, call, function), config, self._device)

    def prepare_launch(self, function: int, config: LaunchConfig, parameters: int) -> Callable[[int], None]:
        with self._context.entered("cuLaunchKernel", f"{function:#x}", config) as state:
            self._check_launch(state, function, config)

        def launch(stream: int) -> None:
            with self._context.entered("cuLaunchKernel", f"{function:#x}", config) as state:
                check_own_stream(state, "cuLaunchKernel", stream)
                submit(state, stream, self._kernel_work(state, function, config, parameters))

        return launch

    # -- graph ----------------------------------------------------------------------------------------------
    def graph_create(self) -> int:
        with self._context.entered("cuGraphCreate") as state:
            return state.add(state.graphs, Graph())

    def graph_destroy(self, graph: int) -> None:
        with self._context.entered("cuGraphDestroy", graph) as state:
            destroyed(state, graph)

    def graph_nodes(self, graph: int) -> tuple[int, ...]:
        with self._context.entered("cuGraphGetNodes", graph) as state:
            return tuple(find(state.graphs, "cuGraphGetNodes", graph).nodes)

    def graph_add_kernel_node(
        self, graph: int, dependencies: Sequence[int], function: int, config: LaunchConfig, parameters: int
    ) -> int:
        with self._context.entered("cuGraphAddKernelNode", graph) as state:
            self._check_launch(state, function, config)
            work = self._node_work(state, function, config, parameters)
            return added(state, "cuGraphAddKernelNode", graph, dependencies, work)

    def graph_kernel_node_set_params(
        self, graph: int, node: int, function: int, config: LaunchConfig, parameters: int
    ) -> None:
        call = "cuGraphKernelNodeSetParams"
        with self._context.entered(call, graph, node) as state:
            self._set_params(state, call, find(state.graphs, call, graph).nodes, node, function, config, parameters)

    def graph_instantiate(self, graph: int) -> int:
        with self._context.entered("cuGraphInstantiate", graph, captures=False) as state:
            return state.add(state.executables, find(state.graphs, "cuGraphInstantiate", graph).copied())

    def graph_exec_update(self, graph_exec: int, graph: int) -> None:
        call = "cuGraphExecUpdate"
        with self._context.entered(call, graph_exec, graph) as state:
            executable, source = find(state.executables, call, graph_exec), find(state.graphs, call, graph)
            difference = executable.difference(source)
            if difference:
                raise driver_error(call, CuResult.GRAPH_EXEC_UPDATE_FAILURE, f"{graph_exec:#x}, {graph:#x}", difference)
            executable.take_over(source)

    def graph_exec_kernel_node_set_params(
        self, graph_exec: int, node: int, function: int, config: LaunchConfig, parameters: int
    ) -> None:
        call = "cuGraphExecKernelNodeSetParams"
        with self._context.entered(call, graph_exec, node) as state:
            nodes = find(state.executables, call, graph_exec).nodes
            self._set_params(state, call, nodes, node, function, config, parameters)

    def graph_launch(self, graph_exec: int, stream: int) -> None:
        with self._context.entered("cuGraphLaunch", graph_exec, stream) as state:
            executable = find(state.executables, "cuGraphLaunch", graph_exec)
            refuse_in_capture(stream_of(state, stream).capture, "cuGraphLaunch")
            for work in executable.flat():
                submit(state, stream, work)

    def graph_exec_destroy(self, graph_exec: int) -> None:
        with self._context.entered("cuGraphExecDestroy", graph_exec) as state:
            find(state.executables, "cuGraphExecDestroy", graph_exec)
            del state.executables[graph_exec]

    # -- inside ---------------------------------------------------------------------------------------------
    def _check_launch(self, state: DeviceState, function: int, config: LaunchConfig) -> None:
        found = find(state.functions, "cuLaunchKernel", function)
        problem = launch_problem(found, config, self._device)
        if problem is not None:
            raise driver_error("cuLaunchKernel", problem[0], f"{found.function.kernel.name}, {config}", problem[1])

    def _set_params(
        self,
        state: DeviceState,
        call: str,
        nodes: dict[int, Node],
        node: int,
        function: int,
        config: LaunchConfig,
        parameters: int,
    ) -> None:
        if not isinstance(find(nodes, call, node), KernelWork):
            raise driver_error(call, CuResult.INVALID_VALUE, f"{node:#x}", "not a kernel node")
        self._check_launch(state, function, config)
        nodes[node] = self._node_work(state, function, config, parameters)

    def _node_work(self, state: DeviceState, function: int, config: LaunchConfig, parameters: int) -> KernelWork:
        """The work of a kernel node, which waits for the end of the nodes that it depends on."""
        return self._kernel_work(state, function, replace(config, programmatic_serialization=False), parameters)

    def _kernel_work(self, state: DeviceState, function: int, config: LaunchConfig, parameters: int) -> KernelWork:
        found = find(state.functions, "cuLaunchKernel", function).function
        return kernel_work(state.machine, found, config, parameters)
