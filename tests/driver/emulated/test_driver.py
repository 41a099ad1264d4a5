from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from lowdnn.driver.base import (
    CaptureMode,
    DeviceAttribute,
    DriverError,
    FunctionAttribute,
    LaunchConfig,
    PointerInfo,
)
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.status import ArchMismatchError

#: Adds a constant to each of 32 integers.
PTX = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 add_x, .param .u32 add_c)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [add_x];
  ld.param.u32 %r1, [add_c];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %rd2, %r2, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r3, [%rd3];
  add.u32 %r3, %r3, %r1;
  st.global.u32 [%rd3], %r3;
  ret;
}
"""


@pytest.fixture
def driver() -> EmulatedDriver:
    return opened()


def opened(arch: str = "sm_90a") -> EmulatedDriver:
    """A driver with its context current."""
    driver = EmulatedDriver(arch)
    driver.init()
    driver.context_set_current(driver.primary_context_retain(0))
    return driver


class Parameters:
    """A ``void*[]`` over an address and a 32-bit number."""

    def __init__(self, address: int, number: int) -> None:
        self.pointer = ctypes.c_uint64(address)
        self.number = ctypes.c_uint32(number)
        self.array = (ctypes.c_void_p * 2)(ctypes.addressof(self.pointer), ctypes.addressof(self.number))
        self.address = ctypes.addressof(self.array)


def integers(driver: EmulatedDriver, values: list[int]) -> int:
    array = np.array(values, np.uint32)
    address = driver.mem_alloc(array.nbytes, "integers")
    driver.memcpy_htod_async(address, array.ctypes.data, array.nbytes, 0)
    return address


def read(driver: EmulatedDriver, address: int, count: int = 32) -> list[int]:
    array = np.zeros(count, np.uint32)
    driver.memcpy_dtoh_async(array.ctypes.data, address, array.nbytes, 0)
    return [int(value) for value in array]


def fails_with(name: str, call: Callable[[], object]) -> DriverError:
    with pytest.raises(DriverError) as caught:
        call()
    assert caught.value.name == f"CUDA_ERROR_{name}"
    return caught.value


def add_launch(driver: EmulatedDriver, parameters: Parameters, threads: int = 32) -> Callable[[int], None]:
    function = driver.module_get_function(driver.module_load_data(PTX), "add")
    return driver.prepare_launch(function, LaunchConfig((1, 1, 1), (threads, 1, 1)), parameters.address)


def test_a_launch_reads_its_parameters_each_time(driver: EmulatedDriver) -> None:
    address = integers(driver, list(range(32)))
    parameters = Parameters(address, 10)
    launch = add_launch(driver, parameters)
    launch(0)
    parameters.number.value = 100
    launch(0)
    assert read(driver, address) == [value + 110 for value in range(32)]


def test_facts_differ_by_arch() -> None:
    ampere, hopper = opened("sm_80"), opened("sm_90a")
    wanted = (
        DeviceAttribute.MULTIPROCESSOR_COUNT,
        DeviceAttribute.COMPUTE_CAPABILITY_MAJOR,
        DeviceAttribute.COOPERATIVE_LAUNCH,
        DeviceAttribute.CLUSTER_LAUNCH,
    )
    assert [ampere.device_attribute(0, a) for a in wanted] == [108, 8, 1, 0]
    assert [hopper.device_attribute(0, a) for a in wanted] == [132, 9, 1, 1]
    assert all(hopper.device_attribute(0, attribute) >= 0 for attribute in DeviceAttribute)
    with pytest.raises(ArchMismatchError):
        EmulatedDriver("sm_75")


def test_nothing_works_before_init_or_without_a_context() -> None:
    driver = EmulatedDriver()
    fails_with("NOT_INITIALIZED", driver.device_count)
    driver.init()
    fails_with("INVALID_CONTEXT", lambda: driver.mem_alloc(16))
    fails_with("INVALID_DEVICE", lambda: driver.primary_context_retain(1))
    driver.primary_context_retain(0)
    fails_with("INVALID_CONTEXT", lambda: driver.mem_alloc(16))


def test_memory_calls(driver: EmulatedDriver) -> None:
    free_before, total = driver.mem_get_info()
    address = integers(driver, [1, 2, 3, 4])
    assert address % 256 == 0
    assert driver.mem_get_info() == (free_before - 16, total)
    assert driver.pointer_info(address + 15) == PointerInfo(address, 16, 0)
    assert driver.pointer_info(address + 16) is None
    other = driver.mem_alloc_async(16, 0)
    driver.memcpy_dtod_async(other, address, 16, 0)
    driver.memset_d32_async(other + 4, 0xDEAD, 1, 0)
    driver.memset_d8_async(other + 8, 0xFF, 4, 0)
    assert read(driver, other, 4) == [1, 0xDEAD, 0xFFFFFFFF, 4]
    fails_with("INVALID_VALUE", lambda: read(driver, other, 5))
    driver.mem_free_async(other, 0)
    fails_with("INVALID_VALUE", lambda: driver.mem_free(other))
    fails_with("OUT_OF_MEMORY", lambda: driver.mem_alloc(total + 1))
    driver.mem_free(0)


def test_a_fault_sticks_until_the_context_is_released(driver: EmulatedDriver) -> None:
    address = integers(driver, list(range(31)))
    parameters = Parameters(address, 1)
    launch = add_launch(driver, parameters)
    error = fails_with("ILLEGAL_ADDRESS", lambda: launch(0))
    assert "kernel add" in error.explanation
    assert "thread (31, 0, 0)" in error.explanation
    assert "integers" in error.explanation
    again = fails_with("ILLEGAL_ADDRESS", lambda: driver.mem_alloc(16))
    assert "since cuLaunchKernel" in again.explanation
    driver.primary_context_release(0)
    driver.primary_context_retain(0)
    assert driver.mem_alloc(16)


def test_unwritten_memory_is_reported(driver: EmulatedDriver) -> None:
    parameters = Parameters(driver.mem_alloc(128, "fresh"), 1)
    launch = add_launch(driver, parameters)
    error = fails_with("LAUNCH_FAILED", lambda: launch(0))
    assert "uninitialised-read" in error.explanation
    assert "fresh" in error.explanation


def test_a_captured_stream_records_and_replays(driver: EmulatedDriver) -> None:
    address = integers(driver, [0] * 32)
    parameters = Parameters(address, 1)
    launch = add_launch(driver, parameters)
    stream, joined, event = driver.stream_create(), driver.stream_create(), driver.event_create()
    driver.stream_begin_capture(stream)
    launch(stream)
    parameters.number.value = 1000
    driver.event_record(event, stream)
    driver.stream_wait_event(joined, event)
    assert driver.stream_is_capturing(joined)
    driver.memset_d32_async(address, 7, 1, joined)
    graph = driver.stream_end_capture(stream)
    assert not driver.stream_is_capturing(joined)
    assert read(driver, address) == [0] * 32
    executable = driver.graph_instantiate(graph)
    driver.graph_destroy(graph)
    driver.graph_launch(executable, stream)
    driver.graph_launch(executable, stream)
    assert read(driver, address) == [7, *[2] * 31]
    driver.graph_exec_destroy(executable)
    fails_with("INVALID_HANDLE", lambda: driver.graph_launch(executable, stream))


@pytest.mark.parametrize("mode", [CaptureMode.THREAD_LOCAL, CaptureMode.GLOBAL])
def test_allocation_and_synchronisation_break_a_capture(driver: EmulatedDriver, mode: CaptureMode) -> None:
    stream = driver.stream_create()
    for call in (
        lambda: driver.mem_alloc(16),
        lambda: driver.module_load_data(PTX),
        driver.context_synchronize,
        lambda: driver.stream_synchronize(stream),
    ):
        driver.stream_begin_capture(stream, mode)
        fails_with("STREAM_CAPTURE_UNSUPPORTED", call)
        fails_with("STREAM_CAPTURE_INVALIDATED", lambda: driver.stream_end_capture(stream))
    fails_with("STREAM_CAPTURE_UNSUPPORTED", lambda: driver.stream_begin_capture(0))
    fails_with("ILLEGAL_STATE", lambda: driver.stream_end_capture(stream))


def test_a_relaxed_capture_allows_allocation(driver: EmulatedDriver) -> None:
    stream = driver.stream_create()
    driver.stream_begin_capture(stream, CaptureMode.RELAXED)
    assert driver.mem_alloc(16)
    driver.stream_end_capture(stream)


def test_explicit_graph_nodes_and_their_update(driver: EmulatedDriver) -> None:
    first, second = integers(driver, [0] * 32), integers(driver, [0] * 32)
    function = driver.module_get_function(driver.module_load_data(PTX), "add")
    config = LaunchConfig((1, 1, 1), (32, 1, 1))
    graph = driver.graph_create()
    ones, twos, fives = Parameters(first, 1), Parameters(first, 2), Parameters(second, 5)
    node = driver.graph_add_kernel_node(graph, (), function, config, ones.address)
    last = driver.graph_add_kernel_node(graph, (node,), function, config, twos.address)
    fails_with(
        "INVALID_HANDLE",
        lambda: driver.graph_add_kernel_node(graph, (last + 1,), function, config, ones.address),
    )
    executable = driver.graph_instantiate(graph)
    driver.graph_exec_kernel_node_set_params(executable, last, function, config, fives.address)
    driver.graph_launch(executable, 0)
    assert read(driver, first) == [1] * 32
    assert read(driver, second) == [5] * 32


def test_a_graph_executable_takes_over_the_parameters_of_a_like_graph(driver: EmulatedDriver) -> None:
    function = driver.module_get_function(driver.module_load_data(PTX), "add")
    config = LaunchConfig((1, 1, 1), (32, 1, 1))
    first, second = integers(driver, [0] * 32), integers(driver, [0] * 32)

    def graph_of(numbers: tuple[int, int], is_chain: bool = True) -> int:
        graph = driver.graph_create()
        parameters = [Parameters(address, number) for address, number in zip((first, second), numbers, strict=True)]
        node = driver.graph_add_kernel_node(graph, (), function, config, parameters[0].address)
        driver.graph_add_kernel_node(graph, (node,) * is_chain, function, config, parameters[1].address)
        return graph

    executable = driver.graph_instantiate(graph_of((1, 2)))
    driver.graph_exec_update(executable, graph_of((10, 20)))
    driver.graph_launch(executable, 0)
    assert (read(driver, first), read(driver, second)) == ([10] * 32, [20] * 32)
    forked = graph_of((1, 2), is_chain=False)
    error = fails_with("GRAPH_EXEC_UPDATE_FAILURE", lambda: driver.graph_exec_update(executable, forked))
    assert error.result == 910
    fails_with("GRAPH_EXEC_UPDATE_FAILURE", lambda: driver.graph_exec_update(executable, driver.graph_create()))


def cluster_function(driver: EmulatedDriver, directives: str = "") -> int:
    """A kernel with parameters like ``add``'s that stores its cluster's size for each block."""
    ptx = f""".version 8.0\n.target sm_90\n.address_size 64
        .visible .entry size(.param .u64 x, .param .u32 c) {directives}
        {{
          .reg .b32 %r<4>; .reg .b64 %rd<4>;
          ld.param.u64 %rd1, [x]; mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2;
          mov.u32 %r2, %cluster_nctarank; st.global.u32 [%rd1], %r2; ret;
        }}"""
    return driver.module_get_function(driver.module_load_data(ptx.encode()), "size")


def test_clusters_are_launched_as_asked_for_or_as_the_kernel_requires(driver: EmulatedDriver) -> None:
    parameters = Parameters(integers(driver, [0] * 32), 0)

    def sizes(directives: str, cluster: tuple[int, int, int]) -> list[int]:
        config = LaunchConfig((32, 1, 1), (32, 1, 1), cluster=cluster)
        driver.prepare_launch(cluster_function(driver, directives), config, parameters.address)(0)
        return sorted(set(read(driver, parameters.pointer.value)))

    assert sizes("", (1, 1, 1)) == [1]
    assert sizes("", (8, 1, 1)) == [8]
    assert sizes(".explicitcluster .maxclusterrank 4", (4, 1, 1)) == [4]
    assert sizes(".reqnctapercluster 2, 1, 1", (1, 1, 1)) == [2]
    assert sizes(".explicitcluster .reqnctapercluster 2", (2, 1, 1)) == [2]


def test_clusters_that_a_gpu_refuses(driver: EmulatedDriver) -> None:
    parameters = Parameters(integers(driver, [0] * 32), 0)

    def refused(result: str, directives: str, cluster: tuple[int, int, int], grid: int = 32) -> str:
        function = cluster_function(driver, directives)
        config = LaunchConfig((grid, 1, 1), (32, 1, 1), cluster=cluster)
        return fails_with(result, lambda: driver.prepare_launch(function, config, parameters.address)).explanation

    assert "divide the grid" in refused("INVALID_VALUE", "", (3, 1, 1))
    assert "divide the grid" in refused("INVALID_VALUE", "", (0, 1, 1))
    assert "at most 8 blocks" in refused("INVALID_CLUSTER_SIZE", "", (16, 1, 1))
    assert ".reqnctapercluster" in refused("INVALID_CLUSTER_SIZE", ".reqnctapercluster 2", (4, 1, 1))
    assert ".maxclusterrank" in refused("INVALID_CLUSTER_SIZE", ".maxclusterrank 2", (4, 1, 1))
    assert ".explicitcluster" in refused("INVALID_CLUSTER_SIZE", ".explicitcluster", (1, 1, 1))
    function = cluster_function(driver)
    driver.function_set_attribute(function, FunctionAttribute.NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
    assert driver.function_get_attribute(function, FunctionAttribute.NON_PORTABLE_CLUSTER_SIZE_ALLOWED) == 1
    config = LaunchConfig((32, 1, 1), (32, 1, 1), cluster=(16, 1, 1))
    driver.prepare_launch(function, config, parameters.address)(0)
    assert read(driver, parameters.pointer.value) == [16] * 32
    ampere = opened("sm_80")
    plain = ampere.module_get_function(ampere.module_load_data(PTX), "add")
    paired = LaunchConfig((2, 1, 1), (32, 1, 1), cluster=(2, 1, 1))
    fails_with("INVALID_VALUE", lambda: ampere.prepare_launch(plain, paired, parameters.address))


def test_occupancy_of_clusters(driver: EmulatedDriver) -> None:
    """A block of 1024 threads takes half of a multiprocessor; 132 of them are 8 groups of 16, and 4."""
    function, narrow = cluster_function(driver), cluster_function(driver, ".maxclusterrank 4")
    required = cluster_function(driver, ".reqnctapercluster 2, 2")

    def config(cluster: tuple[int, int, int], shared_bytes: int = 0) -> LaunchConfig:
        return LaunchConfig((240, 2, 1), (1024, 1, 1), shared_bytes, cluster)

    assert driver.occupancy_max_active_clusters(function, config((2, 1, 1))) == 132
    assert driver.occupancy_max_active_clusters(function, config((5, 1, 1))) == 8 * 6 + 1
    assert driver.occupancy_max_active_clusters(required, config((1, 1, 1))) == 66
    fails_with("INVALID_CLUSTER_SIZE", lambda: driver.occupancy_max_active_clusters(function, config((1, 1, 1))))
    assert driver.occupancy_max_potential_cluster_size(function, config((1, 1, 1))) == 8
    driver.function_set_attribute(function, FunctionAttribute.NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
    assert driver.occupancy_max_potential_cluster_size(function, config((1, 1, 1))) == 16
    assert driver.occupancy_max_potential_cluster_size(narrow, config((1, 1, 1))) == 4
    assert driver.occupancy_max_potential_cluster_size(required, config((1, 1, 1))) == 4


def test_launches_that_a_gpu_refuses(driver: EmulatedDriver) -> None:
    function = driver.module_get_function(driver.module_load_data(PTX), "add")
    parameters = Parameters(integers(driver, [0] * 32), 1)

    def prepare(config: LaunchConfig) -> Callable[[], object]:
        return lambda: driver.prepare_launch(function, config, parameters.address)

    one, warp = (1, 1, 1), (32, 1, 1)
    fails_with("INVALID_VALUE", prepare(LaunchConfig((0, 1, 1), warp)))
    fails_with("INVALID_VALUE", prepare(LaunchConfig((1, 65536, 1), warp)))
    fails_with("INVALID_VALUE", prepare(LaunchConfig(one, (1025, 1, 1))))
    fails_with("INVALID_VALUE", prepare(LaunchConfig(one, (32, 32, 2))))
    fails_with("INVALID_VALUE", prepare(LaunchConfig(one, warp, 48 * 1024 + 1)))
    fits = 132 * 32
    prepare(LaunchConfig((fits, 1, 1), warp, cooperative=True))()
    fails_with("COOPERATIVE_LAUNCH_TOO_LARGE", prepare(LaunchConfig((fits + 1, 1, 1), warp, cooperative=True)))
    optin = driver.device_attribute(0, DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    attribute = FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
    fails_with("INVALID_VALUE", lambda: driver.function_set_attribute(function, attribute, optin + 1))
    driver.function_set_attribute(function, attribute, optin)
    assert driver.function_get_attribute(function, attribute) == optin
    driver.prepare_launch(function, LaunchConfig(one, warp, optin), parameters.address)


def test_images_that_a_gpu_refuses(driver: EmulatedDriver) -> None:
    fails_with("UNSUPPORTED_PTX_VERSION", lambda: driver.module_load_data(PTX.replace(b"8.0", b"9.5")))
    fails_with("NO_BINARY_FOR_GPU", lambda: driver.module_load_data(b"\x7fELF..."))
    fails_with("INVALID_IMAGE", lambda: driver.module_load_data(b"hello"))
    fails_with("INVALID_PTX", lambda: driver.module_load_data(PTX.replace(b"ret;", b"ret")))
    ampere = opened("sm_80")
    fails_with("NO_BINARY_FOR_GPU", lambda: ampere.module_load_data(PTX.replace(b"sm_80", b"sm_90")))
    fails_with("NO_BINARY_FOR_GPU", lambda: driver.module_load_data(PTX.replace(b"sm_80", b"sm_80a")))
    fails_with("NOT_FOUND", lambda: driver.module_get_function(driver.module_load_data(PTX), "missing"))
    assert driver.mem_alloc(16), "a refused image breaks nothing"


def test_event_times_are_the_same_for_the_same_work() -> None:
    def elapsed_ms(blocks: int) -> float:
        driver = opened()
        parameters = Parameters(integers(driver, [0] * 32), 1)
        function = driver.module_get_function(driver.module_load_data(PTX), "add")
        start, end = driver.event_create(), driver.event_create()
        launch = driver.prepare_launch(function, LaunchConfig((blocks, 1, 1), (32, 1, 1)), parameters.address)
        driver.event_record(start, 0)
        launch(0)
        driver.event_record(end, 0)
        return driver.event_elapsed_ms(start, end)

    assert elapsed_ms(1) == elapsed_ms(1)
    assert 2e-3 < elapsed_ms(1) < elapsed_ms(1000) < elapsed_ms(1001 * 100)


def test_events_measure_time(driver: EmulatedDriver) -> None:
    start, end = driver.event_create(), driver.event_create()
    fails_with("INVALID_HANDLE", lambda: driver.event_elapsed_ms(start, end))
    driver.event_record(start, 0)
    driver.event_record(end, 0)
    assert 0 < driver.event_elapsed_ms(start, end) < 1
    assert driver.event_query(end)
    driver.event_destroy(end)
    fails_with("INVALID_HANDLE", lambda: driver.event_record(end, 0))


def test_occupancy_is_bounded_by_threads_and_shared_memory(driver: EmulatedDriver) -> None:
    function = driver.module_get_function(driver.module_load_data(PTX), "add")
    assert driver.occupancy_max_active_blocks(function, 1024, 0) == 2
    assert driver.occupancy_max_active_blocks(function, 32, 0) == 32
    assert driver.occupancy_max_active_blocks(function, 128, 100 << 10) == 2
