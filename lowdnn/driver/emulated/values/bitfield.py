"""Bit-level instructions (PTX ISA, "Integer Arithmetic Instructions" bfe to bmsk, "Logic and Shift", prmt, lop3)."""

from __future__ import annotations

import numpy as np

from lowdnn.driver.emulated.values.integer import shl, shr, unsigned, width
from lowdnn.driver.emulated.values.packed import Lanes, joined

_NOT_FOUND = np.uint32(0xFFFFFFFF)
_NIBBLE_SHIFTS = np.array([0, 4, 8, 12], np.uint32)
_SIGN_NIBBLES = np.uint32(0x8888)
_MODE_SELECTORS = {
    "f4e": np.array([0x3210, 0x4321, 0x5432, 0x6543], np.uint32),
    "b4e": np.array([0x5670, 0x6701, 0x7012, 0x0123], np.uint32),
    "rc8": np.array([0x0000, 0x1111, 0x2222, 0x3333], np.uint32),
    "ecl": np.array([0x3210, 0x3211, 0x3222, 0x3333], np.uint32),
    "ecr": np.array([0x0000, 0x1110, 0x2210, 0x3210], np.uint32),
    "rc16": np.array([0x1010, 0x3232, 0x1010, 0x3232], np.uint32),
}


def bit_field_extract(a: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """``bfe``: ``length`` bits of a from ``position``, zero- or sign-extended by dtype.

    Only bits 0 to 7 of the uint32 operands ``position`` and ``length`` count. For signed dtypes the fill is the top bit
    of the field, or the top bit of a where the field reaches beyond it; a field of length 0 is 0.
    """
    position, length = position & np.uint32(255), length & np.uint32(255)
    shifted = shr(a, position)
    if a.dtype.kind == "u":
        return shifted & _low_mask(length, a)
    bits = np.uint32(width(a))
    drop = bits - np.minimum(length, bits)
    return shr(shl(shifted, drop), drop)


def bit_field_insert(a: Lanes, b: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """``bfi``: b with ``length`` bits from ``position`` replaced by the low bits of a (unsigned operands)."""
    position, length = position & np.uint32(255), length & np.uint32(255)
    field = shl(_low_mask(length, a), position)
    return (b & ~field) | (shl(a, position) & field)


def find_leading_bit(a: Lanes, shift_amount: bool = False) -> Lanes:
    """``bfind``: uint32 position of the top bit that differs from the sign (0 for unsigned), else 0xffffffff.

    With ``.shiftamt`` the result is the left shift that would bring that bit to the top.
    """
    magnitude = unsigned(np.where(a < 0, ~a, a)) if a.dtype.kind == "i" else a
    zeros = count_leading_zeros(magnitude)
    bits = np.uint32(width(a))
    found = zeros if shift_amount else bits - np.uint32(1) - zeros
    return np.where(magnitude == 0, _NOT_FOUND, found)


def count_leading_zeros(a: Lanes) -> Lanes:
    """``clz``: number of zero bits above the top one bit, as uint32; the width for 0."""
    bits = unsigned(a)
    if width(a) == 64:
        high, low = (bits >> np.uint64(32)).astype(np.uint32), bits.astype(np.uint32)
        return np.where(high == 0, np.uint32(32) + count_leading_zeros(low), count_leading_zeros(high))
    _, bit_length = np.frexp(bits.astype(np.float64))
    return np.uint32(width(a)) - bit_length.astype(np.uint32)


def population_count(a: Lanes) -> Lanes:
    """``popc``: number of one bits, as uint32."""
    return np.bitwise_count(unsigned(a)).astype(np.uint32)


def reverse_bits(a: Lanes) -> Lanes:
    """``brev``: bit i of the result is bit width - 1 - i of a (unsigned 32 or 64 bits)."""
    result, bits, shift = a, width(a), 1
    while shift < bits:
        mask = a.dtype.type(sum(((1 << shift) - 1) << start for start in range(0, bits, 2 * shift)))
        step = a.dtype.type(shift)
        result = ((result >> step) & mask) | ((result & mask) << step)
        shift *= 2
    return result


def find_nth_set(mask: Lanes, base: Lanes, offset: Lanes) -> Lanes:
    """``fns``: position of the n-th set bit of ``mask`` counted from bit ``base``, or 0xffffffff.

    An int32 ``offset`` of 0 asks whether bit ``base`` is set; n > 0 counts upwards and n < 0 downwards, both counting
    a set bit at ``base`` first.
    """
    position = np.arange(32, dtype=np.int64)
    start = np.asarray(base).astype(np.int64)[..., None]
    step = np.asarray(offset).astype(np.int64)[..., None]
    is_set = (np.asarray(mask)[..., None] >> position.astype(np.uint32)) & np.uint32(1) != 0
    upward = np.cumsum(is_set & (position >= start), axis=-1) == step
    downward = np.cumsum((is_set & (position <= start))[..., ::-1], axis=-1)[..., ::-1] == -step
    reached = np.where(step > 0, upward & (position >= start), downward & (position <= start))
    hit = is_set & np.where(step == 0, position == start, reached)
    return np.where(hit.any(axis=-1), hit.argmax(axis=-1).astype(np.uint32), _NOT_FOUND)


def sign_or_zero_extend(a: Lanes, bits: Lanes, wrap: bool) -> Lanes:
    """``szext``: the low n bits of a extended to 32 by dtype; n = bits mod 32 (``.wrap``) or min(bits, 32)."""
    kept = bits & np.uint32(31) if wrap else np.minimum(bits, np.uint32(32))
    drop = np.uint32(32) - kept
    return shr(shl(a, drop), drop)


def bit_mask(start: Lanes, length: Lanes, wrap: bool) -> Lanes:
    """``bmsk.b32``: ``length`` one bits from bit ``start``; both mod 32 (``.wrap``) or cut off at 32 (``.clamp``)."""
    if wrap:
        start, length = start & np.uint32(31), length & np.uint32(31)
    ones = ~np.zeros_like(start)
    end = np.minimum(start, np.uint32(32)) + np.minimum(length, np.uint32(32))
    return shl(ones, start) & ~shl(ones, end)


def permute_bytes(a: Lanes, b: Lanes, selector: Lanes, mode: str = "") -> Lanes:
    """``prmt.b32``: four bytes picked from (b:a), byte 0 being the low byte of a.

    Default mode: nibble i of ``selector`` picks byte i; its top bit replicates the sign of the picked byte instead.
    Modes f4e, b4e, rc8, ecl, ecr, rc16 take their pattern from bits 0 and 1 of ``selector``.
    """
    if mode:
        selector = _MODE_SELECTORS[mode][selector & np.uint32(3)]
    if np.ndim(selector) == 0 and not selector & _SIGN_NIBBLES:
        return _fixed_permutation(a, b, int(selector))
    source = (b.astype(np.uint64) << np.uint64(32)) | a
    nibble = (np.asarray(selector)[..., None] >> _NIBBLE_SHIFTS) & np.uint32(15)
    shift = ((nibble & np.uint32(7)) << np.uint32(3)).astype(np.uint64)
    picked = (np.asarray(source)[..., None] >> shift).astype(np.uint8)
    sign = (picked.view(np.int8) >> np.int8(7)).view(np.uint8)
    return joined(np.where(nibble & np.uint32(8) != 0, sign, picked))


def lookup_3(a: Lanes, b: Lanes, c: Lanes, table: int) -> Lanes:
    """``lop3.b32``: bit by bit, bit (4a + 2b + c) of the 8-bit ``table``."""
    return _lookup((a, b, c), table)


def _low_mask(length: Lanes, like: Lanes) -> Lanes:
    return ~shl(~np.zeros_like(like), length)


def _fixed_permutation(a: Lanes, b: Lanes, selector: int) -> Lanes:
    """`permute_bytes` by one selector for all lanes: bytes that move alike move together, by one shift and mask."""
    masks: dict[tuple[int, int], int] = {}
    for place in range(4):
        word, byte = divmod(selector >> 4 * place & 7, 4)
        masks[word, place - byte] = masks.get((word, place - byte), 0) | 0xFF << 8 * place
    result = None
    for (word, move), mask in masks.items():
        source, shift = (a, b)[word], np.uint32(8 * abs(move))
        part = (source << shift if move > 0 else source >> shift) & np.uint32(mask)
        result = part if result is None else result | part
    return result


def _lookup(operands: tuple[Lanes, ...], table: int) -> Lanes:
    """Truth table over ``operands``, the first being the top index bit, by Shannon expansion with simplification."""
    half = 1 << (len(operands) - 1)
    full = (1 << half) - 1
    when_set, when_clear = table >> half, table & full
    first, rest = operands[0], operands[1:]
    if when_set == when_clear:
        return _lookup(rest, when_set) if rest else _constant(first, when_set)
    if when_clear == 0:
        return first if when_set == full else first & _lookup(rest, when_set)
    if when_set == 0:
        return ~first if when_clear == full else ~first & _lookup(rest, when_clear)
    if when_set == full:
        return first | _lookup(rest, when_clear)
    if when_clear == full:
        return ~first | _lookup(rest, when_set)
    if when_set == full ^ when_clear:
        return first ^ _lookup(rest, when_clear)
    return (first & _lookup(rest, when_set)) | (~first & _lookup(rest, when_clear))


def _constant(like: Lanes, bit: int) -> Lanes:
    zeros = np.zeros_like(like)
    return ~zeros if bit else zeros
