"""Which elements of a row a thread caches in registers, and how many blocks of such threads a multiprocessor holds."""

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

#: Registers of a thread at least, as ptxas allots them.
_MIN_REGISTERS = 48
#: Resident blocks of a multiprocessor at most.
_MAX_RESIDENT = 16


@dataclass(frozen=True)
class RegisterCache:
    """The registers that a thread spends on each element of a row, and the features of the kernel that decide on
    them."""

    #: Bytes of a number in a register.
    element_bytes: int
    #: Numbers cached for each element.
    values: int
    #: Bytes of an element in memory, if the kernel can cache it unconverted and convert it at each use; otherwise 0.
    read_bytes: int
    #: Numbers of each element that are read at their use and not cached.
    streamed: int
    #: Registers for everything else.
    extra_registers: int
    #: Further registers if elements are cached unconverted and several blocks share a row.
    sharing_registers: int
    #: Whether the kernel reads tensors that repeat over the rows, whose vectors a skew must shift into place.
    shifts: bool
    #: Whether the kernel can keep chunks resident in shared memory, and blocks of a cooperative grid can share rows.
    keeps_chunks: bool
    #: Whether the kernel can prefetch the next row when it begins one.
    looks_ahead: bool
    #: Whether a row of several warps is better spread over threads with few elements each.
    spreads: bool
    #: How the kernel packs rows of one axis, which it then caches unconverted wherever it can; or None.
    packing: Packing | None = None

    @staticmethod
    def of(
        compute_type: DataType,
        *sources: PointwiseDag,
        streamed: int = 0,
        extra_registers: int = 0,
        sharing_registers: int = 0,
        shifts: bool = False,
        keeps_chunks: bool = False,
        looks_ahead: bool = False,
        spreads: bool = False,
    ) -> RegisterCache:
        """sources: the DAGs that give the cached values."""
        are_plain = all(not dag.operations and len(dag.loads) == 1 for dag in sources)
        read_bytes = sum(dag.loads[0].element_bytes for dag in sources) if are_plain else 0
        element_bytes = dtypes.info(compute_type).size_bytes
        return RegisterCache(
            element_bytes,
            len(sources),
            read_bytes,
            streamed,
            extra_registers,
            sharing_registers,
            shifts,
            keeps_chunks,
            looks_ahead,
            spreads,
        )

    @property
    def looking_ahead(self) -> RegisterCache:
        """A copy for a kernel that also prefetches the next row."""
        return replace(self, extra_registers=self.extra_registers + LIMITS.ahead_registers, packing=None)

    def words(self, vector: int, is_as_read: bool) -> int:
        """Registers for a group of ``vector`` elements, at least one for each value."""
        cached_bytes = self.read_bytes if is_as_read else self.values * self.element_bytes
        return max(self.values, ceil_div(cached_bytes * vector, 4))


def residency(
    layout: RowLayout, threads: int, items: int, sharing: int, cache: RegisterCache, in_chunks: bool
) -> tuple[bool, int]:
    """(whether chunks are cached unconverted, resident blocks of a multiprocessor).

    They are unconverted where too few blocks would be resident otherwise, except where chunks may stay in shared
    memory.
    """
    resident = _resident(layout, threads, items, sharing, cache, is_as_read=False)
    may_keep_chunks = cache.keeps_chunks and in_chunks
    if not cache.read_bytes or may_keep_chunks or resident >= LIMITS.wanted_resident:
        return False, resident
    return True, _resident(layout, threads, items, sharing, cache, is_as_read=True)


def resident_blocks(registers: int, threads: int, least: int = _MIN_REGISTERS) -> int:
    """Resident blocks of ``threads`` threads with ``registers`` registers each.

    least: registers of a thread at least.
    """
    return min(blocks_by_registers(max(least, registers), threads), _MAX_RESIDENT)


def _resident(layout: RowLayout, threads: int, items: int, sharing: int, cache: RegisterCache, is_as_read: bool) -> int:
    """Resident blocks of a multiprocessor, as its registers allow."""
    space, vector = layout.space, layout.vector
    each = cache.words(vector, is_as_read) + cache.streamed * vector * cache.element_bytes // 4
    if is_as_read:
        base = LIMITS.read_registers + (cache.sharing_registers if sharing > 1 else 0)
    else:
        base = LIMITS.value_registers
        each += LIMITS.group_registers if space.space.rank - space.kept == 1 else LIMITS.walked_registers
    base += LIMITS.skew_registers if space.skew and (cache.shifts or not is_as_read) else 0
    extra = cache.extra_registers + (0 if space.is_row else LIMITS.side_registers * vector)
    extra += LIMITS.making_registers if space.is_line and not cache.read_bytes else 0
    return resident_blocks(base + each * items + extra, threads)
