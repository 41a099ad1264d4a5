"""What a kernel over rows keeps on chip of rows that are longer than the registers of its threads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import MAX_BLOCK_THREADS, WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.launch import bytes_of, ceil_div
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.engines.rows.tile import RowTile
from lowdnn.enums import DataType
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, WorkspacePointer
from lowdnn.status import BadParamError

#: Slots that chunks without one of their own share: ``ChunkSlots::RING``.
_RING = 3
#: Rows that a ring has room for, at most.
_MOST_ROWS = 4
#: Where blocks share rows in turns (``norm/row_roles.cuh``): threads along y, bytes of barriers, slots at most, and
#: the rows that these have room for, at least and at most.
_ROLES, _BARRIER_BYTES, _MOST_STAGES, _FEWEST_TURN_ROWS, _TURN_ROWS = 4, 640, 32, 2, 6
#: Threads of a role, at least, one warp of which tells while the others hear.
_LEAST_THREADS = 64
#: ``AREAS`` and ``RESULTS`` of what such blocks tell each other (``norm/row_exchange.cuh``), and ``Told``'s size in
#: numbers.
_AREAS, _RESULTS, _TOLD = 16, 4, 2
#: Groups of a row that the estimate of its mean is taken over then, and rows whose groups there is room for: ``Sample``
#: of ``norm_forward_turns.cu``.
_SAMPLED_MEMBERS, _SAMPLED_ROWS = 4, 8


@dataclass(frozen=True)
class OnChip:
    """See the module's docstring and ``norm/resident_chunks.cuh``.

    before: the operations of the kernel's Prologue.  others: tensors that are read beside its operands and stay too.
    is_ring_wanted: whether a ring for the chunks of several rows is wanted.
    has_extremes: whether rows may be read once more at the end.
    """

    tile: RowTile
    layout: RowLayout
    compute_type: DataType
    arch: ArchSpec
    before: PointwiseDag
    others: tuple[Tensor, ...] = ()
    is_ring_wanted: bool = False
    has_extremes: bool = False

    def fitted(self) -> OnChip:
        """Itself, with as many blocks on a multiprocessor as rings have room for, if rings are wanted and possible."""
        residents = range(self.tile.RESIDENT, 0, -1)
        fewer = (replace(self, tile=replace(self.tile, RESIDENT=count)) for count in residents)
        return next((on_chip for on_chip in fewer if on_chip.is_in_ring), self)._checked()

    @property
    def switches(self) -> tuple[tuple[str, int], ...]:
        """The macros STAYS, IN_RING and AGAIN."""
        return (
            ("STAYS", int(self.stays)),
            ("IN_RING", int(self.is_in_ring)),
            ("AGAIN", int(self._has_again)),
        )

    @property
    def is_in_ring(self) -> bool:
        """Whether blocks stay for several rows, whose chunks go through a ring of slots: of roles with whole warps."""
        is_several = self.tile.staying_blocks(self.layout, self.arch) < self.tile.blocks(self.layout)
        are_warps = (
            self.tile.THREADS % WARP_SIZE == 0 and self.tile.THREADS >= _LEAST_THREADS and self.tile.SIDE <= WARP_SIZE
        )
        has_roles = are_warps and _ROLES * self.tile.THREADS <= MAX_BLOCK_THREADS
        may_stay = (has_roles and self.arch.has_tma) or not self.tile.is_cooperative
        is_possible = not self.layout.space.skew and is_several and may_stay and self._chunks > 1
        return self.is_ring_wanted and is_possible and self._least_slots <= self._fitting

    @property
    def is_in_turns(self) -> bool:
        """Whether the blocks of a cooperative grid share one row after the other (``norm/row_roles.cuh``)."""
        return self.is_in_ring and self.tile.is_cooperative

    @property
    def roles(self) -> int:
        """``RowKernel.roles``: the passes over rows that blocks share in turns have threads each."""
        return _ROLES if self.is_in_turns else 1

    @property
    def sampled_members(self) -> int:
        """Threads of a team that have a group each of those that a shared row's mean is estimated from."""
        return min(_SAMPLED_MEMBERS, self.tile.TEAM) if self.is_in_turns else self.tile.TEAM

    @property
    def blocks(self) -> int:
        """Blocks for ``RowKernel.launch``."""
        return self.tile.staying_blocks(self.layout, self.arch) if self.is_in_ring else 0

    @property
    def stays(self) -> bool:
        """Whether chunks are copied to shared memory."""
        return self.slots > 0

    @property
    def slots(self) -> int:
        """Chunks that shared memory has room for: all where there are several; a single one stays in registers."""
        chunks, fitting = self._chunks, self._fitting
        if self.is_in_turns:
            return min(fitting, _TURN_ROWS * chunks)
        if self.is_in_ring:
            return min(fitting, _MOST_ROWS * chunks)
        return 0 if chunks == 1 or fitting <= min(_RING, chunks - 1) else min(chunks, fitting)

    @property
    def shared_bytes(self) -> int:
        return self.slots * self._chunk_bytes

    @property
    def bytes_read_again(self) -> int:
        """Bytes of device memory: of what had no slot of its own all but the last chunks, which still have theirs."""
        kept = 1 if not self.stays else min(self.slots, self._chunks)
        return bytes_of((*self.before.loads, *self.others)) * (self._chunks - kept) // self._chunks

    def again(self) -> tuple[Functor, ...]:
        """The functor Again, where Prologue is run more than once for an element and stores."""
        return again_of(self.layout, self.before, self.compute_type, self.stays) if self._has_again else ()

    def partials(self, chain: PlanParts) -> tuple[Argument, ...]:
        """Where the blocks of a cooperative grid have room for their sums: two for each of a block's rows."""
        if not self.tile.is_cooperative:
            return ()
        blocks, times = (self.blocks, _AREAS * _TOLD) if self.is_in_turns else (self.tile.blocks(self.layout), 1)
        return (WorkspacePointer(chain.reserve(times * blocks * self._sums_bytes)),)

    def _checked(self) -> OnChip:
        """Raises BadParamError where a cooperative grid would not fit the device."""
        if self.tile.is_cooperative and not self.is_in_turns and self.tile.blocks(self.layout) > self.arch.sm_count:
            in_turns = f", or READ_AHEAD 2 with room for {self._least_slots} chunks" if self.arch.has_tma else ""
            expected = f"blocks that the device has{in_turns}"
            raise BadParamError.at("rows.CTA_COUNT", expected=expected, got=self.tile.SHARING)
        return self

    @property
    def _least_slots(self) -> int:
        """The fewest slots of a ring: for a row; where blocks share rows in turns, for several."""
        return _FEWEST_TURN_ROWS * self._chunks if self.tile.is_cooperative else self._chunks

    @property
    def _fitting(self) -> int:
        """Chunks that shared memory has room for; none where rows are made of nothing that is read."""
        if not self._chunk_bytes:
            return 0
        in_roles = self.tile.is_cooperative and self.is_ring_wanted
        beside = self._meeting_bytes if in_roles else self._team_bytes
        room = shared_room(self.arch, self.tile.RESIDENT) - beside
        fitting = max(room, 0) // self._chunk_bytes
        return min(fitting, _MOST_STAGES) if in_roles else fitting

    @property
    def _has_again(self) -> bool:
        is_sampled = self.tile.SHARING * self.tile.CLUSTER > 1
        return bool(self.before.stores) and (is_sampled or self._chunks > 1 or self.has_extremes)

    @property
    def _chunks(self) -> int:
        return self.tile.chunks(self.layout)

    @property
    def _chunk_bytes(self) -> int:
        """What a block reads of a chunk."""
        each = ((tensor,) for tensor in self.others)
        of_group = sum(self.layout.read_bytes(tensors) for tensors in (*each, self.before.loads))
        return self.tile.ITEMS * self.tile.THREADS * of_group

    @property
    def _sums_bytes(self) -> int:
        """Bytes of two sums for each of a team's rows."""
        return self.tile.SIDE * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        """Bytes of two sums for each row of a thread."""
        width = 1 if self.layout.space.is_row else self.layout.vector
        return 2 * width * dtypes.info(self.compute_type).size_bytes

    @property
    def _team_bytes(self) -> int:
        """Bytes of ``RowTeam::Shared``, at most."""
        parts = self._parts if 32 % self.tile.SIDE else 2 * self._parts
        shares = self.tile.THREADS * dtypes.info(self.compute_type).size_bytes
        return (parts + 2) * self._sums_bytes + max(shares, self._sums_bytes) + self._joined_bytes

    @property
    def _meeting_bytes(self) -> int:
        """Bytes at most of ``RowMeeting::Shared``, slots' barriers, of samples of rows and of what two roles join."""
        shares = 2 * max(self._sums_bytes, self.tile.THREADS * dtypes.info(self.compute_type).size_bytes)
        samples = _SAMPLED_ROWS * _SAMPLED_MEMBERS * self.tile.SIDE * self.layout.read_bytes(self.before.loads)
        results = (self._parts + 2 * _RESULTS) * self._sums_bytes
        return results + shares + samples + 2 * self.tile.SIDE * self._joined_bytes + _BARRIER_BYTES

    @property
    def _joined_bytes(self) -> int:
        """Bytes of the sums of joined rows, for each thread side by side."""
        return 2 * self.tile.slots * self._row_bytes if self.layout.space.joined > 1 else 0

    @property
    def _parts(self) -> int:
        """Parts of a team, with sums each."""
        return self.tile.TEAM if 32 % self.tile.SIDE else ceil_div(self.tile.THREADS, 32)


def again_of(layout: RowLayout, before: PointwiseDag, compute_type: DataType, stays: bool) -> tuple[Functor, ...]:
    """The functor Again: Prologue, which does ``before``, without what it stores."""
    return (layout.space.functor(replace(before, stores=()), "Again", None, compute_type, copies=stays),)
