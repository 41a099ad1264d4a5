"""Kernels to images: the store of precompiled PTX, then the disk cache, then NVRTC.

The ``.version`` line of the PTX is lowered to 8.3, the oldest PTX ISA with all that NVRTC writes for the kernels (the pragma
used_bytes_mask), so that drivers as old as CUDA 12.3 load it. A driver older than that gets a cubin instead of PTX.
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

    def image(self, kernel: KernelRef, driver_ptx_isa: tuple[int, int] = PTX_ISA) -> bytes:
        """PTX text of ``kernel``; a cubin of ``kernel.target`` where the driver's PTX ISA is older than 8.3.

        Raises CompilationFailedError with NVRTC's log, SublibraryLoadingFailedError where NVRTC is needed and missing.
        """
        source = self._sources.read(kernel)
        output = Output.PTX if driver_ptx_isa >= PTX_ISA else Output.CUBIN
        stored = self._store.get(source.digest) if output is Output.PTX else None
        if stored is not None:
            self.counters.add("store_hits")
            return stored
        return self._cached(source, kernel, output)

    def _cached(self, source: KernelSource, kernel: KernelRef, output: Output) -> bytes:
        if self._cache is None:
            return self._compile(source, output)
        key = cache_key(source, output, nvrtc.version())
        cached = self._cache.get(key)
        if cached is not None:
            self.counters.add("cache_hits")
            return cached
        self.counters.add("cache_misses")
        image = self._compile(source, output)
        self._cache.put(key, image, {".cuh": kernel.generated} if kernel.generated else None)
        return image

    def _compile(self, source: KernelSource, output: Output) -> bytes:
        emit(self._logger, logging.INFO, "compile", {"kernel": source.name, "output": output.value})
        self.counters.add("compiles")
        start = time.perf_counter()
        image = compile_source(source, output)
        elapsed_ms = (time.perf_counter() - start) * 1e3
        emit(self._logger, logging.INFO, "compiled", {"kernel": source.name, "ms": f"{elapsed_ms:.1f}"})
        return image


def compile_source(source: KernelSource, output: Output = Output.PTX) -> bytes:
    """Compiles one program with NVRTC: PTX text with its ``.version`` lowered, or a cubin."""
    compiled = nvrtc.compile_program(
        source.text,
        name=f"{source.name}.cu",
        headers=dict(source.headers),
        options=source.options if output is Output.PTX else source.options_for_cubin(),
        output=output,
    )
    return lowered(compiled.image) if output is Output.PTX else compiled.image


def lowered(ptx: bytes, isa: tuple[int, int] = PTX_ISA) -> bytes:
    """``ptx`` with a ``.version`` of at most ``isa``."""
    found = _VERSION_LINE.search(ptx)
    if found is None or (int(found[1]), int(found[2])) <= isa:
        return ptx
    return ptx[: found.start()] + b".version %d.%d" % isa + ptx[found.end() :]


def cache_key(source: KernelSource, output: Output, compiler: tuple[int, int]) -> str:
    """Name of the compiled image: what goes in, what comes out, and which compiler is between them (hex digest)."""
    text = f"{source.digest} {output.value} nvrtc-{compiler[0]}.{compiler[1]} ptx-{PTX_ISA[0]}.{PTX_ISA[1]}"
    return hashlib.sha256(text.encode()).hexdigest()
