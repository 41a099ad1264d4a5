"""The real driver, through ``cuda.bindings.driver``. Importing this module loads the bindings, not libcuda.

Handles are turned into integers at the seam. Every call checks its CUresult; a failing one raises ``DriverError``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from graphlib import TopologicalSorter
from types import ModuleType
from typing import Any

from cuda.bindings import driver as bindings_driver

from lowdnn.driver.base import (
    CaptureMode,
    DeviceAttribute,
    DriverError,
    EventFlags,
    FunctionAttribute,
    LaunchConfig,
    PointerInfo,
    StreamFlags,
    emitted,
)
from lowdnn.driver.cuda_peers import CudaPeerCalls
from lowdnn.driver.cuda_tensor_maps import bytes_of_map, im2col_arguments, map_of_bytes, tiled_arguments
from lowdnn.driver.results import KERNEL_FAULTS, argument_text
from lowdnn.status import SublibraryLoadingFailedError
from lowdnn.tensor_map import (
    TENSOR_MAP_BYTES,
    Im2colMap,
    TensorMapInterleave,
    TiledMap,
    address_problem,
    im2col_map_problem,
    tiled_map_problem,
)

#: DLPack's kDLCUDA.
_DLPACK_CUDA = 2
#: The first version of the driver that has cuFuncGetParamInfo, as cuDriverGetVersion counts.
_TELLS_PARAMETERS = 12040
#: The version of the driver whose cuPointerGetAttribute is asked for.
_HAS_POINTER_ATTRIBUTES = 4000


class CudaDriver(CudaPeerCalls):
    """``Driver`` over the CUDA driver API. ``bindings`` stands in for ``cuda.bindings.driver`` in tests."""

    kind = "cuda"
    dlpack_device_type = _DLPACK_CUDA
    takes_machine_code = True
    host_functions = None

    def __init__(self, bindings: ModuleType = bindings_driver) -> None:
        self._cu: Any = bindings

    def __eq__(self, other: object) -> bool:
        """A process has one driver, whichever object speaks with it."""
        return isinstance(other, CudaDriver) and self._cu is other._cu

    def __hash__(self) -> int:
        return hash(self._cu)

    # -- device ---------------------------------------------------------------------------------------------
    def init(self) -> None:
        try:
            self._call("cuInit", 0)
        except DriverError:
            raise
        except (RuntimeError, ImportError, OSError) as error:
            got = f"none that can be loaded ({error})"
            raise SublibraryLoadingFailedError.at(
                "cuInit", expected="the NVIDIA driver (libcuda.so.1)", got=got, hint="install the display driver"
            ) from error

    def driver_version(self) -> int:
        return int(self._call("cuDriverGetVersion"))

    def ptx_isa_version(self) -> tuple[int, int]:
        return ptx_isa_of_cuda(self.driver_version())

    def device_count(self) -> int:
        return int(self._call("cuDeviceGetCount"))

    def device_name(self, device: int) -> str:
        name: bytes = self._call("cuDeviceGetName", 256, device)
        return name.split(b"\0", 1)[0].decode()

    def device_total_memory_bytes(self, device: int) -> int:
        return int(self._call("cuDeviceTotalMem", device))

    def device_attribute(self, device: int, attribute: DeviceAttribute) -> int:
        return int(self._call("cuDeviceGetAttribute", self._cu.CUdevice_attribute(attribute), device))

    # -- context --------------------------------------------------------------------------------------------
    def primary_context_retain(self, device: int) -> int:
        return int(self._call("cuDevicePrimaryCtxRetain", device))

    def primary_context_release(self, device: int) -> None:
        self._call("cuDevicePrimaryCtxRelease", device)

    def context_get_current(self) -> int:
        result, context = self._cu.cuCtxGetCurrent()
        if result:
            raise self._error("cuCtxGetCurrent", result, ())
        return int(context)

    def context_set_current(self, context: int) -> None:
        self._call("cuCtxSetCurrent", context)

    def context_get_device(self) -> int:
        return int(self._call("cuCtxGetDevice"))

    def context_synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    # -- memory ---------------------------------------------------------------------------------------------
    def mem_get_info(self) -> tuple[int, int]:
        free_bytes, total_bytes = self._call("cuMemGetInfo")
        return int(free_bytes), int(total_bytes)

    def mem_alloc(self, size_bytes: int, label: str = "") -> int:
        return int(self._call("cuMemAlloc", size_bytes))

    def mem_free(self, address: int) -> None:
        self._call("cuMemFree", address)

    def mem_alloc_async(self, size_bytes: int, stream: int, label: str = "") -> int:
        return int(self._call("cuMemAllocAsync", size_bytes, stream))

    def mem_free_async(self, address: int, stream: int) -> None:
        self._call("cuMemFreeAsync", address, stream)

    def pointer_info(self, address: int) -> PointerInfo | None:
        attribute = self._cu.CUpointer_attribute
        values = []
        for name in (attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE):
            result, value = self._cu.cuPointerGetAttribute(name, address)
            if result == self._cu.CUresult.CUDA_ERROR_INVALID_VALUE:
                return None
            if result:
                raise self._error("cuPointerGetAttribute", result, (name, address))
            values.append(int(value))
        begin, size_bytes = values
        return PointerInfo(begin, size_bytes, self._device_of(address)) if size_bytes else None

    def _device_of(self, address: int) -> int:
        """The ordinal of the device that has the memory. ``cuda.bindings`` 13.3 reads 0 for every device."""
        ordinal, name = ctypes.c_int(), self._cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        result = self._cu.CUresult(self._pointer_attribute(ctypes.byref(ordinal), int(name), address))
        if result:
            raise self._error("cuPointerGetAttribute", result, (name, address))
        return ordinal.value

    @cached_property
    def _pointer_attribute(self) -> Callable[..., int]:
        """The driver's own ``cuPointerGetAttribute``."""
        call = "cuPointerGetAttribute"
        address, _ = self._call("cuGetProcAddress", call.encode(), _HAS_POINTER_ATTRIBUTES, 0)
        return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)(int(address))

    def memcpy_htod_async(self, destination: int, source_host: int, size_bytes: int, stream: int) -> None:
        self._call("cuMemcpyHtoDAsync", destination, source_host, size_bytes, stream)

    def memcpy_dtoh_async(self, destination_host: int, source: int, size_bytes: int, stream: int) -> None:
        self._call("cuMemcpyDtoHAsync", destination_host, source, size_bytes, stream)

    def memcpy_dtod_async(self, destination: int, source: int, size_bytes: int, stream: int) -> None:
        self._call("cuMemcpyDtoDAsync", destination, source, size_bytes, stream)

    def memset_d8_async(self, destination: int, value: int, count: int, stream: int) -> None:
        self._call("cuMemsetD8Async", destination, value, count, stream)

    def memset_d32_async(self, destination: int, value: int, count: int, stream: int) -> None:
        self._call("cuMemsetD32Async", destination, value, count, stream)

    # -- tensor maps ----------------------------------------------------------------------------------------
    def tensor_map_encode_tiled(self, tiled: TiledMap) -> bytes:
        call = "cuTensorMapEncodeTiled"
        self._refuse(call, tiled, tiled_map_problem(tiled))
        return bytes_of_map(self._call(call, *tiled_arguments(self._cu, tiled)))

    def tensor_map_encode_im2col(self, im2col: Im2colMap) -> bytes:
        call = "cuTensorMapEncodeIm2col"
        self._refuse(call, im2col, im2col_map_problem(im2col))
        return bytes_of_map(self._call(call, *im2col_arguments(self._cu, im2col)))

    def tensor_map_replace_address(self, tensor_map: bytes, address: int) -> bytes:
        call = "cuTensorMapReplaceAddress"
        if len(tensor_map) != TENSOR_MAP_BYTES:
            self._refuse(call, address, f"expected {TENSOR_MAP_BYTES} bytes, got {len(tensor_map)}")
        self._refuse(call, address, address_problem(address, TensorMapInterleave.NONE))
        opaque = map_of_bytes(self._cu, tensor_map)
        self._call(call, opaque, address)
        return bytes_of_map(opaque)

    # -- stream and event -----------------------------------------------------------------------------------
    def stream_create(self, flags: StreamFlags = StreamFlags.NON_BLOCKING, priority: int = 0) -> int:
        return int(self._call("cuStreamCreateWithPriority", int(flags), priority))

    def stream_destroy(self, stream: int) -> None:
        self._call("cuStreamDestroy", stream)

    def stream_synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", stream)

    def stream_query(self, stream: int) -> bool:
        return self._ready("cuStreamQuery", stream)

    def stream_wait_event(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", stream, event, 0)

    def stream_context(self, stream: int) -> int:
        return int(self._call("cuStreamGetCtx", stream))

    def stream_begin_capture(self, stream: int, mode: CaptureMode = CaptureMode.THREAD_LOCAL) -> None:
        self._call("cuStreamBeginCapture", stream, self._cu.CUstreamCaptureMode(mode))

    def stream_end_capture(self, stream: int) -> int:
        return int(self._call("cuStreamEndCapture", stream))

    def stream_is_capturing(self, stream: int) -> bool:
        result, status = self._cu.cuStreamIsCapturing(stream)
        if result:
            raise self._error("cuStreamIsCapturing", result, (stream,))
        return status != 0  # type: ignore[no-any-return]  # CU_STREAM_CAPTURE_STATUS_NONE

    def thread_exchange_capture_mode(self, mode: CaptureMode) -> CaptureMode:
        return CaptureMode(int(self._call("cuThreadExchangeStreamCaptureMode", self._cu.CUstreamCaptureMode(mode))))

    def event_create(self, flags: EventFlags = EventFlags.DEFAULT) -> int:
        return int(self._call("cuEventCreate", int(flags)))

    def event_destroy(self, event: int) -> None:
        self._call("cuEventDestroy", event)

    def event_record(self, event: int, stream: int) -> None:
        (result,) = self._cu.cuEventRecord(event, stream)
        if result:
            raise self._error("cuEventRecord", result, (event, stream))

    def event_synchronize(self, event: int) -> None:
        self._call("cuEventSynchronize", event)

    def event_query(self, event: int) -> bool:
        return self._ready("cuEventQuery", event)

    def event_peek(self, event: int, context: int) -> bool:
        if self.context_get_current() != context:
            self.context_set_current(context)
        before = self.thread_exchange_capture_mode(CaptureMode.RELAXED)
        try:
            return self._ready("cuEventQuery", event)
        finally:
            self.thread_exchange_capture_mode(before)

    def event_elapsed_ms(self, start: int, end: int) -> float:
        return float(self._call("cuEventElapsedTime", start, end))

    def block_places(self, context: int, timeout_s: float) -> str:
        return ""

    # -- module and launch ----------------------------------------------------------------------------------
    def module_load_data(self, image: bytes) -> int:
        terminated = image if image.endswith(b"\0") else image + b"\0"
        log = bytearray(8192)
        options = self._cu.CUjit_option
        result, module = self._cu.cuModuleLoadDataEx(
            terminated,
            2,
            [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES],
            [log, len(log)],
        )
        if result:
            text = bytes(log).rstrip(b"\0").decode(errors="replace").strip()
            raise self._error("cuModuleLoadDataEx", result, (f"{len(image)} bytes",), text)
        return int(module)

    def module_unload(self, module: int) -> None:
        self._call("cuModuleUnload", module)

    def module_get_function(self, module: int, name: str) -> int:
        return int(self._call("cuModuleGetFunction", module, name.encode()))

    def function_parameter_bytes(self, function: int, index: int) -> int:
        if self.driver_version() < _TELLS_PARAMETERS:
            return 0
        _, size_bytes = self._call("cuFuncGetParamInfo", function, index)
        return int(size_bytes)

    def function_get_attribute(self, function: int, attribute: FunctionAttribute) -> int:
        return int(self._call("cuFuncGetAttribute", self._cu.CUfunction_attribute(attribute), function))

    def function_set_attribute(self, function: int, attribute: FunctionAttribute, value: int) -> None:
        self._call("cuFuncSetAttribute", function, self._cu.CUfunction_attribute(attribute), value)

    def occupancy_max_active_blocks(self, function: int, block_threads: int, shared_bytes: int) -> int:
        return int(self._call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, block_threads, shared_bytes))

    def occupancy_max_active_clusters(self, function: int, config: LaunchConfig) -> int:
        return int(self._call("cuOccupancyMaxActiveClusters", function, self._launch_config(config)))

    def occupancy_max_potential_cluster_size(self, function: int, config: LaunchConfig) -> int:
        return int(self._call("cuOccupancyMaxPotentialClusterSize", function, self._launch_config(config)))

    def prepare_launch(self, function: int, config: LaunchConfig, parameters: int) -> Callable[[int], None]:
        config = self._without_own_cluster(function, config)
        if config.cluster == (1, 1, 1) and not config.cooperative and not config.programmatic_serialization:
            return self._plain_launch(function, config, parameters)
        return self._attributed_launch(function, config, parameters)

    def _without_own_cluster(self, function: int, config: LaunchConfig) -> LaunchConfig:
        """``config`` without a cluster that the kernel's own directive asks for: a plain launch is the cheaper one."""
        if config.cluster == (1, 1, 1):
            return config
        sides = (
            FunctionAttribute.REQUIRED_CLUSTER_WIDTH,
            FunctionAttribute.REQUIRED_CLUSTER_HEIGHT,
            FunctionAttribute.REQUIRED_CLUSTER_DEPTH,
        )
        required = tuple(self.function_get_attribute(function, side) for side in sides)
        return replace(config, cluster=(1, 1, 1)) if required == config.cluster else config

    def _plain_launch(self, function: int, config: LaunchConfig, parameters: int) -> Callable[[int], None]:
        launch_kernel = self._cu.cuLaunchKernel
        handle = self._cu.CUfunction(function)
        (grid_x, grid_y, grid_z), (block_x, block_y, block_z) = config.grid, config.block
        shared_bytes = config.shared_bytes

        def launch(stream: int) -> None:
            (result,) = launch_kernel(
                handle, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, 0
            )
            if result:
                raise self._launch_error("cuLaunchKernel", result, handle, config, stream)

        return launch

    def _attributed_launch(self, function: int, config: LaunchConfig, parameters: int) -> Callable[[int], None]:
        launch_kernel = self._cu.cuLaunchKernelEx
        handle = self._cu.CUfunction(function)
        make_stream = self._cu.CUstream
        prepared = self._launch_config(config)

        def launch(stream: int) -> None:
            prepared.hStream = make_stream(stream)
            (result,) = launch_kernel(prepared, handle, parameters, 0)
            if result:
                raise self._launch_error("cuLaunchKernelEx", result, handle, config, stream)

        return launch

    def _launch_config(self, config: LaunchConfig) -> Any:
        prepared = self._cu.CUlaunchConfig()
        prepared.gridDimX, prepared.gridDimY, prepared.gridDimZ = config.grid
        prepared.blockDimX, prepared.blockDimY, prepared.blockDimZ = config.block
        prepared.sharedMemBytes = config.shared_bytes
        attributes = []
        for attribute_id, value in self._attribute_values(config, self._cu.CUlaunchAttributeValue):
            attribute = self._cu.CUlaunchAttribute()
            attribute.id = attribute_id
            attribute.value = value
            attributes.append(attribute)
        prepared.attrs = attributes
        prepared.numAttrs = len(attributes)
        return prepared

    def _attribute_values(self, config: LaunchConfig, make_value: Callable[[], Any]) -> list[tuple[Any, Any]]:
        """(attribute id, value) of what ``config`` asks for; launches and graph nodes have a value class each."""
        ids = self._cu.CUlaunchAttributeID
        cluster, cooperative, serialization = make_value(), make_value(), make_value()
        cluster.clusterDim.x, cluster.clusterDim.y, cluster.clusterDim.z = config.cluster
        cooperative.cooperative = 1
        serialization.programmaticStreamSerializationAllowed = 1
        choices = (
            (config.cluster != (1, 1, 1), ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, cluster),
            (config.cooperative, ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, cooperative),
            (
                config.programmatic_serialization,
                ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                serialization,
            ),
        )
        return [(attribute_id, value) for wanted, attribute_id, value in choices if wanted]

    # -- graph ----------------------------------------------------------------------------------------------
    def graph_create(self) -> int:
        return int(self._call("cuGraphCreate", 0))

    def graph_destroy(self, graph: int) -> None:
        self._call("cuGraphDestroy", graph)

    def graph_nodes(self, graph: int) -> tuple[int, ...]:
        _, node_count = self._call("cuGraphGetNodes", graph, 0)
        _, _, _, edge_count = self._call("cuGraphGetEdges", graph, 0)
        nodes, _ = self._call("cuGraphGetNodes", graph, node_count)
        before, after, _, _ = self._call("cuGraphGetEdges", graph, edge_count)
        order = TopologicalSorter[int]({int(node): () for node in nodes[:node_count]})
        for first, then in zip(before[:edge_count], after[:edge_count], strict=True):
            order.add(int(then), int(first))
        return tuple(order.static_order())

    def graph_add_kernel_node(
        self, graph: int, dependencies: Sequence[int], function: int, config: LaunchConfig, parameters: int
    ) -> int:
        nodes = [self._cu.CUgraphNode(node) for node in dependencies]
        node = self._call(
            "cuGraphAddKernelNode", graph, nodes, len(nodes), self._node_params(function, config, parameters)
        )
        of_node = replace(config, programmatic_serialization=False)
        for attribute_id, value in self._attribute_values(of_node, self._cu.CUkernelNodeAttrValue):
            self._call("cuGraphKernelNodeSetAttribute", node, attribute_id, value)
        return int(node)

    def graph_kernel_node_set_params(
        self, graph: int, node: int, function: int, config: LaunchConfig, parameters: int
    ) -> None:
        self._call("cuGraphKernelNodeSetParams", node, self._node_params(function, config, parameters))

    def graph_instantiate(self, graph: int) -> int:
        return int(self._call("cuGraphInstantiate", graph, 0))

    def graph_exec_update(self, graph_exec: int, graph: int) -> None:
        self._call("cuGraphExecUpdate", graph_exec, graph)

    def graph_exec_kernel_node_set_params(
        self, graph_exec: int, node: int, function: int, config: LaunchConfig, parameters: int
    ) -> None:
        params = self._node_params(function, config, parameters)
        self._call("cuGraphExecKernelNodeSetParams", graph_exec, node, params)

    def graph_launch(self, graph_exec: int, stream: int) -> None:
        self._call("cuGraphLaunch", graph_exec, stream)

    def graph_exec_destroy(self, graph_exec: int) -> None:
        self._call("cuGraphExecDestroy", graph_exec)

    def _node_params(self, function: int, config: LaunchConfig, parameters: int) -> Any:
        params = self._cu.CUDA_KERNEL_NODE_PARAMS()
        params.func = self._cu.CUfunction(function)
        params.gridDimX, params.gridDimY, params.gridDimZ = config.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = config.block
        params.sharedMemBytes = config.shared_bytes
        params.kernelParams = parameters
        return params

    # -- errors ---------------------------------------------------------------------------------------------
    def _call(self, name: str, *arguments: Any) -> Any:
        result, *values = getattr(self._cu, name)(*arguments)
        if result:
            raise self._error(name, result, arguments)
        return values[0] if len(values) == 1 else values

    def _ready(self, name: str, handle: int) -> bool:
        (result,) = getattr(self._cu, name)(handle)
        if result == self._cu.CUresult.CUDA_ERROR_NOT_READY:
            return False
        if result:
            raise self._error(name, result, (handle,))
        return True

    def _launch_error(self, call: str, result: Any, function: Any, config: LaunchConfig, stream: int) -> DriverError:
        failed, name = self._cu.cuFuncGetName(function)
        kernel = f"{int(function):#x}" if failed else name.decode()
        return self._error(call, result, (kernel, config, f"stream {stream:#x}"))

    def _refuse(self, call: str, argument: Any, problem: str) -> None:
        """The driver says only that a value is invalid; which one is told here."""
        if problem:
            raise self._error(call, self._cu.CUresult.CUDA_ERROR_INVALID_VALUE, (argument,), problem)

    def _error(self, call: str, result: Any, arguments: Sequence[Any], explanation: str = "") -> DriverError:
        if int(result) in KERNEL_FAULTS:
            explanation = explanation or "a kernel of this call or of an earlier one has failed; go on in a new process"
        return emitted(DriverError(call, int(result), result.name, argument_text(arguments), explanation))


def ptx_isa_of_cuda(cuda_version: int) -> tuple[int, int]:
    """The newest PTX ISA of a CUDA version (1000 * major + 10 * minor), as the PTX manual's release table has it."""
    major, minor = cuda_version // 1000, cuda_version % 1000 // 10
    if major >= 13:
        return major - 4, minor
    if major == 12:
        # The table skips: 12.5 and 12.6 are both 8.5; from 12.7 on the minor is one lower than CUDA's.
        return 8, minor if minor <= 5 else minor - 1
    if major == 11:
        return 7, min(minor, 8)
    return 6, 5
