"""Compiles kernels ahead of the program that needs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from lowdnn.backend.handle import Handle
from lowdnn.heuristics.kernel_sets import KernelSet
from lowdnn.plan import KernelRef
from lowdnn.runtime.cache import DiskCache
from lowdnn.status import BadParamError, LowdnnError


def built(kernels: KernelSet, handle: Handle) -> Iterator[KernelRef]:
    """Compiles the set for the handle's device into the disk cache, and gives each kernel once it is at hand there.

    Handles with the same cache, in any process, then find them at hand, with the engines and knobs that the set's
    shapes take them by. Raises BadParamError for a handle whose disk cache cannot be written or has no room for all,
    CompilationFailedError.
    """
    cache = checked_cache(handle)
    is_on_disk = handle.runtime.modules.is_on_disk
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        tasks = [(kernel, pool.submit(handle.runtime.modules.compile, (kernel,))) for kernel in kernels.kernels]
        try:
            for kernel, task in tasks:
                task.result()
                if not is_on_disk(kernel):
                    raise _not_kept(cache, kernel)
                yield kernel
        finally:
            pool.shutdown(cancel_futures=True)
            for shape in kernels.shapes:
                if shape.served is not None and all(map(is_on_disk, shape.served.plan.kernels)):
                    handle.known_choices.add(shape.served.plan, shape.shape.graph, shape.served.arch)
    # A kernel that was written late may have taken the room of an early one.
    for kernel in kernels.kernels:
        if not is_on_disk(kernel):
            raise _not_kept(cache, kernel)


def checked_cache(handle: Handle) -> DiskCache:
    """The handle's disk cache. Raises BadParamError where there is none, or it cannot be written."""
    cache = handle.runtime.cache
    if cache is None:
        hint = "set LOWDNN_CACHE_DIR, and LOWDNN_DISK_CACHE=on"
        raise BadParamError.at("handle.config.disk_cache", expected="a directory for kernels", got="none", hint=hint)
    facts = cache.facts()
    if not facts.is_writable:
        got = f"{facts.directory}: {facts.refusal or 'not writable'}"
        rule = "a directory that can be written"
        raise BadParamError.at("cache.directory", expected=rule, got=got, hint="set LOWDNN_CACHE_DIR")
    return cache


def _not_kept(cache: DiskCache, kernel: KernelRef) -> LowdnnError:
    got = f"{cache.directory}, of at most {cache.limit_bytes} bytes, without {kernel.name}"
    hint = "set LOWDNN_CACHE_SIZE, or LOWDNN_CACHE_DIR where the disk is full"
    return BadParamError.at("cache.directory", expected="room for every kernel", got=got, hint=hint)
