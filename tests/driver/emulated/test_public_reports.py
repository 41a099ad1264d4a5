"""The faults that show the device's worth, as a user meets them: through the Driver protocol, as a DriverError's text.

The kernel of the package's docstring reverses each block's 64 numbers through shared memory; here one thing is wrong
with it, or with its buffers.
"""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from lowdnn.driver.base import DriverError, LaunchConfig
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.driver.emulated.reports import _source_name
from lowdnn.driver.nvrtc import compile_program
from tests.driver.emulated.own_kernel import BARRIER, COUNT, REVERSE, launched


def fault_text(options: dict[str, object], ptx: str = REVERSE, **buffers: object) -> tuple[str, str]:
    """(name of the CUresult, the report) of the kernel's launch."""
    with pytest.raises(DriverError) as caught:
        launched(EmulatedDriver("sm_80", **options), ptx, **buffers)
    return caught.value.name, caught.value.explanation


def line_of(ptx: str, instruction: str) -> int:
    (line,) = [number for number, text in enumerate(ptx.split("\n"), 1) if instruction in text]
    return line


def test_the_right_kernel_runs_under_every_policy() -> None:
    for policy in ("lockstep", "warp-serial(1)", "warp-serial(2)", "cta-reverse"):
        y = launched(EmulatedDriver("sm_80", policy), REVERSE)
        assert (y.reshape(-1, 64) == np.arange(COUNT).reshape(-1, 64)[:, ::-1]).all()


@pytest.mark.parametrize("generic", [False, True], ids=["shared", "generic"])
def test_a_missing_barrier_shows_under_warp_serial(generic: bool) -> None:
    ptx = REVERSE.replace(BARRIER, "")
    load = "ld.shared.u32 %r5, [%r4+252];"
    if generic:
        convert = "cvt.u64.u32 %rd4, %r4; cvta.shared.u64 %rd4, %rd4;"
        ptx = ptx.replace(load, f"{convert}\n  ld.u32 %r5, [%rd4+252];")
        load = "ld.u32 %r5, [%rd4+252];"
    launched(EmulatedDriver("sm_80", "lockstep"), ptx)
    name, text = fault_text({"policy": "warp-serial(1)"}, ptx)
    assert name == "CUDA_ERROR_LAUNCH_FAILED"
    kind, kernel, place, thread, address = text.split("\n")
    assert kind.startswith("uninitialised-read: 4 bytes at ")
    assert kind.endswith("if another thread does, a barrier is missing before this read")
    assert kernel == "  kernel reverse"
    assert place == f"  PTX line {line_of(ptx, load)}: {load}"
    # Whichever warp goes first, its lane 0 looks for what the other one has not stored yet.
    found = re.fullmatch(r"  block \(0, 0, 0\), thread \((\d+), 0, 0\) \(warp (\d), lane 0\)", thread)
    assert found is not None
    assert int(found[1]) == 32 * int(found[2])
    offset = 252 - 4 * int(found[1])
    assert address.endswith(f" = shared memory {offset:+d} bytes (tile {offset:+d})")


def test_one_past_the_end_of_a_tensor() -> None:
    name, text = fault_text({}, y_count=COUNT - 1)
    assert name == "CUDA_ERROR_ILLEGAL_ADDRESS"
    kind, kernel, place, thread, address = text.split("\n")
    assert kind.startswith("out-of-bounds: 4 bytes at ")
    assert kind.endswith(f": 4 bytes past the end of y ({4 * (COUNT - 1)} bytes)")
    assert kernel == "  kernel reverse"
    assert place == f"  PTX line {line_of(REVERSE, 'st.global')}: st.global.u32 [%rd3], %r5;"
    assert thread == f"  block ({COUNT // 64 - 1}, 0, 0), thread (63, 0, 0) (warp 1, lane 31)"
    assert re.fullmatch(rf"  address 0x[0-9a-f]+ = y \+{4 * (COUNT - 1)} bytes", address)


def test_a_buffer_that_nothing_has_written() -> None:
    written = COUNT // 2 + 3
    name, text = fault_text({}, x_written=written)
    assert name == "CUDA_ERROR_LAUNCH_FAILED"
    kind, kernel, place, thread, address = text.split("\n")
    assert kind.startswith("uninitialised-read: 4 bytes at ")
    assert kernel == "  kernel reverse"
    assert place == f"  PTX line {line_of(REVERSE, 'ld.global')}: ld.global.u32 %r3, [%rd3];"
    assert thread == f"  block ({written // 64}, 0, 0), thread ({written % 64}, 0, 0) (warp 0, lane {written % 32})"
    assert re.fullmatch(rf"  address 0x[0-9a-f]+ = x \+{4 * written} bytes", address)
    launched(EmulatedDriver("sm_80", checks=False), REVERSE, x_written=written)


@pytest.mark.parametrize(("space", "offset", "buffer"), [("global", 2, "x"), ("shared", 6, "shared memory")])
def test_a_misaligned_access_names_the_buffer(space: str, offset: int, buffer: str) -> None:
    declared = "__shared__ int tile[8];" if space == "shared" else "int* tile = x;"
    body = f"{declared} *(volatile int*)((char*)tile + {offset}) = 1; x[0] = tile[1];"
    text = own_kernel_fault(f'extern "C" __global__ void k(int* x) {{ {body} }}')
    assert text.startswith("misaligned: 4 bytes at 0x")
    assert f" = {buffer} " in text
    if space == "shared":
        assert text.endswith("(tile +6)"), "the name in the source"


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZZ7reverseE4tile", "tile"),
        ("_ZZ1kPfE5stage_0", "stage"),
        ("_ZZ1kPfE6stage1__12_", "stage1"),
        ("_ZZN3fooI4EdgeE3runEvE2E3", "E3"),
        ("tile", "tile"),
        ("_Z4tile", "_Z4tile"),
        ("_ZZ7reverseE9tile", "_ZZ7reverseE9tile"),
    ],
)
def test_names_of_shared_variables_as_the_source_has_them(mangled: str, name: str) -> None:
    assert _source_name(mangled) == name


def own_kernel_fault(source: str) -> str:
    """The report of a launch of kernel ``k`` by one thread on the buffer x of 64 bytes."""
    ptx = compile_program(source, name="k.cu", headers={}, options=("--gpu-architecture=compute_80",)).image
    driver = EmulatedDriver("sm_80")
    driver.init()
    driver.context_set_current(driver.primary_context_retain(0))
    function = driver.module_get_function(driver.module_load_data(ptx), "k")
    value = ctypes.c_uint64(driver.mem_alloc(64, "x"))
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    launch = driver.prepare_launch(function, LaunchConfig((1, 1, 1), (1, 1, 1)), ctypes.addressof(parameters))
    with pytest.raises(DriverError) as caught:
        launch(0)
    return caught.value.explanation
