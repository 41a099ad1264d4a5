"""Parameter blocks: the host memory that the kernel parameters of a plan are read from at each launch.

One block serves all launches of a plan. It holds each argument by natural C alignment and, for each launch, the
``void*[]`` of cuLaunchKernel. Constants are written once; what changes between executes is reached through slots.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.plan import Argument, Launch, Plan, Scalar, ScalarType, Struct, TensorPointer, TensorValue, WorkspacePointer
from lowdnn.runtime.layout import ARGUMENT_ALIGNMENT_BYTES, POINTER, CType, aligned, layout_of
from lowdnn.status import BadParamError, LowdnnError

#: An 8-byte word of the block, and the offset in bytes that is added to the address that goes there. A plain tuple
#: because patching is the second hottest path of the library.
AddressSlot = tuple[int, int]


@dataclass(frozen=True)
class ValueSlot:
    """A number of ``type`` at byte ``position``, read from host memory where a tensor of ``data_type`` holds it."""

    position: int
    type: ScalarType
    tensor: int
    data_type: DataType


class ParameterBlock:
    """The block of one plan.

    tensor_slots: for each tensor, in the order of ``plan.tensors``, where its address goes.
    workspace_slots: where the workspace's goes.  value_slots: where by-value tensors go.
    launch_parameters: for each launch, the address of its ``void*[]``.
    """

    def __init__(self, plan: Plan) -> None:
        parts = tuple(_parts(plan))
        size_bytes = parts[-1].end_bytes if parts else 0
        self._memory = (ctypes.c_uint64 * (-(-size_bytes // 8) + 2))()
        # ctypes aligns to 8 bytes only; the block starts at the first 16-byte boundary.
        skipped_bytes = ctypes.addressof(self._memory) % ARGUMENT_ALIGNMENT_BYTES
        self._bytes = memoryview(self._memory).cast("B")[skipped_bytes:]
        self._words = self._bytes.cast("Q")
        base = ctypes.addressof(self._memory) + skipped_bytes
        for part in parts:
            part.write(self._bytes, base)
        bound = [found for part in parts for found in part.bound()]
        self.tensor_slots = _tensor_slots(plan, bound)
        self.workspace_slots = tuple(
            (position // 8, leaf.offset_bytes) for position, leaf in bound if isinstance(leaf, WorkspacePointer)
        )
        self.value_slots = _value_slots(plan, bound)
        self.launch_parameters = tuple(base + part.start + part.layout.pointers for part in parts)

    def patch(self, slots: tuple[AddressSlot, ...], address: int) -> None:
        """Writes ``address`` into each slot."""
        words = self._words
        for word, offset_bytes in slots:
            words[word] = address + offset_bytes

    def patch_values(self, addresses: tuple[int, ...]) -> None:
        """Reads every by-value tensor from its host address and writes it into its slots."""
        for slot in self.value_slots:
            _pack(self._bytes, slot.position, slot.type, read_host_value(addresses[slot.tensor], slot.data_type))


def read_host_value(address: int, data_type: DataType) -> int | float:
    """The number of ``data_type`` at a host address."""
    facts = dtypes.info(data_type)
    stored = np.frombuffer(ctypes.string_at(address, facts.size_bytes), facts.storage)
    value: int | float = (dtypes.to_float64(stored, data_type) if facts.is_bit_pattern else stored)[0].item()
    return value


#: What execute writes.
_Bound = TensorPointer | WorkspacePointer | TensorValue


class _Part:
    """The parameters of one launch, from byte ``start`` of the block on."""

    def __init__(self, launch: Launch, start: int) -> None:
        self.start = start
        self._arguments = launch.arguments
        self._numbers: list[int | float] = []
        self._bound: list[tuple[int, _Bound]] = []
        self.layout = layout_of(tuple([self._take(argument) for argument in launch.arguments]))
        self.end_bytes = start + self.layout.size_bytes

    def write(self, block: memoryview, base: int) -> None:
        """Writes what is known when the plan is loaded, and 0 elsewhere; ``base`` is the block's address."""
        addresses = [base + self.start + position for position in self.layout.arguments]
        try:
            self.layout.packer.pack_into(block, self.start, *self._numbers, *addresses)
        except (struct.error, OverflowError):
            unfit = next(scalar for scalar in _scalars(self._arguments) if not _fits(scalar))
            raise _unfit_error(unfit.type, unfit.value) from None

    def bound(self) -> Iterator[tuple[int, _Bound]]:
        """What execute writes, by its position in the block."""
        for leaf, argument in self._bound:
            yield self.start + self.layout.leaves[leaf], argument

    def _take(self, argument: Argument) -> CType:
        """Notes the numbers of an argument and what in it is bound by execute; returns its type."""
        if isinstance(argument, Scalar):
            self._numbers.append(argument.value)
            return argument.type.format_character
        if isinstance(argument, Struct):
            return tuple([self._take(member) for member in argument.fields])
        self._bound.append((len(self._numbers), argument))
        self._numbers.append(0)
        return argument.type.format_character if isinstance(argument, TensorValue) else POINTER


def _parts(plan: Plan) -> Iterator[_Part]:
    end_bytes = 0
    for launch in plan.launches:
        part = _Part(launch, aligned(end_bytes, ARGUMENT_ALIGNMENT_BYTES))
        yield part
        end_bytes = part.end_bytes


def _scalars(arguments: Iterable[Argument]) -> Iterator[Scalar]:
    for argument in arguments:
        if isinstance(argument, Scalar):
            yield argument
        elif isinstance(argument, Struct):
            yield from _scalars(argument.fields)


def _tensor_slots(plan: Plan, bound: Sequence[tuple[int, _Bound]]) -> tuple[tuple[AddressSlot, ...], ...]:
    slots: dict[int, list[AddressSlot]] = {tensor.uid: [] for tensor in plan.tensors}
    for position, leaf in bound:
        if isinstance(leaf, TensorPointer):
            _check_uid(slots, leaf.uid, plan)
            slots[leaf.uid].append((position // 8, leaf.offset_bytes))
    return tuple(tuple(slots[tensor.uid]) for tensor in plan.tensors)


def _value_slots(plan: Plan, bound: Sequence[tuple[int, _Bound]]) -> tuple[ValueSlot, ...]:
    indices = {tensor.uid: index for index, tensor in enumerate(plan.tensors)}
    slots: list[ValueSlot] = []
    for position, leaf in bound:
        if isinstance(leaf, TensorValue):
            _check_uid(indices, leaf.uid, plan)
            index = indices[leaf.uid]
            slots.append(ValueSlot(position, leaf.type, index, plan.tensors[index].data_type))
    return tuple(slots)


def _check_uid(known: Container[int], uid: int, plan: Plan) -> None:
    if uid not in known:
        raise BadParamError.at(f"{plan.name}.launches", expected="uids of plan.tensors", got=uid)


def _pack(block: memoryview, position: int, scalar_type: ScalarType, value: int | float) -> None:
    is_float = scalar_type in (ScalarType.F32, ScalarType.F64)
    try:
        struct.pack_into(f"<{scalar_type.format_character}", block, position, float(value) if is_float else int(value))
    except (struct.error, OverflowError, ValueError):
        raise _unfit_error(scalar_type, value) from None


def _fits(scalar: Scalar) -> bool:
    try:
        struct.pack(f"<{scalar.type.format_character}", scalar.value)
    except (struct.error, OverflowError):
        return False
    return True


def _unfit_error(scalar_type: ScalarType, value: int | float) -> LowdnnError:
    return BadParamError.at("Scalar.value", expected=f"a number that fits {scalar_type.name}", got=value)
