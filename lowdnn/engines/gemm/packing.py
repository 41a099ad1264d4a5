"""Tensors repacked as [positions][groups][padded channels], by the kernels of ``transform``.

It serves activations that are not channels-last, filters that are not KRSC, channels that do not fill 8 or 16 bytes,
and matrices (k as channels) whose rows are not aligned or that have no contiguous dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from lowdnn.engines.launch import ACCESS_BYTES, WORKSPACE_ALIGNMENT_BYTES, aligned_bytes, bytes_touched, ceil_div
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.transform import rows, tiles
from lowdnn.engines.transform.batches import Batch, KernelIndex
from lowdnn.engines.transform.layout import common_axes
from lowdnn.engines.transform.matching import Copy
from lowdnn.engines.transform.rows import Rows
from lowdnn.engines.transform.tiles import Tiles
from lowdnn.engines.transform.views import View
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Launch, Pointer, TensorPointer, Work, WorkspacePointer

#: Threads that keep the memory of a large GPU busy.
_THREADS_IN_FLIGHT = 2**18
#: Threads of a tile if enough threads are in flight.
_TILE_THREADS = 256
#: Threads of a tile otherwise.
_SMALL_TILE_THREADS = 64


@dataclass(frozen=True)
class Packing:
    """``tensor`` (image or filter, channel, spatial...) repacked; channels of each group are padded to ``unit_bytes``.

    line_bytes: a further multiple of bytes to which they are padded, itself a multiple of ``unit_bytes``.
    """

    tensor: Tensor
    groups: int
    unit_bytes: int
    line_bytes: int = 0

    @property
    def group_channels(self) -> int:
        return self.tensor.dims[1] // self.groups

    @property
    def padded_channels(self) -> int:
        unit = max(self.unit_bytes, self.line_bytes) // self.tensor.element_bytes
        return ceil_div(self.group_channels, unit) * unit

    @property
    def positions(self) -> int:
        return self.tensor.element_count // self.tensor.dims[1]

    @property
    def channels(self) -> int:
        return self.groups * self.padded_channels

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the packed tensor in elements, in the order of the tensor's dims."""
        spatial = self.tensor.dims[2:]
        inner = tuple(prod(spatial[axis + 1 :]) * self.channels for axis in range(len(spatial)))
        return (prod(spatial) * self.channels, 1, *inner)

    @property
    def size_bytes(self) -> int:
        return aligned_bytes(self.positions * self.channels * self.tensor.element_bytes)

    def launch(self, kernel_index: KernelIndex, offset_bytes: int, *, overlaps: bool) -> Launch:
        """Packs into the workspace at ``offset_bytes``.  overlaps: as a dependent launch, on sm_90a."""
        batch = self._batch(offset_bytes)
        accesses = batch.elements * self.tensor.element_bytes // ACCESS_BYTES
        tiled = Tiles.of(batch)
        if tiled is not None:
            threads = _TILE_THREADS if accesses >= _THREADS_IN_FLIGHT else _SMALL_TILE_THREADS
            tiled = replace(tiled, threads=threads)
            tile_params = tiled.params(tiled.default_lanes_u, overlaps=overlaps)
            launch = tiled.launch(tile_params, kernel_index(tiles.kernel_of(tile_params, batch.types_name)))
        else:
            in_rows = Rows.of(batch)
            unroll = max((u for u in rows.UNROLLS if u * _THREADS_IN_FLIGHT <= accesses), default=1)
            row_params = in_rows.params(unroll, overlaps=overlaps)
            launch = in_rows.launch(row_params, kernel_index(rows.kernel_of(row_params, batch.types_name)))
        return replace(launch, work=Work(bytes=bytes_touched(self.tensor) + self.size_bytes))

    def _batch(self, offset_bytes: int) -> Batch:
        """One copy over (image, spatial..., group, channel)."""
        tensor, target = self.tensor, WorkspacePointer(offset_bytes)
        dims = (tensor.dims[0], *tensor.dims[2:], self.groups, self.group_channels)

        def strides(image: int, channel: int, *spatial: int, group_channels: int) -> tuple[int, ...]:
            return (image, *spatial, group_channels * channel, channel)

        x_strides = strides(*tensor.strides, group_channels=self.group_channels)
        y_strides = strides(*self.strides, group_channels=self.padded_channels)
        x = replace(View.of(tensor), dims=dims, strides=x_strides)
        y = View(target, tensor.data_type, dims, y_strides, WORKSPACE_ALIGNMENT_BYTES)
        copies = (Copy(x, y),)
        return Batch(copies, common_axes(copies, padding=self.padded_channels - self.group_channels))


def packed_operand(parts: PlanParts, uid: int, packing: Packing | None, *, overlaps: bool = False) -> Pointer:
    """The pointer by which a kernel reads tensor ``uid``: in place, or in the workspace after a launch that packs it.

    overlaps: as a dependent launch, on sm_90a.
    """
    if packing is None:
        return TensorPointer(uid)
    offset_bytes = parts.reserve(packing.size_bytes)
    parts.launches.append(packing.launch(parts.kernel, offset_bytes, overlaps=overlaps))
    return WorkspacePointer(offset_bytes)
