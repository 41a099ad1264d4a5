"""A handle whose context a kernel has broken: later calls say so, and it closes without a word against it."""

from __future__ import annotations

import gc
import logging
from pathlib import Path

import numpy as np
import pytest

import lowdnn
from lowdnn.backend.handle import Handle
from lowdnn.driver.base import DriverError
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.driver.fault_injection import RELEASES, with_faults
from lowdnn.runtime.event import Event
from lowdnn.runtime.stream import Stream
from lowdnn.status import NotInitializedError
from tests.support.runtime import ALPHA, X, Y, open_runtime, scale_plan, scale_sources


@pytest.fixture
def inner() -> EmulatedDriver:
    return EmulatedDriver("sm_80")


def opened(inner: EmulatedDriver, tmp_path: Path, faults: str = "") -> Handle:
    driver = with_faults(inner, faults)
    driver.init()
    return Handle(open_runtime(driver, tmp_path / "cache", sources=scale_sources(tmp_path / "engines")))


def break_context(handle: Handle) -> None:
    """Launches a kernel that writes past a buffer."""
    y = lowdnn.from_numpy(np.zeros(64, np.float32), handle)
    alpha = np.ones(1, np.float64)
    pointers = {X: y.ptr, Y: y.ptr, ALPHA: alpha.ctypes.data}
    with pytest.raises(DriverError, match="out-of-bounds"):
        handle.load(scale_plan(300)).execute(pointers)


def test_later_calls_say_what_happened(inner: EmulatedDriver, tmp_path: Path) -> None:
    with opened(inner, tmp_path) as handle:
        break_context(handle)
        for call in (
            handle.synchronize,
            lambda: lowdnn.from_numpy(np.zeros(3, np.float32), handle),
            lambda: handle.load(scale_plan(301, factor=4)),
            lambda: Stream.create(handle.runtime.context),
        ):
            with pytest.raises(DriverError, match=r"since cuLaunchKernel: out-of-bounds.*open a new handle"):
                call()
    with pytest.raises(NotInitializedError):
        handle.synchronize()


def test_close_releases_everything_and_raises_nothing(
    inner: EmulatedDriver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handle = opened(inner, tmp_path)
    owned = [Stream.create(handle.runtime.context), Event.create(handle.runtime.context)]
    tensor = lowdnn.from_numpy(np.zeros(3, np.float32), handle)
    break_context(handle)
    with caplog.at_level(logging.WARNING, logger="lowdnn"):
        for one in (*owned, tensor, handle, handle):
            one.close()
    assert "give_back_failed" in caplog.text
    assert inner._context.state(0) is None
    with opened(inner, tmp_path) as again:
        np.testing.assert_array_equal(lowdnn.from_numpy(np.ones(3, np.float32), again).numpy(), np.ones(3))


def test_close_raises_nothing_whatever_the_driver_says(inner: EmulatedDriver, tmp_path: Path) -> None:
    faults = ",".join(f"{call}:*=ILLEGAL_ADDRESS" for call in sorted(RELEASES))
    handle = opened(inner, tmp_path, faults)
    handle.load(scale_plan(300))
    kept = lowdnn.from_numpy(np.zeros(3, np.float32), handle)
    kept.close()
    handle.close()
    assert inner._context.state(0) is None


def test_the_error_of_a_with_block_is_what_comes_out(inner: EmulatedDriver, tmp_path: Path) -> None:
    def use() -> None:
        with opened(inner, tmp_path, "module_unload:*=UNKNOWN") as handle:
            break_context(handle)
            raise KeyError("of the block")

    with pytest.raises(KeyError, match="of the block"):
        use()
    gc.collect()
    assert inner._context.state(0) is None
