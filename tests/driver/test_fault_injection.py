"""The text of faults, and the calls that fail by it, on both drivers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from lowdnn.driver import open_driver
from lowdnn.driver.base import Driver, DriverError, DriverImageError, DriverMemoryError
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.driver.fault_injection import CALLS, RELEASES, Fault, parse_faults, with_faults
from lowdnn.driver.results import CuResult
from lowdnn.status import BadParamError


def test_every_call_of_the_protocol_may_fail() -> None:
    methods = {name for name, _ in inspect.getmembers(Driver, inspect.isfunction) if not name.startswith("_")}
    assert methods | {"launch"} == set(CALLS)
    assert set(CALLS) > RELEASES


def test_the_text() -> None:
    text = "mem_alloc:3=OUT_OF_MEMORY, launch:2-=CUDA_ERROR_LAUNCH_FAILED,mem_free:*=UNKNOWN,init:1-4=NO_DEVICE"
    assert parse_faults(text) == (
        Fault("mem_alloc", 3, 3, CuResult.OUT_OF_MEMORY),
        Fault("launch", 2, None, CuResult.LAUNCH_FAILED),
        Fault("mem_free", 1, None, CuResult.UNKNOWN),
        Fault("init", 1, 4, CuResult.NO_DEVICE),
    )
    assert parse_faults(" ") == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mem_alloc", "CALL:N=RESULT"),
        ("mem_alloc:=OUT_OF_MEMORY", "CALL:N=RESULT"),
        ("mem_alloc:1=OUT_OF_MEMORY;mem_free:1=UNKNOWN", "CALL:N=RESULT"),
        ("mem_alloc:1=OUT_OF_MEMORY,", "CALL:N=RESULT"),
        ("cuMemAlloc:1=OUT_OF_MEMORY", "a call of Driver, or launch, got 'cuMemAlloc'"),
        ("_context:1=OUT_OF_MEMORY", "a call of Driver"),
        ("mem_alloc:1=FULL", "a CUresult that is a failure, such as OUT_OF_MEMORY, got 'FULL'"),
        ("mem_alloc:1=SUCCESS", "a CUresult that is a failure"),
        ("stream_query:1=NOT_READY", "a CUresult that is a failure"),
        ("mem_alloc:0=OUT_OF_MEMORY", "numbers of calls that ascend from 1"),
        ("mem_alloc:3-2=OUT_OF_MEMORY", "numbers of calls that ascend from 1"),
    ],
)
def test_what_is_refused(text: str, expected: str) -> None:
    with pytest.raises(BadParamError, match=rf"open_driver\.faults: expected .*{expected}"):
        open_driver("emulated", faults=text)


def test_no_faults_leave_the_driver_as_it_is() -> None:
    driver = EmulatedDriver()
    assert with_faults(driver, "") is driver
    faulty = with_faults(driver, "mem_alloc:1=OUT_OF_MEMORY")
    assert faulty.prepare_launch == driver.prepare_launch
    assert faulty.mem_alloc != driver.mem_alloc
    assert (faulty.kind, faulty.dlpack_device_type) == (driver.kind, driver.dlpack_device_type)
    assert faulty.takes_machine_code is driver.takes_machine_code


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def faulty(request: pytest.FixtureRequest) -> Iterator[Driver]:
    faults = "mem_alloc:2=OUT_OF_MEMORY,mem_alloc:4-5=UNKNOWN,mem_free:1=ILLEGAL_ADDRESS,module_load_data:*=INVALID_PTX"
    driver = open_driver(request.param, faults=faults)
    driver.context_set_current(driver.primary_context_retain(0))
    yield driver
    driver.primary_context_release(0)


def test_calls_fail_in_their_turn_and_say_what_failed(faulty: Driver) -> None:
    kept = [faulty.mem_alloc(256)]
    with pytest.raises(DriverMemoryError, match=r"cuMemAlloc\(0x10000\): CUDA_ERROR_OUT_OF_MEMORY \(2\)") as caught:
        faulty.mem_alloc(65536)
    assert (caught.value.call, caught.value.result, caught.value.name) == ("cuMemAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY")
    assert (caught.value.arguments, caught.value.explanation) == ("0x10000", "injected into mem_alloc 2")
    kept.append(faulty.mem_alloc(256))
    for number in (4, 5):
        with pytest.raises(DriverError, match=f"injected into mem_alloc {number}"):
            faulty.mem_alloc(256)
    kept.append(faulty.mem_alloc(256))
    for address in kept[1:]:
        with pytest.raises(DriverError, match="ILLEGAL_ADDRESS") if address == kept[1] else nullcontext():
            faulty.mem_free(address)
        assert faulty.pointer_info(address) is None, "given back all the same"
    faulty.mem_free(kept[0])
    for _ in range(2):
        with pytest.raises(DriverImageError, match=r"cuModuleLoadDataEx\(3 bytes\)"):
            faulty.module_load_data(b"ptx")


def test_threads_share_a_count() -> None:
    driver = open_driver("emulated", faults="device_count:50-59=UNKNOWN")

    def call(_: int) -> bool:
        try:
            driver.device_count()
        except DriverError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, range(200))).count(False) == 10


def test_opening_may_fail() -> None:
    with pytest.raises(DriverError, match=r"cuInit\(\): CUDA_ERROR_NO_DEVICE"):
        open_driver("emulated", faults="init:1=NO_DEVICE")
