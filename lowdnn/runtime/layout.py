"""How C lays out the arguments of a kernel that are passed by value.

A layout depends on types only, so it is worked out once for each list of types and serves every launch that has them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from lowdnn.tensor_map import TENSOR_MAP_ALIGN, TENSOR_MAP_BYTES

#: A type: a format character of the ``struct`` module, or the types of the members of a C struct.
CType = str | tuple["CType", ...]

#: An address as a C type.
POINTER: CType = "Q"
#: A tensor map as a C type: its bytes, which the kernel's struct aligns to ``TENSOR_MAP_ALIGN``.
TENSOR_MAP: CType = f"{TENSOR_MAP_BYTES}s"

_POINTER_BYTES = 8
#: Kernel arguments start at multiples of this; no by-value struct of a plan needs more.
ARGUMENT_ALIGNMENT_BYTES = TENSOR_MAP_ALIGN


@dataclass(frozen=True)
class ArgumentLayout:
    """Byte positions of one launch's arguments, counted from a multiple of ``ARGUMENT_ALIGNMENT_BYTES``.

    arguments: the position of each argument.  sizes: its bytes.
    leaves: the position of each number, address and tensor map in the arguments, in their order.
    pointers: the position of the ``void*[]`` of cuLaunchKernel, which follows the arguments.
    packer: packs all leaves, then the addresses of the ``void*[]``.
    """

    arguments: tuple[int, ...]
    sizes: tuple[int, ...]
    leaves: tuple[int, ...]
    pointers: int
    packer: struct.Struct

    @property
    def size_bytes(self) -> int:
        return self.packer.size


@lru_cache(maxsize=1024)
def layout_of(arguments: tuple[CType, ...], elsewhere: int = 0) -> ArgumentLayout:
    """The layout of arguments of these types.  elsewhere: the number of the launch's arguments outside of it."""
    positions: list[int] = []
    sizes = tuple(size_and_alignment(argument)[0] for argument in arguments)
    leaves: list[tuple[int, str]] = []
    end = 0
    for argument, size_bytes in zip(arguments, sizes, strict=True):
        start = aligned(end, ARGUMENT_ALIGNMENT_BYTES)
        positions.append(start)
        leaves.extend(_leaves(argument, start))
        end = start + size_bytes
    pointers = aligned(end, _POINTER_BYTES)
    addresses = [(pointers + _POINTER_BYTES * index, "Q") for index in range(len(arguments) + elsewhere)]
    return ArgumentLayout(
        arguments=tuple(positions),
        sizes=sizes,
        leaves=tuple(position for position, _ in leaves),
        pointers=pointers,
        packer=_packer([*leaves, *addresses]),
    )


def size_and_alignment(c_type: CType) -> tuple[int, int]:
    """(size, alignment) in bytes; a struct without members has size 1, as in C++."""
    if isinstance(c_type, str):
        size_bytes = struct.calcsize(f"<{c_type}")
        return size_bytes, min(size_bytes, TENSOR_MAP_ALIGN)
    end, alignment_bytes = 0, 1
    for member in c_type:
        member_size, member_alignment = size_and_alignment(member)
        end = aligned(end, member_alignment) + member_size
        alignment_bytes = max(alignment_bytes, member_alignment)
    return max(aligned(end, alignment_bytes), 1), alignment_bytes


def aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _leaves(c_type: CType, position: int) -> Iterator[tuple[int, str]]:
    if isinstance(c_type, str):
        yield position, c_type
        return
    for member in c_type:
        size_bytes, alignment_bytes = size_and_alignment(member)
        position = aligned(position, alignment_bytes)
        yield from _leaves(member, position)
        position += size_bytes


def _packer(leaves: list[tuple[int, str]]) -> struct.Struct:
    """Little-endian and not native: native packing turns a float that does not fit into infinity."""
    text, end = "<", 0
    for position, character in leaves:
        text += f"{position - end}x{character}"
        end = position + struct.calcsize(f"<{character}")
    return struct.Struct(text)
