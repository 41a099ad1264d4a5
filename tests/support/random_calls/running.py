"""Makes random calls through C, and tells what was wrong with what came of them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import Caller
from tests.support.random_calls.elementwise import epsilon
from tests.support.random_calls.operands import AddressOf, Call, Count, DescriptorOf, Enum, Made, Operand, Room, Scale
from tests.support.random_calls.spoiling import Spoil
from tests.support.runtime import download, upload

#: Bytes between the elements, and in memory that nothing is to write.
_POISON = 0x5A


@dataclass
class Machine:
    """A handle and the memory of one call after the other."""

    caller: Caller
    device: Runtime
    handle: int = 0
    _buffers: dict[int, DeviceBuffer] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.handle = self.caller.handle()

    def problem(self, call: Call, spoil: Spoil | None = None) -> str:
        """The fault of the call's outcome, or an empty string; ``spoil`` is done to one of its arguments.

        A valid call is made twice, on other memory: the second one is launched as the first was.
        """
        return self._problem(call, spoil) if spoil else self._problem(call, None) or self._problem(call, None)

    def _problem(self, call: Call, spoil: Spoil | None) -> str:
        images = {operand.port: _image(operand) for operand in call.operands}
        self._buffers = {id(operand): upload(self.device, images[operand.port]) for operand in call.operands}
        self._kept = []
        arguments: list[Any] = [self.handle if call.has_handle else 0]
        for index, argument in enumerate(call.arguments):
            arguments += self._passed(argument, spoil if spoil and spoil.index == index else None)
        if spoil and spoil.index < 0:
            arguments[0] = 0 if spoil.index == -1 else self.handle + 8
        status = self.caller.status(call.name, *arguments)
        found = {o.port: download(self._buffers[id(o)], np.uint8) for o in call.operands}
        if spoil:
            return self._problem_of_refusal(call, spoil, status, images, found)
        if status is not Status.SUCCESS:
            return f"{status.name}: {self.caller.last_error()}"
        return next(filter(None, (_difference(call, o, images[o.port], found[o.port]) for o in call.operands)), "")

    def _problem_of_refusal(
        self, call: Call, spoil: Spoil, status: Status, images: dict[str, Any], found: dict[str, Any]
    ) -> str:
        if status.category not in spoil.categories:
            return f"{spoil}: expected {[category.name for category in spoil.categories]}, got {status.name}"
        if not self.caller.last_error().startswith(f"{call.name}: {status.name} "):
            return f"{spoil}: {self.caller.last_error()!r}"
        written = [port for port in images if not np.array_equal(images[port], found[port])]
        return f"{spoil}: {status.name}, and {written} written" if written else ""

    def _passed(self, argument: Any, spoil: Spoil | None) -> list[Any]:
        """The numbers that stand for the argument in the call."""
        caller = self.caller
        match argument:
            case DescriptorOf(operand):
                kind = "Filter" if operand.is_filter else "Tensor"
                if spoil and spoil.value is not None:
                    return [spoil.value if isinstance(spoil.value, int) else self._other(spoil.value, kind)]
                return [_described(caller, operand, spoil)]
            case AddressOf(operand):
                size = dtypes.info(operand.placed[0]).size_bytes
                address = self._buffers[id(operand)].address + operand.offset * size
                return [spoil.value if spoil and spoil.value is not None else address + (1 if spoil else 0)]
            case Scale(value, is_double):
                number = (ctypes.c_double if is_double else ctypes.c_float)(value)
                self._kept.append(number)
                return [0 if spoil else ctypes.addressof(number)]
            case Made():
                if spoil and spoil.value is not None:
                    return [spoil.value if isinstance(spoil.value, int) else self._other(spoil.value, argument.kind)]
                return [_made(caller, argument)]
            case Enum(number) | Count(number):
                return [spoil.value if spoil and spoil.value is not None else int(number)]
            case Room(size_bytes):
                self._buffers[id(argument)] = buffer = upload(self.device, np.zeros(size_bytes, np.uint8))
                return [buffer.address, size_bytes]
            case _:
                return [argument]

    def _other(self, what: str, kind: str) -> int:
        """A descriptor that was only created, that was destroyed, or one of another kind."""
        if what == "another kind":
            kind = "Dropout"
        descriptor = int(self.caller.output(f"cudnnCreate{kind}Descriptor"))
        if what == "destroyed":
            self.caller.call(f"cudnnDestroy{kind}Descriptor", descriptor)
        return descriptor


def _image(operand: Operand) -> NDArray[np.uint8]:
    """The bytes of the operand's memory."""
    data_type, dims, _ = operand.placed
    facts = dtypes.info(data_type)
    flat = np.full((operand.offset + operand.span) * facts.size_bytes, _POISON, np.uint8)
    stored = flat.view(facts.storage)
    _elements(operand, stored)[...] = dtypes.from_float64(operand.values, data_type).reshape(dims)
    return flat


def _elements(operand: Operand, stored: NDArray[Any]) -> NDArray[Any]:
    """The operand's numbers in its memory."""
    _, dims, strides = operand.placed
    bytes_of = tuple(stride * stored.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(stored[operand.offset :], dims, bytes_of)


def _difference(call: Call, operand: Operand, before: NDArray[np.uint8], after: NDArray[np.uint8]) -> str:
    """The fault of an operand after the call, or an empty string."""
    port = operand.port
    if port not in call.expected:
        return "" if np.array_equal(before, after) else f"{port} was written"
    data_type, _, _ = operand.placed
    facts = dtypes.info(data_type)
    found = after.view(facts.storage).copy()
    values = dtypes.to_float64(_elements(operand, found).copy(), data_type).reshape(operand.dims)
    _elements(operand, found)[...] = _elements(operand, before.view(facts.storage))
    if not np.array_equal(found.view(np.uint8), before):
        return f"{port} was written between its elements"
    with np.errstate(all="ignore"):
        expected = dtypes.to_float64(dtypes.from_float64(call.expected[port], data_type), data_type)
    finite = np.abs(expected[np.isfinite(expected)])
    largest = float(finite.max()) if finite.size else 0.0
    relative = call.tolerance * (1e-4 if facts.size_bytes == 8 else 1) + 2 * epsilon(data_type)
    if facts.kind is not dtypes.Kind.FLOAT:
        relative = 0.0
    if np.allclose(values, expected, rtol=relative, atol=relative * max(largest, 1e-3), equal_nan=True):
        return ""
    wrong = np.argwhere(~np.isclose(values, expected, rtol=relative, atol=relative * largest, equal_nan=True))[0]
    return f"{port}{[*map(int, wrong)]}: expected {expected[tuple(wrong)]}, got {values[tuple(wrong)]}"


def _described(caller: Caller, operand: Operand, spoil: Spoil | None) -> int:
    """The operand's descriptor; that of a spoiled one has one extent more, or elements that overlap."""
    dims, strides = [*operand.dims], [*operand.strides]
    if spoil and spoil.axis is not None:
        dims[spoil.axis] += spoil.more
        if not spoil.more:
            strides[spoil.axis] = 0
    count = len(dims)
    kind = "Filter" if operand.is_filter else "Tensor"
    descriptor = int(caller.output(f"cudnnCreate{kind}Descriptor"))
    extents = (ctypes.c_int * count)(*dims)
    if operand.is_filter:
        is_nhwc = strides[1] == 1 and operand.dims[1] > 1
        is_nhwc |= operand.dims[1] == 1 and strides[-1] != 1
        caller.call("cudnnSetFilterNdDescriptor", descriptor, operand.data_type, int(is_nhwc), count, extents)
    else:
        given = (ctypes.c_int * count)(*strides)
        caller.call("cudnnSetTensorNdDescriptor", descriptor, operand.data_type, count, extents, given)
    return descriptor


def _made(caller: Caller, made: Made) -> int:
    descriptor = int(caller.output(f"cudnnCreate{made.kind}Descriptor"))
    names = made.name.split("+")
    for name, arguments in zip(names, [made.arguments] if len(names) == 1 else made.arguments, strict=True):
        passed = [_c_argument(argument) for argument in arguments]
        caller.call(name, descriptor, *passed)
    return descriptor


def _c_argument(argument: Any) -> Any:
    if isinstance(argument, Enum):
        return int(argument.number)
    return (ctypes.c_int * len(argument))(*argument) if isinstance(argument, tuple) else argument
