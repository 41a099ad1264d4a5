"""Dropout: states on the device, masks in the reserve space, gradients."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.ops import philox
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import Caller, Memory, tensor_descriptor

SEED = 2**63 + 12345
SHAPE = (2, 3, 5, 7)


class Case:
    def __init__(self, caller: Caller, device: Runtime, dropout: float) -> None:
        self.caller, self.memory, self.handle = caller, Memory(device), caller.handle()
        self.x, self.dy = (np.random.default_rng().integers(1, 9, SHAPE).astype(np.float32) for _ in range(2))
        self.tensor = tensor_descriptor(caller, self.x)
        self.descriptor = caller.output("cudnnCreateDropoutDescriptor")
        self.dropout = dropout
        size = caller.output("cudnnDropoutGetStatesSize", self.handle, kind=ctypes.c_size_t)
        self.states = (self.memory.put(np.zeros(size, np.uint8)), size)
        self.set("cudnnSetDropoutDescriptor")
        size = caller.output("cudnnDropoutGetReserveSpaceSize", self.tensor, kind=ctypes.c_size_t)
        self.reserve = (self.memory.put(np.full(size, 0x55, np.uint8)), size)

    def set(self, name: str) -> None:
        seed = ctypes.c_uint64(SEED)
        self.caller.call(name, self.descriptor, self.handle, ctypes.c_float(self.dropout), *self.states, seed)

    def run(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        source, result = self.memory.put(array), self.memory.put(np.zeros_like(array))
        operands = (self.tensor, source, self.tensor, result)
        self.caller.call(name, self.handle, self.descriptor, *operands, *self.reserve)
        return self.memory.get(result)

    @property
    def mask(self) -> NDArray[Any]:
        return self.memory.get(self.reserve[0]).reshape(SHAPE)


@pytest.mark.parametrize("dropout", [0.25, 0.5, 0.0, 1.0])
def test_dropout(caller: Caller, device: Runtime, dropout: float) -> None:
    """Bit for bit the numbers of the generator, for each call others, and again from the same states."""
    case = Case(caller, device, dropout)
    scale = np.float32(1 / (1 - dropout) if dropout < 1 else 0)
    for count in (0, 1, 0):
        if count == 0:
            case.set("cudnnSetDropoutDescriptor")
        y = case.run("cudnnDropoutForward", case.x)
        words = philox.words(SEED - 2**64, count, np.arange(case.x.size, dtype=np.uint64)).reshape(SHAPE)
        kept = (words < np.ceil((1 - np.float64(np.float32(dropout))) * 2**32)) if dropout else np.ones(SHAPE, bool)
        np.testing.assert_array_equal(case.mask, kept)
        np.testing.assert_array_equal(y, case.x * kept * scale)
        np.testing.assert_array_equal(case.run("cudnnDropoutBackward", case.dy), case.dy * kept * scale)
    if dropout:
        case.set("cudnnRestoreDropoutDescriptor")
        assert case.memory.get(case.states[0]).view(np.uint64).tolist() == [SEED, 1]


def test_the_descriptor(caller: Caller, device: Runtime) -> None:
    case = Case(caller, device, 0.125)
    share, states, seed = ctypes.c_float(), ctypes.c_void_p(), ctypes.c_uint64()
    caller.call("cudnnGetDropoutDescriptor", case.descriptor, case.handle, *map(ctypes.byref, (share, states, seed)))
    assert (share.value, states.value, seed.value) == (0.125, case.states[0], SEED)
    set_ = ("cudnnSetDropoutDescriptor", case.descriptor, case.handle)
    assert caller.status(*set_, ctypes.c_float(1.5), 0, 0, 1) is Status.BAD_PARAM
    assert caller.status(*set_, ctypes.c_float(0.5), case.states[0], 15, 1) is Status.BAD_PARAM_SIZE_INSUFFICIENT
    restore = ("cudnnRestoreDropoutDescriptor", *set_[1:])
    assert caller.status(*restore, ctypes.c_float(0.5), 0, 16, 1) is Status.BAD_PARAM_NULL_POINTER
    caller.call(*set_, ctypes.c_float(0.5), 0, 0, 1)
    operands = (case.tensor, case.memory.put(case.x)) * 2
    run = ("cudnnDropoutForward", case.handle, case.descriptor, *operands)
    assert caller.status(*run, *case.reserve) is Status.BAD_PARAM_NULL_POINTER
    assert caller.status(*run, case.reserve[0], case.reserve[1] - 1) is Status.BAD_PARAM_SIZE_INSUFFICIENT
