"""Loaded plans that handles share: what they cost, which of them go, and who outlives whom."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Iterator

import pytest

import lowdnn
from lowdnn.backend.handle import Handle
from lowdnn.enums import HeurMode, PointwiseMode
from lowdnn.plan import Plan
from lowdnn.runtime.plan_cache import PlanCache
from lowdnn.status import AttributeTypeError, NotInitializedError, OutOfBoundError
from tests.support.builders import pointwise_graph


@pytest.fixture
def cache() -> Iterator[PlanCache]:
    with PlanCache() as opened:
        yield opened


def plan_for(handle: Handle, columns: int = 8) -> Plan:
    graph = pointwise_graph(PointwiseMode.ADD, (4, columns))
    return handle.rank(graph, HeurMode.A).candidates[0].plan


def test_handles_of_a_device_share_their_plans(handle: Handle, cache: PlanCache) -> None:
    plan = plan_for(handle)
    with (
        lowdnn.create_handle(same_device_as=handle, plan_cache=cache) as first,
        lowdnn.create_handle(same_device_as=handle, plan_cache=cache) as second,
    ):
        loaded = first.load(plan)
        assert second.load(plan) is loaded
        assert handle.load(plan) is not loaded
        found = cache.statistics()
        assert (found.plans, found.kernels, found.hits, found.misses) == (1, 1, 1, 1)
        assert found.size_bytes == loaded.host_bytes
    # The handles are closed, and the plan is still there for another one.
    x, y, z = (lowdnn.zeros((4, 8), handle) for _ in range(3))
    with lowdnn.create_handle(same_device_as=handle, plan_cache=cache) as third:
        assert third.load(plan) is loaded
        loaded.execute((x.ptr, y.ptr, z.ptr))
        third.synchronize()
    with pytest.raises(NotInitializedError):
        third.load(plan)
    cache.close()
    with pytest.raises(NotInitializedError):
        loaded.execute((x.ptr, y.ptr, z.ptr))


def test_devices_have_plans_of_their_own(cache: PlanCache) -> None:
    with (
        lowdnn.create_handle("emulated", plan_cache=cache) as first,
        lowdnn.create_handle("emulated", plan_cache=cache) as second,
    ):
        plan = plan_for(first)
        assert first.load(plan) is not second.load(plan)
        assert first.load(plan) is first.load(plan)
        assert cache.statistics().plans == 2


def test_the_plan_used_longest_ago_goes_first(handle: Handle) -> None:
    plans = [plan_for(handle, 8 * (1 + number)) for number in range(4)]
    with PlanCache() as cache, lowdnn.create_handle(same_device_as=handle, plan_cache=cache) as user:
        each = user.load(plans[0]).host_bytes
    for limits in ({"max_plans": 2}, {"max_bytes": 2 * each}, {"max_plans": 3, "max_bytes": 3 * each - 1}):
        with PlanCache(**limits) as cache, lowdnn.create_handle(same_device_as=handle, plan_cache=cache) as user:
            first, second = user.load(plans[0]), user.load(plans[1])
            assert user.load(plans[0]) is first
            user.load(plans[2])
            assert user.load(plans[0]) is first
            assert user.load(plans[1]) is not second
            found = cache.statistics()
            assert (found.plans, found.evictions) == (2, 2)
            assert found.size_bytes == 2 * each
            cache.clear()
            assert (cache.statistics().plans, cache.statistics().size_bytes) == (0, 0)
    with PlanCache(max_bytes=1) as cache, lowdnn.create_handle(same_device_as=handle, plan_cache=cache) as user:
        user.load(plans[0])
        assert cache.statistics().plans == 0, "a plan beyond the limit is loaded, not kept"


def test_bytes_of_a_plan_are_those_that_loading_takes(handle: Handle) -> None:
    """A launch of the GPU's driver takes other objects."""
    if handle.cuda_device is not None:
        pytest.skip("counted on the emulated device")
    plan = plan_for(handle)
    handle.runtime.load(plan)
    gc.collect()
    tracemalloc.start()
    kept = [handle.runtime.load(plan) for _ in range(8)]
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] / len(kept)
    tracemalloc.stop()
    assert taken / 2 < kept[0].host_bytes < 2 * taken


def test_threads_share_a_cache(handle: Handle) -> None:
    plans = [plan_for(handle, 8 * (1 + number)) for number in range(6)]
    handles = []
    failures: list[BaseException] = []

    def work(user: Handle, first: int) -> None:
        try:
            for number in range(40):
                plan = plans[(first + number) % len(plans)]
                assert user.load(plan).plan == plan
                assert len(cache._loaded) <= 3
        except BaseException as error:
            failures.append(error)

    with PlanCache(max_plans=3) as cache:
        handles = [lowdnn.create_handle(same_device_as=handle, plan_cache=cache) for _ in range(4)]
        threads = [threading.Thread(target=work, args=pair) for pair in zip(handles, range(4), strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        found = cache.statistics()
        assert found.hits + found.misses == 160
        assert found.size_bytes == sum(loaded.host_bytes for loaded in cache._loaded.values())
        assert found.kernels == 1, "a kernel is loaded once for all of them"
        for user in handles:
            user.close()


def test_misuse_is_refused(handle: Handle, cache: PlanCache) -> None:
    with pytest.raises(OutOfBoundError, match=r"PlanCache\.max_plans: expected 1 to .*, got 0"):
        PlanCache(0)
    with pytest.raises(AttributeTypeError, match=r"PlanCache\.max_bytes: expected an integer, got 2.5"):
        PlanCache(max_bytes=2.5)  # type: ignore[arg-type]
    with pytest.raises(AttributeTypeError, match=r"handle\.plan_cache: expected a PlanCache or None, got 5"):
        lowdnn.create_handle("emulated", plan_cache=5)  # type: ignore[arg-type]
    user = lowdnn.create_handle(same_device_as=handle, plan_cache=cache)
    loaded = user.load(plan_for(user, 8))
    cache.close()
    cache.close()
    with pytest.raises(NotInitializedError, match="got that of a closed PlanCache; close the cache behind the handles"):
        loaded.execute((0, 0), 0, 0)
    user.close()
    with pytest.raises(NotInitializedError, match="PlanCache: expected an open cache, got a closed one"):
        lowdnn.create_handle(same_device_as=handle, plan_cache=cache)
