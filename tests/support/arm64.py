"""Runs the few aarch64 instructions that the stubs of ``lowdnn.capi`` are made of, on memory given as bytes."""

from __future__ import annotations

import struct

MASK = 2**64 - 1


class Arm64:
    """A processor whose ``memory`` begins at address 0; ``x`` has the registers."""

    def __init__(self, memory: bytearray) -> None:
        self.memory = memory
        self.x = [0] * 31 + [0]
        self._compared = (0, 0)

    def run(self, pc: int, steps: int = 10_000) -> int:
        """Runs from ``pc`` to the first ``ret`` or ``br``; returns -1 or where the ``br`` leads."""
        for _ in range(steps):
            (word,) = struct.unpack_from("<I", self.memory, pc)
            if word == 0xD65F03C0:
                return -1
            if word & 0xFFFFFC1F == 0xD61F0000:
                return self.x[word >> 5 & 31]
            pc += self._step(word, pc)
        raise AssertionError(f"no ret or br after {steps} instructions")

    def _step(self, word: int, pc: int) -> int:
        """Runs one instruction; how far the next one is."""
        d, n, imm12 = word & 31, word >> 5 & 31, word >> 10 & 0xFFF
        x = self.x
        if word & 0x9F000000 == 0x90000000:  # adrp
            x[d] = (pc & ~0xFFF) + (_signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21) << 12)
        elif word & 0xFFC00000 == 0x91000000:  # add, 64 bits
            x[d] = x[n] + imm12 & MASK
        elif word & 0xFFC00000 == 0xF9400000:  # ldr, 64 bits
            (x[d],) = struct.unpack_from("<Q", self.memory, x[n] + 8 * imm12)
        elif word & 0xFF000000 in (0xB4000000, 0x35000000):  # cbz, 64 bits; cbnz, 32 bits
            is_zero = x[d] & (MASK if word >> 31 else 2**32 - 1) == 0
            return 4 * _signed(word >> 5 & 0x7FFFF, 19) if is_zero == bool(word >> 31) else 4
        elif word & 0xFFE00000 == 0x52800000:  # movz
            x[d] = word >> 5 & 0xFFFF
        elif word & 0xFFE00000 == 0x72A00000:  # movk, lsl 16
            x[d] = x[d] & 0xFFFF | (word >> 5 & 0xFFFF) << 16
        elif word & 0xFFE00C00 == 0x38400400:  # ldrb, post-index
            x[d] = self.memory[x[n]]
            x[n] += word >> 12 & 0x1FF
        elif word & 0xFFE00C00 == 0x38000400:  # strb, post-index
            self.memory[x[n]] = (0 if d == 31 else x[d]) & 0xFF
            x[n] += word >> 12 & 0x1FF
        elif word & 0x7FC00000 == 0x71000000:  # subs, cmp
            bits = 64 if word >> 31 else 32
            self._compared = (x[n] & (1 << bits) - 1, imm12)
            if d != 31:
                x[d] = x[n] - imm12 & MASK
        elif word & 0xFFE0FC00 == 0x1A801000:  # csel ..., ne
            chosen = n if self._compared[0] != self._compared[1] else word >> 16 & 31
            x[d] = 0 if chosen == 31 else x[chosen]
        elif word & 0xFF00001F == 0x54000008:  # b.hi
            return 4 * _signed(word >> 5 & 0x7FFFF, 19) if self._compared[0] > self._compared[1] else 4
        elif word & 0xFFE0FC00 == 0xB8605800:  # ldr, 32 bits, [x, w, uxtw #2]
            (x[d],) = struct.unpack_from("<I", self.memory, x[n] + 4 * (x[word >> 16 & 31] & 2**32 - 1))
        elif word & 0xFFC00000 == 0xB9000000:  # str, 32 bits
            struct.pack_into("<I", self.memory, x[n] + 4 * imm12, x[d] & 2**32 - 1)
        else:
            raise AssertionError(f"no instruction of the stubs: {word:#010x} at {pc:#x}")
        return 4


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value
