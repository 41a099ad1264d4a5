"""What a thread holds of a row in registers, and how many blocks a multiprocessor has registers for then."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowdnn import dtypes
from lowdnn.engines.launch import ceil_div
from lowdnn.engines.model.occupancy import blocks_by_registers
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.engines.rows.limits import LIMITS
from lowdnn.engines.rows.packed_row import Packing
from lowdnn.enums import DataType
from lowdnn.graph.pattern import PointwiseDag

#: Registers that a thread has at any rate.
_MIN_REGISTERS = 48
#: Blocks of a multiprocessor at most.
_MAX_RESIDENT = 16


@dataclass(frozen=True)
class Held:
    """What a thread holds of each element, in registers.

    values: numbers of ``element_bytes``.
    read_bytes: bytes that are read for the values, where these can be held as they are read and converted whenever they
    are used; otherwise 0.
    passing: numbers of ``element_bytes`` of each element that are read when it is used.
    beside: registers for everything else.
    shared: registers for everything else where elements are held as they are read, and blocks share rows.
    shifts: whether tensors are read that have one element for each of a row, which a skew shifts into place.
    stays: whether the kernel lets the values' chunks stay in shared memory, and the blocks of a cooperative grid share
    rows.
    looks_ahead: whether the kernel asks for the next row when it begins with one.
    spreads: whether threads have few elements each of rows that take several warps.
    packing: how the kernel packs rows of one axis, which it then holds as they are read wherever it can; or None.
    """

    element_bytes: int
    values: int
    read_bytes: int
    passing: int
    beside: int
    shared: int
    shifts: bool
    stays: bool
    looks_ahead: bool
    spreads: bool
    packing: Packing | None = None

    @staticmethod
    def of(
        compute_type: DataType,
        *sources: PointwiseDag,
        passing: int = 0,
        beside: int = 0,
        shared: int = 0,
        shifts: bool = False,
        stays: bool = False,
        looks_ahead: bool = False,
        spreads: bool = False,
    ) -> Held:
        """sources: where the values come from."""
        are_plain = all(not dag.operations and len(dag.loads) == 1 for dag in sources)
        read_bytes = sum(dag.loads[0].element_bytes for dag in sources) if are_plain else 0
        element_bytes = dtypes.info(compute_type).size_bytes
        return Held(
            element_bytes, len(sources), read_bytes, passing, beside, shared, shifts, stays, looks_ahead, spreads
        )

    @property
    def looking_ahead(self) -> Held:
        """What a thread holds that asks for the next row when it begins with one."""
        return replace(self, beside=self.beside + LIMITS.ahead_registers, packing=None)

    def words(self, vector: int, is_as_read: bool) -> int:
        """Registers for a group of ``vector`` elements."""
        held_bytes = self.read_bytes if is_as_read else self.values * self.element_bytes
        return max(self.values, ceil_div(held_bytes * vector, 4))  # one of each value, however narrow


def holding(layout: RowLayout, threads: int, items: int, sharing: int, held: Held, in_chunks: bool) -> tuple[bool, int]:
    """(whether chunks are held as they are read, blocks of a multiprocessor).

    They are where too few blocks would fit otherwise, but not where chunks may stay in shared memory.
    """
    resident = _resident(layout, threads, items, sharing, held, is_as_read=False)
    may_stay = held.stays and in_chunks
    if not held.read_bytes or may_stay or resident >= LIMITS.wanted_resident:
        return False, resident
    return True, _resident(layout, threads, items, sharing, held, is_as_read=True)


def resident_blocks(registers: int, threads: int, least: int = _MIN_REGISTERS) -> int:
    """Blocks of so many threads for which a multiprocessor has registers.

    least: registers that a thread has at any rate.
    """
    return min(blocks_by_registers(max(least, registers), threads), _MAX_RESIDENT)


def _resident(layout: RowLayout, threads: int, items: int, sharing: int, held: Held, is_as_read: bool) -> int:
    """Blocks for which a multiprocessor has registers."""
    space, vector = layout.space, layout.vector
    each = held.words(vector, is_as_read) + held.passing * vector * held.element_bytes // 4
    if is_as_read:
        base = LIMITS.read_registers + (held.shared if sharing > 1 else 0)
    else:
        base = LIMITS.value_registers
        each += LIMITS.group_registers if space.space.rank - space.kept == 1 else LIMITS.walked_registers
    base += LIMITS.skew_registers if space.skew and (held.shifts or not is_as_read) else 0
    beside = held.beside + (0 if space.is_row else LIMITS.side_registers * vector)
    beside += LIMITS.making_registers if space.is_line and not held.read_bytes else 0
    return resident_blocks(base + each * items + beside, threads)
