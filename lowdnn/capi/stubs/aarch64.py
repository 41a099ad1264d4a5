"""Stubs for aarch64: a jump through a table of addresses, and what happens where the entry is empty.

Only x16, which the procedure call standard gives to such jumps, and x0 to x3 are used.
Source: Arm Architecture Reference Manual for A-profile, chapter C6; Procedure Call Standard for AArch64.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from lowdnn.capi.stubs.fallbacks import Action, Fallback
from lowdnn.status import Status

#: The processor's number in an ELF header.
MACHINE: Final = 183
#: R_AARCH64_GLOB_DAT: the relocation that writes the address of a symbol.
IMPORTED: Final = 1025

_RET: Final = 0xD65F03C0
_NOT_EQUAL, _HIGHER = 1, 8
_ZERO, _STACK = 31, 31


def stub(fallback: Fallback, at: int, entry: int, constants: int) -> bytes:
    """The code of one function that begins at address ``at``, whose table entry is at ``entry``."""
    through = jump(entry, at)
    return through + _packed(_fallback(fallback, at + len(through), constants + fallback.value))


def jump(entry: int, at: int) -> bytes:
    """Code at ``at`` that jumps to the address in the table entry at ``entry``; if that is empty, execution continues
    after the code."""
    return _packed(
        (
            _adrp(16, entry, at),
            0xF9400000 | (entry % 4096 // 8) << 10 | 16 << 5 | 16,  # ldr x16, [x16, entry's offset in its page]
            _cbz(16, 2),
            0xD61F0000 | 16 << 5,  # br x16
        )
    )


def call(target: int, at: int) -> bytes:
    """Code at ``at`` that calls ``target`` and keeps its own return address."""
    return _packed(
        (
            pair(0xA9800000, 29, 30, -16),  # stp x29, x30, [sp, #-16]!
            0x94000000 | ((target - at) // 4 - 1) & 0x3FFFFFF,  # bl target
            pair(0xA8C00000, 29, 30, 16),  # ldp x29, x30, [sp], #16
        )
    )


def emptying(table: int, count: int, at: int) -> bytes:
    """A function at ``at`` that writes 0 to ``count`` entries of the table."""
    return _packed(
        (
            *address(0, table, at),
            0xD2800000 | count << 5 | 1,  # mov x1, #count
            0xF8008400 | 0 << 5 | _ZERO,  # str xzr, [x0], #8
            0xF1000400 | 1 << 5 | 1,  # subs x1, x1, #1
            0x54000000 | (-2 & 0x7FFFF) << 5 | _NOT_EQUAL,  # b.ne to str
            _RET,
        )
    )


def pair(opcode: int, one: int, other: int, offset: int, element_bytes: int = 8) -> int:
    """An instruction that stores or loads two registers at ``offset`` from the stack pointer."""
    return opcode | (offset // element_bytes & 0x7F) << 15 | other << 10 | _STACK << 5 | one


def branch(words: int) -> int:
    """A branch by ``words`` instructions."""
    return 0x14000000 | words & 0x3FFFFFF


def address(register: int, target: int, at: int) -> Sequence[int]:
    """adrp and add: the address of ``target``, from code at ``at``."""
    return _adrp(register, target, at), 0x91000000 | target % 4096 << 10 | register << 5 | register


def _fallback(fallback: Fallback, at: int, constant: int) -> Sequence[int]:
    match fallback.action:
        case Action.RETURN_NUMBER:
            return _returned(fallback.value)
        case Action.RETURN_ADDRESS:
            return (*address(0, constant, at), _RET)
        case Action.COPY_TEXT:
            return (
                _cbz(0, 9),
                *address(2, constant, at + 4),
                _cbz(1, 6),
                0x38401400 | 2 << 5 | 3,  # ldrb w3, [x2], #1
                0xF1000400 | 1 << 5 | 1,  # subs x1, x1, #1
                0x1A800000 | _ZERO << 16 | _NOT_EQUAL << 12 | 3 << 5 | 3,  # csel w3, w3, wzr, ne
                0x38001400 | 0 << 5 | 3,  # strb w3, [x0], #1
                0x35000000 | (-4 & 0x7FFFF) << 5 | 3,  # cbnz w3, to ldrb
                _RET,
            )
        case Action.WRITE_PROPERTY:
            return _write_property(at, constant)


def _write_property(at: int, constant: int) -> Sequence[int]:
    is_null = _returned(Status.BAD_PARAM_NULL_POINTER)
    write = (
        *address(2, constant, at + 12),
        0xB8605800 | 0 << 16 | 2 << 5 | 3,  # ldr w3, [x2, w0, uxtw #2]
        0xB9000000 | 1 << 5 | 3,  # str w3, [x1]
        0x52800000,  # mov w0, #0
        _RET,
    )
    return (
        0x7100001F | 2 << 10 | 0 << 5,  # cmp w0, #2
        0x54000000 | (2 + len(write) + len(is_null)) << 5 | _HIGHER,  # b.hi behind is_null
        _cbz(1, 1 + len(write)),  # to is_null
        *write,
        *is_null,
        *_returned(Status.BAD_PARAM),
    )


def _returned(number: int) -> Sequence[int]:
    low, high = number & 0xFFFF, number >> 16
    return (0x52800000 | low << 5, 0x72A00000 | high << 5, _RET)  # movz w0, low; movk w0, high, lsl 16


def _adrp(register: int, target: int, at: int) -> int:
    pages = (target >> 12) - (at >> 12)
    return 0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | register


def _cbz(register: int, words: int) -> int:
    """A branch by ``words`` instructions where the 64-bit register is zero."""
    return 0xB4000000 | words << 5 | register


def _packed(words: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)
