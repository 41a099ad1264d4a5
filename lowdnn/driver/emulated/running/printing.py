"""Device ``printf`` and ``assert``. CUDA C++ Programming Guide, "Formatted Output", "Assertion".

The text goes to ``sys.stdout`` at once, lane after lane. Arguments lie in a buffer as C's varargs do: each at a
multiple of its own size, 4 bytes for what fits an int, 8 for longs, pointers and doubles.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.memory.access import Kind, kind_of, load
from lowdnn.driver.emulated.memory.address import Address
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.running.batch import Group

_CONVERSION = re.compile(r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?P<precision>\.\d*)?(?P<size>hh|h|ll|l)?(?P<type>.)")
_FLOATS = "eEfFgGaA"
_TYPES = "cdiouxXps" + _FLOATS
_BYTE = kind_of("u1", 1, 1)
_BITS = {"hh": 8, "h": 16, "": 32, "l": 64, "ll": 64}


@dataclass(frozen=True)
class _Piece:
    """Literal text, then one conversion; ``type`` is empty if there is none.

    at: byte offset of its argument.  width_at: byte offset of the argument of a ``*`` width, or -1.
    """

    literal: str
    flags: str = ""
    width: str = ""
    precision: str = ""
    size: str = ""
    type: str = ""
    at: int = 0
    width_at: int = -1


def print_formatted(group: Group, formats: Any, arguments: Any) -> Any:
    """``vprintf``: writes one text for each lane, in lane order; returns the number of arguments, int32."""
    formats, arguments = group.spread(formats), group.spread(arguments)
    texts: list[str] = [""] * group.count
    counts = np.zeros(group.count, dtype=np.int32)
    for address in np.unique(formats):
        mask = formats == address
        places = np.flatnonzero(mask)
        lanes = group.subset(mask)
        pieces = _pieces(_string(lanes, 0, address))
        found = _texts(lanes, pieces, Address(arguments[mask]))
        for place, text in zip(places, found, strict=True):
            texts[place] = text
        counts[mask] = sum(bool(piece.type) for piece in pieces)
    sys.stdout.write("".join(texts))
    return counts


def fail_assertion(group: Group, expressions: Any, files: Any, functions: Any, lines: Any) -> None:
    """``__assertfail``: the first lane's assertion as a fault."""
    expression, file, function = (
        _string(group, 0, group.spread(addresses)[0]) for addresses in (expressions, files, functions)
    )
    line = int(group.spread(lines)[0])
    raise LaneFault(FaultKind.ASSERT, f"{file}:{line}: {function}: assertion `{expression}` failed", 0)


@lru_cache(maxsize=256)
def _pieces(text: str) -> tuple[_Piece, ...]:
    pieces: list[_Piece] = []
    literal, end, offset = "", 0, 0
    for match in _CONVERSION.finditer(text):
        literal += text[end : match.start()]
        end = match.end()
        kind = match["type"]
        if kind not in _TYPES:
            literal += "%" if kind == "%" else match[0]
            continue
        width_at = -1
        if match["width"] == "*":
            width_at = -(-offset // 4) * 4
            offset = width_at + 4
        size = _argument_bytes(kind, match["size"] or "")
        offset = -(-offset // size) * size
        precision, length = match["precision"] or "", match["size"] or ""
        pieces.append(_Piece(literal, match["flags"], match["width"], precision, length, kind, offset, width_at))
        literal, offset = "", offset + size
    return (*pieces, _Piece(literal + text[end:]))


def _argument_bytes(kind: str, size: str) -> int:
    return 8 if kind in _FLOATS or kind in "ps" or size in ("l", "ll") else 4


def _texts(lanes: Group, pieces: tuple[_Piece, ...], arguments: Address) -> list[str]:
    """The text of each lane."""
    columns: list[list[str]] = []
    for piece in pieces:
        columns.append([piece.literal] * lanes.count)
        if piece.type:
            columns.append(_conversions(lanes, piece, arguments))
    return ["".join(row) for row in zip(*columns, strict=True)]


def _conversions(lanes: Group, piece: _Piece, arguments: Address) -> list[str]:
    widths = [piece.width] * lanes.count
    if piece.width_at >= 0:
        widths = [str(width) for width in _read(lanes, arguments, piece.width_at, "i4")]
    code = f"u{_argument_bytes(piece.type, piece.size)}" if piece.type not in _FLOATS else "f8"
    values = _read(lanes, arguments, piece.at, code)
    return [
        _converted(lanes, position, piece, width, value.item())
        for position, (width, value) in enumerate(zip(widths, values, strict=True))
    ]


def _converted(lanes: Group, position: int, piece: _Piece, width: str, value: Any) -> str:
    """One lane's argument as C prints it, by Python's own ``%``."""
    kind, precision = "s", ""
    if piece.type in "aA":
        digits = re.sub(r"\.?0*p", "p", value.hex())
        value = digits if piece.type == "a" else digits.upper()
    elif piece.type == "s":
        value, precision = _string(lanes, position, np.uint64(value)) if value else "(null)", piece.precision
    elif piece.type == "p":
        value = hex(value)
    elif piece.type == "c":
        value = chr(value & 0xFF)
    else:
        kind, precision = piece.type.replace("u", "d"), piece.precision
        value = value if piece.type in _FLOATS else _integer(piece, value)
    text: str = f"%{piece.flags}{width}{precision}{kind}" % value
    return text.replace("0o", "0", 1) if kind == "o" else text


def _integer(piece: _Piece, value: int) -> int:
    bits = _BITS[piece.size]
    value &= (1 << bits) - 1
    return value - (1 << bits) if piece.type in "di" and value >> (bits - 1) else value


def _read(lanes: Group, arguments: Address, offset: int, code: str) -> Array:
    kind: Kind = kind_of(code, int(code[1]), 1)
    return lanes.spread(load(lanes, "generic", arguments, offset, kind))


def _string(group: Group, position: int, address: Any) -> str:
    """The characters from ``address`` to the NUL, read by one lane."""
    lane = np.zeros(group.count, dtype=np.bool_)
    lane[position] = True
    reader = group.subset(lane)
    start = Address(np.uint64(address))
    found = bytearray()
    while True:
        try:
            byte = int(load(reader, "generic", start, len(found), _BYTE))
        except LaneFault as fault:
            fault.position = position
            raise
        if not byte:
            return found.decode("utf-8", errors="replace")
        found.append(byte)
