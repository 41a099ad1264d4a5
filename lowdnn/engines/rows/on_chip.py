"""How a kernel keeps rows on chip that are longer than its threads' registers: resident chunks, rings, pipelines."""

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

#: Slots that all chunks without a slot of their own share: ``ChunkSlots::RING``.
_RING = 3
#: Rows at most whose chunks a ring has slots for.
_MOST_ROWS = 4
#: Threads along y of a pipelined kernel: its roles (``norm/row_roles.cuh``).
_ROLES = 4
#: Bytes of the barriers of a pipelined kernel.
_BARRIER_BYTES = 640
#: Slots of a pipelined kernel's ring at most: ``RowStages::MOST``.
_MOST_STAGES = 32
#: Rows that a pipelined kernel's ring has slots for at least.
_LEAST_PIPELINED_ROWS = 2
#: Rows that a pipelined kernel's ring has slots for at most.
_PIPELINED_ROWS = 6
#: Threads of a role at least: one warp of a role posts numbers while the others poll.
_LEAST_THREADS = 64
#: ``RowExchange::AREAS``: rows that each block's mailboxes have room for.
_AREAS = 16
#: ``RowExchange::RESULTS``: rows whose results wait for the second pass.
_RESULTS = 4
#: The size of a ``Mailbox``, in numbers.
_MAILBOX_NUMBERS = 2
#: ``Sample::MEMBERS`` of ``norm_forward_pipelined.cu``: groups of a row that the estimate of its mean is taken over.
_SAMPLED_MEMBERS = 4
#: ``Sample::ROWS`` of ``norm_forward_pipelined.cu``: rows whose sampled groups shared memory has room for.
_SAMPLED_ROWS = 8


@dataclass(frozen=True)
class OnChip:
    """The shared memory, the ring and the grid of one kernel (``norm/resident_chunks.cuh``)."""

    tile: RowTile
    layout: RowLayout
    compute_type: DataType
    arch: ArchSpec
    #: The operations of the kernel's Prologue.
    before: PointwiseDag
    #: Further tensors that are read for each element, and kept.
    others: tuple[Tensor, ...] = ()
    #: Whether the chunks of several rows should go through a ring.
    is_ring_wanted: bool = False
    #: Whether rows may be read once more at the end.
    has_extremes: bool = False

    def fitted(self) -> OnChip:
        """Itself with fewer resident blocks, as far as a ring that is wanted and possible needs their room."""
        residents = range(self.tile.RESIDENT, 0, -1)
        fewer = (replace(self, tile=replace(self.tile, RESIDENT=count)) for count in residents)
        return next((on_chip for on_chip in fewer if on_chip.is_in_ring), self)._checked()

    @property
    def switches(self) -> tuple[tuple[str, int], ...]:
        """The macros CHUNKS_RESIDENT, IN_RING and AGAIN."""
        return (
            ("CHUNKS_RESIDENT", int(self.keeps_chunks)),
            ("IN_RING", int(self.is_in_ring)),
            ("AGAIN", int(self._has_again)),
        )

    @property
    def is_in_ring(self) -> bool:
        """Whether the grid is persistent, and the chunks of its rows go through a ring of slots."""
        is_several = self.tile.persistent_blocks(self.layout, self.arch) < self.tile.blocks(self.layout)
        are_warps = (
            self.tile.THREADS % WARP_SIZE == 0 and self.tile.THREADS >= _LEAST_THREADS and self.tile.SIDE <= WARP_SIZE
        )
        has_roles = are_warps and _ROLES * self.tile.THREADS <= MAX_BLOCK_THREADS
        is_supported = (has_roles and self.arch.has_tma) or not self.tile.is_cooperative
        is_possible = not self.layout.space.skew and is_several and is_supported and self._chunks > 1
        return self.is_ring_wanted and is_possible and self._least_slots <= self._fitting

    @property
    def is_pipelined(self) -> bool:
        """Whether the blocks of a cooperative grid share each row, with threads for each pass
        (``norm/row_roles.cuh``)."""
        return self.is_in_ring and self.tile.is_cooperative

    @property
    def roles(self) -> int:
        """``RowKernel.roles``: a pipelined kernel has threads for each role."""
        return _ROLES if self.is_pipelined else 1

    @property
    def sampled_members(self) -> int:
        """Threads of a team that read one group each for the estimate of a shared row's mean."""
        return min(_SAMPLED_MEMBERS, self.tile.TEAM) if self.is_pipelined else self.tile.TEAM

    @property
    def blocks(self) -> int:
        """Blocks for ``RowKernel.launch``; 0 leaves it one for each group of rows."""
        return self.tile.persistent_blocks(self.layout, self.arch) if self.is_in_ring else 0

    @property
    def keeps_chunks(self) -> bool:
        """Whether chunks stay resident in shared memory."""
        return self.slots > 0

    @property
    def slots(self) -> int:
        """Slots for chunks in shared memory; none for a row of one chunk, which stays in registers."""
        chunks, fitting = self._chunks, self._fitting
        if self.is_pipelined:
            return min(fitting, _PIPELINED_ROWS * chunks)
        if self.is_in_ring:
            return min(fitting, _MOST_ROWS * chunks)
        return 0 if chunks == 1 or fitting <= min(_RING, chunks - 1) else min(chunks, fitting)

    @property
    def shared_bytes(self) -> int:
        return self.slots * self._chunk_bytes

    @property
    def bytes_read_again(self) -> int:
        """Bytes of the chunks that are read from device memory twice: all but the last, which are still resident."""
        resident = 1 if not self.keeps_chunks else min(self.slots, self._chunks)
        return bytes_of((*self.before.loads, *self.others)) * (self._chunks - resident) // self._chunks

    def again(self) -> tuple[Functor, ...]:
        """The functor Again, if Prologue stores tensors and runs more than once for an element."""
        return again_of(self.layout, self.before, self.compute_type, self.keeps_chunks) if self._has_again else ()

    def partials(self, chain: PlanParts) -> tuple[Argument, ...]:
        """The workspace in which the blocks of a cooperative grid exchange two sums for each of their rows."""
        if not self.tile.is_cooperative:
            return ()
        blocks, times = (
            (self.blocks, _AREAS * _MAILBOX_NUMBERS) if self.is_pipelined else (self.tile.blocks(self.layout), 1)
        )
        return (WorkspacePointer(chain.reserve(times * blocks * self._sums_bytes)),)

    def _checked(self) -> OnChip:
        """Raises BadParamError where a cooperative grid would not fit the device."""
        if self.tile.is_cooperative and not self.is_pipelined and self.tile.blocks(self.layout) > self.arch.sm_count:
            pipelined = f", or READ_AHEAD 2 with room for {self._least_slots} chunks" if self.arch.has_tma else ""
            expected = f"blocks that the device has{pipelined}"
            raise BadParamError.at("rows.CTA_COUNT", expected=expected, got=self.tile.SHARING)
        return self

    @property
    def _least_slots(self) -> int:
        """The fewest slots of a ring: room for one row, or for two rows in a pipelined kernel."""
        return _LEAST_PIPELINED_ROWS * self._chunks if self.tile.is_cooperative else self._chunks

    @property
    def _fitting(self) -> int:
        """Chunks that shared memory has room for; none if the rows are computed without reading anything."""
        if not self._chunk_bytes:
            return 0
        in_roles = self.tile.is_cooperative and self.is_ring_wanted
        other_bytes = self._exchange_bytes if in_roles else self._team_bytes
        room = shared_room(self.arch, self.tile.RESIDENT) - other_bytes
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
        """Bytes that a block reads of a chunk."""
        each = ((tensor,) for tensor in self.others)
        group_bytes = sum(self.layout.read_bytes(tensors) for tensors in (*each, self.before.loads))
        return self.tile.ITEMS * self.tile.THREADS * group_bytes

    @property
    def _sums_bytes(self) -> int:
        """Bytes of two sums for each row of a team."""
        return self.tile.SIDE * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        """Bytes of two sums for each row of a thread."""
        width = 1 if self.layout.space.is_row else self.layout.vector
        return 2 * width * dtypes.info(self.compute_type).size_bytes

    @property
    def _team_bytes(self) -> int:
        """Bytes of ``RowTeam::Shared`` at most."""
        parts = self._parts if 32 % self.tile.SIDE else 2 * self._parts
        shares = self.tile.THREADS * dtypes.info(self.compute_type).size_bytes
        return (parts + 2) * self._sums_bytes + max(shares, self._sums_bytes) + self._group_sum_bytes

    @property
    def _exchange_bytes(self) -> int:
        """Bytes of ``RowExchange::Shared``, the slots' barriers, the samples of rows and the roles' reductions at
        most."""
        shares = 2 * max(self._sums_bytes, self.tile.THREADS * dtypes.info(self.compute_type).size_bytes)
        samples = _SAMPLED_ROWS * _SAMPLED_MEMBERS * self.tile.SIDE * self.layout.read_bytes(self.before.loads)
        results = (self._parts + 2 * _RESULTS) * self._sums_bytes
        return results + shares + samples + 2 * self.tile.SIDE * self._group_sum_bytes + _BARRIER_BYTES

    @property
    def _group_sum_bytes(self) -> int:
        """Bytes of the sums that the rows of a normalisation group share, for each thread side by side."""
        return 2 * self.tile.slots * self._row_bytes if self.layout.space.group_rows > 1 else 0

    @property
    def _parts(self) -> int:
        """Parts of a team with sums each: its warps, or its members if they do not divide a warp."""
        return self.tile.TEAM if 32 % self.tile.SIDE else ceil_div(self.tile.THREADS, 32)


def again_of(layout: RowLayout, before: PointwiseDag, compute_type: DataType, copies: bool) -> tuple[Functor, ...]:
    """The functor Again: Prologue, which applies ``before``, without its stores.

    copies: whether it reads from shared memory.
    """
    return (layout.space.functor(replace(before, stores=()), "Again", None, compute_type, copies=copies),)
