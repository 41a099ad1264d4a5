from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest

from lowdnn.driver.base import Driver, DriverError, DriverImageError, FunctionAttribute
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.driver.results import CuResult
from lowdnn.plan import KernelRef
from lowdnn.runtime.ahead import Ahead
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.compile import Image, compile_source
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


def kernel_entries(directory: Path) -> list[Path]:
    """The entries of kernels; the one that holds the compiler's build is shorter."""
    return [path for path in (directory / "v1").glob("*.bin") if path.stat().st_size > 512]


def test_a_later_process_loads_what_the_first_one_kept(device: Runtime, tmp_path: Path) -> None:
    plan, sources, directory = scale_plan(100), scale_sources(tmp_path / "engines"), tmp_path / "cache"
    kept = int(device.driver.takes_machine_code)
    for expected in ({"cache_misses": 1, "compiles": 1}, {"cache_hits": 1}, {"cache_hits": 1}):
        with open_runtime(device.driver, directory, sources=sources) as runtime:
            runtime.load(plan)
            counts = runtime.counters.snapshot()
        assert counts.pop("machine_code_loaded", 0) == kept
        assert counts == expected | {"modules_loaded": 1, "plans_loaded": 1}


def test_an_entry_of_the_cache_that_the_driver_refuses_is_compiled_again(device: Runtime, tmp_path: Path) -> None:
    plan, sources, directory = scale_plan(100), scale_sources(tmp_path / "engines"), tmp_path / "cache"
    with open_runtime(device.driver, directory, sources=sources) as first:
        first.load(plan)
    (entry,) = kernel_entries(directory)
    cache, good = DiskCache(directory), DiskCache(directory).get(entry.stem)
    cache.put(entry.stem, b".version 8.0\n.target sm_80\n.address_size 64\nnonsense")
    with open_runtime(device.driver, directory, sources=sources) as second:
        second.load(plan)
        counts = second.counters.snapshot()
    assert (counts["cache_hits"], counts["images_refused"], counts["modules_loaded"]) == (1, 1, 1)
    with open_runtime(device.driver, directory, sources=sources) as third:
        third.load(plan)
        assert "images_refused" not in third.counters.snapshot()
    assert cache.get(entry.stem) == good


class MachineCodeDriver:
    """An emulated device that takes machine code, for which it runs ``ptx``; it loads what ``accepts`` says."""

    def __init__(self, driver: Driver, ptx: bytes, accepts: Callable[[bytes], bool]) -> None:
        self._driver, self._ptx, self._accepts = driver, ptx, accepts
        self.loaded: list[bytes] = []

    takes_machine_code = True

    def module_load_data(self, image: bytes) -> int:
        if not self._accepts(image):
            raise DriverError("cuModuleLoadDataEx", CuResult.NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU")
        self.loaded.append(image)
        return self._driver.module_load_data(self._ptx if image.startswith(b"\x7fELF") else image)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


def test_machine_code_is_kept_and_dropped_where_the_driver_refuses_it(tmp_path: Path) -> None:
    plan, sources, directory = scale_plan(100), scale_sources(tmp_path / "engines"), tmp_path / "cache"
    ptx = compile_source(sources.read(plan.kernels[0]))

    def load(accepts: Callable[[bytes], bool]) -> tuple[dict[str, int], bytes]:
        driver = MachineCodeDriver(EmulatedDriver(), ptx, accepts)
        driver.init()
        with open_runtime(cast(Driver, driver), directory, sources=sources) as runtime:
            runtime.load(plan)
            return runtime.counters.snapshot(), driver.loaded[-1]

    def of(**expected: int) -> dict[str, int]:
        return expected | {"modules_loaded": 1, "plans_loaded": 1}

    made, machine_code = load(lambda image: True)
    assert made == of(cache_misses=1, compiles=1, machine_code_loaded=1)
    assert machine_code.startswith(b"\x7fELF")
    assert load(lambda image: True) == (of(cache_hits=1, machine_code_loaded=1), machine_code)
    refused, loaded = load(lambda image: not image.startswith(b"\x7fELF"))
    assert refused == of(cache_hits=1, images_refused=1, cache_misses=1, compiles=1)
    assert loaded == ptx
    assert load(lambda image: True) == (of(cache_misses=1, compiles=1, machine_code_loaded=1), machine_code)
    with pytest.raises(DriverImageError, match="NO_BINARY_FOR_GPU"):
        load(lambda image: False)


def test_a_module_that_does_not_load_is_not_kept(runtime: Runtime) -> None:
    class BrokenCompiler:
        def images(self, kernel: KernelRef, machine_arch: str, kept: object) -> Iterator[Image]:
            yield Image(b".version 8.0\n.target sm_80\n.address_size 64\nnonsense")

        def refuse(self, kernel: KernelRef, image: Image, error: Exception, kept: object) -> None:
            pass

    modules = ModuleCache(runtime.context, BrokenCompiler(), runtime.counters, Ahead(0))  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(DriverError):
            modules.function(scale_plan(1).kernels[0])
    assert len(modules) == 0
