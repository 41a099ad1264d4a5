"""How kernels over sequences divide their work: the lanes' axis, a thread's tiles, and the arguments that say so.

See ``sequence_tile.cuh`` and ``sequence_bounds.cuh``, whose macros and structs this module fills.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.access import contiguous_elements
from lowdnn.engines.launch import (
    MAX_GRID_X,
    ceil_div,
    ceil_power,
    conversion_target,
    dependent_target,
    divider,
    i32,
    i64,
    is_dependent,
    macros,
    target_label,
)
from lowdnn.enums import DataType
from lowdnn.ops.base import HasPorts, inputs_of, outputs_of
from lowdnn.ops.causal_conv1d import CausalConv1d
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, KernelRef, Pointer, Struct, TensorPointer, WorkspacePointer

#: Positions of a thread's tile.
POSITIONS = 8
#: Threads of a block.
THREADS = 128
#: The most neighbouring threads along the positions, which exchange values by shuffles.
_LANES = 32
#: The most bytes of an element of which a thread has two channels.
_PAIRED_BYTES = 2
#: The most taps with which a thread has registers for two channels and the distances to the ends of sequences.
_PAIRED_TAPS = 4
#: The fewest tiles of a thread that sums over them: a run reads the samples of up to one more tile.
_LEAST_RUN = 4
#: Blocks for each multiprocessor that are enough: a few times what it has room for.
_BLOCKS_PER_SM = 16
#: The greatest number of positions, and of batches times channels: room for the tiles behind the last.
_MOST = 2**30


@dataclass(frozen=True)
class Tiling:
    """The tiles of an operation: those of x decide."""

    operands: CausalConv1d

    @cached_property
    def along_channels(self) -> bool:
        """Whether neighbouring threads have neighbouring channels: where those lie side by side in x."""
        return self.operands.x.strides[1] == 1 and (self.operands.x.strides[2] != 1 or self.length == 1)

    @property
    def channel_count(self) -> int:
        return self.operands.x.dims[1]

    @property
    def length(self) -> int:
        return self.operands.x.dims[2]

    @property
    def rows(self) -> int:
        return self.operands.x.dims[0] * self.channel_count

    @cached_property
    def channels(self) -> int:
        """Channels of a thread: two where neighbouring threads then access a whole line of memory."""
        operands = self.operands
        has_pairs = self.along_channels and self.channel_count % 2 == 0 and operands.x.element_bytes <= _PAIRED_BYTES
        has_bounds = operands.offsets is not None or operands.initial_states is not None
        return 2 if has_pairs and not (has_bounds and operands.taps > _PAIRED_TAPS) else 1

    @cached_property
    def lanes(self) -> int:
        """Neighbouring threads along an axis; all of a block where each channel has one tile alone."""
        extent = self.channel_count // self.channels if self.along_channels else ceil_div(self.length, POSITIONS)
        most = THREADS if self.along_channels and self.length <= POSITIONS else _LANES
        return min(most, ceil_power(max(extent, 1)))

    @property
    def groups(self) -> int:
        return THREADS // self.lanes

    @property
    def span(self) -> int:
        """Positions that a group of lanes has at a time."""
        return POSITIONS if self.along_channels else POSITIONS * self.lanes

    def unit_blocks(self, count: int) -> int:
        """Blocks along the positions, whose threads have ``count`` tiles each."""
        return max(1, ceil_div(self.length, self.span * count * (self.groups if self.along_channels else 1)))

    def blocks(self, count: int) -> int:
        """Blocks of a launch whose threads have ``count`` tiles each."""
        return self.unit_blocks(count) * self._outer * self._inner

    def parts(self, count: int) -> int:
        """Sums that a launch makes of each channel (``Place.part``)."""
        return self.operands.x.dims[0] * self.unit_blocks(count) if self.length else 0

    def width(self, tensor: Tensor) -> int:
        """Elements of an access along the lanes' axis; 0 where they are strided."""
        axis = 1 if self.along_channels else 2
        if tensor.strides[axis] != 1:
            return 0
        return min(
            self.channels if self.along_channels else POSITIONS, contiguous_elements(tensor, tensor.strides, axis)
        )

    def run(self, arch: ArchSpec) -> int:
        """Tiles of a thread that sums over them: as many as leave enough blocks for the device, but not very few."""
        run = ceil_power(ceil_div(max(self.length, 1), self.span * (self.groups if self.along_channels else 1)))
        while run > _LEAST_RUN and self.blocks(run) < _BLOCKS_PER_SM * arch.sm_count:
            run //= 2
        return run

    def rows_of(self, tensor: Tensor) -> Rows:
        return Rows(TensorPointer(tensor.uid), tensor.data_type, tensor.strides, self.width(tensor))

    def scratch(self, offset_bytes: int, data_type: DataType) -> Rows:
        """Elements for those of x in the workspace, side by side along the lanes' axis."""
        length = ceil_div(self.length, POSITIONS) * POSITIONS
        channel, position = (1, self.channel_count) if self.along_channels else (length, 1)
        width = self.channels if self.along_channels else POSITIONS
        return Rows(WorkspacePointer(offset_bytes), data_type, (self.channel_count * length, channel, position), width)

    def scratch_bytes(self, data_type: DataType) -> int:
        length = ceil_div(self.length, POSITIONS) * POSITIONS
        return self.rows * length * dtypes.info(data_type).storage.itemsize

    def shape(self, count: int) -> Struct:
        """``Shape``."""
        inner = self._inner if self.along_channels else self.channel_count
        sizes = (*i64((self.channel_count,)), *i32((self.length, self.rows)))
        return Struct((*sizes, *divider(self.unit_blocks(count)), *divider(inner)))

    def limit(self) -> str:
        """The reason why the kernels cannot count the positions or blocks, or ''."""
        most = max(self.length, self.rows, self.operands.taps, self.operands.count * self.channel_count)
        if most > _MOST:
            return f"tensor.dims: expected at most {_MOST} positions, and channels of all sequences, got {most}"
        blocks = self.blocks(1)
        return f"tensor.dims: expected at most {MAX_GRID_X} blocks, got {blocks}" if blocks > MAX_GRID_X else ""

    @property
    def _outer(self) -> int:
        return self.operands.x.dims[0] if self.along_channels else ceil_div(self.rows, self.groups)

    @property
    def _inner(self) -> int:
        return ceil_div(self.channel_count, self.lanes * self.channels) if self.along_channels else 1


@dataclass(frozen=True)
class Rows:
    """Elements (batch, channel, position) in memory, and those of an access (``Tiling.width``)."""

    pointer: Pointer
    data_type: DataType
    strides: tuple[int, ...]
    width: int

    @property
    def c_type(self) -> str:
        return dtypes.info(self.data_type).c_type


@dataclass(frozen=True)
class TileParams:
    """The macros of all kernels over sequences."""

    X: str
    COMPUTE: str
    INDEX: str
    SEQUENCES: int
    HAS_STATES: int
    SLOT: str
    HAS_SLOTS: int
    THREADS: int
    LANES: int
    CHANNELS: int
    ALONG_CHANNELS: int

    @staticmethod
    def of(tiling: Tiling, x: DataType, *, has_states: bool) -> TileParams:
        """x: the type of samples.  has_states: whether the kernel reads the initial states, if there are any."""
        operands = tiling.operands
        bounds, slots = operands.lengths or operands.offsets, operands.state_indices
        return TileParams(
            X=dtypes.info(x).c_type,
            COMPUTE=dtypes.info(operands.compute_type).c_type,
            INDEX="i32" if bounds is None else dtypes.info(bounds.data_type).c_type,
            SEQUENCES=0 if bounds is None else 1 if operands.offsets is None else 2,
            HAS_STATES=int(has_states and operands.initial_states is not None),
            SLOT="i32" if slots is None else dtypes.info(slots.data_type).c_type,
            HAS_SLOTS=int(slots is not None),
            THREADS=THREADS,
            LANES=tiling.lanes,
            CHANNELS=tiling.channels,
            ALONG_CHANNELS=int(tiling.along_channels),
        )


def sequences(operands: CausalConv1d) -> Struct:
    """``Sequences``."""
    bounds, states = operands.lengths or operands.offsets, operands.initial_states
    slots = operands.state_indices
    of_indices = (0 if indices is None else indices.strides[0] for indices in (bounds, slots))
    strides = (*(states.strides if states is not None else (0, 0, 0)), *of_indices, operands.state_dims[0])
    count = i32((operands.count, operands.x.dims[2]))
    return Struct((pointer_of(bounds), pointer_of(slots), pointer_of(states), *i64(strides), *count))


def pointer_of(tensor: Tensor | None) -> Argument:
    """The address of a tensor; NULL where there is none."""
    return i64((0,))[0] if tensor is None else TensorPointer(tensor.uid)


def kernel_of(
    source: str, operation: HasPorts, arch: ArchSpec, *params: object, is_dependent_launch: bool = False
) -> KernelRef:
    """The kernel of ``<source>.cu`` for the operation's types, with the macros that ``params`` have as fields.

    is_dependent_launch: whether it waits for its predecessor where ``arch`` has dependent launches.
    """
    found = tuple(pair for some in params for pair in macros(some))
    types = (tensor.data_type for tensor in (inputs_of(operation) | outputs_of(operation)).values())
    waits = is_dependent_launch and is_dependent(arch)
    target = dependent_target(arch) if waits else conversion_target(types, arch)
    return KernelRef(
        name=f"{source}_{_label(found)}_{target_label(target)}",
        source=f"conv/sequence/{source}.cu",
        target=target,
        parameters=found,
    )


def _label(found: tuple[tuple[str, int | str], ...]) -> str:
    """The values of macros in a kernel's name: types as they are, numbers behind the initials of their macros."""
    initials = ("".join(word[0] for word in name.lower().split("_")) for name, _ in found)
    return "_".join(
        str(value) if isinstance(value, str) else f"{initial}{value}"
        for initial, (_, value) in zip(initials, found, strict=True)
    )
