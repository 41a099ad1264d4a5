"""The tile of ``norm_backward_summing.cu``: rows on their way, registers, and where the scales are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.launch import ceil_div, ceil_power, floor_power
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.engines.rows.policy import RowDivision, filling_cluster, knobs
from lowdnn.engines.rows.register_cache import RegisterCache, resident_blocks
from lowdnn.engines.rows.teams import clusters
from lowdnn.engines.rows.tile import RowTile
from lowdnn.enums import DataType, KnobType
from lowdnn.ops.tensor import Tensor

#: Rows of a team in flight to shared memory by default, if they fit.
_STAGES = 4
#: Rows of a team in flight to shared memory at most.
_MAX_STAGES = 8
#: Groups of a thread by default; more would need the shared memory of a stage.
_ITEMS = 4
#: Groups of a thread at most.
_MAX_ITEMS = 8
#: Registers of a thread for its groups at most, if it caches them.
_CACHED_REGISTERS = 96
#: Registers of a thread for the sums of its groups at most.
_SUM_REGISTERS = 64
#: Threads of a team at least: those that read a memory line.
_MIN_TEAM = 8
#: Threads of a team at most, as a block's registers allow.
_MAX_TEAM = 512
#: Threads of a block with short rows. With more rows in a block, fewer blocks' sums have to be added.
_BLOCK_THREADS = 512
#: Registers of a thread besides those of its groups.
_REGISTERS = 48
#: The macro SCALES: threads read their scales at each use.
UNCACHED = 0
#: The macro SCALES: threads cache their scales in registers.
IN_REGISTERS = 1
#: The macro SCALES: threads cache their scales in shared memory.
IN_SHARED_MEMORY = 2
UNCACHED, IN_REGISTERS, IN_SHARED_MEMORY = 0, 1, 2


@dataclass(frozen=True)
class SummingTile:
    """The kernel's tile; ``stages``, a team's rows in flight; whether threads cache the current row in registers; and
    the macro SCALES."""

    tile: RowTile
    stages: int
    caches_row: bool
    scales: int
    shared_bytes: int
    blocks: int


@dataclass(frozen=True)
class Summing:
    """The choices of one kernel."""

    #: Rows along the vector axis.
    layout: RowLayout
    arch: ArchSpec
    compute_type: DataType
    #: The cache of the kernel without sums.
    cache: RegisterCache
    #: Sums for each element.
    gradients: int
    #: The tensors read for each element, by functor.
    elements: tuple[tuple[Tensor, ...], ...]
    #: The tensors with one number for each row.
    numbers: tuple[Tensor, ...]
    #: The tensor with a scale for each element of a row, or None.
    scale: Tensor | None

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        """The knobs of rows, with defaults of its own if a row's sums fit registers; and STAGES."""
        defaults, stages = self._defaults, 0
        if defaults is not None:
            stages = self._stages(defaults.team, defaults.items, defaults.cluster)
        of_rows = knobs(self.layout, self.arch, self.cache, defaults if stages else None)
        text = "rows in flight to shared memory; 0: gradients are reductions"
        return (*of_rows, Knob("places", KnobType.STAGES, tuple(range(_MAX_STAGES + 1)), stages, text))

    def tile(self, chosen: Choices) -> SummingTile | None:
        """The tile of resolved knobs; None if the kernel should not sum the gradients, or does not fit."""
        stages, cluster = chosen[KnobType.STAGES], chosen[KnobType.TILE_CGA_M]
        if not stages or chosen[KnobType.CTA_COUNT] > 1:
            return None
        return self._tile(chosen[KnobType.THREADS_PER_ROW], chosen[KnobType.MULTIPLY], cluster, stages)

    def _stages(self, team: int, items: int, cluster: int) -> int:
        """The most stages that fit; cached scales give way only to a second stage."""
        found = [self._tile(team, items, cluster, stages) for stages in range(_STAGES, 0, -1)]
        fitting = [tile for tile in found if tile is not None]
        wanted = (tile for tile in fitting if tile.scales != UNCACHED and tile.stages > 1)
        return next((tile.stages for tile in (*wanted, *fitting)), 0)

    @property
    def _defaults(self) -> RowDivision | None:
        """The division with as few threads for each row as can cache it, or only its sums if that needs fewer blocks.

        None if not even a cluster has enough registers.
        """
        cached, most = (
            min(max(1, registers // words), _ITEMS)
            for registers, words in ((_CACHED_REGISTERS, self._cached_words), (_SUM_REGISTERS, self._sum_words))
        )
        fitting = (c for c in clusters(self.arch) if self.layout.groups <= _MAX_TEAM * most * c)
        least = next(fitting, 0)
        if not least:
            return None
        cluster = filling_cluster(self.layout, self.arch, least)
        own = ceil_div(self.layout.groups, cluster)
        wanted = cached if own <= _MAX_TEAM * cached else most
        team = max(ceil_power(ceil_div(own, wanted)), min(_MIN_TEAM, ceil_power(own)))
        return RowDivision(team, ceil_div(own, team), cluster)

    def _tile(self, team: int, items: int, cluster: int, stages: int) -> SummingTile | None:
        most_slots, slots = self.layout.row_groups // (2 * self.arch.sm_count), 1
        if cluster == 1:
            slots = floor_power(max(1, WARP_SIZE // team, min(_BLOCK_THREADS // team, most_slots)))
        team = max(team, WARP_SIZE // slots)
        shape = RowTile(team * slots, team, 1, items, cluster, cluster, 0, 1)
        if items > _MAX_ITEMS or shape.chunks(self.layout) > 1:
            return None
        of_rows = sum(tensor.element_bytes for tensor in self.numbers)
        shared_bytes = stages * shape.THREADS * (items * self._group_bytes + of_rows)
        scale_bytes = shape.THREADS * items * self._scale_bytes
        caches_row, scales = self._caching(items)
        wanted = ((scales, scale_bytes), (UNCACHED, 0)) if scales == IN_SHARED_MEMORY else ((scales, 0),)
        for scales, own_bytes in wanted:
            for resident in range(self._resident(shape), 0, -1):
                if shared_bytes + own_bytes <= shared_room(self.arch, resident) - self._other_bytes(shape):
                    shape = replace(shape, RESIDENT=resident)
                    blocks = shape.persistent_blocks(self.layout, self.arch)
                    return SummingTile(shape, stages, caches_row, scales, shared_bytes + own_bytes, blocks)
        return None

    def _caching(self, items: int) -> tuple[bool, int]:
        """(whether threads have registers for the current row, the best value of SCALES)."""
        if items * self._cached_words <= _CACHED_REGISTERS:
            return True, IN_REGISTERS if self._scale_bytes else UNCACHED
        words = self._sum_words + ceil_div(self._group_bytes, 4)
        return items * words <= _CACHED_REGISTERS, IN_SHARED_MEMORY if self._scale_bytes else UNCACHED

    def _resident(self, shape: RowTile) -> int:
        """Resident blocks of a multiprocessor, as its registers allow."""
        caches_row, scales = self._caching(shape.ITEMS)
        words = self._sum_words
        if caches_row:
            words = self._cached_words if scales == IN_REGISTERS else words + ceil_div(self._group_bytes, 4)
        return max(1, resident_blocks(_REGISTERS + shape.ITEMS * words, shape.THREADS))

    @property
    def _cached_words(self) -> int:
        """Registers for a cached group: its sums, its scales and its elements."""
        return self._sum_words + ceil_div(self._scale_bytes + self._group_bytes, 4)

    @property
    def _sum_words(self) -> int:
        """Registers for the sums of a group."""
        return self.gradients * self.layout.vector * self._element_bytes // 4

    @property
    def _group_bytes(self) -> int:
        return sum(self.layout.read_bytes(tensors) for tensors in self.elements)

    @property
    def _scale_bytes(self) -> int:
        """Bytes of the scales of a group."""
        return self.layout.read_bytes((self.scale,)) if self.scale is not None else 0

    def _other_bytes(self, shape: RowTile) -> int:
        """Bytes of static shared memory at most, for the reductions of teams and slots."""
        slot_sums = shape.THREADS * self.layout.vector if shape.slots > 1 else 0
        return (slot_sums + shape.THREADS + 16) * self._element_bytes

    @property
    def _element_bytes(self) -> int:
        return dtypes.info(self.compute_type).size_bytes
