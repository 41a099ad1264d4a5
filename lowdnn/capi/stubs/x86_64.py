"""Stubs for x86-64: a jump through a table of addresses, and what happens where the entry is empty.

Only caller-saved registers are used: r11 for the jump, and rax, rdx and the arguments' own in a fallback.
Source: AMD64 Architecture Programmer's Manual, volume 3; System V ABI, AMD64 supplement.
"""

from __future__ import annotations

import struct
from typing import Final

from lowdnn.capi.stubs.fallbacks import Action, Fallback
from lowdnn.status import Status

#: The processor's number in an ELF header.
MACHINE: Final = 62
#: R_X86_64_GLOB_DAT: the relocation that writes the address of a symbol.
IMPORTED: Final = 6

_RETURN = b"\xc3"


def stub(fallback: Fallback, at: int, entry: int, constants: int) -> bytes:
    """The code of one function that begins at address ``at``, whose table entry is at ``entry``."""
    through = jump(entry, at)
    return through + _fallback(fallback, at + len(through), constants + fallback.value)


def jump(entry: int, at: int) -> bytes:
    """Code at ``at`` that jumps to the address in the table entry at ``entry``; if that is empty, execution continues
    after the code."""
    return (
        b"\x4c\x8b\x1d" + _relative(entry, at + 7)  # mov r11, [entry]
        + b"\x4d\x85\xdb"  # test r11, r11
        + b"\x74\x03"  # jz over the jump
        + b"\x41\xff\xe3"  # jmp r11
    )  # fmt: skip


def call(target: int, at: int) -> bytes:
    """Code at ``at`` that calls ``target``."""
    return b"\xe8" + _relative(target, at + 5)


def emptying(table: int, count: int, at: int) -> bytes:
    """A function at ``at`` that writes 0 to ``count`` entries of the table."""
    return (
        b"\x48\x8d\x3d" + _relative(table, at + 7)  # lea rdi, [table]
        + b"\xb9" + struct.pack("<I", count)  # mov ecx, count
        + b"\x31\xc0"  # xor eax, eax
        + b"\xf3\x48\xab"  # rep stosq
        + _RETURN
    )  # fmt: skip


def _fallback(fallback: Fallback, at: int, constant: int) -> bytes:
    match fallback.action:
        case Action.RETURN_NUMBER:
            return _returned(fallback.value)
        case Action.RETURN_ADDRESS:
            return b"\x48\x8d\x05" + _relative(constant, at + 7) + _RETURN  # lea rax, [constant]
        case Action.COPY_TEXT:
            return _copy_text(at, constant)
        case Action.WRITE_PROPERTY:
            return _write_property(at, constant)


def _copy_text(at: int, constant: int) -> bytes:
    step = (
        b"\x8a\x02"  # mov al, [rdx]
        b"\x48\xff\xce"  # dec rsi
        b"\x75\x02"  # jnz over the next: more bytes fit
        b"\x30\xc0"  # xor al, al
        b"\x88\x07"  # mov [rdi], al
        b"\x48\xff\xc2"  # inc rdx
        b"\x48\xff\xc7"  # inc rdi
        b"\x84\xc0"  # test al, al
    )
    loop = step + b"\x75" + _short(-len(step) - 2)  # jnz to the start
    body = b"\x48\x8d\x15" + _relative(constant, at + 10 + 7) + loop  # lea rdx, [constant]
    return (
        b"\x48\x85\xf6" + b"\x74" + _short(len(body) + 5)  # test rsi, rsi; jz to the end
        + b"\x48\x85\xff" + b"\x74" + _short(len(body))  # test rdi, rdi; jz to the end
        + body
        + _RETURN
    )  # fmt: skip


def _write_property(at: int, constant: int) -> bytes:
    write = (
        b"\x48\x8d\x15" + _relative(constant, at + 10 + 7)  # lea rdx, [constant]
        + b"\x89\xff"  # mov edi, edi
        + b"\x8b\x04\xba"  # mov eax, [rdx + 4 * rdi]
        + b"\x89\x06"  # mov [rsi], eax
        + b"\x31\xc0"  # xor eax, eax
        + _RETURN
    )  # fmt: skip
    is_null = _returned(Status.BAD_PARAM_NULL_POINTER)
    return (
        b"\x83\xff\x02" + b"\x77" + _short(5 + len(write) + len(is_null))  # cmp edi, 2; ja behind is_null
        + b"\x48\x85\xf6" + b"\x74" + _short(len(write))  # test rsi, rsi; jz to is_null
        + write
        + is_null
        + _returned(Status.BAD_PARAM)
    )  # fmt: skip


def _returned(number: int) -> bytes:
    return b"\xb8" + struct.pack("<I", number) + _RETURN  # mov eax, number


def _relative(target: int, next_instruction: int) -> bytes:
    return struct.pack("<i", target - next_instruction)


def _short(distance: int) -> bytes:
    return struct.pack("<b", distance)
