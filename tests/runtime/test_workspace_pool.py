"""Blocks of a pool are used, given on and freed in the order of streams, and never go beyond the limit."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from typing import cast

import pytest

from lowdnn.driver.base import Driver, DriverError
from lowdnn.runtime.context import Context
from lowdnn.runtime.workspace_pool import WorkspacePool
from lowdnn.status import (
    BadParamError,
    DeviceAllocationFailedError,
    NotInitializedError,
    SizeInsufficientError,
    Status,
    StreamMismatchError,
)
from tests.support.data import fresh_seed
from tests.support.ordered_driver import OrderedDriver

STREAMS = (0, 0x10000, 0x20000, 0x30000)
KIB = 1024


@pytest.fixture
def driver() -> OrderedDriver:
    return OrderedDriver()


@pytest.fixture
def pool(driver: OrderedDriver) -> Iterator[WorkspacePool]:
    with WorkspacePool(cast(Driver, driver), 0, 100 * KIB) as opened:
        yield opened
    assert not driver.allocations
    assert not driver.events
    assert not driver.streams


def execute(pool: WorkspacePool, driver: OrderedDriver, size_bytes: int, stream: int = 0) -> int:
    """Takes an address, and gives work that uses it to the stream, as an execute does."""
    with pool.lock:
        address = pool.address(size_bytes, pool.context, stream, "the plan")
        driver.use(address, size_bytes, stream)
        return address


def test_plans_of_a_stream_share_one_block_that_grows(pool: WorkspacePool, driver: OrderedDriver) -> None:
    assert execute(pool, driver, 10 * KIB) == execute(pool, driver, 3 * KIB)
    execute(pool, driver, 60 * KIB)
    execute(pool, driver, 70 * KIB)  # beside the old block it would not fit the limit
    found = pool.statistics()
    assert (found.size_bytes, found.blocks, found.allocations) == (70 * KIB, 1, 3)
    assert found.high_water_bytes == found.largest_need_bytes == 70 * KIB
    assert found.fragmentation == 0
    execute(pool, driver, 3 * KIB, STREAMS[1])
    execute(pool, driver, 5 * KIB + 1, STREAMS[1])
    assert pool.statistics().fragmentation == pytest.approx(511 / (75 * KIB + 512))


def test_limit_tells_what_is_needed_and_what_holds_the_rest(pool: WorkspacePool, driver: OrderedDriver) -> None:
    before = execute(pool, driver, 10 * KIB)
    with pytest.raises(SizeInsufficientError) as info:
        execute(pool, driver, 101 * KIB)
    assert info.value.status is Status.BAD_PARAM_SIZE_INSUFFICIENT
    assert "WorkspacePool.limit_bytes: expected at least 103424, got 102400; the plan needs 103424 bytes" in str(
        info.value
    )
    assert execute(pool, driver, 10 * KIB) == before, "a refusal changes nothing"
    assert pool.statistics().refusals == 1
    pool.reserve_bytes(40 * KIB, STREAMS[1])
    with pytest.raises(SizeInsufficientError, match="40960 are reserved or captured: release"):
        execute(pool, driver, 61 * KIB)
    pool.release(STREAMS[1])
    execute(pool, driver, 61 * KIB)
    with WorkspacePool(cast(Driver, driver), 0, 1000) as small:
        small.reserve_bytes(900)
        assert small.statistics().size_bytes == 1000


def test_a_stream_takes_the_block_of_another_at_the_limit(pool: WorkspacePool, driver: OrderedDriver) -> None:
    _, first, second, third = STREAMS
    taken = execute(pool, driver, 60 * KIB, first)
    execute(pool, driver, 30 * KIB, second)
    assert execute(pool, driver, 50 * KIB, third) == taken
    assert execute(pool, driver, 20 * KIB, first) != taken
    assert pool.statistics().handovers == 2
    assert pool.statistics().size_bytes == 90 * KIB


def test_capture_allocates_nothing_and_keeps_what_it_uses(pool: WorkspacePool, driver: OrderedDriver) -> None:
    stream = STREAMS[1]
    driver.captures.add(stream)
    with pytest.raises(SizeInsufficientError, match=r"reserve: expected 4096 bytes for the plan before .* got 0; noth"):
        execute(pool, driver, 4 * KIB, stream)
    driver.captures.clear()
    reserved = pool.reserve_bytes(4 * KIB, stream)
    execute(pool, driver, 2 * KIB, stream)
    driver.captures.add(stream)
    asked = len(driver.calls)
    assert execute(pool, driver, 4 * KIB, stream) == reserved
    assert len(driver.calls) == asked, "a reserved block costs no call of the driver"
    driver.captures.clear()
    assert execute(pool, driver, 8 * KIB, stream) != reserved
    assert pool.trim() == 8 * KIB
    assert list(driver.allocations) == [reserved]
    driver.forget_captures(stream)
    pool.release(stream)
    assert pool.trim() == 4 * KIB


def test_a_block_that_is_captured_without_a_reservation_stays(pool: WorkspacePool, driver: OrderedDriver) -> None:
    stream = STREAMS[2]
    captured = execute(pool, driver, 10 * KIB, stream)
    driver.captures.add(stream)
    assert execute(pool, driver, 10 * KIB, stream) == captured
    driver.captures.clear()
    for other in STREAMS:
        execute(pool, driver, 90 * KIB, other)
    assert captured in driver.allocations
    assert pool.statistics().kept_bytes == 10 * KIB


def test_a_full_device_is_a_limit_too(pool: WorkspacePool, driver: OrderedDriver) -> None:
    driver.free_bytes = 50 * KIB
    execute(pool, driver, 30 * KIB, STREAMS[1])
    execute(pool, driver, 10 * KIB, STREAMS[2])
    execute(pool, driver, 45 * KIB)
    assert pool.statistics().blocks == 1
    with pytest.raises(DeviceAllocationFailedError, match=r"size_bytes: .* got 61440; the plan needs them: .*MEMORY"):
        execute(pool, driver, 60 * KIB)
    execute(pool, driver, 50 * KIB)


def test_trim_keeps_what_it_is_told_to(pool: WorkspacePool, driver: OrderedDriver) -> None:
    for number, stream in enumerate(STREAMS):
        execute(pool, driver, (10 + number) * KIB, stream)
    pool.release(STREAMS[3])
    assert pool.trim(keep_bytes=33 * KIB) == 13 * KIB
    assert "cuCtxSynchronize" not in driver.calls
    assert pool.trim() == 33 * KIB
    assert pool.statistics().size_bytes == 0


def test_default_stream_of_a_thread_is_one_for_each_thread(pool: WorkspacePool, driver: OrderedDriver) -> None:
    found = [pool.reserve_bytes(KIB, 2)]
    thread = threading.Thread(target=lambda: found.append(pool.reserve_bytes(KIB, 2)))
    thread.start()
    thread.join()
    assert found[0] != found[1]
    assert pool.reserve_bytes(KIB, 2) == found[0]


def test_misuse_is_refused(pool: WorkspacePool, driver: OrderedDriver) -> None:
    elsewhere = Context(cast(Driver, OrderedDriver()))
    with pool.lock, pytest.raises(StreamMismatchError, match="the plan: expected a pool of device 0, got a pool"):
        pool.address(KIB, elsewhere, 0, "the plan")
    again = Context(cast(Driver, driver))
    with pool.lock:
        assert pool.address(KIB, again, 0, "the plan")
    execute(pool, driver, KIB, STREAMS[1])
    driver.captures.add(STREAMS[1])
    with pytest.raises(
        BadParamError, match=r"release\.stream: expected a stream that is not being captured, got 0x10000"
    ):
        pool.release(STREAMS[1])
    driver.captures.clear()
    pool.close()
    pool.close()
    with pytest.raises(NotInitializedError, match="WorkspacePool: expected an open pool, got a closed one"):
        execute(pool, driver, KIB)
    with pytest.raises(NotInitializedError):
        pool.trim()


def step(rng: random.Random, pool: WorkspacePool, driver: OrderedDriver) -> None:
    """One call that a program may make."""
    stream = rng.choice(STREAMS)
    what = rng.choices(["execute", "capture", "reserve", "release", "trim"], [20, 3, 1, 2, 1])[0]
    if what == "execute":
        execute(pool, driver, rng.randint(1, 60) * KIB, stream)
    elif what == "capture" and stream:
        driver.captures ^= {stream}
    elif stream in driver.captures:
        return
    elif what == "reserve":
        pool.reserve_bytes(rng.randint(1, 20) * KIB, stream)
    elif what == "release":
        driver.forget_captures(stream)
        pool.release(stream)
    elif what == "trim" and not driver.captures:
        pool.trim(rng.randint(0, 50) * KIB)


@pytest.mark.parametrize("is_faulty", [False, True], ids=["sound", "with faults"])
def test_any_program_uses_memory_in_order(is_faulty: bool) -> None:
    seed = fresh_seed()
    rng = random.Random(seed)
    refused = re.compile("limit_bytes|before the stream is captured|no more than the device has free")
    for _ in range(100):
        driver = OrderedDriver(rng.choice((1 << 30, 60 * KIB)))
        with WorkspacePool(cast(Driver, driver), 0, 100 * KIB) as pool:
            for _ in range(60):
                if is_faulty and rng.random() < 0.2:
                    driver.fails_at = rng.randint(1, 6)
                try:
                    step(rng, pool, driver)
                except (SizeInsufficientError, DeviceAllocationFailedError, DriverError) as error:
                    if not (refused.search(str(error)) or (is_faulty and isinstance(error, DriverError))):
                        raise AssertionError(seed) from error
                found = pool.statistics()
                assert found.size_bytes == driver.live_bytes <= 100 * KIB, seed
                assert found.kept_bytes <= found.size_bytes <= found.high_water_bytes, seed
            driver.captures.clear()
            driver.fails_at = 0
        assert not {**driver.allocations, **driver.events}, seed
        assert not driver.streams, seed


def test_threads_share_a_pool() -> None:
    seed = fresh_seed()
    driver, failures, begin = OrderedDriver(), list[BaseException](), threading.Barrier(8)

    def work(number: int) -> None:
        rng = random.Random(seed + number)
        try:
            begin.wait()
            for _ in range(200):
                time.sleep(0)  # for the others
                # Two threads in each stream.
                execute(pool, driver, rng.randint(1, 45) * KIB, STREAMS[number // 2])
                if rng.random() < 0.02:
                    pool.trim(rng.randint(0, 80) * KIB)
        except BaseException as error:
            failures.append(error)

    with WorkspacePool(cast(Driver, driver), 0, 100 * KIB) as pool:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, (seed, failures)
        assert pool.statistics().handovers > 0
