"""Rows that threads hold as they are read, also where they have registers for the values: more rows are on their way to
a multiprocessor then, and what the kernel reads beside them can come before its turn."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.multiprocessor import WARP_SIZE

#: Registers of a thread besides its groups and their operands, with a mean and without.
_REGISTERS, _REGISTERS_WITHOUT_MEAN = 32, 16
#: Registers of a thread in all: with so many groups, and with fewer, of which more threads are wanted.
_SEVERAL_GROUPS, _ALLOTTED, ALLOTTED_TO_FEW = 3, 64, 40
#: Groups of a thread that asks for operands before their turn, and elements of a wide type's group, at most.
_MOST_ASKING, _WIDE_GROUP = 4, 4


@dataclass(frozen=True)
class Packing:
    """The packing of a kernel whose rows have one axis and nothing but ``operands`` behind them.

    operands: numbers in the arithmetic's type that are read of each element, the same for all rows; at least one.
    has_mean: whether threads hold a mean.
    """

    operands: int
    has_mean: bool


@dataclass(frozen=True)
class PackedRow:
    """One chunk of one block, ``items`` groups of ``vector`` elements in each thread of a team.

    words, operand_words: registers of a group, and of its operands.
    """

    team: int
    items: int
    vector: int
    words: int
    operand_words: int
    has_mean: bool

    @property
    def ahead(self) -> int:
        """The macro OPERANDS_AHEAD: as many groups as have registers. One is not worth them to threads that meet other
        warps: these are better more."""
        if self.items > _MOST_ASKING:
            return 0
        base = _REGISTERS if self.has_mean else _REGISTERS_WITHOUT_MEAN
        fitting = min((self._allotted - base - self.words * self.items) // self.operand_words, self.items)
        return fitting if fitting > 1 or (fitting == 1 and self._is_warp) else 0

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return self._allotted if self.ahead else _REGISTERS + self.words * self.items

    @property
    def may_be_whole(self) -> bool:
        """Whether the compiler may know that rows have all groups of all threads, where they do. It then moves loads of
        operands before others, more than registers hold where they are not asked for ahead; threads that meet other
        warps with several groups of narrow elements took 2 % longer on an H200."""
        is_light = self._is_warp or self.vector <= _WIDE_GROUP
        return self.items < _SEVERAL_GROUPS or (self.ahead > 0 and is_light)

    @property
    def _allotted(self) -> int:
        return _ALLOTTED if self.items >= _SEVERAL_GROUPS else ALLOTTED_TO_FEW

    @property
    def _is_warp(self) -> bool:
        return self.team <= WARP_SIZE
