"""Kernels to images: bundles, the store of precompiled PTX, then what a caller keeps, the disk cache, NVRTC.

A device that takes machine code gets it from NVRTC, whole, for its own architecture, as the tests assemble it; the disk
cache keeps it, so that later processes neither compile nor assemble. The driver's linker (cuLinkAddData) would make it
of PTX too, but as relocatable code, with other registers and without setmaxnreg.

The ``.version`` line of PTX is lowered to 8.3, the oldest PTX ISA with all that NVRTC writes for the kernels (the
pragma used_bytes_mask), so that drivers as old as CUDA 12.3 load it.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from lowdnn.driver import nvrtc
from lowdnn.driver.nvrtc import Output
from lowdnn.events import Counters, emit, event_logger
from lowdnn.observer import counted
from lowdnn.plan import KernelRef
from lowdnn.runtime.bundle import PTX, BundledImage, Shipped
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.kernel_images import KernelImages
from lowdnn.runtime.module_store import ModuleStore
from lowdnn.runtime.sources import KernelSource, SourceTree

#: The PTX ISA that every kernel's PTX is lowered to.
PTX_ISA = (8, 3)

_VERSION_LINE = re.compile(rb"^\.version[ \t]+(\d+)\.(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Image:
    """The image that a driver loads: PTX text, or machine code of ``machine_arch`` (``sm_90``).

    key: the name of its entry in the disk cache; empty where it is not kept there.  is_cached: whether it comes from
    there.
    """

    data: bytes
    machine_arch: str = ""
    key: str = ""
    is_cached: bool = False


class KernelCompiler:
    """Gives the images of a kernel. Safe to share between threads.

    Counts ``bundle_hits``, ``store_hits``, ``kept_hits``, ``cache_hits``, ``cache_misses``, ``compiles``, and
    ``images_refused``.
    """

    def __init__(
        self,
        *,
        sources: SourceTree,
        store: ModuleStore,
        cache: DiskCache | None,
        counters: Counters,
        shipped: Sequence[Shipped] = (),
        leaves_assembly: bool = True,
    ) -> None:
        """shipped: bundles, whose images come first, in their order.  leaves_assembly: whether a device that takes
        machine code may get PTX of the store, which its driver assembles when it is loaded; otherwise it gets machine
        code of these kernels, too."""
        self._shipped = shipped
        self._leaves_assembly = leaves_assembly
        self._sources = sources
        self._store = store
        self._cache = cache
        self.counters = counters
        self._logger = event_logger("compile")
        self._build = ""

    def images(self, kernel: KernelRef, machine_arch: str = "", kept: KernelImages | None = None) -> Iterator[Image]:
        """Images of ``kernel``, the best first; each is made when the driver has refused those before it.

        machine_arch: the architecture whose machine code the device takes, or an empty string.  kept: is asked before
        the disk cache, and gets what is not of bundles and the store. The order is: machine code and PTX of a bundle,
        for which NVRTC is not loaded; PTX of the store, where it has the kernel; machine code, where the device takes
        it and NVRTC knows the architecture; PTX of the disk cache or of NVRTC.
        Raises CompilationFailedError with NVRTC's log, SublibraryLoadingFailedError where NVRTC is needed and missing.
        """
        source = self._sources.read(kernel)
        yield from self._bundled(source, machine_arch)
        stored, own = self._stored_ptx(source), self._machine_code(source, kernel, machine_arch, kept)
        yield from chain(own, stored) if self._assembles_stored(machine_arch) else chain(stored, own)
        if source.digest not in self._store.kernels:
            ptx = self._image(source, kernel, "", kept)
            yield ptx
            if ptx.is_cached:
                yield self._image(source, kernel, "", kept)

    def is_on_disk(self, kernel: KernelRef, machine_arch: str = "") -> bool:
        """Whether the device gets its first image of ``kernel`` with nothing to compile, by NVRTC or by its driver."""
        source = self._sources.read(kernel)
        if any(shipped.has_image(source.digest, machine_arch or PTX) for shipped in self._shipped):
            return True
        if source.digest in self._store.kernels and not self._assembles_stored(machine_arch):
            return not machine_arch
        if self._cache is None or not nvrtc.library_file():
            return False
        return self._cache.has(cache_key(source, machine_arch, self.build()))

    def to_bundle(self, kernel: KernelRef, machine_arch: str) -> list[BundledImage]:
        """The images that a bundle has to hold of ``kernel``: its machine code where ``machine_arch`` names an
        architecture, and its PTX unless it is precompiled. They are in the disk cache, or are compiled and put there.

        Raises what ``images`` raises.
        """
        source = self._sources.read(kernel)
        outputs = [machine_arch] if machine_arch else []
        if source.digest not in self._store.kernels:
            outputs.append("")
        return [
            BundledImage(source.digest, output or PTX, kernel.name, self._image(source, kernel, output, None).data)
            for output in outputs
        ]

    def refuse(self, kernel: KernelRef, image: Image, error: Exception, kept: KernelImages | None = None) -> None:
        """Drops an image that the driver refuses from the disk cache and from ``kept``."""
        kind = image.machine_arch or "ptx"
        emit(self._logger, logging.WARNING, "image_refused", {"kernel": kernel.name, "image": kind, "reason": error})
        self.counters.add("images_refused")
        if self._cache is not None and image.key:
            self._cache.discard(image.key)
        if kept is not None and image.key:
            kept.discard(image.key)

    def _bundled(self, source: KernelSource, machine_arch: str) -> Iterator[Image]:
        for output in (machine_arch, PTX) if machine_arch else (PTX,):
            for shipped in self._shipped:
                data = shipped.image(source.digest, output)
                if data is not None:
                    self.counters.add("bundle_hits")
                    yield Image(data, "" if output == PTX else output)

    def _assembles_stored(self, machine_arch: str) -> bool:
        """Whether NVRTC makes machine code of the store's kernels, too."""
        is_asked = bool(machine_arch) and not self._leaves_assembly
        return is_asked and bool(nvrtc.library_file()) and nvrtc.assembles_for(machine_arch)

    def _stored_ptx(self, source: KernelSource) -> Iterator[Image]:
        """The PTX of the store, if it has the kernel."""
        stored = self._store.get(source.digest)
        if stored is None:
            counted("not_precompiled")
        else:
            self.counters.add("store_hits")
            yield Image(stored)

    def _machine_code(
        self, source: KernelSource, kernel: KernelRef, machine_arch: str, kept: KernelImages | None
    ) -> Iterator[Image]:
        """Machine code, if the device takes it and NVRTC knows its architecture."""
        if machine_arch and nvrtc.assembles_for(machine_arch):
            yield self._image(source, kernel, machine_arch, kept)

    def _image(self, source: KernelSource, kernel: KernelRef, machine_arch: str, kept: KernelImages | None) -> Image:
        """An image that is kept, or one of the disk cache or of NVRTC, which is then kept."""
        if kept is None and self._cache is None:
            return Image(self._compile(source, machine_arch), machine_arch)
        key = cache_key(source, machine_arch, self.build())
        held = None if kept is None else kept.get(key)
        if held is not None:
            self.counters.add("kept_hits")
            return Image(held, machine_arch, key, is_cached=True)
        image = self._cached_image(source, kernel, machine_arch, key)
        if kept is not None:
            kept.put(key, image.data)
        return image

    def _cached_image(self, source: KernelSource, kernel: KernelRef, machine_arch: str, key: str) -> Image:
        """An image from the disk cache, or one that is compiled and put there."""
        if self._cache is None:
            return Image(self._compile(source, machine_arch), machine_arch, key)
        cached = self._cache.get(key)
        if cached is not None:
            self.counters.add("cache_hits")
            return Image(cached, machine_arch, key, is_cached=True)
        self.counters.add("cache_misses")
        data = self._compile(source, machine_arch)
        self._cache.put(key, data, {".cuh": kernel.generated} if kernel.generated else None)
        return Image(data, machine_arch, key)

    def build(self) -> str:
        """The build of NVRTC, which is asked once for each of its files: that takes much longer than an entry."""
        if not self._build:
            file = nvrtc.library_file()
            self._build = _cached_build(file, self._cache) if file and self._cache is not None else nvrtc.build()
        return self._build

    def _compile(self, source: KernelSource, machine_arch: str) -> bytes:
        emit(self._logger, logging.INFO, "compile", {"kernel": source.name, "output": machine_arch or "ptx"})
        self.counters.add("compiles")
        start = time.perf_counter()
        image = compile_source(source, machine_arch)
        elapsed_ms = (time.perf_counter() - start) * 1e3
        emit(self._logger, logging.INFO, "compiled", {"kernel": source.name, "ms": f"{elapsed_ms:.1f}"})
        return image


def _cached_build(library: str, cache: DiskCache) -> str:
    """The build of the NVRTC in the file ``library``, which ``cache`` knows after the first question."""
    key = hashlib.sha256(f"NVRTC {library}".encode()).hexdigest()
    known = cache.get(key)
    if known is None:
        known = nvrtc.build().encode()
        cache.put(key, known)
    return known.decode()


def compile_source(source: KernelSource, machine_arch: str = "") -> bytes:
    """Compiles one program with NVRTC: PTX text with its ``.version`` lowered, or machine code of ``machine_arch``."""
    compiled = nvrtc.compile_program(
        source.text,
        name=f"{source.name}.cu",
        headers=dict(source.headers),
        options=source.options_for(machine_arch) if machine_arch else source.options,
        output=Output.CUBIN if machine_arch else Output.PTX,
    )
    if compiled.log:
        emit(event_logger("compile"), logging.WARNING, "compiler_log", {"kernel": source.name, "log": compiled.log})
    return compiled.image if machine_arch else lowered(compiled.image)


def machine_arch_of(kernel: KernelRef, compute_capability: tuple[int, int]) -> str:
    """The architecture to assemble ``kernel`` for: that of the device.

    A target with a suffix (``sm_90a``) runs on that capability only and stays.
    """
    major, minor = compute_capability
    return f"sm_{major}{minor}" if kernel.target[-1].isdigit() else kernel.target


def lowered(ptx: bytes, isa: tuple[int, int] = PTX_ISA) -> bytes:
    """``ptx`` with a ``.version`` of at most ``isa``."""
    found = _VERSION_LINE.search(ptx)
    if found is None or (int(found[1]), int(found[2])) <= isa:
        return ptx
    return ptx[: found.start()] + b".version %d.%d" % isa + ptx[found.end() :]


def cache_key(source: KernelSource, machine_arch: str, compiler: str) -> str:
    """Key of the compiled image, a hex digest of the program, the options, and the build of the compiler."""
    output = machine_arch or f"ptx-{PTX_ISA[0]}.{PTX_ISA[1]}"
    return hashlib.sha256(f"{source.digest} {output} {compiler}".encode()).hexdigest()
