"""The instruction table: opcode -> ``Row``. One module per family; a new opcode is one row there, and a value function."""

from __future__ import annotations

from collections.abc import Mapping

from . import arithmetic, control, floating, half, integer, memory, moves
from .core import Row

TABLE: Mapping[str, Row] = {
    **arithmetic.TABLE,
    **integer.TABLE,
    **floating.TABLE,
    **half.TABLE,
    **moves.TABLE,
    **memory.TABLE,
    **control.TABLE,
}
