"""A kernel of your own on the emulated device, whose race the report names.

    python -m lowdnn.guide.recipes.own_kernels

The kernel reverses 64 numbers through shared memory. Without its barrier a warp may read what the other one has not
written yet. A GPU may still give the right numbers, on most days. The emulated device looks for races where its policy
says so, and names the line and the threads. The kernel is PTX here, so that nothing has to compile it. ``nvcc --ptx``
and NVRTC make PTX of CUDA C++; with ``-lineinfo`` reports name the lines of the source too.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

import lowdnn
from lowdnn.driver.base import DriverError, LaunchConfig

Array = NDArray[np.floating]

COUNT = 64
MENDED = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry reverse(.param .u64 x)
{
  .reg .b32 %r<5>; .reg .b64 %rd<3>; .reg .f32 %f<3>;
  .shared .align 4 .b8 tile[256];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd1, %r1, 4;
  ld.param.u64 %rd2, [x];
  add.u64 %rd2, %rd2, %rd1;
  ld.global.f32 %f1, [%rd2];
  shl.b32 %r2, %r1, 2;
  mov.u32 %r3, tile;
  add.u32 %r4, %r3, %r2;
  st.shared.f32 [%r4], %f1;        // tile[thread] = x[thread]
  bar.sync 0;
  sub.u32 %r4, %r3, %r2;
  ld.shared.f32 %f2, [%r4+252];    // tile[63 - thread]
  st.global.f32 [%rd2], %f2;
  ret;
}
"""
WRONG = MENDED.replace("bar.sync 0;", "")


def compute(handle: lowdnn.Handle) -> Array:
    """The numbers 0 to 63, reversed by the mended kernel, on any device."""
    return reverse(handle, MENDED, np.arange(COUNT, dtype=np.float32))


def report_of(ptx: str) -> str:
    """The emulated device's report on a kernel; empty where it finds no fault."""
    # A fault ends the device's context, as it does on a GPU. So the launch has a handle of its own.
    with lowdnn.create_handle("emulated", policy="lockstep,races") as handle:
        try:
            reverse(handle, ptx, np.zeros(COUNT, np.float32))
        except DriverError as error:
            return error.explanation
    return ""


def reverse(handle: lowdnn.Handle, ptx: str, numbers: Array) -> Array:
    """Loads and launches the kernel by the calls of the CUDA driver, which both devices have."""
    driver = handle.runtime.driver
    x = lowdnn.from_numpy(numbers, handle)
    with handle.runtime.context.activated():
        module = driver.module_load_data(ptx.encode())
        function = driver.module_get_function(module, "reverse")
        address = ctypes.c_uint64(x.ptr)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(address))
        one_block = LaunchConfig(grid=(1, 1, 1), block=(COUNT, 1, 1))
        launch = driver.prepare_launch(function, one_block, ctypes.addressof(parameters))
        launch(handle.stream)
        result = x.numpy()
        driver.module_unload(module)
    return result


if __name__ == "__main__":
    print(f"without the barrier:\n{report_of(WRONG)}\n")
    print(f"with it: {report_of(MENDED) or 'no fault'}")
    with lowdnn.create_handle() as handle:
        print(f"reversed: {compute(handle)[:4]} ...")
