"""Loaded modules of one context: each kernel is compiled and loaded once, by the first thread that needs it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from threading import Lock

from lowdnn.driver.base import DriverError, DriverImageError, FunctionAttribute
from lowdnn.events import Counters, emit, event_logger
from lowdnn.observer import introduce
from lowdnn.plan import KernelRef
from lowdnn.runtime.ahead import Ahead, Task, side_by_side
from lowdnn.runtime.compile import Image, KernelCompiler, machine_arch_of
from lowdnn.runtime.context import Context
from lowdnn.runtime.kernel_images import KernelImages
from lowdnn.runtime.process_bound import ProcessBound

#: Kernels that are compiled ahead and not loaded; the first one is given up for one more.
_MOST_BEGUN = 64
#: Blocks of the largest cluster that a kernel gets without being asked for.
_PORTABLE_CLUSTER_BLOCKS = 8


class ModuleCache(ProcessBound):
    """CUfunctions by kernel. Safe to share between threads.

    Counts ``modules_loaded``, and of these ``machine_code_loaded``: those that the driver did not have to assemble.
    size_bytes: the sizes of the loaded images together.
    """

    def __init__(self, context: Context, compiler: KernelCompiler, counters: Counters, ahead: Ahead) -> None:
        self._context = context
        self._ahead = ahead
        self._begun: dict[KernelRef, _Begun] = {}
        self._compiler = compiler
        self._counters = counters
        self._logger = event_logger("module")
        self._lock = Lock()
        self._functions: dict[KernelRef, int] = {}
        self._modules: list[int] = []
        self.size_bytes = 0
        self._shared_bytes: dict[int, int] = {}
        self._on_disk: set[KernelRef] = set()
        introduce(self)

    def begin(self, kernels: Sequence[KernelRef]) -> None:
        """Begins to compile what is not loaded yet, in other threads; ``load`` waits for it, and raises its errors.

        Does nothing where no thread may be begun, or the context is closed.
        """
        if self._ahead.most_threads and self._context.liveness.is_usable:
            for begun in self._begin(kernels):
                self._ahead.begin(begun.first)

    def begin_here(self, kernels: Sequence[KernelRef]) -> None:
        """Compiles what is not loaded yet, once where several threads begin it; ``load`` then finds it compiled."""
        for begun in self._begin(kernels):
            begun.first.run()
        for kernel in kernels:
            others = self._begun.get(kernel)
            if others is not None:
                others.first.result()

    def are_at_hand(self, kernels: Sequence[KernelRef]) -> bool:
        """Whether all are loaded, or on disk in a form that takes no compiler to load."""
        return all(map(self._is_at_hand, kernels))

    def is_on_disk(self, kernel: KernelRef) -> bool:
        """Whether another process finds the kernel in a form that takes no compiler to load."""
        return self._compiler.is_on_disk(kernel, self._machine_arch(kernel))

    def compile(self, kernels: Sequence[KernelRef]) -> None:
        """Compiles the kernels that the disk cache does not have yet; loads nothing."""
        for kernel in kernels:
            next(self._compiler.images(kernel, self._machine_arch(kernel)))

    def load(self, kernels: Sequence[KernelRef], kept: KernelImages | None = None) -> None:
        """Compiles and loads what is not loaded yet; several kernels are compiled side by side.

        kept: gets the images of all ``kernels``, those loaded before included, and saves compiling them.
        """
        self._context.liveness.check()
        with self._lock:
            wanted = dict.fromkeys(kernels)
            asked = [kernel for kernel in wanted if kept is not None or kernel not in self._functions]
            images = [self._images(kernel, kept) for kernel in asked]
            # NVRTC leaves the interpreter's lock alone while it compiles.
            firsts = side_by_side((partial(next, image) for image in images), os.cpu_count() or 1)
            for kernel, first, others in zip(asked, firsts, images, strict=True):
                if kernel not in self._functions:
                    self._functions[kernel] = self._load_kernel(kernel, chain((first,), others), kept)

    def function(self, kernel: KernelRef, *, shared_bytes: int = 0, cluster_blocks: int = 1) -> int:
        """The CUfunction of ``kernel``, allowed to use this much dynamic shared memory and clusters of this size.

        Loads it where it is not loaded yet. The limit of a function only ever rises, since plans share functions.
        """
        self._context.liveness.check()
        if kernel not in self._functions:
            self.load((kernel,))
        with self._lock:
            function = self._functions[kernel]
            if shared_bytes > self._shared_bytes.get(function, 0):
                self._set(function, FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
                self._shared_bytes[function] = shared_bytes
            if cluster_blocks > _PORTABLE_CLUSTER_BLOCKS:
                self._set(function, FunctionAttribute.NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
            return function

    def __len__(self) -> int:
        return len(self._modules)

    def close(self) -> None:
        """Unloads every module, where the context is still there."""
        if not self._context.liveness.is_usable:
            return
        with self._lock:
            modules, self._modules, self.size_bytes = self._modules, [], 0
            self._functions.clear()
            self._shared_bytes.clear()
            begun, self._begun = self._begun, {}
        for found in begun.values():
            found.first.cancel()
        for module in modules:
            self._context.give_back("module", partial(self._context.driver.module_unload, module))

    def _begin(self, kernels: Sequence[KernelRef]) -> list[_Begun]:
        """The kernels that are neither loaded nor begun, as begun ones, whose calls the caller begins."""
        made: list[_Begun] = []
        with self._lock:
            for kernel in kernels:
                if kernel not in self._functions and kernel not in self._begun:
                    if len(self._begun) == _MOST_BEGUN:
                        self._begun.pop(next(iter(self._begun))).first.cancel()
                    made.append(_Begun(self._compiler.images(kernel, self._machine_arch(kernel))))
                    self._begun[kernel] = made[-1]
        return made

    def _is_at_hand(self, kernel: KernelRef) -> bool:
        if kernel in self._functions or kernel in self._on_disk:
            return True
        if not self.is_on_disk(kernel):
            return False
        self._on_disk.add(kernel)
        return True

    def _images(self, kernel: KernelRef, kept: KernelImages | None) -> Iterator[Image]:
        begun = self._begun.pop(kernel, None)
        if begun is None or kept is not None:
            return self._compiler.images(kernel, self._machine_arch(kernel), kept)
        return begun

    def _machine_arch(self, kernel: KernelRef) -> str:
        """The architecture of the machine code that the device takes for ``kernel``, if any."""
        if not self._context.driver.takes_machine_code:
            return ""
        return machine_arch_of(kernel, self._context.compute_capability)

    def _load_kernel(self, kernel: KernelRef, images: Iterable[Image], kept: KernelImages | None) -> int:
        """The function of the first of the images that the driver does not refuse."""
        for image in images:
            size_bytes = len(image.data)
            emit(self._logger, logging.INFO, "load_module", {"kernel": kernel.name, "bytes": size_bytes})
            try:
                module, function = self._load_function(image.data, kernel.name)
            except DriverImageError as error:
                self._compiler.refuse(kernel, image, error, kept)
                refused = error
                continue
            self._modules.append(module)
            self.size_bytes += size_bytes
            self._counters.add("modules_loaded")
            if image.machine_arch:
                self._counters.add("machine_code_loaded")
            return function
        raise refused

    def _load_function(self, image: bytes, name: str) -> tuple[int, int]:
        driver = self._context.driver
        with self._context.activated():
            module = driver.module_load_data(image)
            try:
                return module, driver.module_get_function(module, name)
            except DriverError:
                self._context.give_back("module", partial(driver.module_unload, module))
                raise

    def _set(self, function: int, attribute: FunctionAttribute, value: int) -> None:
        with self._context.activated():
            self._context.driver.function_set_attribute(function, attribute, value)


class _Begun(Iterator[Image]):
    """A kernel's images, of which the first one is made ahead."""

    def __init__(self, images: Iterator[Image]) -> None:
        self.first: Task[Image] = Task(partial(next, images))
        self._rest = images
        self._is_new = True

    def __next__(self) -> Image:
        if self._is_new:
            self._is_new = False
            return self.first.result()
        return next(self._rest)
