from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from lowdnn.driver.base import DriverError, FunctionAttribute
from lowdnn.plan import KernelRef
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.modules import ModuleCache
from lowdnn.runtime.runtime import Runtime
from tests.support.runtime import open_runtime, scale_plan, scale_sources


@pytest.fixture
def runtime(device: Runtime, tmp_path: Path) -> Iterator[Runtime]:
    with open_runtime(device.driver, tmp_path / "cache", sources=scale_sources(tmp_path / "engines")) as runtime:
        yield runtime


def test_several_kernels_are_compiled_and_loaded_once_each(runtime: Runtime) -> None:
    plans = [scale_plan(100, factor=factor) for factor in range(4)]
    kernels = tuple(replace(p.kernels[0], name=f"scale_{i}") for i, p in enumerate(plans))
    runtime.load(replace(plans[0], kernels=kernels * 2))
    counts = runtime.counters.snapshot()
    assert (counts["compiles"], counts["modules_loaded"]) == (4, 4)
    assert len({runtime.modules.function(kernel) for kernel in kernels}) == 4


def test_threads_that_load_at_once_compile_once(runtime: Runtime) -> None:
    threads = [Thread(target=runtime.load, args=(scale_plan(100),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runtime.counters.snapshot()["compiles"] == 1
    assert len(runtime.modules) == 1


def test_shared_memory_is_allowed_before_the_launch(runtime: Runtime) -> None:
    plan = scale_plan(100)
    kernel = plan.kernels[0]
    big, bigger = (replace(plan, launches=(replace(plan.launches[0], shared_bytes=n),)) for n in (30000, 40000))
    runtime.load(bigger)
    runtime.load(big)
    with runtime.context.activated():
        limit = runtime.driver.function_get_attribute(
            runtime.modules.function(kernel), FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
        )
    assert limit == 40000, "a plan that needs less leaves the limit of the others alone"


def test_an_entry_of_the_cache_that_the_driver_refuses_is_compiled_again(device: Runtime, tmp_path: Path) -> None:
    plan, sources, directory = scale_plan(100), scale_sources(tmp_path / "engines"), tmp_path / "cache"
    with open_runtime(device.driver, directory, sources=sources) as first:
        first.load(plan)
    (entry,) = (directory / "v1").glob("*.bin")
    cache, good = DiskCache(directory), DiskCache(directory).get(entry.stem)
    cache.put(entry.stem, b".version 8.0\n.target sm_80\n.address_size 64\nnonsense")
    with open_runtime(device.driver, directory, sources=sources) as second:
        second.load(plan)
        counts = second.counters.snapshot()
    assert (counts["cache_hits"], counts["compiles"], counts["modules_loaded"]) == (1, 1, 1)
    assert cache.get(entry.stem) == good


def test_a_module_that_does_not_load_is_not_kept(runtime: Runtime) -> None:
    class BrokenCompiler:
        def image(self, kernel: KernelRef, binary_arch: str) -> bytes:
            return b".version 8.0\n.target sm_80\n.address_size 64\nnonsense"

        def discard(self, kernel: KernelRef, binary_arch: str) -> bool:
            return False

    modules = ModuleCache(runtime.context, BrokenCompiler(), runtime.counters)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(DriverError):
            modules.function(scale_plan(1).kernels[0])
    assert len(modules) == 0
