"""The launch of ``transform_misaligned.cu``: tiles of x's fastest axis, u, by y's fastest axis, v, for misaligned
rows."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices
from lowdnn.engines.launch import ceil_div, divider, i64, is_dependent
from lowdnn.engines.transform.batches import Batch, KernelIndex, Rounds, kernel_ref, refuse_size
from lowdnn.enums import KnobType
from lowdnn.plan import KernelRef, Launch, Struct

#: Values of THREADS_PER_ROW: vectors of x in a row of the tile.
LANES_U = (8, 16, 32)
#: Threads of a block.
_THREADS = 256
#: Rows of x that a thread reads, 128 bytes in flight, unless elements become wider in shared memory.
_UNROLL = 8
#: Bytes of a vector.
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of the kernel; field names are its macros."""

    X: str
    Y: str
    LANES_U: int
    OUTER: int
    PARTS: int
    THREADS: int
    UNROLL: int
    OVERLAPS_PREVIOUS: int


@dataclass(frozen=True)
class Misaligned:
    """A batch of copies with misaligned rows.  batch: its axes are in the kernel's order: the outer ones, u, v."""

    batch: Batch

    @property
    def refusal(self) -> str:
        radices = [self._radices(part, min(LANES_U)) for part in range(len(self.batch.copies))]
        return refuse_size(radices, sum(map(prod, radices)))

    def planned(self, chosen: Choices, arch: ArchSpec, kernel_index: KernelIndex) -> Launch:
        """The launch that the engine's knobs choose; numbers of lanes that only other tiles allow mean the default."""
        lanes = chosen[KnobType.THREADS_PER_ROW]
        params = self.params(lanes if lanes in LANES_U else self.default_lanes_u, overlaps=is_dependent(arch))
        return self.launch(params, kernel_index(kernel_of(params, self.batch.types_name)))

    @property
    def default_lanes_u(self) -> int:
        """The number of lanes with the fewest blocks."""
        parts = range(len(self.batch.copies))
        return min(LANES_U, key=lambda lanes: (sum(prod(self._radices(part, lanes)) for part in parts), lanes != 16))

    def params(self, lanes_u: int, *, overlaps: bool) -> Params:
        """overlaps: whether it is a dependent launch, which sm_90a has."""
        x_type, y_type = self.batch.c_types
        return Params(
            X=x_type,
            Y=y_type,
            LANES_U=lanes_u,
            OUTER=len(self.batch.axes) - 2,
            PARTS=len(self.batch.copies),
            THREADS=_THREADS,
            UNROLL=self._unroll,
            OVERLAPS_PREVIOUS=int(overlaps),
        )

    def launch(self, params: Params, kernel: int) -> Launch:
        parts = range(len(self.batch.copies))
        radices = [self._radices(part, params.LANES_U) for part in parts]
        rounds = Rounds.of([prod(part) for part in radices])
        return Launch(
            kernel=kernel,
            grid=(rounds.blocks, 1, 1),
            block=(_THREADS, 1, 1),
            arguments=(Struct((*map(self._part, parts, radices), rounds.argument)),),
            work=self.batch.work,
            overlaps_previous=bool(params.OVERLAPS_PREVIOUS),
        )

    @property
    def _unroll(self) -> int:
        x_bytes, y_bytes = self.batch.element_bytes
        return min(_UNROLL, _UNROLL * x_bytes // y_bytes)

    def _radices(self, part: int, lanes_u: int) -> list[int]:
        """Tiles along each axis. A row of y may end up to a vector minus one element after its tile."""
        x_bytes, y_bytes = self.batch.element_bytes
        overlap = _VECTOR_BYTES // y_bytes
        *outer, u, v = (axis.extents[part] for axis in self.batch.axes)
        sides = ((lanes_u - 1) * _VECTOR_BYTES // x_bytes, _THREADS // lanes_u * self._unroll - overlap)
        return [*outer, ceil_div(u, sides[0]), ceil_div(v + overlap - 1, sides[1])]

    def _part(self, part: int, radices: list[int]) -> Struct:
        axes = (field for radix in (1, *radices[1:]) for field in divider(radix))
        u, v = self.batch.axes[-2:]
        sizes = i64([self.batch.span(part), u.extents[part], v.extents[part]])
        return Struct((*self.batch.pointers(part), *sizes, *self.batch.strides(part), *axes))


def kernel_of(params: Params, types: str) -> KernelRef:
    shape = f"{params.LANES_U}_o{params.OUTER}p{params.PARTS}"
    return kernel_ref("misaligned", types, shape, params, overlaps=bool(params.OVERLAPS_PREVIOUS))
