"""Tiles of the persistent recurrences for few sequences: what a multiprocessor must hold, and how long a step takes.

forward   step = columns / 8 * (hand-over + k * (polling + products of 16 rows of weights)) + further items of a thread
backward  step = (1 or with 16 columns 1.6) * (hand-over + k * (polling + products of 16 rows of weights)
                 + weights in shared memory) + gates * turns

k: elements that a unit's row of weights has. An item: an element, backward a pair of units of a sequence. A turn: the
elements that a multiprocessor's schedulers compute at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import log2

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
#: Registers of a thread for all else but sums (so that no assembled kernel spills).
_OTHER_REGISTERS = 58
#: Seconds of a step forward for each 8 columns, whatever its products are. It was measured on an H200, as were the
#: others below except ``_ITEM_S``.
_STEP_S = 0.8e-6
#: Seconds of a step forward for each 8 columns and each element of k that it polls.
_POLL_S = 0.25e-9
#: Seconds of a step forward for each 8 columns and each element of k that it multiplies with 16 rows of weights.
_ROWS_S = 0.06e-9
#: Seconds of a step for each further item of a thread (an estimate).
_ITEM_S = 0.3e-6
#: Seconds of a step backward whatever its products are.
_BACKWARD_STEP_S = 0.55e-6
#: Seconds of a step backward for each doubling of a group's blocks, which hand gradients over.
_DOUBLING_S = 0.03e-6
#: Seconds of a step backward for each element of k that it polls.
_BACKWARD_POLL_S = 0.37e-9
#: Seconds of a step backward for each element of k that it multiplies with 16 rows of weights.
_BACKWARD_ROWS_S = 0.02e-9
#: Seconds of a step backward for the weights of a pair and 16 rows in shared memory.
_SHARED_PAIR_S = 0.02e-6
#: Time of 8 further columns, as a share of the time of the first ones.
_FURTHER_COLUMNS = 0.6
#: Seconds of a step backward for each gate of a turn.
_GATE_S = 0.1e-6


@dataclass(frozen=True)
class NarrowTile:
    """A tile forward. columns: sequences of a group.  units: units of a block.  gates: rows of weights of a unit.
    hidden_size: units of the layer.  register_pairs: pairs of k of a warp whose weights lie in registers."""

    columns: int
    units: int
    gates: int
    hidden_size: int
    register_pairs: int

    kernel = "rnn_narrow_forward"
    cluster = 1
    threads = _WARPS * WARP_SIZE

    #: Elements of an item, and registers of a thread for it.
    _item = (1, 10)

    @property
    def sequences(self) -> int:
        return self.columns

    @property
    def rows(self) -> int:
        """Rows of weights of a block."""
        return self.gates * self.units

    @property
    def depth(self) -> int:
        """Elements of k."""
        return self.hidden_size

    @property
    def pairs(self) -> int:
        """Pairs of k of a warp."""
        return ceil_div(self.depth, PAIR * _WARPS)

    @property
    def group_bytes(self) -> tuple[int, ...]:
        """Bytes of each array of a group of blocks in the workspace: its exchange."""
        return (_SLOTS * self.depth * self.columns * 2,)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the memory map of ``narrow_step.cuh``."""
        weights = _WARPS * (self.pairs - self.register_pairs) * self._m_tiles * 2 * WARP_SIZE * ACCESS_BYTES
        column = self.units * 4 if self.rows > self.units else max(self.units, 16) + 4
        return weights + 2 * _WARPS * self.columns * column * 4

    @property
    def registers(self) -> int:
        """Registers that a thread needs, about."""
        weights = self.register_pairs * self._m_tiles * _PAIR_REGISTERS
        own = self.pairs * _STATE_REGISTERS + self._m_tiles * 4 + self._items * self._item[1]
        return weights + own + (self.columns // 8 - 1) * _COLUMN_REGISTERS + _OTHER_REGISTERS

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        product_s = self.depth * (_POLL_S + self._m_tiles * _ROWS_S)
        return self.columns // 8 * (_STEP_S + product_s) + (self._items - 1) * _ITEM_S

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
        return ceil_div(self.rows, 16)

    @property
    def _items(self) -> int:
        """Items of a thread."""
        return ceil_div(self.units * self.columns, self._item[0] * self.threads)


@dataclass(frozen=True)
class NarrowBackwardTile(NarrowTile):
    """A tile backward. gates: blocks of gate gradients that a unit's row of transposed weights is multiplied with."""

    kernel = "rnn_narrow_backward"

    _item = (2, 34)

    @property
    def rows(self) -> int:
        return self.units

    @property
    def depth(self) -> int:
        return self.gates * self.hidden_size

    @property
    def step_s(self) -> float:
        hand_over_s = _BACKWARD_STEP_S + log2(self.hidden_size / self.units) * _DOUBLING_S
        product_s = self.depth * (_BACKWARD_POLL_S + self._m_tiles * _BACKWARD_ROWS_S)
        shared_s = (self.pairs - self.register_pairs) * self._m_tiles * _SHARED_PAIR_S
        columns = 1 + _FURTHER_COLUMNS * (self.columns // 8 - 1)
        turns = ceil_div(self.units * self.columns, self.threads)
        return columns * (hand_over_s + product_s + shared_s) + turns * self.gates * _GATE_S


def narrow_tiles(rnn: Rnn, arch: ArchSpec) -> Iterator[NarrowTile]:
    """Tiles forward that fit a multiprocessor of ``arch``, with the most weights in registers."""
    return _tiles(NarrowTile, rnn, arch)


def narrow_backward_tiles(rnn: Rnn, arch: ArchSpec) -> Iterator[NarrowTile]:
    """Tiles backward that fit a multiprocessor of ``arch``, with the most weights in registers."""
    return _tiles(NarrowBackwardTile, rnn, arch)


def _tiles(kind: type[NarrowTile], rnn: Rnn, arch: ArchSpec) -> Iterator[NarrowTile]:
    for columns, units in product(COLUMNS, UNITS):
        bare = kind(columns, units, rnn.gates, rnn.hidden_size, register_pairs=0)
        if rnn.hidden_size % units or bare.rows > _MOST_ROWS:
            continue
        for register_pairs in range(bare.pairs, -1, -1):
            tile = replace(bare, register_pairs=register_pairs)
            if tile.registers <= launched_registers(tile.threads):
                if tile.shared_bytes <= arch.shared_bytes_per_block:
                    yield tile
                break
