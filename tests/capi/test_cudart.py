"""The stand-in for the CUDA runtime: devices, memory, streams, graphs, errors, and how it is installed."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowdnn.capi.cudart.catalogue import CALLS, RUNTIME_NAME, functions, runtime_library
from lowdnn.capi.cudart.library import RuntimeLibrary
from lowdnn.capi.signatures import Function
from lowdnn.capi.state import State
from lowdnn.driver import open_driver
from lowdnn.driver.base import DeviceAttribute
from lowdnn.driver.results import CuResult
from tests.capi.test_loading import python
from tests.support.cudart import DEFAULT_KIND, CudaRuntime, MemsetParams

INVALID, NOT_SUPPORTED = int(CuResult.INVALID_VALUE), int(CuResult.NOT_SUPPORTED)
NUMBERS = np.arange(8, dtype=np.float32)


@pytest.fixture
def cudart() -> Iterator[CudaRuntime]:
    library = RuntimeLibrary(State(open_driver("emulated")))
    runtime = CudaRuntime(library.load())
    yield runtime
    library.end()
    assert runtime.status("cudaDeviceSynchronize") == CuResult.NOT_INITIALIZED
    assert runtime.text(0).startswith("lowdnn.capi: nothing stands behind this library")


def is_refused(function: Function) -> bool:
    return function.header == "refused"


def test_the_device(cudart: CudaRuntime) -> None:
    assert cudart.output("cudaGetDeviceCount", kind=ctypes.c_int) == 1
    assert cudart.output("cudaGetDevice", kind=ctypes.c_int) == 0
    assert cudart.output("cudaRuntimeGetVersion", kind=ctypes.c_int) == 13000
    assert cudart.output("cudaDriverGetVersion", kind=ctypes.c_int) >= 13000
    cudart.call("cudaSetDevice", 0)
    assert cudart.status("cudaSetDevice", 1) == CuResult.INVALID_DEVICE
    attribute = {
        one: cudart.output("cudaDeviceGetAttribute", int(one), 0, kind=ctypes.c_int) for one in DeviceAttribute
    }
    assert (attribute[DeviceAttribute.COMPUTE_CAPABILITY_MAJOR], attribute[DeviceAttribute.WARP_SIZE]) == (9, 32)
    assert cudart.status("cudaDeviceGetAttribute", ctypes.byref(ctypes.c_int()), 9999, 0) == INVALID
    properties = ctypes.create_string_buffer(b"#" * 1100, 1100)
    cudart.call("cudaGetDeviceProperties", properties, 0)
    assert properties.value == b"lowdnn emulated sm_90a"
    assert properties.raw[1008:] == b"#" * 92
    for offset, one in ((296, "MAX_SHARED_MEMORY_PER_BLOCK"), (384, "MULTIPROCESSOR_COUNT"), (748, "CLUSTER_LAUNCH")):
        assert np.frombuffer(properties.raw, np.int32, 1, offset)[0] == attribute[DeviceAttribute[one]] > 0


def test_memory(cudart: CudaRuntime) -> None:
    x = cudart.put(NUMBERS)
    y = cudart.output("cudaMallocAsync", 32, 0)
    cudart.call("cudaMemcpyAsync", y, x, 32, 3, 0)
    np.testing.assert_array_equal(cudart.get(y, (8,), np.float32), NUMBERS)
    cudart.call("cudaMemset", y + 16, 0x1FF, 8)
    cudart.call("cudaMemsetAsync", y + 24, 0, 8, 0)
    found = cudart.get(y, (8,), np.uint32)
    assert found[4:].tolist() == [0xFFFFFFFF] * 2 + [0] * 2
    mine, there = NUMBERS + 1, np.zeros(8, np.float32)
    for to, of in ((y, mine.ctypes.data), (x, y), (there.ctypes.data, x), (mine.ctypes.data, there.ctypes.data)):
        cudart.call("cudaMemcpy", to, of, 32, DEFAULT_KIND)
    np.testing.assert_array_equal(there, NUMBERS + 1)
    assert cudart.status("cudaMemcpy", y, x, 32, 5) == INVALID
    assert cudart.status("cudaMemcpy", y, x, 36, 3) == INVALID
    attributes = (ctypes.c_uint64 * 4)(*[7] * 4)
    cudart.call("cudaPointerGetAttributes", attributes, x + 4)
    assert list(attributes) == [2, x + 4, 0, 7]
    cudart.call("cudaPointerGetAttributes", attributes, mine.ctypes.data)
    assert attributes[0] & 0xFFFFFFFF == 0
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cudart.call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    assert 0 < free.value < total.value
    assert cudart.output("cudaMalloc", 0) is None
    for address in (x, 0):
        cudart.call("cudaFree", address)
    cudart.call("cudaFreeAsync", y, 0)
    assert cudart.status("cudaFree", x) != 0


def test_streams_events_and_captures(cudart: CudaRuntime) -> None:
    x = cudart.put(NUMBERS)
    stream = cudart.output("cudaStreamCreate")
    other = cudart.output("cudaStreamCreateWithFlags", 1)
    first, last = cudart.output("cudaEventCreate"), cudart.output("cudaEventCreateWithFlags", 0)
    cudart.call("cudaEventRecord", first, stream)
    cudart.call("cudaMemsetAsync", x, 0, 16, stream)
    cudart.call("cudaEventRecord", last, stream)
    cudart.call("cudaStreamWaitEvent", other, last, 0)
    for name, handle in (("Event", last), ("Stream", stream)):
        cudart.call(f"cuda{name}Synchronize", handle)
        cudart.call(f"cuda{name}Query", handle)
    assert cudart.output("cudaEventElapsedTime", first, last, kind=ctypes.c_float) > 0
    status, number = ctypes.c_int(7), ctypes.c_uint64()
    cudart.call("cudaStreamBeginCapture", stream, 2)
    cudart.call("cudaStreamIsCapturing", stream, ctypes.byref(status))
    assert status.value == 1
    info = ("cudaStreamGetCaptureInfo", stream, ctypes.byref(status))
    under_way = ctypes.c_void_p()
    cudart.call(*info, ctypes.byref(number), ctypes.byref(under_way), None, None, None)
    assert number.value
    assert cudart.status(*info, None, None, ctypes.byref(number), None, None) == NOT_SUPPORTED
    cudart.call("cudaMemsetAsync", x + 16, 0, 8, stream)
    cudart.call("cudaMemsetAsync", x + 24, 0, 8, stream)
    graph = ctypes.c_void_p()
    cudart.call("cudaStreamEndCapture", stream, ctypes.byref(graph))
    cudart.call(*info, ctypes.byref(number), None, None, None, None)
    assert (status.value, graph.value) == (0, under_way.value)
    assert cudart.get(x, (8,), np.float32).tolist() == [0, 0, 0, 0, 4, 5, 6, 7]
    assert len(nodes_of(cudart, "cudaGraphGetNodes", graph)) == 2
    (root,) = nodes_of(cudart, "cudaGraphGetRootNodes", graph)
    assert len(nodes_of(cudart, "cudaGraphNodeGetDependentNodes", root, None)) == 1
    launched(cudart, graph.value or 0, stream)
    assert cudart.get(x, (8,), np.float32).tolist() == [0] * 8
    for name, handle in (("Stream", stream), ("Stream", other), ("Event", first), ("Graph", graph)):
        cudart.call(f"cuda{name}Destroy", handle)
        assert cudart.status(f"cuda{name}Destroy", handle) == CuResult.INVALID_HANDLE


def nodes_of(cudart: CudaRuntime, name: str, *arguments: object) -> list[int]:
    """The nodes, asked for twice as programs do: how many, and which; a place too many stays NULL."""
    count = ctypes.c_size_t()
    cudart.call(name, arguments[0], None, *arguments[1:], ctypes.byref(count))
    found = (ctypes.c_uint64 * (count.value + 1))(*[7] * (count.value + 1))
    expected, count.value = count.value, count.value + 1
    cudart.call(name, arguments[0], found, *arguments[1:], ctypes.byref(count))
    assert (count.value, found[expected]) == (expected, 0)
    return list(found)[:expected]


def launched(cudart: CudaRuntime, graph: int, stream: int = 0) -> int:
    """A new instance of the graph, launched once."""
    instance = int(cudart.output("cudaGraphInstantiate", graph, 0))
    cudart.call("cudaGraphLaunch", instance, stream)
    return instance


def test_graphs_of_nodes(cudart: CudaRuntime) -> None:
    """An inner graph does y = x; the outer one fills x's first half, runs the inner one and copies y to the host."""
    x, y, there = cudart.put(NUMBERS), cudart.put(-NUMBERS), np.zeros(8, np.float32)
    inner = cudart.output("cudaGraphCreate", 0)
    copied = cudart.output("cudaGraphAddMemcpyNode1D", inner, None, 0, y, x, 32, 3)
    graph = cudart.output("cudaGraphCreate", 0)
    params = MemsetParams(x, 0, 0x40400000, 4, 4, 1)
    filled = cudart.output("cudaGraphAddMemsetNode", graph, None, 0, ctypes.byref(params))
    after = (ctypes.c_uint64 * 1)(filled)
    child = cudart.output("cudaGraphAddChildGraphNode", graph, after, 1, inner)
    after[0] = child
    last = cudart.output("cudaGraphAddMemcpyNode1D", graph, after, 1, there.ctypes.data, y, 32, DEFAULT_KIND)
    assert nodes_of(cudart, "cudaGraphGetNodes", graph) == [filled, child, last]
    assert nodes_of(cudart, "cudaGraphGetRootNodes", graph) == [filled]
    assert nodes_of(cudart, "cudaGraphNodeGetDependentNodes", filled, None) == [child]
    assert nodes_of(cudart, "cudaGraphNodeGetDependentNodes", last, None) == []
    instance = launched(cudart, graph)
    assert there.tolist() == [3, 3, 3, 3, 4, 5, 6, 7]

    inside = ctypes.c_void_p()
    cudart.call("cudaGraphChildGraphNodeGetGraph", child, ctypes.byref(inside))
    (its_copy,) = nodes_of(cudart, "cudaGraphGetNodes", inside)
    assert its_copy != copied
    cudart.call("cudaGraphMemcpyNodeSetParams1D", copied, y, x, 4, 3)  # the inner graph was copied: no effect
    cudart.call("cudaGraphMemcpyNodeSetParams1D", its_copy, y, x + 16, 16, 3)
    params.destination, params.value, params.element_bytes, params.width, params.height = x + 16, 0x3F80, 2, 1, 2
    params.pitch = 2
    cudart.call("cudaGraphMemsetNodeSetParams", filled, ctypes.byref(params))
    cudart.call("cudaGraphLaunch", instance, 0)
    assert there.tolist() == [3, 3, 3, 3, 4, 5, 6, 7]
    cudart.call("cudaGraphExecUpdate", instance, graph, None)
    cudart.call("cudaGraphLaunch", instance, 0)
    half = np.array([0x3F803F80], np.uint32).view(np.float32)[0]
    np.testing.assert_array_equal(there, np.float32([half, 5, 6, 7, 4, 5, 6, 7]))
    assert cudart.status("cudaGraphExecUpdate", instance, inner, None) == CuResult.GRAPH_EXEC_UPDATE_FAILURE
    cudart.call("cudaGraphDestroy", graph)
    assert cudart.status("cudaGraphGetNodes", inside, None, ctypes.byref(ctypes.c_size_t())) == CuResult.INVALID_HANDLE
    cudart.call("cudaGraphLaunch", instance, 0)
    cudart.call("cudaGraphExecDestroy", instance)


def test_wrong_graphs(cudart: CudaRuntime) -> None:
    graph, node, x = cudart.output("cudaGraphCreate", 0), ctypes.byref(ctypes.c_void_p()), cudart.put(NUMBERS)
    edges, count, one = ctypes.byref(ctypes.c_uint64()), ctypes.byref(ctypes.c_size_t()), (ctypes.c_uint64 * 1)(7)
    copied = cudart.output("cudaGraphAddMemcpyNode1D", graph, None, 0, x, x + 16, 16, 3)
    bad = MemsetParams(x, 0, 1, 3, 1, 1)
    assert cudart.status("cudaGraphCreate", node, 1) == INVALID
    assert cudart.status("cudaGraphAddMemsetNode", node, graph, None, 0, ctypes.byref(bad)) == INVALID
    assert "cudaGraphAddMemsetNode.elementSize: expected 1, 2 or 4, got 3" in cudart.text(INVALID)
    bad.element_bytes, bad.height, bad.pitch = 1, 2, 8
    assert cudart.status("cudaGraphAddMemsetNode", node, graph, None, 0, ctypes.byref(bad)) == NOT_SUPPORTED
    assert cudart.status("cudaGraphAddMemcpyNode1D", node, graph, one, 1, x, x, 4, 3) == CuResult.INVALID_HANDLE
    assert cudart.status("cudaGraphAddMemcpyNode1D", node, graph, None, 0, x, x, 4, 0) == NOT_SUPPORTED
    assert cudart.status("cudaGraphAddMemcpyNode1D", None, graph, None, 0, x, x, 4, 3) == INVALID
    assert cudart.status("cudaGraphAddChildGraphNode", node, graph, None, 1, graph) == INVALID
    assert cudart.status("cudaGraphChildGraphNodeGetGraph", copied, node) == INVALID
    assert cudart.status("cudaGraphChildGraphNodeGetGraph", 7, node) == CuResult.INVALID_HANDLE
    assert cudart.status("cudaGraphNodeGetDependentNodes", copied, None, edges, count) == NOT_SUPPORTED
    assert nodes_of(cudart, "cudaGraphGetNodes", graph) == [copied]


def test_objects_that_graphs_keep(cudart: CudaRuntime) -> None:
    """The first is referred to twice and moved to a graph; the second stays the program's until it is given back."""
    ended: list[int] = []
    destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ended.append)
    first, second = (cudart.output("cudaUserObjectCreate", tag, destroy, 2, 1) for tag in (11, 22))
    graph, parent = cudart.output("cudaGraphCreate", 0), cudart.output("cudaGraphCreate", 0)
    cudart.call("cudaGraphRetainUserObject", graph, first, 2, 1)
    assert cudart.status("cudaGraphRetainUserObject", graph, first, 1, 0) == INVALID
    cudart.output("cudaGraphAddChildGraphNode", parent, None, 0, graph)
    instance = cudart.output("cudaGraphInstantiate", parent, 0)
    for name, handle in (("Graph", graph), ("Graph", parent)):
        cudart.call(f"cuda{name}Destroy", handle)
        assert ended == []
    cudart.call("cudaGraphExecDestroy", instance)
    assert ended == [11]
    graph = cudart.output("cudaGraphCreate", 0)
    cudart.call("cudaGraphRetainUserObject", graph, second, 1, 0)
    cudart.call("cudaUserObjectRetain", second, 1)
    cudart.call("cudaGraphDestroy", graph)
    assert cudart.status("cudaUserObjectRelease", second, 4) == INVALID
    cudart.call("cudaUserObjectRelease", second, 2)
    assert ended == [11]
    cudart.call("cudaUserObjectRelease", second, 1)
    assert ended == [11, 22]
    assert cudart.status("cudaUserObjectCreate", ctypes.byref(ctypes.c_void_p()), 1, destroy, 0, 1) == INVALID
    assert cudart.status("cudaUserObjectCreate", ctypes.byref(ctypes.c_void_p()), 1, None, 1, 1) == INVALID


def test_errors(cudart: CudaRuntime) -> None:
    assert cudart.text(2) == "out of memory"
    assert (cudart.text(0), cudart.text(-5)) == ("no error", "unknown")
    assert cudart.status("cudaStreamDestroy", 77) == CuResult.INVALID_HANDLE
    assert cudart.text(CuResult.INVALID_HANDLE) == (
        "cudaStreamDestroy: EXECUTION_FAILED_CUDA_DRIVER cuStreamDestroy(0x4d): CUDA_ERROR_INVALID_HANDLE (400)"
    )
    assert cudart.text(CuResult.NOT_FOUND) == "not found"
    assert cudart.status("cudaPeekAtLastError") == CuResult.INVALID_HANDLE
    assert cudart.status("cudaGetLastError") == CuResult.INVALID_HANDLE
    assert cudart.status("cudaGetLastError") == 0
    refused = [name for name, function in functions().items() if is_refused(function)]
    assert len(refused) == 7
    for name in refused:
        assert cudart.status(name, 0, 0, 0) == NOT_SUPPORTED
        assert f"{name}: NOT_SUPPORTED {name}: expected a call that the emulated device has" in cudart.text(801)


def test_every_function_takes_null(cudart: CudaRuntime) -> None:
    """Each function with zeros for all arguments returns and does not end the process."""
    assert {name for name, function in functions().items() if not is_refused(function)} - set(CALLS) == {
        "cudaGetErrorString",
        "cudaGetLastError",
        "cudaPeekAtLastError",
    }
    for name, function in functions().items():
        if name in CALLS:
            code = cudart.status(name, *[0] * len(function.arguments))
            assert code in (0, INVALID, CuResult.INVALID_HANDLE, CuResult.STREAM_CAPTURE_UNSUPPORTED, 801, 401), name


def test_install(tmp_path: Path) -> None:
    code = """if True:
        import ctypes
        from lowdnn import capi
        library = capi.install()
        runtime = ctypes.CDLL("libcudart.so.13")
        assert runtime._handle == capi.install_runtime()._handle
        pointer, handle = ctypes.c_void_p(), ctypes.c_void_p()
        assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(64)) == 0
        assert library.cudnnCreate(ctypes.byref(handle)) == 0
        assert capi.call_counts() == {"cudaMalloc": 1, "cudnnCreate": 1}
    """
    assert python(code, tmp_path) == ""


def test_install_refuses(tmp_path: Path) -> None:
    """A runtime that came first is named, and left alone by ``install``."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    (tmp_path / "other.c").write_text("int cudaGetDevice(int *device) { return 77; }\n")
    build = ["gcc", "-shared", "-fPIC", "other.c", "-o", "other.so", f"-Wl,-soname,{RUNTIME_NAME}"]
    subprocess.run(build, cwd=tmp_path, check=True)
    code = """if True:
        import ctypes
        from lowdnn import capi
        other = ctypes.CDLL("./other.so")
        capi.install()
        assert ctypes.CDLL("libcudart.so.13").cudaGetDevice(None) == 77
        try:
            capi.install_runtime()
        except ImportError as error:
            print(error)
    """
    assert python(code, tmp_path) == (
        "SUBLIBRARY_LOADING_FAILED install_runtime: expected no libcudart.so.13 yet, got ./other.so; "
        "call it before a library that needs it is loaded\n"
    )


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_file(machine: str, tmp_path: Path) -> None:
    (tmp_path / RUNTIME_NAME).write_bytes(runtime_library(machine))
    done = subprocess.run(
        ["readelf", "-aW", "--lint", str(tmp_path / RUNTIME_NAME)], capture_output=True, text=True, check=True
    )
    assert f"Library soname: [{RUNTIME_NAME}]" in done.stdout
    assert all(done.stdout.count(f" {name}@@{RUNTIME_NAME}\n") == 1 for name in functions())
    assert done.stderr == ""
