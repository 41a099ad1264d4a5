"""Rows that threads cache unconverted although they have registers for the values.

The registers that this saves let more rows be in flight, and operands of the epilogue be prefetched.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.multiprocessor import WARP_SIZE

#: Registers of a thread that holds a mean, besides its groups and their operands.
_REGISTERS = 32
#: Registers of a thread that holds no mean, besides its groups and their operands.
_REGISTERS_WITHOUT_MEAN = 16
#: Groups from which a thread has several.
_SEVERAL_GROUPS = 3
#: Registers of a thread with several groups.
_ALLOTTED = 64
#: Registers of a thread with fewer groups, of which more threads are wanted.
ALLOTTED_TO_FEW = 40
#: Groups at most of a thread that prefetches operands.
_MOST_PREFETCHING = 4
#: Elements of a group of a wide type at most.
_WIDE_GROUP = 4


@dataclass(frozen=True)
class Packing:
    """The packing of a kernel whose rows have one axis, and whose epilogue is only arithmetic with ``operands``.

    operands: numbers of the arithmetic's type read for each element, the same for all rows; at least one.
    has_mean: whether threads hold a mean.
    """

    operands: int
    has_mean: bool


@dataclass(frozen=True)
class PackedRow:
    """A row of one chunk in one block: ``items`` groups of ``vector`` elements in each thread of a team.

    words: registers of a group.  operand_words: registers of a group's operands.
    """

    team: int
    items: int
    vector: int
    words: int
    operand_words: int
    has_mean: bool

    @property
    def ahead(self) -> int:
        """The macro OPERANDS_AHEAD: groups whose operands are prefetched, as registers allow.

        A single one is not worth its registers in a team of several warps; more threads are.
        """
        if self.items > _MOST_PREFETCHING:
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
        """Whether the compiler may know that each thread has all its groups, if a row fills them.

        It then hoists the loads of operands, which needs too many registers if they are not prefetched. Teams of
        several warps whose threads have several groups of narrow elements took 2 % longer on an H200.
        """
        is_light = self._is_warp or self.vector <= _WIDE_GROUP
        return self.items < _SEVERAL_GROUPS or (self.ahead > 0 and is_light)

    @property
    def _allotted(self) -> int:
        return _ALLOTTED if self.items >= _SEVERAL_GROUPS else ALLOTTED_TO_FEW

    @property
    def _is_warp(self) -> bool:
        return self.team <= WARP_SIZE
