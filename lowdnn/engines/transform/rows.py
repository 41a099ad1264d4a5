"""The launch of ``transform_rows.cu``: groups of neighbours along y's fastest axis, one for each thread."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices
from lowdnn.engines.indices import counter_type
from lowdnn.engines.launch import ceil_div, ceil_power, divider, i64, is_dependent
from lowdnn.engines.transform.batches import Batch, KernelIndex, Rounds, kernel_ref, refuse_size
from lowdnn.enums import KnobType
from lowdnn.plan import KernelRef, Launch, Struct

#: Threads of a block.
THREADS = 128
#: Values of MULTIPLY: groups of a thread in flight.
UNROLLS = (1, 2, 4)
#: Bytes of a thread in flight at most by default.
_BYTES_IN_FLIGHT = 32


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of the kernel; field names are its macros."""

    X: str
    Y: str
    RANK: int
    COLUMN_AXIS: int
    PARTS: int
    THREADS: int
    UNROLL: int
    VECTOR: int
    X_WIDTH: int
    Y_WIDTH: int
    INDEX: str
    HAS_TAIL: int
    OVERLAPS_PREVIOUS: int


@dataclass(frozen=True)
class Rows:
    """A batch of copies.  batch: its axes are in the kernel's order.  column: the axis cut into groups of
    ``vector``."""

    batch: Batch
    column: int
    vector: int

    @staticmethod
    def of(batch: Batch) -> Rows:
        """The rows of a batch. Neighbouring threads lie along an axis in which x is contiguous, even if y is not."""
        axes = list(batch.axes)
        column = axes[-1]
        lanes = next((axis for axis in reversed(axes) if set(axis.x_strides) == {1}), column)
        if lanes is not column:
            axes = [*(axis for axis in axes if axis is not lanes), lanes]
        most = 16 // min(batch.element_bytes)
        return Rows(batch.with_axes(axes), axes.index(column), min(most, ceil_power(max(column.y_extents))))

    @property
    def refusal(self) -> str:
        radices = [self._radices(part) for part in range(len(self.batch.copies))]
        return refuse_size(radices, Rounds.of([prod(part) for part in radices], THREADS).blocks)

    def planned(self, chosen: Choices, arch: ArchSpec, kernel_index: KernelIndex) -> Launch:
        """The launch that the engine's knobs choose."""
        unroll = chosen[KnobType.MULTIPLY] or self.default_unroll(arch)
        params = self.params(unroll, overlaps=is_dependent(arch))
        return self.launch(params, kernel_index(kernel_of(params, self.batch.types_name)))

    def default_unroll(self, arch: ArchSpec) -> int:
        """Groups of each thread: as many as may be in flight and leave work for every multiprocessor."""
        groups = self.batch.elements // self.vector
        fitting = [u for u in UNROLLS if u * self.vector * self.batch.element_bytes[0] <= _BYTES_IN_FLIGHT]
        return max([u for u in fitting if u * arch.sm_count * arch.threads_per_sm <= groups] or [1])

    def params(self, unroll: int, *, overlaps: bool) -> Params:
        """overlaps: whether it is a dependent launch, which sm_90a has."""
        parts = range(len(self.batch.copies))
        x_type, y_type = self.batch.c_types
        column = self.batch.axes[self.column]
        return Params(
            X=x_type,
            Y=y_type,
            RANK=len(self.batch.axes),
            COLUMN_AXIS=self.column,
            PARTS=len(parts),
            THREADS=THREADS,
            UNROLL=unroll,
            VECTOR=self.vector,
            X_WIDTH=self.batch.x_width(self.column, self.vector) if set(column.x_strides) == {1} else 0,
            Y_WIDTH=self.batch.y_width(self.column, self.vector) if set(column.y_strides) == {1} else 0,
            INDEX=counter_type(max(prod(self._radices(part)) for part in parts)),
            HAS_TAIL=int(any(extent % self.vector for extent in column.y_extents)),
            OVERLAPS_PREVIOUS=int(overlaps),
        )

    def launch(self, params: Params, kernel: int) -> Launch:
        parts = range(len(self.batch.copies))
        rounds = Rounds.of([prod(self._radices(part)) for part in parts], THREADS * params.UNROLL)
        return Launch(
            kernel=kernel,
            grid=(rounds.blocks, 1, 1),
            block=(THREADS, 1, 1),
            arguments=(Struct((*map(self._part, parts), rounds.argument)),),
            work=self.batch.work,
            overlaps_previous=bool(params.OVERLAPS_PREVIOUS),
        )

    def _radices(self, part: int) -> list[int]:
        """Groups along each axis."""
        return [
            ceil_div(axis.y_extents[part], self.vector) if number == self.column else axis.extents[part]
            for number, axis in enumerate(self.batch.axes)
        ]

    def _part(self, part: int) -> Struct:
        radices = self._radices(part)
        axes = (field for radix in (1, *radices[1:]) for field in divider(radix))
        column = self.batch.axes[self.column]
        sizes = i64([prod(radices), self.batch.span(part), column.extents[part], column.y_extents[part]])
        return Struct((*self.batch.pointers(part), *sizes, *self.batch.strides(part), *axes))


def kernel_of(params: Params, types: str) -> KernelRef:
    shape = (
        f"r{params.RANK}a{params.COLUMN_AXIS}p{params.PARTS}_v{params.VECTOR}x{params.X_WIDTH}y{params.Y_WIDTH}"
        f"{'t' * params.HAS_TAIL}u{params.UNROLL}_{params.INDEX}"
    )
    return kernel_ref("rows", types, shape, params, overlaps=bool(params.OVERLAPS_PREVIOUS))
