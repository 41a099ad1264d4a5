"""Resident blocks by our count and by the driver's own, for kernels that a GPU has loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lowdnn.arch.specs import ArchSpec, spec_for
from lowdnn.driver import nvrtc
from lowdnn.driver.base import DeviceAttribute, Driver, FunctionAttribute
from lowdnn.engines.model.occupancy import resident_blocks, shared_room
from lowdnn.plan import KernelRef
from lowdnn.runtime.compile import machine_arch_of
from lowdnn.runtime.sources import SourceTree

#: Numbers of blocks at whose room for shared memory the counts may change.
_BLOCKS = (1, 2, 3, 5, 7)


def machine_code(kernel: KernelRef, capability: tuple[int, int]) -> bytes:
    """The kernel for a device of this compute capability."""
    source = SourceTree().read(kernel)
    options = source.options_for(machine_arch_of(kernel, capability))
    output = nvrtc.Output.CUBIN
    return nvrtc.compile_program(
        source.text, name=source.name, headers=dict(source.headers), options=options, output=output
    ).image


def differences(driver: Driver, kernels: Iterable[KernelRef], images: Sequence[bytes] = ()) -> list[str]:
    """A line for each kernel, number of threads and size of shared memory for which the counts differ, on device 0.

    images: the kernels' machine code, where it is there already. Kernels that the device does not run are passed over.
    """
    capability = (
        driver.device_attribute(0, DeviceAttribute.COMPUTE_CAPABILITY_MAJOR),
        driver.device_attribute(0, DeviceAttribute.COMPUTE_CAPABILITY_MINOR),
    )
    arch, found = spec_for(*capability), list[str]()
    context = driver.primary_context_retain(0)
    previous = driver.context_get_current()
    driver.context_set_current(context)
    try:
        for number, kernel in enumerate(kernels):
            if arch.runs(kernel.target):
                image = images[number] if images else machine_code(kernel, capability)
                found += _differences_of(driver, kernel, image, arch)
    finally:
        driver.context_set_current(previous)
        driver.primary_context_release(0)
    return found


def _differences_of(driver: Driver, kernel: KernelRef, image: bytes, arch: ArchSpec) -> Iterator[str]:
    module = driver.module_load_data(image)
    function = driver.module_get_function(module, kernel.name)
    registers, static, threads = (
        driver.function_get_attribute(function, attribute)
        for attribute in (
            FunctionAttribute.NUM_REGS,
            FunctionAttribute.SHARED_SIZE_BYTES,
            FunctionAttribute.MAX_THREADS_PER_BLOCK,
        )
    )
    most = arch.shared_bytes_per_block - static
    driver.function_set_attribute(function, FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, most)
    edges = (shared_room(arch, blocks) - static for blocks in _BLOCKS)
    sizes = sorted({0, most, *(edge + step for edge in edges for step in (0, 1) if 0 <= edge + step <= most)})
    for block in sorted({threads, max(threads // 2, 1), max(threads - 32, 1)}):
        for dynamic in sizes:
            ours = resident_blocks(arch, block, registers, static + dynamic)
            theirs = driver.occupancy_max_active_blocks(function, block, dynamic)
            if ours != theirs:
                yield (
                    f"{kernel.name}: {block} threads, {registers} registers, {static} + {dynamic} bytes: "
                    f"{ours}, the driver says {theirs}"
                )
    driver.module_unload(module)
