"""Parameter blocks: the host memory that the kernel parameters of a plan are read from at each launch.

One block serves all launches of a plan. It holds each argument by natural C alignment and, for each launch, the
``void*[]`` of cuLaunchKernel. Constants are written once; what changes between executes is reached through slots.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.plan import Argument, Launch, Plan, Scalar, ScalarType, Struct, TensorPointer, TensorValue, WorkspacePointer
from lowdnn.status import BadParamError

#: Kernel arguments start at multiples of this; no by-value struct of a plan needs more.
_ARGUMENT_ALIGNMENT_BYTES = 16
_POINTER_BYTES = 8


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
        layouts = tuple(_lay_out(plan))
        size_bytes = max((layout.end_bytes for layout in layouts), default=0)
        self._memory = (ctypes.c_uint64 * (-(-size_bytes // 8) + 2))()
        # ctypes aligns to 8 bytes only; the block starts at the first 16-byte boundary.
        self._skip_words = ctypes.addressof(self._memory) % _ARGUMENT_ALIGNMENT_BYTES // 8
        self._bytes = memoryview(self._memory).cast("B")[8 * self._skip_words :]
        self._words = self._bytes.cast("Q")
        base = ctypes.addressof(self._memory) + 8 * self._skip_words
        tensor_index = {tensor.uid: index for index, tensor in enumerate(plan.tensors)}
        tensor_slots: list[list[AddressSlot]] = [[] for _ in plan.tensors]
        workspace_slots: list[AddressSlot] = []
        value_slots: list[ValueSlot] = []
        for layout in layouts:
            for index, position in enumerate(layout.arguments):
                self._words[layout.pointers // 8 + index] = base + position
            for position, leaf in layout.leaves:
                if isinstance(leaf, Scalar):
                    _pack(self._bytes, position, leaf.type, leaf.value)
                elif isinstance(leaf, WorkspacePointer):
                    workspace_slots.append((position // 8, leaf.offset_bytes))
                else:
                    index = _tensor_index(tensor_index, leaf.uid, plan)
                    if isinstance(leaf, TensorPointer):
                        tensor_slots[index].append((position // 8, leaf.offset_bytes))
                    else:
                        value_slots.append(ValueSlot(position, leaf.type, index, plan.tensors[index].data_type))
        self.tensor_slots = tuple(tuple(slots) for slots in tensor_slots)
        self.workspace_slots = tuple(workspace_slots)
        self.value_slots = tuple(value_slots)
        self.launch_parameters = tuple(base + layout.pointers for layout in layouts)

    def patch(self, slots: tuple[AddressSlot, ...], address: int) -> None:
        """Writes ``address`` into each slot."""
        words = self._words
        for word, offset_bytes in slots:
            words[word] = address + offset_bytes

    def patch_values(self, addresses: tuple[int, ...]) -> None:
        """Reads every by-value tensor from its host address and writes it into its slots."""
        for slot in self.value_slots:
            _pack(self._bytes, slot.position, slot.type, read_host_value(addresses[slot.tensor], slot.data_type))

    def arguments_of(self, launch: int, sizes: tuple[int, ...]) -> tuple[bytes, ...]:
        """The bytes of each argument of one launch, for reports; ``sizes`` are their sizes."""
        first = self.launch_parameters[launch]
        pointers = (ctypes.c_uint64 * len(sizes)).from_address(first)
        return tuple(ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes, strict=True))


def layout_of(argument: Argument) -> tuple[int, int]:
    """(size, alignment) in bytes of an argument as C lays it out; a struct without members has size 1, as in C++."""
    if isinstance(argument, Struct):
        size_bytes, alignment_bytes = 0, 1
        for member in argument.fields:
            member_size, member_alignment = layout_of(member)
            size_bytes = _aligned(size_bytes, member_alignment) + member_size
            alignment_bytes = max(alignment_bytes, member_alignment)
        return max(_aligned(size_bytes, alignment_bytes), 1), alignment_bytes
    if isinstance(argument, Scalar | TensorValue):
        return argument.type.size_bytes, argument.type.size_bytes
    return _POINTER_BYTES, _POINTER_BYTES


def read_host_value(address: int, data_type: DataType) -> int | float:
    """The number of ``data_type`` at a host address."""
    facts = dtypes.info(data_type)
    stored = np.frombuffer(ctypes.string_at(address, facts.size_bytes), facts.storage)
    value: int | float = (dtypes.to_float64(stored, data_type) if facts.is_bit_pattern else stored)[0].item()
    return value


Leaf = TensorPointer | WorkspacePointer | Scalar | TensorValue


@dataclass(frozen=True)
class _LaunchLayout:
    """Byte positions in the block: of each argument, of each leaf inside the arguments, of the pointer array."""

    arguments: tuple[int, ...]
    leaves: tuple[tuple[int, Leaf], ...]
    pointers: int
    end_bytes: int


def _lay_out(plan: Plan) -> Iterator[_LaunchLayout]:
    position = 0
    for launch in plan.launches:
        layout = _launch_layout(launch, position)
        yield layout
        position = layout.end_bytes


def _launch_layout(launch: Launch, position: int) -> _LaunchLayout:
    arguments: list[int] = []
    leaves: list[tuple[int, Leaf]] = []
    for argument in launch.arguments:
        position = _aligned(position, _ARGUMENT_ALIGNMENT_BYTES)
        arguments.append(position)
        leaves.extend(_leaves(argument, position))
        position += layout_of(argument)[0]
    pointers = _aligned(position, _POINTER_BYTES)
    return _LaunchLayout(tuple(arguments), tuple(leaves), pointers, pointers + _POINTER_BYTES * len(arguments))


def _leaves(argument: Argument, position: int) -> Iterator[tuple[int, Leaf]]:
    if not isinstance(argument, Struct):
        yield position, argument
        return
    for member in argument.fields:
        size_bytes, alignment_bytes = layout_of(member)
        position = _aligned(position, alignment_bytes)
        yield from _leaves(member, position)
        position += size_bytes


def _pack(block: memoryview, position: int, scalar_type: ScalarType, value: int | float) -> None:
    is_float = scalar_type in (ScalarType.F32, ScalarType.F64)
    try:
        # Little-endian and not native: native packing turns a float that does not fit into infinity.
        struct.pack_into(f"<{scalar_type.value}", block, position, float(value) if is_float else int(value))
    except (struct.error, OverflowError, ValueError):
        raise BadParamError.at("Scalar.value", expected=f"a number that fits {scalar_type.name}", got=value) from None


def _tensor_index(indices: Mapping[int, int], uid: int, plan: Plan) -> int:
    if uid not in indices:
        raise BadParamError.at(f"{plan.name}.launches", expected="uids of plan.tensors", got=uid)
    return indices[uid]


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
