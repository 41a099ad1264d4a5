"""The start of Python in instructions of x86-64.

Source: AMD64 Architecture Programmer's Manual, volume 3; System V ABI, AMD64 supplement, and its control block at fs:0.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from lowdnn.capi.stubs.assembler_x86_64 import Assembler
from lowdnn.capi.stubs.starter import Register

_NUMBERS: Final = {
    Register.RESULT: 0,  # rax
    Register.THREAD: 3,  # rbx
    Register.SECOND: 6,  # rsi
    Register.FIRST: 7,  # rdi
    Register.HELD: 12,  # r12
}
_MOVE, _COMPARE, _LOAD, _STORE, _ADDRESS = 0x89, 0x39, 0x8B, 0x89, 0x8D
_JUMP, _IF_EQUAL = "e9", "0f84"
#: Displacements from rsp, as ModRM, SIB and byte of movups for xmm0 to xmm7.
_VECTORS: Final[Sequence[str]] = [f"{0x44 + 8 * index:02x}24{16 * index:02x}" for index in range(8)]


class Code(Assembler):
    """See ``starter.Code``. ``slots`` and ``constants``: their addresses by name; ``at``: where the code begins."""

    def __init__(self, at: int, slots: Mapping[str, int], constants: Mapping[str, int]) -> None:
        super().__init__(at)
        self._slots, self._constants = slots, constants

    def save(self) -> None:
        self._add("554889e5")  # push rbp; mov rbp, rsp
        self._add("5756525141504151534154")  # push rdi, rsi, rdx, rcx, r8, r9, rbx, r12
        self._add("4881ec800000004883e4f0")  # sub rsp, 128; and rsp, -16
        for place in _VECTORS:
            self._add(f"0f11{place}")  # movups [rsp + 16 i], xmm i
        self._add("64488b1c2500000000")  # mov rbx, fs:[0]

    def restore(self) -> None:
        for place in _VECTORS:
            self._add(f"0f10{place}")  # movups xmm i, [rsp + 16 i]
        self._add("488d65c0")  # lea rsp, [rbp - 64]
        self._add("415c5b41594158595a5e5f5dc3")  # pop r12, rbx, r9, r8, rcx, rdx, rsi, rdi, rbp; ret

    def copy(self, to: Register, source: Register) -> None:
        self._between(_MOVE, to, source)

    def number(self, to: Register, value: int) -> None:
        self._bytes += bytes((0x40 | _NUMBERS[to] >> 3, 0xB8 | _NUMBERS[to] & 7)) + struct.pack("<I", value)

    def address(self, to: Register, constant: str) -> None:
        self._in_memory(_ADDRESS, to, self._constants[constant])

    def load(self, to: Register, slot: str) -> None:
        self._in_memory(_LOAD, to, self._slots[slot])

    def store(self, slot: str, source: Register) -> None:
        self._in_memory(_STORE, source, self._slots[slot])

    def claim(self, slot: str, label: str) -> None:
        self._add("31c0")  # xor eax, eax
        self._add("f0480fb11d")  # lock cmpxchg [slot], rbx
        self._relative(self._slots[slot])
        self._branch(_IF_EQUAL, label)

    def truncate(self, register: Register) -> None:
        number = _NUMBERS[register]
        self._bytes += bytes((0x40 | 5 * (number >> 3), 0x89, 0xC0 | 9 * (number & 7)))  # mov r, r with 32 bits

    def call(self, slot: str) -> None:
        self._add("ff15")
        self._relative(self._slots[slot])

    def jump(self, label: str) -> None:
        self._branch(_JUMP, label)

    def jump_if(self, register: Register, label: str, *, equals: Register | int) -> None:
        if isinstance(equals, Register):
            self._between(_COMPARE, register, equals)
        else:
            number = _NUMBERS[register]
            self._bytes += bytes((0x48 | number >> 3, 0x83, 0xF8 | number & 7, equals))  # cmp r, number
        self._branch(_IF_EQUAL, label)

    def _between(self, opcode: int, one: Register, other: Register) -> None:
        """An instruction on two registers of 64 bits."""
        first, second = _NUMBERS[one], _NUMBERS[other]
        self._bytes += bytes((0x48 | second >> 3 << 2 | first >> 3, opcode, 0xC0 | (second & 7) << 3 | first & 7))

    def _in_memory(self, opcode: int, register: Register, target: int) -> None:
        """An instruction on a register of 64 bits and the memory at ``target``."""
        number = _NUMBERS[register]
        self._bytes += bytes((0x48 | number >> 3 << 2, opcode, 0x05 | (number & 7) << 3))
        self._relative(target)
