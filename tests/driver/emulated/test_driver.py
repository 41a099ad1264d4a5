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
    driver.event_record(event, joined)
    driver.stream_wait_event(stream, event)
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


def test_a_refused_cluster_is_explained(driver: EmulatedDriver) -> None:
    parameters = Parameters(integers(driver, [0] * 32), 0)

    def refused(directives: str, cluster: int) -> str:
        function = cluster_function(driver, directives)
        config = LaunchConfig((32, 1, 1), (32, 1, 1), cluster=(cluster, 1, 1))
        error = fails_with("INVALID_CLUSTER_SIZE", lambda: driver.prepare_launch(function, config, parameters.address))
        return error.explanation

    assert "divide the grid" in refused("", 3)
    assert "at most 8 blocks" in refused("", 16)
    assert ".reqnctapercluster" in refused(".reqnctapercluster 2", 4)
    assert ".maxclusterrank" in refused(".maxclusterrank 2", 4)
    assert ".explicitcluster" in refused(".explicitcluster", 1)


def test_ampere_has_no_clusters() -> None:
    driver = opened("sm_80")
    function = driver.module_get_function(driver.module_load_data(PTX), "add")
    parameters = Parameters(integers(driver, [0] * 32), 0)
    paired = LaunchConfig((2, 1, 1), (32, 1, 1), cluster=(2, 1, 1))
    fails_with("INVALID_VALUE", lambda: driver.prepare_launch(function, paired, parameters.address))
    large = FunctionAttribute.NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    fails_with("INVALID_VALUE", lambda: driver.function_set_attribute(function, large, 1))


@pytest.mark.parametrize(
    ("threads", "expected"),
    [(1024, {2: 132, 3: 78, 4: 62, 8: 31, 16: 15}), (32, {2: 528, 3: 326, 4: 248, 8: 124, 16: 62})],
)
def test_as_many_clusters_fit_as_on_an_h200_or_nearly(
    driver: EmulatedDriver, threads: int, expected: dict[int, int]
) -> None:
    """An H200 answers 132, 79, 62, 30, 14 and 528, 327, 248, 124, 58."""
    function = cluster_function(driver)
    driver.function_set_attribute(function, FunctionAttribute.NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
    for size, clusters in expected.items():
        config = LaunchConfig((48, 1, 1), (threads, 1, 1), cluster=(size, 1, 1))
        assert driver.occupancy_max_active_clusters(function, config) == clusters


def test_memory_freed_on_a_stream_is_gone_for_the_work_after_it(driver: EmulatedDriver) -> None:
    stream = driver.stream_create()
    freed = driver.mem_alloc_async(128, stream, "scores")
    driver.memset_d32_async(freed, 1, 32, stream)
    parameters = Parameters(freed, 1)
    launch = add_launch(driver, parameters)
    launch(stream)
    driver.mem_free_async(freed, stream)
    error = fails_with("ILLEGAL_ADDRESS", lambda: launch(stream))
    assert "use-after-free" in error.explanation
    assert "scores has been freed" in error.explanation


def test_a_captured_stream_allocates_no_memory(driver: EmulatedDriver) -> None:
    stream = driver.stream_create()
    for call in (lambda: driver.mem_alloc_async(16, stream), lambda: driver.mem_free_async(0, stream)):
        driver.stream_begin_capture(stream, CaptureMode.RELAXED)
        fails_with("STREAM_CAPTURE_UNSUPPORTED", call)
        fails_with("STREAM_CAPTURE_INVALIDATED", lambda: driver.stream_end_capture(stream))


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


def test_a_kernels_own_shared_memory_counts_towards_what_a_launch_may_ask_for(driver: EmulatedDriver) -> None:
    own = PTX.replace(b"  .reg .b32 %r<4>;", b"  .shared .align 4 .b8 own[16384];\n  .reg .b32 %r<4>;")
    function = driver.module_get_function(driver.module_load_data(own), "add")
    parameters = Parameters(integers(driver, [0] * 32), 1)
    fits, exceeds = (LaunchConfig((1, 1, 1), (32, 1, 1), 32 * 1024 + more) for more in (0, 1))
    driver.prepare_launch(function, fits, parameters.address)
    fails_with("INVALID_VALUE", lambda: driver.prepare_launch(function, exceeds, parameters.address))
    driver.function_set_attribute(function, FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, exceeds.shared_bytes)
    driver.prepare_launch(function, exceeds, parameters.address)


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
