"""The Driver protocol: the slice of the CUDA driver API that lowdnn uses.

Two implementations of equal rank stand behind it: ``cuda.CudaDriver`` (the real driver) and
``emulated.EmulatedDriver`` (runs PTX on the CPU). Nothing above ``driver/`` asks which one it has; it reads
device properties. Contexts, streams, events, modules, functions, graphs and device addresses are plain
integers, and 0 is the null handle (for a stream: the legacy default stream).

Every failing call raises ``DriverError``, which carries the CUresult name and number, the call and its arguments.
Names and semantics follow the CUDA Driver API reference manual.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Protocol

from lowdnn.driver.results import CuResult
from lowdnn.events import emit, event_logger
from lowdnn.status import CompilationFailedError, CudaDriverError, DeviceAllocationFailedError, NotInitializedError
from lowdnn.tensor_map import Im2colMap, TiledMap

Dim3 = tuple[int, int, int]

#: Bytes of CUipcMemHandle and of CUipcEventHandle.
IPC_HANDLE_BYTES = 64


class DriverError(CudaDriverError):
    """A driver call failed.

    Some values of CUresult have classes of their own, DriverMemoryError, DriverImageError and DriverForkError, which
    the constructor picks as Python's OSError does by its errno.

    result: the CUresult number.  name: its name (``CUDA_ERROR_INVALID_VALUE``).
    call: the function (``cuLaunchKernel``).  arguments: its arguments.
    explanation: more text where there is some, such as the emulated device's report of a kernel's fault.
    report: the report's facts by name, as JSON has them.
    """

    #: The explanation that every error of the class carries.
    meaning = ""

    def __new__(cls, call: str, result: int, *_: object, **__: object) -> DriverError:
        return super().__new__(_error_class(result) if cls is DriverError else cls)

    def __init__(
        self,
        call: str,
        result: int,
        name: str,
        arguments: str = "",
        explanation: str = "",
        report: Mapping[str, object] | None = None,
    ) -> None:
        explanation = explanation or self.meaning
        super().__init__(f"{call}({arguments}): {name} ({result})" + (f": {explanation}" if explanation else ""))
        self.call = call
        self.result = result
        self.name = name
        self.arguments = arguments
        self.explanation = explanation
        self.report: Mapping[str, object] = report or {}


def emitted(error: DriverError) -> DriverError:
    """The error of a call that has failed now, as an event, too."""
    fields = {"call": error.call, "result": error.result, "name": error.name}
    emit(event_logger("driver"), logging.DEBUG, "driver_error", fields)
    return error


class DriverMemoryError(DriverError, DeviceAllocationFailedError):
    """A driver call returned CUDA_ERROR_OUT_OF_MEMORY."""

    status = DeviceAllocationFailedError.status


class DriverImageError(DriverError, CompilationFailedError):
    """The driver cannot run an image: its assembler refuses it, or it is made for another device or a newer driver."""

    status = CompilationFailedError.status


class DriverForkError(DriverError, NotInitializedError):
    """A driver call returned CUDA_ERROR_NOT_INITIALIZED, although lowdnn initialises each driver that it opens."""

    status = NotInitializedError.status
    meaning = "a driver does not survive fork; start workers by spawn or forkserver"


class DeviceAttribute(IntEnum):
    """CUdevice_attribute, the members that lowdnn reads, with the driver's numbers."""

    MAX_THREADS_PER_BLOCK = 1
    MAX_GRID_DIM_X = 5
    MAX_GRID_DIM_Y = 6
    MAX_GRID_DIM_Z = 7
    MAX_SHARED_MEMORY_PER_BLOCK = 8
    WARP_SIZE = 10
    MAX_REGISTERS_PER_BLOCK = 12
    CLOCK_RATE_KHZ = 13
    MULTIPROCESSOR_COUNT = 16
    MEMORY_CLOCK_RATE_KHZ = 36
    GLOBAL_MEMORY_BUS_WIDTH_BITS = 37
    L2_CACHE_BYTES = 38
    MAX_THREADS_PER_MULTIPROCESSOR = 39
    COMPUTE_CAPABILITY_MAJOR = 75
    COMPUTE_CAPABILITY_MINOR = 76
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81
    MAX_REGISTERS_PER_MULTIPROCESSOR = 82
    COOPERATIVE_LAUNCH = 95
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
    MEMORY_POOLS_SUPPORTED = 115
    CLUSTER_LAUNCH = 120


class FunctionAttribute(IntEnum):
    """CUfunction_attribute, the members that lowdnn reads or sets, with the driver's numbers."""

    MAX_THREADS_PER_BLOCK = 0
    SHARED_SIZE_BYTES = 1
    CONST_SIZE_BYTES = 2
    LOCAL_SIZE_BYTES = 3
    NUM_REGS = 4
    PTX_VERSION = 5
    BINARY_VERSION = 6
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
    REQUIRED_CLUSTER_WIDTH = 11
    REQUIRED_CLUSTER_HEIGHT = 12
    REQUIRED_CLUSTER_DEPTH = 13
    NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14


class StreamFlags(IntFlag):
    """CUstream_flags."""

    DEFAULT = 0
    NON_BLOCKING = 1


class EventFlags(IntFlag):
    """CUevent_flags."""

    DEFAULT = 0
    BLOCKING_SYNC = 1
    DISABLE_TIMING = 2
    INTERPROCESS = 4


class CaptureMode(IntEnum):
    """CUstreamCaptureMode."""

    GLOBAL = 0
    THREAD_LOCAL = 1
    RELAXED = 2


@dataclass(frozen=True)
class LaunchConfig:
    """Geometry and attributes of one kernel launch; sizes in blocks, threads, blocks and bytes.

    ``programmatic_serialization``: the kernel may start before the stream's previous one has ended, and waits for it by
    ``griddepcontrol.wait``. Nodes of a graph that are added one by one wait for the end of those they depend on.
    """

    grid: Dim3
    block: Dim3
    shared_bytes: int = 0
    cluster: Dim3 = (1, 1, 1)
    cooperative: bool = False
    programmatic_serialization: bool = False


@dataclass(frozen=True)
class PointerInfo:
    """The driver's facts about a device address: its allocation and the device that owns it."""

    base: int
    size_bytes: int
    device: int


@dataclass(frozen=True)
class HostWait:
    """The wait of a host function for more than the work before it in its stream.

    is_over: whether it is called now; asked again and again, from any thread.
    text: who waits for what, for the report of a deadlock.
    give_up: takes that report where nothing can come any more; ``is_over`` is true from then on.
    """

    is_over: Callable[[], bool]
    text: Callable[[], str]
    give_up: Callable[[str], None]


class HostFunctions(Protocol):
    """Functions of the host in streams, which may wait for each other across streams and devices."""

    def launch(self, stream: int, function: Callable[[], None], wait: HostWait | None = None) -> None:
        """cuLaunchHostFunc: work behind it starts once ``function`` has returned. A captured stream records a node.

        The function must not call the driver: such calls fail with CUDA_ERROR_NOT_PERMITTED. An exception of it
        ends the work of its device, and is raised again by the call that launches it or the next one on the device.
        """


_IMAGE_RESULTS = (
    CuResult.INVALID_IMAGE,
    CuResult.NO_BINARY_FOR_GPU,
    CuResult.INVALID_PTX,
    CuResult.JIT_COMPILER_NOT_FOUND,
    CuResult.UNSUPPORTED_PTX_VERSION,
    CuResult.JIT_COMPILATION_DISABLED,
    CuResult.INVALID_SOURCE,
)


def _error_class(result: int) -> type[DriverError]:
    if result == CuResult.OUT_OF_MEMORY:
        return DriverMemoryError
    if result == CuResult.NOT_INITIALIZED:
        return DriverForkError
    return DriverImageError if result in _IMAGE_RESULTS else DriverError


class Driver(Protocol):
    """See the module's docstring. Sizes are bytes, times are milliseconds, host memory is given by address."""

    #: ``"cuda"`` or ``"emulated"``: for reports only, never to branch on.
    kind: str

    #: DLPack's device type of this driver's memory: 2 (kDLCUDA), or 12 (kDLExtDev) where only the driver can read it.
    dlpack_device_type: int

    #: Whether ``module_load_data`` accepts machine code of the device's architecture in addition to PTX.
    takes_machine_code: bool

    @property
    def host_functions(self) -> HostFunctions | None:
        """None where host functions must not wait for each other, as those of the GPU's driver."""

    @property
    def block_places(self) -> Callable[[int, float], str]:
        """Tells where the blocks of the kernel that runs in a context are, within so many seconds; "" where the driver
        cannot. It waits for no other call, and is none of the GPU's driver."""

    # -- device ---------------------------------------------------------------------------------------------
    def init(self) -> None:
        """cuInit. Idempotent. Nothing touches the driver before it."""

    def driver_version(self) -> int:
        """cuDriverGetVersion: 1000 * major + 10 * minor of the CUDA version that the driver supports."""

    def ptx_isa_version(self) -> tuple[int, int]:
        """The newest PTX ISA version that ``module_load_data`` accepts."""

    def device_count(self) -> int: ...

    def device_name(self, device: int) -> str: ...

    def device_total_memory_bytes(self, device: int) -> int: ...

    def device_attribute(self, device: int, attribute: DeviceAttribute) -> int: ...

    def device_can_access_peer(self, device: int, peer: int) -> bool:
        """cuDeviceCanAccessPeer: whether kernels of ``device`` can be allowed to touch memory of ``peer``."""

    # -- context --------------------------------------------------------------------------------------------
    def primary_context_retain(self, device: int) -> int: ...

    def primary_context_release(self, device: int) -> None: ...

    def context_get_current(self) -> int:
        """The calling thread's current context, or 0."""

    def context_set_current(self, context: int) -> None: ...

    def context_get_device(self) -> int:
        """The ordinal of the device of the calling thread's current context."""

    def context_synchronize(self) -> None: ...

    def context_enable_peer_access(self, peer_context: int) -> None:
        """cuCtxEnablePeerAccess: kernels of the current context may touch memory of ``peer_context``'s device, though
        not of its stream-ordered pools. The other direction needs a call of its own."""

    def context_disable_peer_access(self, peer_context: int) -> None: ...

    # -- memory ---------------------------------------------------------------------------------------------
    def mem_get_info(self) -> tuple[int, int]:
        """(free, total) bytes of the current context's device."""

    def mem_alloc(self, size_bytes: int, label: str = "") -> int:
        """cuMemAlloc. ``label`` names the buffer in the emulated device's reports."""

    def mem_free(self, address: int) -> None: ...

    def mem_alloc_async(self, size_bytes: int, stream: int, label: str = "") -> int: ...

    def mem_free_async(self, address: int, stream: int) -> None: ...

    def pointer_info(self, address: int) -> PointerInfo | None:
        """The allocation that holds ``address``, or None where the driver knows none."""

    def memcpy_htod_async(self, destination: int, source_host: int, size_bytes: int, stream: int) -> None: ...

    def memcpy_dtoh_async(self, destination_host: int, source: int, size_bytes: int, stream: int) -> None: ...

    def memcpy_dtod_async(self, destination: int, source: int, size_bytes: int, stream: int) -> None: ...

    def memcpy_peer_async(
        self,
        destination: int,
        destination_context: int,
        source: int,
        source_context: int,
        size_bytes: int,
        stream: int,
    ) -> None:
        """cuMemcpyPeerAsync: from one device to another one; needs no peer access."""

    def memset_d8_async(self, destination: int, value: int, count: int, stream: int) -> None: ...

    def memset_d32_async(self, destination: int, value: int, count: int, stream: int) -> None: ...

    # -- interprocess communication -------------------------------------------------------------------------
    def ipc_get_mem_handle(self, address: int) -> bytes:
        """cuIpcGetMemHandle: 64 bytes by which others open the allocation of ``mem_alloc`` that starts there."""

    def ipc_open_mem_handle(self, handle: bytes) -> int:
        """cuIpcOpenMemHandle: an address of the handle's memory, with peer access to it where it is another
        device's."""

    def ipc_close_mem_handle(self, address: int) -> None: ...

    def ipc_get_event_handle(self, event: int) -> bytes:
        """cuIpcGetEventHandle, for an event with EventFlags.INTERPROCESS and DISABLE_TIMING."""

    def ipc_open_event_handle(self, handle: bytes) -> int: ...

    # -- tensor maps ----------------------------------------------------------------------------------------
    def tensor_map_encode_tiled(self, tiled: TiledMap) -> bytes:
        """cuTensorMapEncodeTiled: the 128 opaque bytes that a kernel takes as a 64-byte aligned parameter. Needs a
        current context, though it touches no memory."""

    def tensor_map_encode_im2col(self, im2col: Im2colMap) -> bytes:
        """cuTensorMapEncodeIm2col; as above."""

    def tensor_map_replace_address(self, tensor_map: bytes, address: int) -> bytes:
        """cuTensorMapReplaceAddress: the map of the same tensor at another address."""

    # -- stream and event -----------------------------------------------------------------------------------
    def stream_create(self, flags: StreamFlags = StreamFlags.NON_BLOCKING, priority: int = 0) -> int: ...

    def stream_destroy(self, stream: int) -> None: ...

    def stream_synchronize(self, stream: int) -> None: ...

    def stream_query(self, stream: int) -> bool:
        """True when all work in the stream is done."""

    def stream_wait_event(self, stream: int, event: int) -> None: ...

    def stream_context(self, stream: int) -> int:
        """cuStreamGetCtx: the context that the stream belongs to."""

    def stream_begin_capture(self, stream: int, mode: CaptureMode = CaptureMode.THREAD_LOCAL) -> None: ...

    def stream_end_capture(self, stream: int) -> int:
        """Ends the capture and returns the graph."""

    def stream_is_capturing(self, stream: int) -> bool: ...

    def thread_exchange_capture_mode(self, mode: CaptureMode) -> CaptureMode:
        """cuThreadExchangeStreamCaptureMode: how far captures forbid calls of this thread, which break them otherwise.

        Returns the former mode, GLOBAL at first. In mode RELAXED the thread may ask events while another one captures.
        """

    def event_create(self, flags: EventFlags = EventFlags.DEFAULT) -> int: ...

    def event_destroy(self, event: int) -> None: ...

    def event_record(self, event: int, stream: int) -> None: ...

    def event_synchronize(self, event: int) -> None: ...

    def event_query(self, event: int) -> bool: ...

    def event_peek(self, event: int, context: int) -> bool:
        """``event_query`` for a thread that only watches, in which ``context`` becomes current: no capture of another
        thread is broken by it, and an emulated device does no work for it and lets it wait for no other call."""

    def event_elapsed_ms(self, start: int, end: int) -> float: ...

    # -- module and launch ----------------------------------------------------------------------------------
    def module_load_data(self, image: bytes) -> int:
        """Loads PTX text (NUL-terminated or not) or, where the driver takes it, machine code (a cubin) into the current
        context."""

    def module_unload(self, module: int) -> None: ...

    def module_get_function(self, module: int, name: str) -> int: ...

    def function_parameter_bytes(self, function: int, index: int) -> int:
        """The size of a kernel's parameter; 0 where the driver cannot say (before CUDA 12.4)."""

    def function_get_attribute(self, function: int, attribute: FunctionAttribute) -> int: ...

    def function_set_attribute(self, function: int, attribute: FunctionAttribute, value: int) -> None: ...

    def occupancy_max_active_blocks(self, function: int, block_threads: int, shared_bytes: int) -> int:
        """The number of blocks with these threads and dynamic shared bytes that are resident on one multiprocessor at a
        time."""

    def occupancy_max_active_clusters(self, function: int, config: LaunchConfig) -> int:
        """The number of this launch's clusters that are resident on the device at a time; 0 if a cluster is one
        block."""

    def occupancy_max_potential_cluster_size(self, function: int, config: LaunchConfig) -> int:
        """Blocks of the largest cluster that the device can run with blocks of ``config``, which must be a valid
        launch. The kernel's own cluster directives are ignored."""

    def prepare_launch(self, function: int, config: LaunchConfig, parameters: int) -> Callable[[int], None]:
        """A callable that launches ``function`` into the stream that it is given.

        ``parameters`` is the address of a ``void*[]`` with one host pointer for each kernel parameter
        (cuLaunchKernel's ``kernelParams``). The array and what it points to are read at each call, so the caller
        patches arguments in place and keeps both alive. Everything that can be checked or converted ahead of the
        call is done here: this is the hot path of the library.
        """

    # -- graph ----------------------------------------------------------------------------------------------
    def graph_create(self) -> int: ...

    def graph_destroy(self, graph: int) -> None: ...

    def graph_nodes(self, graph: int) -> tuple[int, ...]:
        """The graph's nodes in an order in which each comes after those that it depends on."""

    def graph_add_kernel_node(
        self, graph: int, dependencies: Sequence[int], function: int, config: LaunchConfig, parameters: int
    ) -> int:
        """Adds a kernel node and returns it. The driver copies the parameters' values in this call."""

    def graph_kernel_node_set_params(
        self, graph: int, node: int, function: int, config: LaunchConfig, parameters: int
    ) -> None:
        """Changes the parameters of a kernel node of ``graph``. The driver copies their values in this call."""

    def graph_instantiate(self, graph: int) -> int: ...

    def graph_exec_update(self, graph_exec: int, graph: int) -> None:
        """Takes over the nodes' parameters from ``graph``, which must have the nodes and dependencies that
        ``graph_exec`` was made of; else the call fails with CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE."""

    def graph_exec_kernel_node_set_params(
        self, graph_exec: int, node: int, function: int, config: LaunchConfig, parameters: int
    ) -> None: ...

    def graph_launch(self, graph_exec: int, stream: int) -> None: ...

    def graph_exec_destroy(self, graph_exec: int) -> None: ...
