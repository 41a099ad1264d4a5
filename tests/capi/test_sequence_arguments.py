"""Wrong values of each argument of cudnn_subquadratic_ops.h: the message names the argument, and nothing runs."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from lowdnn.capi.signatures import Argument, Function, functions
from lowdnn.enums import DataType
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import Caller, Memory

FUNCTIONS = {
    name: function
    for name, function in functions().items()
    if function.header == "cudnn_subquadratic_ops.h" and function.arguments
}
#: Bytes that each tensor and buffer has; the sizes below need far fewer.
BYTES = 1 << 16
SIZES = {"batch": 1, "dim": 2, "seqLen": 9, "kernelSize": 4, "kernelSizeProj": 3, "kernelSizeMixer": 4}
INT_MAX = 2**31 - 1


class Call:
    """A call whose arguments are right."""

    def __init__(self, caller: Caller, device: Runtime, function: Function) -> None:
        self._caller, self._function = caller, function
        self._memory = Memory(device)
        self._size = ctypes.c_size_t()
        self.given = {argument.name: self._right(argument) for argument in function.arguments}
        self.tensors = [
            item.name for item in function.arguments if item.type.base == "void" and not is_buffer(item.name)
        ]

    def _right(self, argument: Argument) -> Any:
        if argument.type.pointers:
            is_size = argument.type.base == "size"
            return ctypes.byref(self._size) if is_size else self._memory.put(np.zeros(BYTES, np.uint8))
        return {"Stream": 0, "size": BYTES, "DataType": DataType.FLOAT}.get(
            argument.type.base, SIZES.get(argument.name, 0)
        )

    def check(self, status: Status, where: str, rule: str, **changed: Any) -> None:
        found = self._caller.status(self._function.name, *(self.given | changed).values())
        message = self._caller.last_error()
        assert f"{self._function.name}.{where}: expected {rule}" in message, (changed, found.name, message)
        assert found is status, (changed, found.name, message)

    def contents(self) -> list[bytes]:
        return [self._memory.get(self.given[name]).tobytes() for name in self.tensors]


def is_buffer(name: str) -> bool:
    return name in ("workspace", "reserveSpace")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_message_names_the_argument(caller: Caller, device: Runtime, name: str) -> None:
    call = Call(caller, device, FUNCTIONS[name])
    before = call.contents()
    for argument in FUNCTIONS[name].arguments:
        where, kind = argument.name, argument.type
        if kind.pointers and where != "workspace":
            call.check(Status.BAD_PARAM_NULL_POINTER, where, "a pointer, got NULL", **{where: None})
        if where in call.tensors:
            address = call.given[where] + 2
            call.check(
                Status.BAD_PARAM_MISALIGNED_POINTER, where, f"a multiple of 4, got {address:#x}", **{where: address}
            )
        if where in SIZES:
            for value in (0, -1, -INT_MAX - 1):
                call.check(Status.BAD_PARAM, where, f"1 or more, got {value}", **{where: value})
        if kind.base in ("DataType", "CausalConv1dActivation"):
            for value in (-1, 99):
                call.check(Status.BAD_PARAM, where, f"a number of {kind.base}, got {value}", **{where: value})
        if kind.base == "DataType":
            call.check(Status.NOT_SUPPORTED, where, "", **{where: DataType.INT8})
        if kind.base == "size" and not kind.pointers and where.startswith("reserve"):
            call.check(Status.BAD_PARAM_SIZE_INSUFFICIENT, where, "at least", **{where: 1})
    device.context.synchronize()
    assert call.contents() == before


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tensors_beyond_any_address_name_the_size(caller: Caller, device: Runtime, name: str) -> None:
    call = Call(caller, device, FUNCTIONS[name])
    rule = f"at most {2**63 - 1} bytes of a tensor"
    call.check(Status.BAD_PARAM, "seqLen", rule, batch=INT_MAX, dim=INT_MAX, seqLen=INT_MAX)
    taps = {size: INT_MAX for size in call.given if size.startswith("kernelSize")}
    last = list(taps)[-1]
    call.check(Status.BAD_PARAM, last, rule, dim=INT_MAX, seqLen=1, dataType=DataType.DOUBLE, **taps)
