"""How the blocks of ``norm_backward_summing.cu`` walk over rows whose gradients of scale and bias they sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.launch import ceil_div, ceil_power, floor_power
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.engines.rows.held import Held, resident_blocks
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.engines.rows.policy import RowDivision, filling_cluster, knobs
from lowdnn.engines.rows.teams import clusters
from lowdnn.engines.rows.tile import RowTile
from lowdnn.enums import DataType, KnobType
from lowdnn.ops.tensor import Tensor

#: Rows of a team on their way to shared memory by default, where that has room for them, and at most.
_PLACES, _MAX_PLACES = 4, 8
#: Groups of a thread by default, since more would take the shared memory of a place, and at most.
_ITEMS, _MAX_ITEMS = 4, 8
#: Registers that these may take where they are held, and that their sums may.
_HELD_REGISTERS, _SUM_REGISTERS = 96, 64
#: Threads of a team, at least and at most: those that read a memory line, and what a block has registers for.
_MIN_TEAM, _MAX_TEAM = 8, 512
#: Threads of a block with short rows, the more of which it has, the fewer blocks' sums are joined; and at least.
_BLOCK_THREADS = 512
#: Registers of a thread besides those of its groups.
_REGISTERS = 48
#: SCALES: where a thread has its scales.
NOWHERE, IN_REGISTERS, IN_SHARED_MEMORY = 0, 1, 2


@dataclass(frozen=True)
class SummingTile:
    """The kernel's tile, a team's rows on their way to shared memory, whether threads hold the one at hand, and where
    they have the scales."""

    tile: RowTile
    places: int
    holds: bool
    scales: int
    shared_bytes: int
    blocks: int


@dataclass(frozen=True)
class Summing:
    """layout: rows along the vector axis.  held: what the kernel without sums holds of an element.

    gradients: sums of each element.  elements, numbers: what is read of each element, and of each row.
    scale: of each element of a row.
    """

    layout: RowLayout
    arch: ArchSpec
    compute_type: DataType
    held: Held
    gradients: int
    elements: tuple[tuple[Tensor, ...], ...]
    numbers: tuple[Tensor, ...]
    scale: Tensor | None

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        """The knobs of rows, with other defaults where a row's sums fit registers; and STAGES."""
        defaults, places = self._defaults, 0
        if defaults is not None:
            places = self._places(defaults.team, defaults.items, defaults.cluster)
        of_rows = knobs(self.layout, self.arch, self.held, defaults if places else None)
        text = "rows on their way to shared memory; 0: gradients are reductions"
        return (*of_rows, Knob("places", KnobType.STAGES, tuple(range(_MAX_PLACES + 1)), places, text))

    def tile(self, chosen: Choices) -> SummingTile | None:
        """The tile of resolved knobs; None where rows are not summed on the way, or do not fit."""
        places, cluster = chosen[KnobType.STAGES], chosen[KnobType.TILE_CGA_M]
        if not places or chosen[KnobType.CTA_COUNT] > 1:
            return None
        return self._tile(chosen[KnobType.THREADS_PER_ROW], chosen[KnobType.MULTIPLY], cluster, places)

    def _places(self, team: int, items: int, cluster: int) -> int:
        """As many as fit, scales included; more than one of them are worth more than the scales."""
        found = [self._tile(team, items, cluster, places) for places in range(_PLACES, 0, -1)]
        fitting = [tile for tile in found if tile is not None]
        wanted = (tile for tile in fitting if tile.scales != NOWHERE and tile.places > 1)
        return next((tile.places for tile in (*wanted, *fitting)), 0)

    @property
    def _defaults(self) -> RowDivision | None:
        """As few threads for each row as hold it, or have registers for its sums where that takes fewer blocks; None
        where not even a cluster has enough."""
        held, most = (
            min(max(1, registers // words), _ITEMS)
            for registers, words in ((_HELD_REGISTERS, self._held_words), (_SUM_REGISTERS, self._sum_words))
        )
        fitting = (c for c in clusters(self.arch) if self.layout.groups <= _MAX_TEAM * most * c)
        least = next(fitting, 0)
        if not least:
            return None
        cluster = filling_cluster(self.layout, self.arch, least)
        own = ceil_div(self.layout.groups, cluster)
        wanted = held if own <= _MAX_TEAM * held else most
        team = max(ceil_power(ceil_div(own, wanted)), min(_MIN_TEAM, ceil_power(own)))
        return RowDivision(team, ceil_div(own, team), cluster)

    def _tile(self, team: int, items: int, cluster: int, places: int) -> SummingTile | None:
        most_slots, slots = self.layout.row_groups // (2 * self.arch.sm_count), 1
        if cluster == 1:
            slots = floor_power(max(1, WARP_SIZE // team, min(_BLOCK_THREADS // team, most_slots)))
        team = max(team, WARP_SIZE // slots)
        shape = RowTile(team * slots, team, 1, items, cluster, cluster, 0, 1)
        if items > _MAX_ITEMS or shape.chunks(self.layout) > 1:
            return None
        of_rows = sum(tensor.element_bytes for tensor in self.numbers)
        shared_bytes = places * shape.THREADS * (items * self._group_bytes + of_rows)
        scale_bytes = shape.THREADS * items * self._scale_bytes
        holds, scales = self._holding(items)
        wanted = ((scales, scale_bytes), (NOWHERE, 0)) if scales == IN_SHARED_MEMORY else ((scales, 0),)
        for scales, own_bytes in wanted:
            for resident in range(self._resident(shape), 0, -1):
                if shared_bytes + own_bytes <= shared_room(self.arch, resident) - self._other_bytes(shape):
                    shape = replace(shape, RESIDENT=resident)
                    blocks = shape.staying_blocks(self.layout, self.arch)
                    return SummingTile(shape, places, holds, scales, shared_bytes + own_bytes, blocks)
        return None

    def _holding(self, items: int) -> tuple[bool, int]:
        """Whether threads have registers for the row at hand, and where they would have the scales."""
        if items * self._held_words <= _HELD_REGISTERS:
            return True, IN_REGISTERS if self._scale_bytes else NOWHERE
        words = self._sum_words + ceil_div(self._group_bytes, 4)
        return items * words <= _HELD_REGISTERS, IN_SHARED_MEMORY if self._scale_bytes else NOWHERE

    def _resident(self, shape: RowTile) -> int:
        """Blocks for which a multiprocessor has registers."""
        holds, scales = self._holding(shape.ITEMS)
        words = self._sum_words
        if holds:
            words = self._held_words if scales == IN_REGISTERS else words + ceil_div(self._group_bytes, 4)
        return max(1, resident_blocks(_REGISTERS + shape.ITEMS * words, shape.THREADS))

    @property
    def _held_words(self) -> int:
        """Registers for a group that is held: its sums, its scales, and what is read of it."""
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
        """Bytes of static shared memory at most: what teams and slots join."""
        joined = shape.THREADS * self.layout.vector if shape.slots > 1 else 0
        return (joined + shape.THREADS + 16) * self._element_bytes

    @property
    def _element_bytes(self) -> int:
        return dtypes.info(self.compute_type).size_bytes
