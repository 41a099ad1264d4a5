"""A kernel of one's own on the emulated device: a block reverses its 64 numbers through shared memory."""

from __future__ import annotations

import ctypes

import numpy as np

from lowdnn.driver.base import Driver, LaunchConfig

#: Numbers in ``x`` and in ``y``.
COUNT = 256
BARRIER = "bar.sync 0;"
REVERSE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry reverse(.param .u64 x, .param .u64 y)
{
  .reg .b32 %r<8>;
  .reg .b64 %rd<8>;
  .shared .align 4 .b8 tile[256];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mad.lo.u32 %r2, %r2, 64, %r1;
  mul.wide.u32 %rd1, %r2, 4;
  ld.param.u64 %rd2, [x];
  add.u64 %rd3, %rd2, %rd1;
  ld.global.u32 %r3, [%rd3];
  mov.u32 %r4, tile;
  shl.b32 %r1, %r1, 2;
  add.u32 %r6, %r4, %r1;
  st.shared.u32 [%r6], %r3;
  bar.sync 0;
  sub.u32 %r4, %r4, %r1;
  ld.shared.u32 %r5, [%r4+252];
  ld.param.u64 %rd2, [y];
  add.u64 %rd3, %rd2, %rd1;
  st.global.u32 [%rd3], %r5;
  ret;
}
"""


def launched(driver: Driver, ptx: str, x_written: int = COUNT, y_count: int = COUNT) -> np.ndarray:
    """``y`` after one launch on x = 0, 1, 2, ..., of which the first ``x_written`` are copied to the device."""
    driver.init()
    driver.context_set_current(driver.primary_context_retain(0))
    device_x = copied_in(driver, np.arange(COUNT, dtype=np.uint32), "x", 4 * x_written)
    y = np.zeros(y_count, np.uint32)
    device_y = driver.mem_alloc(y.nbytes, "y")
    launch(driver, ptx, "reverse", LaunchConfig((COUNT // 64, 1, 1), (64, 1, 1)), device_x, device_y)
    driver.memcpy_dtoh_async(y.ctypes.data, device_y, y.nbytes, 0)
    driver.context_synchronize()
    return y


def copied_in(driver: Driver, array: np.ndarray, label: str, size_bytes: int | None = None) -> int:
    """A buffer as large as ``array`` with its first ``size_bytes`` (all by default) copied to it."""
    address = driver.mem_alloc(array.nbytes, label)
    driver.memcpy_htod_async(address, array.ctypes.data, array.nbytes if size_bytes is None else size_bytes, 0)
    driver.context_synchronize()
    return address


def launch(driver: Driver, ptx: str, name: str, config: LaunchConfig, *addresses: int) -> None:
    """Launches kernel ``name`` once, with ``addresses`` as its parameters."""
    function = driver.module_get_function(driver.module_load_data(ptx.encode()), name)
    values = np.array(addresses, np.uint64)
    parameters = (ctypes.c_void_p * len(values))(*(values.ctypes.data + 8 * place for place in range(len(values))))
    driver.prepare_launch(function, config, ctypes.addressof(parameters))(0)
    driver.context_synchronize()
