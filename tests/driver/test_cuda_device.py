"""The real driver on a GPU: what neither the spy nor the emulated device can show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowdnn.driver import nvrtc
from lowdnn.driver.base import Driver, DriverError, FunctionAttribute, LaunchConfig
from lowdnn.driver.cuda import CudaDriver
from lowdnn.driver.nvrtc import Output
from lowdnn.runtime.runtime import Runtime
from tests.driver.board import Arguments
from tests.support.runtime import download, open_runtime, scale_plan, scale_sources, upload

pytestmark = pytest.mark.gpu


@pytest.fixture
def runtime(cuda_driver: Driver, tmp_path: Path) -> Iterator[Runtime]:
    with open_runtime(cuda_driver, tmp_path / "cache", sources=scale_sources(tmp_path / "engines")) as runtime:
        with runtime.context.activated():
            pass
        yield runtime


def test_a_cubin_loads(runtime: Runtime) -> None:
    major, minor = runtime.context.compute_capability
    options = (f"--gpu-architecture=sm_{major}{minor}", "-default-device")
    source = 'extern "C" __global__ void nothing() {}'
    image = nvrtc.compile_program(source, name="n.cu", headers={}, options=options, output=Output.CUBIN).image
    module = runtime.driver.module_load_data(image)
    function = runtime.driver.module_get_function(module, "nothing")
    assert runtime.driver.function_get_attribute(function, FunctionAttribute.NUM_REGS) > 0
    assert runtime.driver.occupancy_max_active_blocks(function, 128, 0) > 0


class OldDriver(CudaDriver):
    """A driver that takes no PTX of ours."""

    def ptx_isa_version(self) -> tuple[int, int]:
        return (7, 8)


def test_an_old_driver_runs_machine_code(cuda_driver: Driver, tmp_path: Path) -> None:
    driver = OldDriver()
    driver.init()
    with open_runtime(driver, tmp_path / "cache", sources=scale_sources(tmp_path / "engines")) as runtime:
        loaded = runtime.load(scale_plan(4))
        x, y, alpha = upload(runtime, np.ones(4, np.float32)), upload(runtime, np.zeros(4, np.float32)), np.array([2.0])
        loaded.execute((x.address, y.address, alpha.ctypes.data))
        assert (download(y, np.float32) == 2.5).all()


def test_broken_ptx_carries_the_assemblers_log(runtime: Runtime) -> None:
    with pytest.raises(DriverError, match=r"INVALID_PTX.*\n?.*line 4"):
        runtime.driver.module_load_data(b".version 8.0\n.target sm_80\n.address_size 64\n.visible nonsense;\n")


def test_a_refused_launch_names_the_kernel(runtime: Runtime) -> None:
    function = runtime.modules.function(scale_plan(1).kernels[0])
    with pytest.raises(DriverError, match=r"cuLaunchKernel\(test_scale_f32_sm80, .*grid=\(0, 1, 1\)"):
        runtime.driver.prepare_launch(function, LaunchConfig((0, 1, 1), (32, 1, 1)), Arguments(0).address)(0)


def test_runs_where_another_context_is_current(runtime: Runtime) -> None:
    from cuda.bindings import driver as bindings

    loaded = runtime.load(scale_plan(4))
    x, y, alpha = upload(runtime, np.ones(4, np.float32)), upload(runtime, np.zeros(4, np.float32)), np.array([2.0])
    _, other = bindings.cuCtxCreate(None, 0, 0)
    try:
        for _ in range(2):
            loaded.execute((x.address, y.address, alpha.ctypes.data))
            assert runtime.driver.context_get_current() == int(other)
        assert (download(y, np.float32) == 2.5).all()
    finally:
        bindings.cuCtxDestroy(other)
        runtime.driver.context_set_current(runtime.context.handle)
