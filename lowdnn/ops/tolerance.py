"""How an operation's results may differ from its reference; each operation declares its class."""

from __future__ import annotations

from enum import Enum


class ToleranceClass(Enum):
    """The bound of an operation's error besides the rounding of its result."""

    EXACT = "exact"  #: every step rounds in one way: moves, conversions, quotients and products of two numbers
    POINTWISE = "pointwise"  #: nothing
    ROWS = "rows"  #: averages over a row, joined as a tree, rotations: a few roundings of a few units
    REDUCTION = "reduction"  #: a sum or a product in the compute type
    CONTRACTION = "contraction"  #: a sum of products in the compute type
    CONTRACTION_TF32 = "contraction_tf32"  #: a contraction by an engine that rounds operands to TF32
