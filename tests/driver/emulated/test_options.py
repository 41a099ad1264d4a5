"""Effects of ``EmulatedDriver``'s options and of a launch's attributes, seen through the Driver protocol."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lowdnn.driver.base import DriverError, LaunchConfig
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.driver.emulated.options import Options
from lowdnn.status import BadParamError
from tests.driver.emulated.own_kernel import COUNT, REVERSE, copied_in, launch, launched

#: Thread 0 of each block says that it is here and waits until all blocks are.
MEET = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry meet(.param .u64 arrived)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<2>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [arrived];
  mov.u32 %r1, %nctaid.x;
  atom.global.add.u32 %r2, [%rd1], 1;
WAIT:
  ld.volatile.global.u32 %r3, [%rd1];
  setp.lt.u32 %p1, %r3, %r1;
  @%p1 bra WAIT;
  ret;
}
"""


def opened(**options: object) -> EmulatedDriver:
    driver = EmulatedDriver("sm_80", **options)
    driver.init()
    driver.context_set_current(driver.primary_context_retain(0))
    return driver


@pytest.mark.parametrize("cooperative", [True, False])
def test_blocks_may_wait_for_each_other_in_a_cooperative_launch_only(cooperative: bool) -> None:
    driver = opened(lane_budget=32)
    arrived = copied_in(driver, np.zeros(1, np.uint32), "arrived")
    config = LaunchConfig((5, 1, 1), (1, 1, 1), cooperative=cooperative)
    if cooperative:
        launch(driver, MEET, "meet", config, arrived)
        return
    with pytest.raises(DriverError, match=r"CUDA_ERROR_LAUNCH_TIMEOUT.*deadlock"):
        launch(driver, MEET, "meet", config, arrived)


def test_a_missing_wait_shows_when_copies_land_late() -> None:
    store = "st.shared.u32 [%r6], %r3;"
    assert REVERSE.count(store) == 1
    ptx = REVERSE.replace(store, "cp.async.ca.shared.global [%r6], [%rd3], 4;\n  cp.async.commit_group;")
    assert launched(EmulatedDriver("sm_80", landing="early"), ptx)[0] == 63
    with pytest.raises(DriverError, match="uninitialised-read"):
        launched(EmulatedDriver("sm_80", landing="late"), ptx)


@pytest.mark.parametrize(("arch", "multiprocessors"), [("sm_80", 108), ("sm_90a", 132)])
def test_kernels_see_the_multiprocessors_that_the_driver_tells_of(arch: str, multiprocessors: int) -> None:
    y = launched(EmulatedDriver(arch), REVERSE.replace("ld.global.u32 %r3, [%rd3];", "mov.u32 %r3, %nsmid;"))
    assert set(y.tolist()) == {multiprocessors}


@pytest.mark.parametrize("lane_budget", [1, 100, 1 << 20])
def test_the_lane_budget_changes_no_result(lane_budget: int) -> None:
    y = launched(EmulatedDriver("sm_80", lane_budget=lane_budget), REVERSE)
    assert (y.reshape(-1, 64) == np.arange(COUNT).reshape(-1, 64)[:, ::-1]).all()


def test_a_launch_that_takes_too_long_is_stopped() -> None:
    ptx = REVERSE.replace("  bar.sync 0;", "AGAIN:\n  bra AGAIN;")
    with pytest.raises(DriverError, match="timeout: the launch ran out of time"):
        launched(EmulatedDriver("sm_80", timeout_s=0.2), ptx)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", "random"),
        ("policy", "warp-serial"),
        ("policy", "warp-serial(-1)"),
        ("checks", 1),
        ("landing", "soon"),
        ("lane_budget", 0),
        ("lane_budget", 2.5),
        ("timeout_s", 0),
        ("timeout_s", float("nan")),
    ],
)
def test_options_that_there_are_not(field: str, value: object) -> None:
    with pytest.raises(BadParamError, match=rf"EmulatedDriver\.{field}: expected .*, got {re.escape(repr(value))}"):
        EmulatedDriver(**{field: value})
    with pytest.raises(BadParamError):
        Options(**{field: value})
