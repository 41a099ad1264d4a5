"""Instructions of x86-64 one after the other, with labels: what code for that processor is written with."""

from __future__ import annotations

import struct


class Assembler:
    """``at``: the address at which the code begins."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._bytes = bytearray()
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    def label(self, name: str) -> None:
        self._labels[name] = len(self._bytes)

    def content(self) -> bytes:
        for end, label in self._jumps:
            self._bytes[end - 4 : end] = struct.pack("<i", self._labels[label] - end)
        return bytes(self._bytes)

    def _add(self, opcode: str) -> None:
        self._bytes += bytes.fromhex(opcode)

    def _relative(self, target: int) -> None:
        """The distance to ``target`` from the end of the instruction, which the distance itself is."""
        self._bytes += struct.pack("<i", target - (self._at + len(self._bytes) + 4))

    def _branch(self, opcode: str, label: str) -> None:
        """A jump with a distance of 32 bits."""
        self._bytes += bytes.fromhex(opcode) + bytes(4)
        self._jumps.append((len(self._bytes), label))
