"""Host side of ``channels_last_pack.cu``: a tensor as [positions][groups][padded channels].

Serves activations that are not channels-last, filters that are not KRSC, channels that do not fill 8 or 16 bytes; and
matrices (k as channels) whose rows are not aligned or that have no contiguous dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.engines.launch import aligned_bytes, bytes_touched, ceil_div, ceil_power, divider, i32, i64, macros
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, TensorPointer, Work, WorkspacePointer

_THREADS = 256
_BLOCK_ELEMENTS = 2048
_MAX_TILE_CHANNELS = 32


@dataclass(frozen=True)
class PackParams:
    """Macros of ``channels_last_pack.cu``."""

    TYPE: str
    TILE_CHANNELS: int
    POSITIONS_FIRST: int
    SPATIAL_AXES: int
    CHUNK: int


@dataclass(frozen=True)
class Packing:
    """``tensor`` (image or filter, channel, spatial...) repacked; channels of each group padded to ``unit_bytes``.

    line_bytes: what they are padded to beside that, a multiple of ``unit_bytes``.
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
        """Elements, of the packed tensor in the order of the tensor's dims."""
        spatial = self.tensor.dims[2:]
        inner = tuple(prod(spatial[axis + 1 :]) * self.channels for axis in range(len(spatial)))
        return (prod(spatial) * self.channels, 1, *inner)

    @property
    def size_bytes(self) -> int:
        return aligned_bytes(self.positions * self.channels * self.tensor.element_bytes)

    @property
    def params(self) -> PackParams:
        chunk = self.unit_bytes // self.tensor.element_bytes
        tile_channels = min(_MAX_TILE_CHANNELS, ceil_power(self.channels))
        return PackParams(
            TYPE=dtypes.info(self.tensor.data_type).c_type,
            TILE_CHANNELS=max(tile_channels, chunk),
            POSITIONS_FIRST=int(self.tensor.strides[1] != 1),
            SPATIAL_AXES=self.tensor.rank - 2,
            CHUNK=chunk,
        )


def pack_kernel(packing: Packing) -> KernelRef:
    params = packing.params
    order = "p" if params.POSITIONS_FIRST else "c"
    short_name = dtypes.info(packing.tensor.data_type).short_name
    return KernelRef(
        name=f"gemm_channels_last_pack_{short_name}_c{params.TILE_CHANNELS}_v{params.CHUNK}_{order}{params.SPATIAL_AXES}_sm80",
        source="gemm/channels_last_pack.cu",
        target="sm_80",
        parameters=macros(params),
    )


def pack_launch(kernel: int, packing: Packing, offset_bytes: int) -> Launch:
    """Packs into the workspace at ``offset_bytes``."""
    tensor, tile_channels = packing.tensor, packing.params.TILE_CHANNELS
    padding = 5 - tensor.rank
    extents = (*(1,) * padding, *tensor.dims[2:])
    strides = (*(0,) * padding, *tensor.strides[2:])
    channel_tiles = ceil_div(packing.channels, tile_channels)
    arguments = Struct(
        (
            TensorPointer(tensor.uid),
            WorkspacePointer(offset_bytes),
            *i64((tensor.strides[0], *strides, tensor.strides[1])),
            *(Struct(divider(extent)) for extent in extents),
            *i32((packing.positions, packing.group_channels)),
            Struct(divider(packing.padded_channels)),
            *i32((packing.channels, channel_tiles)),
        )
    )
    blocks = ceil_div(packing.positions, _BLOCK_ELEMENTS // tile_channels) * channel_tiles
    work = Work(bytes=bytes_touched(tensor) + packing.size_bytes, unit=MathUnit.NONE)
    return Launch(kernel, (blocks, 1, 1), (_THREADS, 1, 1), (arguments,), work=work)
