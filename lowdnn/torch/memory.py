"""Where tensors lie when a plan runs: on a GPU, at torch's own addresses; or on the CPU, with copies on the emulated
device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock, RLock
from typing import Any, Protocol

import torch

from lowdnn.backend.handle import Handle
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.switching_plan import SwitchingPlan

Pointers = Sequence[int]
#: Allocates a tensor of this shape, these strides and this type.
Allocate = Callable[[tuple[int, ...], tuple[int, ...], Any], Any]
#: Launches the steps of a call with the addresses of its places.
Launch = Callable[[Pointers], None]

#: Copies on the emulated device are as far from a multiple of it as the tensors.
_GRANULE_BYTES = 16


@dataclass(frozen=True)
class Region:
    """The bytes of one place that a step touches. is_new: memory that the call has allocated, which
    one step writes as a whole."""

    place: int
    size_bytes: int
    is_written: bool
    is_new: bool


@dataclass(frozen=True)
class LoadedStep:
    """A loaded plan and where its pointers come from.

    order: takes the plan's pointers out of those of the places.  regions: the memory that it touches.
    """

    loaded: LoadedPlan | SwitchingPlan
    order: Callable[[Pointers], tuple[int, ...]]
    workspace_bytes: int
    regions: tuple[Region, ...]


class Memory(Protocol):
    """One kind of memory: its dispatch key, a handle for each device, and the launch.

    is_gpu: whether tensors lie on a real GPU.  prefers_fastest: whether native kernels stay where they are expected to
    be faster than lowdnn's.  planning: held while a call is planned, since a handle serves one thread
    at a time; launches do not need it.
    """

    dispatch_key: str
    is_gpu: bool
    prefers_fastest: bool
    planning: AbstractContextManager[bool]

    def handle(self, device: Any) -> Handle: ...

    def allocator(self, device: Any) -> Callable[[], Allocate]:
        """A function that says what allocates tensors there now; their contents are undefined."""

    def launcher(self, steps: Sequence[LoadedStep], device: Any) -> Launch:
        """A function that launches the steps there, one behind the other."""

    def is_capturing(self, device: Any) -> bool:
        """Whether the launches are recorded into a CUDA graph now."""

    def after_fork(self) -> None:
        """Begins anew in the child, with handles of its own."""

    def close(self) -> None: ...


class CudaMemory:
    """CUDA tensors: torch's addresses, torch's current stream, workspace from torch's allocator."""

    dispatch_key = "CUDA"
    is_gpu = True

    def __init__(self) -> None:
        self.prefers_fastest = True
        self.planning: AbstractContextManager[bool] = RLock()
        self._handles = _Handles("cuda")
        self._stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream

    def handle(self, device: Any) -> Handle:
        return self._handles.of(device.index)

    def allocator(self, device: Any) -> Callable[[], Allocate]:
        index = device.index
        current, on_current = torch._C._cuda_getDevice, getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)

        def anywhere(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
            return torch.empty_strided(shape, strides, dtype=dtype, device=device)

        def now() -> Allocate:
            # The allocator behind Inductor's kernels takes half of the time, but knows the current device alone.
            return on_current if on_current is not None and current() == index else anywhere

        return now

    def launcher(self, steps: Sequence[LoadedStep], device: Any) -> Launch:
        stream, index, allocator, byte = self._stream, device.index, self.allocator(device), torch.uint8
        prepared = [(step.loaded.execute, step.order, step.workspace_bytes) for step in steps]

        def launch(pointers: Pointers) -> None:
            now = stream(index)
            for execute, order, workspace_bytes in prepared:
                if workspace_bytes:
                    # Given back at once: the allocator gives it to later work in this stream alone.
                    workspace = allocator()((workspace_bytes,), (1,), byte)
                    execute(order(pointers), workspace.data_ptr(), now)
                else:
                    execute(order(pointers), 0, now)

        return launch

    def is_capturing(self, device: Any) -> bool:
        return bool(torch.cuda.is_current_stream_capturing())

    def after_fork(self) -> None:
        self.planning = RLock()
        self._handles.after_fork()

    def close(self) -> None:
        self._handles.close()


class EmulatedMemory:
    """CPU tensors, whose bytes are copied to the emulated device and back."""

    dispatch_key = "CPU"
    is_gpu = False

    def __init__(self) -> None:
        self.prefers_fastest = True
        self.planning: AbstractContextManager[bool] = RLock()
        self._handles = _Handles("emulated")
        self._launching = Lock()

    def handle(self, device: Any) -> Handle:
        return self._handles.of(0)

    def allocator(self, device: Any) -> Callable[[], Allocate]:
        def allocate(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
            return torch.empty_strided(shape, strides, dtype=dtype)

        return lambda: allocate

    def launcher(self, steps: Sequence[LoadedStep], device: Any) -> Launch:
        return lambda pointers: self._launch(steps, pointers, device)

    def _launch(self, steps: Sequence[LoadedStep], pointers: Pointers, device: Any) -> None:
        handle = self.handle(device)
        # One launch at a time: the device is no faster with several, and takes each thread's memory.
        with self._launching, handle.runtime.context.activated():
            for step in steps:
                _Copies(handle, step, pointers).run()

    def is_capturing(self, device: Any) -> bool:
        return False

    def after_fork(self) -> None:
        self.planning, self._launching = RLock(), Lock()
        self._handles.after_fork()

    def close(self) -> None:
        with self._launching:
            self._handles.close()


class _Handles:
    """The handles of one kind of device, by ordinal, made at first use."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._lock = Lock()
        self._found: dict[int, Handle] = {}

    def of(self, ordinal: int) -> Handle:
        with self._lock:
            found = self._found.get(ordinal)
            if found is None:
                found = self._found[ordinal] = Handle.open(self._kind, ordinal=ordinal)
            return found

    def after_fork(self) -> None:
        """Keeps the parent's handles: to close them may need locks that no thread holds any more."""
        self._lock, self._of_parent, self._found = Lock(), self._found, {}

    def close(self) -> None:
        with self._lock:
            handles, self._found = [*self._found.values()], {}
        for handle in handles:
            handle.close()


class _Copies:
    """One step on copies of its places. A copy begins at the same distance from an aligned address as the tensor."""

    def __init__(self, handle: Handle, step: LoadedStep, pointers: Pointers) -> None:
        self._driver = handle.runtime.driver
        self._step = step
        self._pointers = pointers
        self._blocks: list[int] = []

    def run(self) -> None:
        step, driver = self._step, self._driver
        try:
            places = list(self._pointers)
            for region in step.regions:
                places[region.place] = self._copied(region)
            workspace = self._block(step.workspace_bytes) if step.workspace_bytes else 0
            step.loaded.execute(step.order(places), workspace, 0)
            for region in step.regions:
                if region.is_written:
                    host = self._pointers[region.place]
                    driver.memcpy_dtoh_async(host, places[region.place], region.size_bytes, 0)
            driver.stream_synchronize(0)
        finally:
            for block in self._blocks:
                driver.mem_free(block)

    def _copied(self, region: Region) -> int:
        host = self._pointers[region.place]
        shift = host % _GRANULE_BYTES
        address = self._block(region.size_bytes + shift) + shift
        if not region.is_new:
            self._driver.memcpy_htod_async(address, host, region.size_bytes, 0)
        return address

    def _block(self, size_bytes: int) -> int:
        block = self._driver.mem_alloc(size_bytes, "torch")
        self._blocks.append(block)
        return block
