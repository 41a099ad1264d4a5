"""The start of Python in instructions of aarch64.

Source: Arm Architecture Reference Manual for A-profile, chapter C6; Procedure Call Standard for AArch64; ELF for the
Arm 64-bit Architecture, thread-local storage: TPIDR_EL0 has the address of the thread's control block.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from lowdnn.capi.stubs.aarch64 import address, branch, pair
from lowdnn.capi.stubs.starter import Register

_NUMBERS: Final = {
    Register.FIRST: 0,
    Register.SECOND: 1,
    Register.RESULT: 0,
    Register.THREAD: 19,
    Register.HELD: 20,
}
#: A scratch register for addresses; no argument is passed in it.
_PLACE = 9
#: A scratch register for the result of a store-exclusive; no argument is passed in it.
_OUTCOME = 10
_FRAME, _LINK, _STACK, _ZERO = 29, 30, 31, 31
#: The frame: x29 and x30, x19 and x20, x0 to x8 and 8 bytes more, q0 to q7.
_FRAME_BYTES: Final = 16 + 16 + 80 + 128
_WORDS: Final = ((19, 20), (0, 1), (2, 3), (4, 5), (6, 7), (8, _ZERO))
_VECTORS: Final = ((0, 1), (2, 3), (4, 5), (6, 7))
_WORDS_AT, _VECTORS_AT = 16, 112
_STORE, _LOAD, _STORE_VECTORS, _LOAD_VECTORS = 0xA9000000, 0xA9400000, 0xAD000000, 0xAD400000
_STORE_FIRST, _LOAD_LAST = 0xA9800000, 0xA8C00000


class Code:
    """See ``starter.Code``. ``slots`` and ``constants``: their addresses by name; ``at``: where the code begins."""

    def __init__(self, at: int, slots: Mapping[str, int], constants: Mapping[str, int]) -> None:
        self._at = at
        self._slots, self._constants = slots, constants
        self._words: list[int] = []
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    def save(self) -> None:
        self._words += [
            pair(_STORE_FIRST, _FRAME, _LINK, -_FRAME_BYTES),  # stp x29, x30, [sp, #-frame]!
            0x91000000 | _STACK << 5 | _FRAME,  # mov x29, sp
        ]
        self._pairs(_STORE, _STORE_VECTORS)
        self._words.append(0xD53BD040 | _NUMBERS[Register.THREAD])  # mrs x19, tpidr_el0

    def restore(self) -> None:
        self._pairs(_LOAD, _LOAD_VECTORS)
        self._words += [pair(_LOAD_LAST, _FRAME, _LINK, _FRAME_BYTES), 0xD65F03C0]  # ldp x29, x30, [sp], #frame; ret

    def copy(self, to: Register, source: Register) -> None:
        self._words.append(0xAA0003E0 | _NUMBERS[source] << 16 | _NUMBERS[to])  # mov to, source

    def number(self, to: Register, value: int) -> None:
        self._words.append(0xD2800000 | value << 5 | _NUMBERS[to])  # movz

    def address(self, to: Register, constant: str) -> None:
        self._address(_NUMBERS[to], self._constants[constant])

    def load(self, to: Register, slot: str) -> None:
        self._address(_PLACE, self._slots[slot])
        self._words.append(0xC8DFFC00 | _PLACE << 5 | _NUMBERS[to])  # ldar

    def store(self, slot: str, source: Register) -> None:
        self._address(_PLACE, self._slots[slot])
        self._words.append(0xC89FFC00 | _PLACE << 5 | _NUMBERS[source])  # stlr

    def claim(self, slot: str, label: str) -> None:
        result, thread = _NUMBERS[Register.RESULT], _NUMBERS[Register.THREAD]
        self._address(_PLACE, self._slots[slot])
        self._words += [
            0xC85FFC00 | _PLACE << 5 | result,  # ldaxr result, [place]
            0xB5000000 | 4 << 5 | result,  # cbnz result, behind the jump
            0xC800FC00 | _OUTCOME << 16 | _PLACE << 5 | thread,  # stlxr outcome, thread, [place]
            0x35000000 | (-3 & 0x7FFFF) << 5 | _OUTCOME,  # cbnz outcome, to ldaxr
        ]
        self.jump(label)

    def truncate(self, register: Register) -> None:
        self._words.append(0x2A0003E0 | _NUMBERS[register] << 16 | _NUMBERS[register])  # mov w, w

    def call(self, slot: str) -> None:
        self._address(_PLACE, self._slots[slot])
        self._words += [0xF9400000 | _PLACE << 5 | _PLACE, 0xD63F0000 | _PLACE << 5]  # ldr place, [place]; blr place

    def jump(self, label: str) -> None:
        self._jumps.append((len(self._words), label))
        self._words.append(branch(0))

    def jump_if(self, register: Register, label: str, *, equals: Register | int) -> None:
        one = _NUMBERS[register] << 5
        if isinstance(equals, Register):
            self._words.append(0xEB00001F | _NUMBERS[equals] << 16 | one)  # cmp register, register
        else:
            self._words.append(0xF100001F | equals << 10 | one)  # cmp register, #number
        self._words.append(0x54000001 | 2 << 5)  # b.ne behind the jump
        self.jump(label)

    def label(self, name: str) -> None:
        self._labels[name] = len(self._words)

    def content(self) -> bytes:
        for index, label in self._jumps:
            self._words[index] = branch(self._labels[label] - index)
        return struct.pack(f"<{len(self._words)}I", *self._words)

    def _pairs(self, words: int, vectors: int) -> None:
        """Stores or loads the registers of the frame but x29 and x30."""
        for index, (one, other) in enumerate(_WORDS):
            self._words.append(pair(words, one, other, _WORDS_AT + 16 * index))
        for index, (one, other) in enumerate(_VECTORS):
            self._words.append(pair(vectors, one, other, _VECTORS_AT + 32 * index, element_bytes=16))

    def _address(self, register: int, target: int) -> None:
        self._words += address(register, target, self._at + 4 * len(self._words))
