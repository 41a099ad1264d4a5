"""Packed values: pairs of 16-bit elements in 32 bits and quadruples of bytes, element 0 in the low bits.

Elements stand on a new last axis, so a uniform 0-d value broadcasts against an array over lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Lanes: TypeAlias = Any
"""A 1-D array over lanes or a 0-d NumPy value; NumPy's own stubs give every ufunc on such a union the type Any."""
Array: TypeAlias = np.ndarray[Any, Any]
"""What is never a scalar."""


def elements(packed: Lanes, dtype: type[np.generic]) -> Lanes:
    """View ``packed`` [...] as its elements [..., n] of ``dtype``, element 0 first."""
    return np.asarray(packed)[..., None].view(dtype)


def joined(parts: Lanes, dtype: type[np.generic] = np.uint32) -> Lanes:
    """The inverse of `elements`: [..., n] elements as [...] of ``dtype``."""
    return np.ascontiguousarray(parts).view(dtype)[..., 0]


def pair(low: Lanes, high: Lanes) -> Lanes:
    """Join two 16-bit patterns: ``low | high << 16`` as uint32."""
    return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))


def low_half(packed: Lanes) -> Lanes:
    """Bits 0 to 15 as uint16."""
    return packed.astype(np.uint16)


def high_half(packed: Lanes) -> Lanes:
    """Bits 16 to 31 as uint16."""
    return (packed >> np.uint32(16)).astype(np.uint16)


def selected(mask: Lanes, *operands: Lanes) -> tuple[Lanes, ...]:
    """The operands in the lanes where ``mask`` is true; uniform operands are broadcast."""
    return tuple(np.broadcast_to(operand, mask.shape)[mask] for operand in operands)


def by_element(function: Callable[..., Lanes], dtype: type[np.generic] = np.uint16) -> Callable[..., Lanes]:
    """Lift a function of elements of ``dtype`` to 32-bit packed values (``.f16x2``, ``.s16x2``...)."""

    def on_packed(*operands: Lanes) -> Lanes:
        return joined(function(*(elements(operand, dtype) for operand in operands)))

    return on_packed
