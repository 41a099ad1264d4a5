"""Batch norms of several ranks in one launch each (``row_peers.cuh``): the division of rows, the grid, the arguments.

A block waits for other ranks in the midst of its work. So all blocks of a launch are resident: it is cooperative, and
its grid persistent. Rows are divided as on devices without clusters, whose launches the driver need not combine with a
cooperative one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import i64
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.engines.rows.tile import RowTile
from lowdnn.enums import DataType
from lowdnn.ops.peer_stats import channels_of
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, Launch, Struct, TensorPointer

#: The newest capability without clusters and without pipelines of roles.
_WITHOUT_CLUSTERS = (8, 9)
#: Bytes of shared memory that the numbers of a block's rows take at most.
_BLOCK_BYTES = 8192
#: Bytes that those of all blocks of a multiprocessor take at most.
_MULTIPROCESSOR_BYTES = 16384


@dataclass(frozen=True)
class Peers:
    """tensors: the operation's ``peer_stats``; one or none is a norm without peers."""

    tensors: tuple[Tensor, ...]
    compute_type: DataType

    @property
    def count(self) -> int:
        """The ranks, at least one."""
        return max(1, len(self.tensors))

    @property
    def are_there(self) -> bool:
        return self.count > 1

    @property
    def switches(self) -> tuple[tuple[str, int], ...]:
        """The macro PEERS, which kernels without peers do not have."""
        return (("PEERS", self.count),) if self.are_there else ()

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """``PeersOf``."""
        if not self.are_there:
            return ()
        channels = channels_of(self.tensors[0].element_count, self.count, self.compute_type)
        return (Struct((*i64((channels,)), *(TensorPointer(tensor.uid) for tensor in self.tensors))),)

    def seen(self, arch: ArchSpec) -> ArchSpec:
        """The device as the division of rows sees it: without clusters, and with room for the exchange."""
        if not self.are_there:
            return arch
        return replace(
            arch,
            compute_capability=min(arch.compute_capability, _WITHOUT_CLUSTERS),
            shared_bytes_per_block=arch.shared_bytes_per_block - _BLOCK_BYTES,
            shared_bytes_per_sm=arch.shared_bytes_per_sm - _MULTIPROCESSOR_BYTES,
        )

    def blocks(self, tile: RowTile, layout: RowLayout, arch: ArchSpec, chosen: int) -> int:
        """Blocks for ``RowKernel.launch``: ``chosen``, those of a grid that is persistent anyway; else all that are
        resident where there are peers, and 0, one for each group of rows, where there are none."""
        if chosen or not self.are_there:
            return chosen
        return tile.persistent_blocks(layout, arch)

    def launched(self, launch: Launch) -> Launch:
        """The launch, cooperative where there are peers."""
        return replace(launch, cooperative=True) if self.are_there else launch
