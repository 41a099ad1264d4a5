"""Compiles kernels ahead of the program that needs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from lowdnn.backend.handle import Handle
from lowdnn.heuristics.kernel_sets import KernelSet
from lowdnn.plan import KernelRef
from lowdnn.status import BadParamError


def built(kernels: KernelSet, handle: Handle) -> Iterator[KernelRef]:
    """Compiles the set for the handle's device into the disk cache, and gives each kernel once it is there.

    Handles with the same cache, in any process, then find them at hand, with the engines and knobs that the set's
    shapes take them by. Raises BadParamError for a handle without a disk cache, CompilationFailedError.
    """
    runtime = handle.runtime
    if runtime.cache is None:
        raise BadParamError.at("handle.config.disk_cache", expected="a directory for kernels", got="none")
    for shape in kernels.shapes:
        if shape.served is not None:
            handle.known_choices.add(shape.served.plan, shape.shape.graph, shape.served.arch)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        tasks = [(kernel, pool.submit(runtime.modules.compile, (kernel,))) for kernel in kernels.kernels]
        try:
            for kernel, task in tasks:
                task.result()
                yield kernel
        finally:
            pool.shutdown(cancel_futures=True)
