from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from lowdnn.config import Config
from lowdnn.driver import open_driver
from lowdnn.driver.base import DriverError
from lowdnn.runtime.bundle import Bundle
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import ArchMismatchError
from tests.support.errors import raises
from tests.support.runtime import open_runtime, scale_plan, scale_sources


@pytest.fixture
def runtime(device: Runtime, tmp_path: Path) -> Runtime:
    return open_runtime(device.driver, tmp_path / "cache", sources=scale_sources(tmp_path / "engines"))


def test_a_kernel_is_compiled_and_loaded_once(runtime: Runtime) -> None:
    with runtime:
        runtime.load(scale_plan(100))
        runtime.load(scale_plan(200, launches=3))
        machine_code = {"machine_code_loaded": 1} if runtime.driver.takes_machine_code else {}
        assert runtime.counters.snapshot() == {
            "cache_misses": 1,
            "compiles": 1,
            "modules_loaded": 1,
            "plans_loaded": 2,
            **machine_code,
        }
        runtime.load(scale_plan(100, factor=4))
        assert runtime.counters.snapshot()["modules_loaded"] == 2


def test_a_bundle_for_another_device_leaves_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[int] = []
    driver = open_driver("emulated")
    monkeypatch.setattr(driver, "primary_context_release", released.append)
    with raises(ArchMismatchError, "bundle.sm_count", expected="132, as this device", got="7"):
        Runtime(driver, bundle=Bundle("sm_90a", 7, "", (), ()))
    assert released == [0]


def test_a_refused_kernel_leaves_the_runtime_usable(runtime: Runtime) -> None:
    with runtime:
        plan = scale_plan(100)
        too_big = replace(plan, launches=(replace(plan.launches[0], shared_bytes=1 << 20),))
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            runtime.load(too_big)
        runtime.load(plan)


def test_closing_twice(runtime: Runtime) -> None:
    runtime.load(scale_plan(10))
    runtime.close()
    runtime.close()
    assert len(runtime.modules) == 0


def test_open_takes_the_configured_device() -> None:
    config = Config(device="emulated", emulated_arch="sm_80", disk_cache=False)
    with Runtime.open(config=config) as runtime:
        assert runtime.context.compute_capability == (8, 0)
        assert runtime.cache is None


def test_loading_is_logged(runtime: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    with runtime, caplog.at_level(logging.INFO, logger="lowdnn"):
        runtime.load(scale_plan(10))
    events = [record.getMessage().split()[0] for record in caplog.records]
    assert events == ["compile", "compiled", "load_module"]


def test_log_file_from_the_configuration(device: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = Config(disk_cache=False, log_level="info", log_file=str(log))
    with Runtime(device.driver, config=config, sources=scale_sources(tmp_path / "engines")) as runtime:
        runtime.load(scale_plan(10))
    assert "load_module kernel=test_scale_f32_sm80" in log.read_text()
