"""Tiles of the persistent recurrence for few sequences: what a multiprocessor must hold, and how long a step takes.

step = columns / 8 * (hand-over + H * (polling + products of 16 rows of weights)) + further elements of a thread
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import ACCESS_BYTES, ceil_div
from lowdnn.engines.model.occupancy import launched_registers
from lowdnn.ops.rnn import Rnn

#: Sequences of a group of blocks.
COLUMNS = (8, 16)
#: Units of a block.
UNITS = (64, 32, 16, 8)
#: Rows of weights of a block, at most.
_MOST_ROWS = 64
#: Elements of k of a pair of instructions.
PAIR = 32
#: Steps whose states lie in the exchange: SLOTS of ``polled_states.cuh``.
_SLOTS = 32
#: Warps of a block.
_WARPS = 8

#: Registers of a thread for the weights of a pair and 16 rows.
_PAIR_REGISTERS = 8
#: Registers of a thread for the states of a pair.
_STATE_REGISTERS = 4
#: Registers of a thread for each further 8 columns.
_COLUMN_REGISTERS = 12
#: Registers of a thread for an element.
_ELEMENT_REGISTERS = 10
#: Registers of a thread for all else but sums (so that no assembled kernel spills).
_OTHER_REGISTERS = 58
#: Seconds of a step whatever its products are (measured on an H200, as those below).
_STEP_S = 0.8e-6
#: Seconds of a step for each unit that it polls.
_POLL_S = 0.25e-9
#: Seconds of a step for each unit that it multiplies with 16 rows of weights.
_ROWS_S = 0.06e-9
#: Seconds of a step for each further element of a thread (an estimate).
_ELEMENT_S = 0.3e-6


@dataclass(frozen=True)
class NarrowTile:
    """columns: sequences of a group.  units: units of a block.  gates: rows of weights of a unit.  hidden_size: units
    of the layer.  register_pairs: pairs of k of a warp whose weights lie in registers."""

    columns: int
    units: int
    gates: int
    hidden_size: int
    register_pairs: int

    kernel = "rnn_narrow_forward"

    @property
    def threads(self) -> int:
        return _WARPS * WARP_SIZE

    @property
    def pairs(self) -> int:
        """Pairs of k of a warp."""
        return ceil_div(self.hidden_size, PAIR * _WARPS)

    @property
    def group_bytes(self) -> tuple[int, ...]:
        """Bytes of each array of a group of blocks in the workspace: its exchange."""
        return (_SLOTS * self.hidden_size * self.columns * 2,)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the memory map of ``rnn_narrow_forward.cu``."""
        weights = _WARPS * (self.pairs - self.register_pairs) * self._m_tiles * 2 * WARP_SIZE * ACCESS_BYTES
        column = self.units * 4 if self.gates > 1 else max(self.units, 16) + 4
        return weights + 2 * _WARPS * self.columns * column * 4

    @property
    def registers(self) -> int:
        """Registers that a thread needs, about."""
        weights = self.register_pairs * self._m_tiles * _PAIR_REGISTERS
        own = self.pairs * _STATE_REGISTERS + self._m_tiles * 4 + self._elements * _ELEMENT_REGISTERS
        return weights + own + (self.columns // 8 - 1) * _COLUMN_REGISTERS + _OTHER_REGISTERS

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        product_s = self.hidden_size * (_POLL_S + self._m_tiles * _ROWS_S)
        return self.columns // 8 * (_STEP_S + product_s) + (self._elements - 1) * _ELEMENT_S

    @property
    def form(self) -> str:
        """The tile as the kernel's name has it."""
        return f"{self.columns}x{self.units}x{self.hidden_size}_r{self.register_pairs}"

    @property
    def macros(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("UNITS", self.units),
            ("COLUMNS", self.columns),
            ("UNITS_OF_ALL", self.hidden_size),
            ("REGISTER_PAIRS", self.register_pairs),
        )

    @property
    def _m_tiles(self) -> int:
        """Instructions along the rows of weights."""
        return ceil_div(self.gates * self.units, 16)

    @property
    def _elements(self) -> int:
        """Elements of a thread."""
        return ceil_div(self.units * self.columns, self.threads)


def narrow_tiles(rnn: Rnn, arch: ArchSpec) -> Iterator[NarrowTile]:
    """Tiles that fit a multiprocessor of ``arch``, with the most weights in registers."""
    pairs = ceil_div(rnn.hidden_size, PAIR * _WARPS)
    for columns, units in product(COLUMNS, UNITS):
        if rnn.hidden_size % units or rnn.gates * units > _MOST_ROWS:
            continue
        for register_pairs in range(pairs, -1, -1):
            tile = NarrowTile(columns, units, rnn.gates, rnn.hidden_size, register_pairs)
            if tile.registers <= launched_registers(tile.threads):
                if tile.shared_bytes <= arch.shared_bytes_per_block:
                    yield tile
                break
