"""Long use of the C API: what is created and destroyed leaves nothing behind, and a step of training needs no more.

``--endurance`` runs 10,000 cycles and 1,000 steps; without it, as many as show that each of them keeps one object.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.capi.loading import Binding
from lowdnn.driver.emulated.memory import space
from lowdnn.enums import DescriptorType
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from tests.support.capi import Caller, Memory, scale, tensor_descriptor

#: Rounds of repetitions: caches fill and dictionaries grow in the first ones, a leak is in each.
ROUNDS = 4
MOST_RESIDENT_BYTES = 1 << 20


class Owner(Caller):
    """Keeps the pointers of backend descriptors, and destroys them."""

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library)
        self._created: list[int] = []

    def create(self, kind: DescriptorType) -> int:
        self._created.append(super().create(kind))
        return self._created[-1]

    def destroy_all(self) -> None:
        while self._created:
            self.call("cudnnBackendDestroyDescriptor", self._created.pop())


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated device remembers a thousand ended allocations for its reports; some suffice here."""
    monkeypatch.setattr(space, "_REMEMBERED", 16)


class Allocations:
    """Bytes of device memory that are allocated through a class of drivers and not freed. The driver's free memory
    counts all processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, driver: type[Any]) -> None:
        self._sizes: dict[int, int] = {}
        for name in ("mem_alloc", "mem_alloc_async"):
            monkeypatch.setattr(driver, name, self._allocating(getattr(driver, name)))
        for name in ("mem_free", "mem_free_async"):
            monkeypatch.setattr(driver, name, self._freeing(getattr(driver, name)))

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    def _allocating(self, call: Callable[..., int]) -> Callable[..., int]:
        def allocate(driver: object, size_bytes: int, *others: object, **named: object) -> int:
            address = call(driver, size_bytes, *others, **named)
            self._sizes[address] = size_bytes
            return address

        return allocate

    def _freeing(self, call: Callable[..., None]) -> Callable[..., None]:
        def free(driver: object, address: int, *others: object) -> None:
            self._sizes.pop(address, None)
            call(driver, address, *others)

        return free


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch, device: Runtime) -> Allocations:
    return Allocations(monkeypatch, type(device.driver))


def check_flat(repeat: Callable[[int], None], allocations: Allocations, binding: Binding, count: int) -> None:
    """``count`` repetitions in rounds leave no object and, after the first round, take no memory of the device.

    In one round at least they take less than half a block of Python's allocator each, and no more than
    ``MOST_RESIDENT_BYTES`` of the host.
    """

    def used() -> NDArray[np.int64]:
        gc.collect()
        return np.array([len(binding.state.objects), allocations.size_bytes, sys.getallocatedblocks(), _resident()])

    repeat(2)
    states = [used()]
    for _ in range(ROUNDS):
        repeat(count // ROUNDS)
        states.append(used())
    taken = np.diff(states, axis=0)
    assert not taken[:, 0].any()
    assert taken[1:, 1].sum() == 0
    assert 2 * taken[:, 2].min() < count // ROUNDS
    assert taken[:, 3].min() <= MOST_RESIDENT_BYTES


def _resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_cycles_leave_nothing_behind(
    caller: Caller, binding: Binding, device: Runtime, allocations: Allocations, endurance: bool
) -> None:
    """A handle with a graph, heuristics, plan and variant pack, a classic call, and descriptors, from begin to end."""
    owner, memory, ones = Owner(caller.library), Memory(device), np.ones((1, 1, 2, 2), np.float32)
    one, tensor, address = ctypes.byref(scale(1.0)), tensor_descriptor(owner, ones), memory.put(ones)
    classic = ("Tensor", "Filter", "Convolution", "Activation", "Pooling", "OpTensor", "ReduceTensor", "LRN", "Dropout")

    def repeat(count: int) -> None:
        with Stream.create(device.context) as stream:
            for _ in range(count):
                handle = owner.handle()
                owner.call("cudnnSetStream", handle, stream.handle)
                owner.plan(handle, owner.add_graph(handle))
                owner.pack({1: 256, 2: 512, 3: 768})
                owner.destroy_all()
                owner.call("cudnnSetTensor", handle, tensor, address, one)
                for kind in classic:
                    pointer = int(owner.output(f"cudnnCreate{kind}Descriptor"))
                    assert owner.status("cudnnBackendFinalize", pointer)
                    owner.call(f"cudnnDestroy{kind}Descriptor", pointer)
                owner.call("cudnnDestroy", handle)

    check_flat(repeat, allocations, binding, 10_000 if endurance else 400)


class Network:
    """Convolution, bias, ReLU and pooling, forward and backward, and a graph that adds two tensors."""

    def __init__(self, caller: Caller, memory: Memory) -> None:
        rng = np.random.default_rng()
        self._caller, self._memory = caller, memory
        self._arrays: dict[str, NDArray[np.float32]] = {
            name: rng.standard_normal(shape, np.float32)
            for name, shape in (
                *((name, (2, 2, 6, 6)) for name in ("x", "dx")),
                *((name, (4, 2, 3, 3)) for name in ("w", "dw")),
                *((name, (1, 4, 1, 1)) for name in ("bias", "dbias")),
                *((name, (2, 4, 6, 6)) for name in ("conv", "relu", "dconv", "drelu")),
                *((name, (2, 4, 3, 3)) for name in ("pool", "dpool")),
                *((name, (4, 8)) for name in ("a", "b", "sum")),
            )
        }
        self._at = {name: memory.put(array) for name, array in self._arrays.items()}
        self._scales = scale(1.0), scale(0.0)
        self._workspace = memory.put(np.zeros(1 << 20, np.uint8)), 1 << 20
        self._of = {name: tensor_descriptor(caller, array) for name, array in self._arrays.items() if array.ndim == 4}
        self._of["w"] = int(caller.output("cudnnCreateFilterDescriptor"))
        caller.call("cudnnSetFilterNdDescriptor", self._of["w"], 0, 0, 4, (ctypes.c_int * 4)(4, 2, 3, 3))
        self._convolution, self._relu, self._pooling = (
            int(caller.output(f"cudnnCreate{kind}Descriptor")) for kind in ("Convolution", "Activation", "Pooling")
        )
        caller.call("cudnnSetConvolution2dDescriptor", self._convolution, 1, 1, 1, 1, 1, 1, 1, 0)
        caller.call("cudnnSetActivationDescriptor", self._relu, 1, 0, 0.0)
        caller.call("cudnnSetPooling2dDescriptor", self._pooling, 0, 0, 2, 2, 0, 0, 2, 2)
        self._handle = caller.handle()
        self._plan = caller.plan(self._handle, caller.add_graph(self._handle))

    def step(self) -> None:
        one, zero = map(ctypes.byref, self._scales)
        call, handle, used = self._caller.call, self._handle, self._tensor
        x, w, conv, relu, pool = map(used, ("x", "w", "conv", "relu", "pool"))
        dpool, drelu, dconv = map(used, ("dpool", "drelu", "dconv"))
        algorithm = (self._convolution, 1, *self._workspace)
        call("cudnnConvolutionForward", handle, one, *x, *w, *algorithm, zero, *conv)
        call("cudnnAddTensor", handle, one, *used("bias"), one, *conv)
        call("cudnnActivationForward", handle, self._relu, one, *conv, zero, *relu)
        call("cudnnPoolingForward", handle, self._pooling, one, *relu, zero, *pool)
        call("cudnnPoolingBackward", handle, self._pooling, one, *pool, *dpool, *relu, zero, *drelu)
        call("cudnnActivationBackward", handle, self._relu, one, *relu, *drelu, *conv, zero, *dconv)
        call("cudnnConvolutionBackwardBias", handle, one, *dconv, zero, *used("dbias"))
        call("cudnnConvolutionBackwardData", handle, one, *w, *dconv, *algorithm, zero, *used("dx"))
        call("cudnnConvolutionBackwardFilter", handle, one, *x, *dconv, *algorithm, zero, self._of["w"], self._at["dw"])
        pack = self._caller.pack({uid: self._at[name] for uid, name in ((1, "a"), (2, "b"), (3, "sum"))})
        call("cudnnBackendExecute", handle, self._plan, pack)
        call("cudnnBackendDestroyDescriptor", pack)

    def results(self) -> dict[str, bytes]:
        return {name: self._memory.get(address).tobytes() for name, address in self._at.items()}

    def _tensor(self, name: str) -> tuple[int, int]:
        return self._of[name], self._at[name]


def test_steps_of_a_network_take_no_memory(
    caller: Caller, binding: Binding, device: Runtime, allocations: Allocations, endurance: bool
) -> None:
    network = Network(caller, Memory(device))

    def repeat(count: int) -> None:
        for _ in range(count):
            network.step()

    network.step()
    first = network.results()
    assert all(map(any, first.values())), "every tensor of the step is there"
    check_flat(repeat, allocations, binding, 1_000 if endurance else 80)
    assert network.results() == first
