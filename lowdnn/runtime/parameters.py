"""Parameter blocks: the host memory that the kernel parameters of a plan are read from at each launch.

One block serves all launches of a plan. It holds each argument by natural C alignment, a struct that several launches
share once, and, for each launch, the ``void*[]`` of cuLaunchKernel. Constants are written once; what changes between
executes is reached through slots.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.plan import (
    Argument,
    Launch,
    Plan,
    Pointer,
    Scalar,
    ScalarType,
    Struct,
    TensorMap,
    TensorPointer,
    TensorValue,
    ValueCase,
    WorkspacePointer,
)
from lowdnn.runtime.layout import ARGUMENT_ALIGNMENT_BYTES, POINTER, TENSOR_MAP, CType, aligned, layout_of
from lowdnn.runtime.tensor_maps import EncodedMap, MapEncoder
from lowdnn.status import BadParamError, LowdnnError
from lowdnn.tensor_map import TENSOR_MAP_BYTES

#: An 8-byte word of the block, and the offset in bytes that is added to the workspace's address that goes there.
WorkspaceSlot = tuple[int, int]
#: A word, the index of the tensor whose address goes there, and the offset. A plain tuple, because patching is the
#: second hottest path of the library: the layers of a network that have one plan bring their own addresses.
TensorSlot = tuple[int, int, int]


@dataclass(frozen=True)
class ValueSlot:
    """A number of ``type`` at byte ``position``: what a tensor of ``data_type`` in host memory holds, or what follows
    from that by a ``case``."""

    position: int
    type: ScalarType
    tensor: int
    data_type: DataType
    case: ValueCase | None = None


@dataclass(frozen=True)
class MapSlot:
    """A tensor map at byte ``position`` whose address only the driver can replace.

    ``content`` is the map with address 0; ``tensor`` the index of the tensor that it maps, None for the workspace.
    """

    position: int
    content: bytes
    tensor: int | None
    offset_bytes: int


class ParameterBlock:
    """The block of one plan.

    tensor_slots: where tensors' addresses go, by the index of each in ``plan.tensors``.
    workspace_slots: where the workspace's goes.  value_slots: where by-value tensors go.
    map_slots: tensor maps that hide their address from us; those that do not are among the former two.
    launch_parameters: for each launch, the address of its ``void*[]``.
    argument_bytes: for each launch, the sizes of its arguments.  size_bytes: the size of the block.
    """

    def __init__(self, plan: Plan, encode_map: MapEncoder) -> None:
        """``encode_map`` encodes the tensor maps of ``plan``, which keeps ``plan_rules``.

        Raises BadParamError for a tensor map of a tensor that may lie where no map can begin.
        """
        parts = tuple(_parts(plan, encode_map))
        size_bytes = parts[-1].end_bytes if parts else 0
        self._memory = (ctypes.c_uint64 * ((size_bytes + ARGUMENT_ALIGNMENT_BYTES) // 8))()
        self.size_bytes = ctypes.sizeof(self._memory)
        # ctypes aligns to 8 bytes only; the block starts at the first boundary that suits every argument.
        skipped_bytes = -ctypes.addressof(self._memory) % ARGUMENT_ALIGNMENT_BYTES
        self._bytes = memoryview(self._memory).cast("B")[skipped_bytes:]
        self._words = self._bytes.cast("Q")
        base = ctypes.addressof(self._memory) + skipped_bytes
        for part in parts:
            part.write(self._bytes, base)
        maps = tuple(found for part in parts for found in part.maps())
        _check_maps(plan, maps)
        bound = [found for part in parts for found in part.bound()]
        bound += [
            (position + 8 * encoded.address_word, tensor_map.target)
            for position, encoded, tensor_map in maps
            if encoded.address_word is not None
        ]
        self.tensor_slots = _tensor_slots(plan, bound)
        self.workspace_slots: tuple[WorkspaceSlot, ...] = tuple(
            (position // 8, leaf.offset_bytes) for position, leaf in bound if isinstance(leaf, WorkspacePointer)
        )
        self.value_slots = _value_slots(plan, bound)
        self._value_writers = tuple((slot.tensor, _value_writer(self._bytes, slot)) for slot in self.value_slots)
        self.map_slots = _map_slots(plan, maps)
        self.argument_bytes = tuple(part.sizes for part in parts)
        self.launch_parameters = tuple(base + part.start + part.layout.pointers for part in parts)

    def patch_tensors(self, addresses: tuple[int, ...]) -> None:
        """Writes the tensors' addresses where they belong."""
        words = self._words
        for word, tensor, offset_bytes in self.tensor_slots:
            words[word] = addresses[tensor] + offset_bytes

    def patch_workspace(self, address: int) -> None:
        for word, offset_bytes in self.workspace_slots:
            self._words[word] = address + offset_bytes

    def patch_values(self, addresses: tuple[int, ...]) -> None:
        """Reads every by-value tensor from its host address and writes it into its slots."""
        for tensor, write in self._value_writers:
            write(addresses[tensor])

    def patch_maps(
        self, addresses: tuple[int, ...], workspace: int, replace_address: Callable[[bytes, int], bytes]
    ) -> None:
        """Gives the maps of ``map_slots`` the addresses of their tensors, by the driver's ``replace_address``."""
        for slot in self.map_slots:
            address = (workspace if slot.tensor is None else addresses[slot.tensor]) + slot.offset_bytes
            content = replace_address(slot.content, address)
            self._bytes[slot.position : slot.position + TENSOR_MAP_BYTES] = content


def read_host_value(address: int, data_type: DataType) -> int | float:
    """The number of ``data_type`` at a host address."""
    facts = dtypes.info(data_type)
    stored = np.frombuffer(ctypes.string_at(address, facts.size_bytes), facts.storage)
    value: int | float = (dtypes.to_float64(stored, data_type) if facts.is_bit_pattern else stored)[0].item()
    return value


#: The format of a memoryview and the ctypes class of an unsigned integer, by its bytes.
_WORDS: dict[int, tuple[Literal["I", "Q"], type[ctypes.c_uint32 | ctypes.c_uint64]]] = {
    4: ("I", ctypes.c_uint32),
    8: ("Q", ctypes.c_uint64),
}
#: The types of arguments that execute writes as a whole.
_Bound = Pointer | TensorValue | ValueCase
#: A tensor map by its position in the block.
_PlacedMap = tuple[int, EncodedMap, TensorMap]


@dataclass(frozen=True)
class _Placed:
    """An argument by its position in the block, and its bytes."""

    position: int
    size_bytes: int


class _Part:
    """The parameters of one launch, from byte ``start`` of the block on.

    placed: structs of earlier launches by identity, and then those of this one.
    """

    def __init__(self, launch: Launch, start: int, encode_map: MapEncoder, placed: dict[int, _Placed]) -> None:
        self.start = start
        self._encode_map = encode_map
        self._contents: list[int | float | bytes] = []
        self._bound: list[tuple[int, _Bound]] = []
        self._maps: list[tuple[int, EncodedMap, TensorMap]] = []
        own = [argument for argument in launch.arguments if id(argument) not in placed]
        types = tuple([self._take(argument) for argument in own])
        self.layout = layout_of(types, len(launch.arguments) - len(own))
        self.end_bytes = start + self.layout.size_bytes
        found = {
            id(argument): _Placed(start + position, size_bytes)
            for argument, position, size_bytes in zip(own, self.layout.arguments, self.layout.sizes, strict=True)
        }
        self._arguments = [found.get(id(argument)) or placed[id(argument)] for argument in launch.arguments]
        placed.update((id(argument), found[id(argument)]) for argument in own if isinstance(argument, Struct))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each argument."""
        return tuple([argument.size_bytes for argument in self._arguments])

    def write(self, block: memoryview, base: int) -> None:
        """Writes what is known when the plan is loaded, and 0 elsewhere; ``base`` is the block's address."""
        addresses = [base + argument.position for argument in self._arguments]
        self.layout.packer.pack_into(block, self.start, *self._contents, *addresses)

    def bound(self) -> Iterator[tuple[int, _Bound]]:
        """The arguments that execute writes, by their position in the block."""
        for leaf, argument in self._bound:
            yield self.start + self.layout.leaves[leaf], argument

    def maps(self) -> Iterator[_PlacedMap]:
        for leaf, encoded, tensor_map in self._maps:
            yield self.start + self.layout.leaves[leaf], encoded, tensor_map

    def _take(self, argument: Argument) -> CType:
        """Notes the contents of an argument and what in it is bound by execute; returns its type."""
        if isinstance(argument, Scalar):
            self._contents.append(argument.value)
            return argument.type.format_character
        if isinstance(argument, Struct):
            return tuple([self._take(member) for member in argument.fields])
        if isinstance(argument, TensorMap):
            encoded = self._encode_map(argument.layout)
            self._maps.append((len(self._contents), encoded, argument))
            self._contents.append(encoded.content)
            return TENSOR_MAP
        self._bound.append((len(self._contents), argument))
        self._contents.append(0)
        return argument.type.format_character if isinstance(argument, TensorValue | ValueCase) else POINTER


def _parts(plan: Plan, encode_map: MapEncoder) -> Iterator[_Part]:
    end_bytes, placed = 0, dict[int, _Placed]()
    for launch in plan.launches:
        part = _Part(launch, aligned(end_bytes, ARGUMENT_ALIGNMENT_BYTES), encode_map, placed)
        yield part
        end_bytes = part.end_bytes


def _tensor_slots(plan: Plan, bound: Sequence[tuple[int, _Bound]]) -> tuple[TensorSlot, ...]:
    indices = {tensor.uid: index for index, tensor in enumerate(plan.tensors)}
    return tuple(
        (position // 8, indices[leaf.uid], leaf.offset_bytes)
        for position, leaf in bound
        if isinstance(leaf, TensorPointer)
    )


def _value_slots(plan: Plan, bound: Sequence[tuple[int, _Bound]]) -> tuple[ValueSlot, ...]:
    indices = {tensor.uid: index for index, tensor in enumerate(plan.tensors)}
    slots: list[ValueSlot] = []
    for position, leaf in bound:
        if isinstance(leaf, TensorValue | ValueCase):
            index, case = indices[leaf.uid], leaf if isinstance(leaf, ValueCase) else None
            slots.append(ValueSlot(position, leaf.type, index, plan.tensors[index].data_type, case))
    return tuple(slots)


def _map_slots(plan: Plan, maps: Sequence[_PlacedMap]) -> tuple[MapSlot, ...]:
    indices = {tensor.uid: index for index, tensor in enumerate(plan.tensors)}
    return tuple(
        MapSlot(
            position,
            encoded.content,
            indices[tensor_map.target.uid] if isinstance(tensor_map.target, TensorPointer) else None,
            tensor_map.target.offset_bytes,
        )
        for position, encoded, tensor_map in maps
        if encoded.address_word is None
    )


def _check_maps(plan: Plan, maps: Sequence[_PlacedMap]) -> None:
    """Raises BadParamError unless every address that execute lets pass is one that the maps can take."""
    tensors = {tensor.uid: tensor for tensor in plan.tensors}
    for _, _, tensor_map in maps:
        if isinstance(tensor_map.target, WorkspacePointer):
            continue
        tensor = tensors[tensor_map.target.uid]
        alignment_bytes = tensor_map.alignment_bytes
        if tensor.is_by_value or not tensor.size_bytes or tensor.alignment_bytes % alignment_bytes:
            raise BadParamError.at(
                f"{plan.name}.tensors[uid {tensor.uid}]",
                expected=f"device memory aligned to {alignment_bytes} bytes, as its tensor map needs",
                got=tensor,
            )


def _value_writer(block: memoryview, slot: ValueSlot) -> Callable[[int], None]:
    """A function that copies the value at a host address into its slot, bit by bit where both have one type."""
    if (case := slot.case) is not None:
        return lambda address: _pack(block, slot.position, slot.type, _of_case(case, address, slot.data_type))
    storage = dtypes.info(slot.data_type).storage
    if storage.itemsize not in _WORDS or storage != np.dtype(slot.type.format_character):
        return lambda address: _pack(block, slot.position, slot.type, read_host_value(address, slot.data_type))
    code, word = _WORDS[storage.itemsize]
    words, place = block.cast(code), slot.position // storage.itemsize
    last_address, at_address = 0, word()  # a view costs more than a read, so it is made once for each address

    def copy(address: int) -> None:
        nonlocal last_address, at_address
        if address != last_address:
            last_address, at_address = address, word.from_address(address)
        words[place] = at_address.value

    return copy


def _of_case(case: ValueCase, address: int, data_type: DataType) -> int | float:
    return case.then if read_host_value(address, data_type) == case.value else case.otherwise


def _pack(block: memoryview, position: int, scalar_type: ScalarType, value: int | float) -> None:
    is_float = scalar_type in (ScalarType.F32, ScalarType.F64)
    try:
        struct.pack_into(f"<{scalar_type.format_character}", block, position, float(value) if is_float else int(value))
    except (struct.error, OverflowError, ValueError):
        raise _unfit_error(scalar_type, value) from None


def _unfit_error(scalar_type: ScalarType, value: int | float) -> LowdnnError:
    return BadParamError.at("Scalar.value", expected=f"a number that fits {scalar_type.name}", got=value)
