"""Kernels to images: the store of precompiled PTX, then the disk cache, then NVRTC.

The ``.version`` line of the PTX is lowered to 8.3, the oldest PTX ISA with all that NVRTC writes for the kernels (the
pragma used_bytes_mask), so that drivers as old as CUDA 12.3 load it. An older driver gets a cubin instead of PTX.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time

from lowdnn.driver import nvrtc
from lowdnn.driver.nvrtc import Output
from lowdnn.events import Counters, emit, event_logger
from lowdnn.plan import KernelRef
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.module_store import ModuleStore
from lowdnn.runtime.sources import KernelSource, SourceTree

#: The PTX ISA that every kernel's PTX is lowered to.
PTX_ISA = (8, 3)

_VERSION_LINE = re.compile(rb"^\.version[ \t]+(\d+)\.(\d+)", re.MULTILINE)


class KernelCompiler:
    """Gives the image of a kernel. Safe to share between threads.

    Counts ``store_hits``, ``cache_hits``, ``cache_misses``, ``compiles``.
    """

    def __init__(self, *, sources: SourceTree, store: ModuleStore, cache: DiskCache | None, counters: Counters) -> None:
        self._sources = sources
        self._store = store
        self._cache = cache
        self.counters = counters
        self._logger = event_logger("compile")

    def image(self, kernel: KernelRef, binary_arch: str = "") -> bytes:
        """PTX text of ``kernel``, or its machine code for ``binary_arch`` (``sm_90``).

        Raises CompilationFailedError with NVRTC's log, SublibraryLoadingFailedError where NVRTC is needed and missing.
        """
        source = self._sources.read(kernel)
        stored = None if binary_arch else self._store.get(source.digest)
        if stored is not None:
            self.counters.add("store_hits")
            return stored
        return self._cached(source, kernel, binary_arch)

    def discard(self, kernel: KernelRef, binary_arch: str = "") -> bool:
        """Drops the image of ``kernel`` from the disk cache, since the driver refuses it; False if it is not there."""
        source = self._sources.read(kernel)
        return self._cache is not None and self._cache.discard(cache_key(source, binary_arch, nvrtc.build()))

    def _cached(self, source: KernelSource, kernel: KernelRef, binary_arch: str) -> bytes:
        if self._cache is None:
            return self._compile(source, binary_arch)
        key = cache_key(source, binary_arch, nvrtc.build())
        cached = self._cache.get(key)
        if cached is not None:
            self.counters.add("cache_hits")
            return cached
        self.counters.add("cache_misses")
        image = self._compile(source, binary_arch)
        self._cache.put(key, image, {".cuh": kernel.generated} if kernel.generated else None)
        return image

    def _compile(self, source: KernelSource, binary_arch: str) -> bytes:
        emit(self._logger, logging.INFO, "compile", {"kernel": source.name, "output": binary_arch or "ptx"})
        self.counters.add("compiles")
        start = time.perf_counter()
        image = compile_source(source, binary_arch)
        elapsed_ms = (time.perf_counter() - start) * 1e3
        emit(self._logger, logging.INFO, "compiled", {"kernel": source.name, "ms": f"{elapsed_ms:.1f}"})
        return image


def compile_source(source: KernelSource, binary_arch: str = "") -> bytes:
    """Compiles one program with NVRTC: PTX text with its ``.version`` lowered, or machine code for ``binary_arch``."""
    compiled = nvrtc.compile_program(
        source.text,
        name=f"{source.name}.cu",
        headers=dict(source.headers),
        options=source.options_for(binary_arch) if binary_arch else source.options,
        output=Output.CUBIN if binary_arch else Output.PTX,
    )
    if compiled.log:
        emit(event_logger("compile"), logging.WARNING, "compiler_log", {"kernel": source.name, "log": compiled.log})
    return compiled.image if binary_arch else lowered(compiled.image)


def binary_arch_of(kernel: KernelRef, driver_ptx_isa: tuple[int, int], compute_capability: tuple[int, int]) -> str:
    """The architecture to assemble ``kernel`` for where the driver is too old for its PTX; otherwise an empty string.

    A target with a suffix (``sm_90a``) runs on that capability only and stays; a plain one is assembled for the device.
    """
    if driver_ptx_isa >= PTX_ISA:
        return ""
    major, minor = compute_capability
    return f"sm_{major}{minor}" if kernel.target[-1].isdigit() else kernel.target


def lowered(ptx: bytes, isa: tuple[int, int] = PTX_ISA) -> bytes:
    """``ptx`` with a ``.version`` of at most ``isa``."""
    found = _VERSION_LINE.search(ptx)
    if found is None or (int(found[1]), int(found[2])) <= isa:
        return ptx
    return ptx[: found.start()] + b".version %d.%d" % isa + ptx[found.end() :]


def cache_key(source: KernelSource, binary_arch: str, compiler: str) -> str:
    """Key of the compiled image, a hex digest of the program, the options, and the build of the compiler."""
    output = binary_arch or f"ptx-{PTX_ISA[0]}.{PTX_ISA[1]}"
    return hashlib.sha256(f"{source.digest} {output} {compiler}".encode()).hexdigest()
