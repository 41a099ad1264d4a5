"""The real driver's marshalling, against a spy in place of libcuda; the rest runs on a GPU through ``device``."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cuda.bindings import driver as bindings

from lowdnn.driver import cuda
from lowdnn.driver.base import DeviceAttribute, DriverError, FunctionAttribute, LaunchConfig, PointerInfo
from lowdnn.driver.cuda import CudaDriver, ptx_isa_of_cuda

SUCCESS = bindings.CUresult.CUDA_SUCCESS
PLAIN = LaunchConfig((1, 2, 3), (32, 2, 1), 1024)


class Spy(ModuleType):
    """``cuda.bindings.driver`` with its functions replaced: returns what ``answers`` has, records every call."""

    def __init__(self, **answers: Any) -> None:
        super().__init__("spy")
        self.answers = answers
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name.startswith(("cuda", "cuuint")):
            return getattr(bindings, name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            answer = self.answers.get(name, (SUCCESS,))
            result: tuple[Any, ...] = answer(*arguments) if callable(answer) else answer
            return result

        return call


def test_values_come_back_as_plain_python() -> None:
    driver = CudaDriver(
        Spy(
            cuDriverGetVersion=(SUCCESS, 12090),
            cuDeviceGetName=(SUCCESS, b"NVIDIA H200\0\0\0"),
            cuDevicePrimaryCtxRetain=(SUCCESS, bindings.CUcontext(0x1230)),
            cuMemGetInfo=(SUCCESS, 5, 7),
            cuMemAlloc=(SUCCESS, bindings.CUdeviceptr(0x7F00)),
            cuStreamCreateWithPriority=(SUCCESS, bindings.CUstream(0x40)),
            cuDeviceGetAttribute=lambda attribute, device: (SUCCESS, int(attribute) + device),
        )
    )
    assert driver.ptx_isa_version() == (8, 8)
    assert driver.device_name(0) == "NVIDIA H200"
    assert driver.primary_context_retain(0) == 0x1230
    assert driver.mem_get_info() == (5, 7)
    assert driver.mem_alloc(16) == 0x7F00
    assert driver.stream_create() == 0x40
    assert driver.device_attribute(0, DeviceAttribute.WARP_SIZE) == 10


@pytest.mark.parametrize(("version", "size_bytes"), [(12030, 0), (12040, 72)])
def test_sizes_of_parameters_are_asked_of_drivers_that_know_them(version: int, size_bytes: int) -> None:
    driver = CudaDriver(Spy(cuDriverGetVersion=(SUCCESS, version), cuFuncGetParamInfo=(SUCCESS, 0, 72)))
    assert driver.function_parameter_bytes(0x50, 0) == size_bytes


def test_an_error_names_call_arguments_and_result() -> None:
    driver = CudaDriver(Spy(cuMemFree=(bindings.CUresult.CUDA_ERROR_INVALID_VALUE,)))
    with pytest.raises(DriverError, match=r"cuMemFree\(0x7f001000\): CUDA_ERROR_INVALID_VALUE \(1\)") as caught:
        driver.mem_free(0x7F001000)
    assert (caught.value.call, caught.value.result, caught.value.name) == ("cuMemFree", 1, "CUDA_ERROR_INVALID_VALUE")


def test_an_error_that_stays_says_so() -> None:
    driver = CudaDriver(Spy(cuStreamSynchronize=(bindings.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,)))
    with pytest.raises(DriverError, match=r"ILLEGAL_ADDRESS \(700\): a kernel .* go on in a new process"):
        driver.stream_synchronize(0)


def test_not_ready_is_an_answer() -> None:
    driver = CudaDriver(Spy(cuStreamQuery=(bindings.CUresult.CUDA_ERROR_NOT_READY,)))
    assert driver.stream_query(4) is False
    assert CudaDriver(Spy()).event_query(4) is True


def test_pointer_info() -> None:
    kinds = bindings.CUpointer_attribute
    values = {
        kinds.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: bindings.CUdeviceptr(0x1000),
        kinds.CU_POINTER_ATTRIBUTE_RANGE_SIZE: 512,
        kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: 0,  # as cuda.bindings 13.3 has it for every device
    }
    results = [0, int(bindings.CUresult.CUDA_ERROR_INVALID_CONTEXT)]

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_uint64)
    def attribute_of(value: Any, attribute: int, address: int) -> int:
        assert (attribute, address) == (int(kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 0x1010)
        value[0] = 3
        return results.pop(0)

    function = ctypes.cast(attribute_of, ctypes.c_void_p).value
    known = CudaDriver(
        Spy(
            cuPointerGetAttribute=lambda attribute, _: (SUCCESS, values[attribute]),
            cuGetProcAddress=(SUCCESS, function, 0),
        )
    )
    assert known.pointer_info(0x1010) == PointerInfo(0x1000, 512, 3)
    with pytest.raises(DriverError, match="cuPointerGetAttribute"):
        known.pointer_info(0x1010)
    unknown = CudaDriver(Spy(cuPointerGetAttribute=(bindings.CUresult.CUDA_ERROR_INVALID_VALUE, None)))
    assert unknown.pointer_info(0x1010) is None


def test_plain_launch_passes_geometry_and_the_parameter_array() -> None:
    spy = Spy()
    launch = CudaDriver(spy).prepare_launch(0x77, PLAIN, 0x5000)
    launch(0x9)
    ((name, (function, *rest)),) = spy.calls
    assert name == "cuLaunchKernel"
    assert int(function) == 0x77
    assert rest == [1, 2, 3, 32, 2, 1, 1024, 0x9, 0x5000, 0]


def test_a_failed_launch_names_the_kernel_and_the_grid() -> None:
    failing = Spy(
        cuLaunchKernel=(bindings.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,), cuFuncGetName=(SUCCESS, b"conv_f32")
    )
    with pytest.raises(DriverError, match=r"conv_f32, LaunchConfig\(grid=\(1, 2, 3\).*LAUNCH_OUT_OF_RESOURCES"):
        CudaDriver(failing).prepare_launch(0x77, PLAIN, 0x5000)(0)


def test_attributes_are_set_once_and_only_where_asked_for() -> None:
    seen: list[Any] = []

    def launch_ex(config: Any, function: Any, parameters: int, extra: int) -> tuple[Any]:
        seen.append((int(config.hStream), config.gridDimZ, [int(a.id) for a in config.attrs], parameters))
        dimension = config.attrs[0].value.clusterDim
        assert (dimension.x, dimension.y, dimension.z) == (2, 1, 4)
        return (SUCCESS,)

    config = LaunchConfig((2, 2, 4), (128, 1, 1), cluster=(2, 1, 4), programmatic_serialization=True)
    spy = Spy(cuLaunchKernelEx=launch_ex, cuFuncGetAttribute=(SUCCESS, 0))
    launch = CudaDriver(spy).prepare_launch(0x77, config, 0x5000)
    launch(0x30)
    launch(0x40)
    cluster, serialization = 4, 6
    assert seen == [(0x30, 4, [cluster, serialization], 0x5000), (0x40, 4, [cluster, serialization], 0x5000)]


@pytest.mark.parametrize(("cluster", "call"), [((2, 1, 4), "cuLaunchKernel"), ((2, 1, 2), "cuLaunchKernelEx")])
def test_a_cluster_that_the_kernel_has_itself_needs_no_attribute(cluster: Any, call: str) -> None:
    first = int(bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH)
    spy = Spy(cuFuncGetAttribute=lambda attribute, _: (SUCCESS, (2, 1, 4)[int(attribute) - first]))
    launch = CudaDriver(spy).prepare_launch(0x77, LaunchConfig((2, 2, 4), (128, 1, 1), cluster=cluster), 0x5000)
    spy.calls.clear()
    launch(0)
    assert [name for name, _ in spy.calls] == [call]


def test_occupancy_of_clusters_is_asked_with_the_launch() -> None:
    spy = Spy(cuOccupancyMaxActiveClusters=(SUCCESS, 66), cuOccupancyMaxPotentialClusterSize=(SUCCESS, 8))
    config = LaunchConfig((4, 1, 1), (64, 1, 1), 512, cluster=(2, 1, 1))
    driver = CudaDriver(spy)
    assert driver.occupancy_max_active_clusters(0x77, config) == 66
    assert driver.occupancy_max_potential_cluster_size(0x77, config) == 8
    for name, (function, prepared) in spy.calls:
        assert name.startswith("cuOccupancyMax")
        assert (function, prepared.gridDimX, prepared.sharedMemBytes) == (0x77, 4, 512)
        assert [attribute.value.clusterDim.x for attribute in prepared.attrs] == [2]


def test_a_graph_that_differs_fails_to_update_an_executable() -> None:
    spy = Spy(cuGraphExecUpdate=(SUCCESS, bindings.CUgraphExecUpdateResultInfo()))
    CudaDriver(spy).graph_exec_update(0x5, 0x6)
    assert spy.calls == [("cuGraphExecUpdate", (0x5, 0x6))]
    failing = Spy(cuGraphExecUpdate=(bindings.CUresult.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, None))
    with pytest.raises(DriverError, match=r"GRAPH_EXEC_UPDATE_FAILURE \(910\)"):
        CudaDriver(failing).graph_exec_update(0x5, 0x6)


def test_graph_nodes_get_launch_attributes() -> None:
    spy = Spy(cuGraphAddKernelNode=(SUCCESS, bindings.CUgraphNode(0x88)))
    values = (ctypes.c_void_p * 1)(0)
    config = LaunchConfig((4, 1, 1), (64, 1, 1), cluster=(2, 1, 1), programmatic_serialization=True)
    assert CudaDriver(spy).graph_add_kernel_node(0x5, [0x6], 0x77, config, ctypes.addressof(values)) == 0x88
    (_, (graph, dependencies, count, params)), (name, (_, attribute, value)) = spy.calls
    assert (graph, [int(node) for node in dependencies], count) == (0x5, [0x6], 1)
    assert (params.gridDimX, params.blockDimX, int(params.func)) == (4, 64, 0x77)
    assert name == "cuGraphKernelNodeSetAttribute"
    assert isinstance(value, bindings.CUkernelNodeAttrValue)
    assert (int(attribute), value.clusterDim.x) == (4, 2)


def test_module_load_terminates_the_text_and_reports_the_jit_log() -> None:
    def load(image: bytes, count: int, options: list[Any], values: list[Any]) -> tuple[Any, Any]:
        assert image == b".version 8.0\0"
        values[0][:9] = b"ptx line5"
        return bindings.CUresult.CUDA_ERROR_INVALID_PTX, None

    with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_PTX \(218\): ptx line5"):
        CudaDriver(Spy(cuModuleLoadDataEx=load)).module_load_data(b".version 8.0")


def test_function_attributes_use_the_bindings_enum() -> None:
    spy = Spy()
    CudaDriver(spy).function_set_attribute(0x77, FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, 99)
    ((_, (_, attribute, value)),) = spy.calls
    assert attribute is bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert value == 99


@pytest.mark.parametrize(
    ("cuda", "isa"),
    [
        (13000, (9, 0)),
        (13010, (9, 1)),
        (12090, (8, 8)),
        (12080, (8, 7)),
        (12060, (8, 5)),
        (12050, (8, 5)),
        (12000, (8, 0)),
        (11080, (7, 8)),
    ],
)
def test_ptx_isa_of_cuda(cuda: int, isa: tuple[int, int]) -> None:
    assert ptx_isa_of_cuda(cuda) == isa


def test_enum_numbers_are_the_drivers() -> None:
    for ours, prefix, theirs in (
        (DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, "CU_DEVICE_ATTRIBUTE_", bindings.CUdevice_attribute),
        (DeviceAttribute.CLUSTER_LAUNCH, "CU_DEVICE_ATTRIBUTE_", bindings.CUdevice_attribute),
        (DeviceAttribute.MEMORY_POOLS_SUPPORTED, "CU_DEVICE_ATTRIBUTE_", bindings.CUdevice_attribute),
        *((attribute, "CU_FUNC_ATTRIBUTE_", bindings.CUfunction_attribute) for attribute in FunctionAttribute),
    ):
        assert int(getattr(theirs, prefix + ours.name)) == int(ours)


def test_spy_has_the_functions_that_the_driver_calls() -> None:
    """Every ``cu*`` name in the driver's source is one that the bindings have."""
    source = Path(cuda.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r"\bcu[A-Z][A-Za-z]+\b", source))
    assert len(names) > 40
    assert {name for name in names if not hasattr(bindings, name)} == set()


def test_calls_that_reach_peers_pass_handles_as_bytes() -> None:
    memory, event = bindings.CUipcMemHandle(), bindings.CUipcEventHandle()
    for opaque, byte in ((memory, 1), (event, 2)):
        ctypes.memset(opaque.getPtr(), byte, 64)
    spy = Spy(
        cuDeviceCanAccessPeer=(SUCCESS, 1),
        cuIpcGetMemHandle=(SUCCESS, memory),
        cuIpcGetEventHandle=(SUCCESS, event),
        cuIpcOpenMemHandle=lambda handle, flags: (SUCCESS, ctypes.string_at(handle.getPtr(), 64)[63] + int(flags)),
        cuIpcOpenEventHandle=lambda handle: (SUCCESS, ctypes.string_at(handle.getPtr(), 64)[0]),
    )
    driver = CudaDriver(spy)
    assert driver.device_can_access_peer(0, 1) is True
    assert driver.ipc_open_mem_handle(driver.ipc_get_mem_handle(0x7F00)) == 1 + 1
    assert driver.ipc_open_event_handle(driver.ipc_get_event_handle(0x40)) == 2
    with pytest.raises(DriverError, match="handle: expected 64 bytes, got 3"):
        driver.ipc_open_mem_handle(b"abc")
    driver.context_enable_peer_access(0x11)
    driver.context_disable_peer_access(0x11)
    driver.memcpy_peer_async(0x7F00, 0x11, 0x7E00, 0x22, 64, 0x33)
    assert spy.calls[-3:] == [
        ("cuCtxEnablePeerAccess", (0x11, 0)),
        ("cuCtxDisablePeerAccess", (0x11,)),
        ("cuMemcpyPeerAsync", (0x7F00, 0x11, 0x7E00, 0x22, 64, 0x33)),
    ]
