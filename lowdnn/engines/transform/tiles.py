"""The launch of ``transform_tiled.cu``: tiles of x's fastest axis, u, by y's fastest axis, v."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices
from lowdnn.engines.launch import ceil_div, divider, i64, is_dependent
from lowdnn.engines.transform.batches import Batch, KernelIndex, Rounds, kernel_ref, refuse_size
from lowdnn.enums import KnobType
from lowdnn.plan import KernelRef, Launch, Struct

#: Values of THREADS_PER_ROW: threads along u, out of 256.
LANES_U = (4, 8, 16, 32, 64)
#: Elements along a side of the square that a thread transposes, by the bytes of the wider type: 16 bytes, or fewer if
#: the square would not fit into registers.
_MICRO = {1: 8, 2: 8, 4: 4, 8: 2}
#: Blocks that a squarer tile may need at most, relative to the fewest.
_FEW_MORE = 1.06
#: Extent of both axes at least.
_MIN_EXTENT = 16


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of the kernel; field names are its macros."""

    X: str
    Y: str
    MICRO: int
    LANES_U: int
    LANES_V: int
    OUTER: int
    PARTS: int
    X_WIDTH: int
    Y_WIDTH: int
    HAS_TAIL: int
    OVERLAPS_PREVIOUS: int


@dataclass(frozen=True)
class Tiles:
    """A batch of copies in tiles.

    batch: its axes are in the kernel's order: the outer ones, u, v.  threads: threads of a block, 64 or 256.
    """

    batch: Batch
    threads: int = 256

    @staticmethod
    def of(batch: Batch) -> Tiles | None:
        """The tiles of a batch; None if x and y are contiguous along the same axis, or the two axes are short."""
        *others, v = batch.axes
        u = next((axis for axis in others if set(axis.x_strides) == {1}), None)
        if u is None or set(v.y_strides) != {1} or min(max(u.extents), max(v.extents)) < _MIN_EXTENT:
            return None
        return Tiles(batch.with_axes([*(axis for axis in others if axis is not u), u, v]))

    @property
    def refusal(self) -> str:
        radices = [self._radices(part, min(LANES_U)) for part in range(len(self.batch.copies))]
        return refuse_size(radices, sum(map(prod, radices)))

    def planned(self, chosen: Choices, arch: ArchSpec, kernel_index: KernelIndex) -> Launch:
        """The launch that the engine's knobs choose."""
        lanes = chosen[KnobType.THREADS_PER_ROW] or self.default_lanes_u
        params = self.params(lanes, overlaps=is_dependent(arch))
        return self.launch(params, kernel_index(kernel_of(params, self.batch.types_name)))

    @property
    def default_lanes_u(self) -> int:
        """Threads along u of the squarest tile that leaves few threads without elements."""
        squarest, parts = isqrt(self.threads), range(len(self.batch.copies))
        fitting = [lanes for lanes in LANES_U if lanes * min(LANES_U) <= self.threads]
        blocks = {lanes: sum(prod(self._radices(part, lanes)) for part in parts) for lanes in fitting}
        few = _FEW_MORE * min(blocks.values())
        return min(
            (lanes for lanes in fitting if blocks[lanes] <= few),
            key=lambda lanes: abs(lanes.bit_length() - squarest.bit_length()),
        )

    @property
    def is_misaligned(self) -> bool:
        """Whether the widest accesses that the layouts allow are narrower than half a side of the square."""
        rank = len(self.batch.axes)
        width = min(self.batch.x_width(rank - 2, self._micro), self.batch.y_width(rank - 1, self._micro))
        return 2 * width < self._micro

    def params(self, lanes_u: int, *, overlaps: bool) -> Params:
        """overlaps: whether it is a dependent launch, which sm_90a has."""
        x_type, y_type = self.batch.c_types
        rank = len(self.batch.axes)
        return Params(
            X=x_type,
            Y=y_type,
            MICRO=self._micro,
            LANES_U=lanes_u,
            LANES_V=self.threads // lanes_u,
            OUTER=rank - 2,
            PARTS=len(self.batch.copies),
            X_WIDTH=self.batch.x_width(rank - 2, self._micro),
            Y_WIDTH=self.batch.y_width(rank - 1, self._micro),
            HAS_TAIL=int(any(extent % self._micro for extent in self.batch.axes[-1].y_extents)),
            OVERLAPS_PREVIOUS=int(overlaps),
        )

    def launch(self, params: Params, kernel: int) -> Launch:
        parts = range(len(self.batch.copies))
        rounds = Rounds.of([prod(self._radices(part, params.LANES_U)) for part in parts])
        return Launch(
            kernel=kernel,
            grid=(rounds.blocks, 1, 1),
            block=(params.LANES_U * params.LANES_V, 1, 1),
            arguments=(Struct((*(self._part(part, params) for part in parts), rounds.argument)),),
            work=self.batch.work,
            overlaps_previous=bool(params.OVERLAPS_PREVIOUS),
        )

    @property
    def _micro(self) -> int:
        return _MICRO[max(self.batch.element_bytes)]

    def _radices(self, part: int, lanes_u: int) -> list[int]:
        """Tiles along each axis."""
        *outer, u, v = (axis.y_extents[part] for axis in self.batch.axes)
        sides = (lanes_u * self._micro, self.threads // lanes_u * self._micro)
        return [*outer, ceil_div(u, sides[0]), ceil_div(v, sides[1])]

    def _part(self, part: int, params: Params) -> Struct:
        axes = (field for radix in (1, *self._radices(part, params.LANES_U)[1:]) for field in divider(radix))
        u, v = self.batch.axes[-2:]
        sizes = i64([self.batch.span(part), u.extents[part], v.extents[part], v.y_extents[part]])
        return Struct((*self.batch.pointers(part), *sizes, *self.batch.strides(part), *axes))


def kernel_of(params: Params, types: str) -> KernelRef:
    shape = (
        f"{params.LANES_U * params.MICRO}x{params.LANES_V * params.MICRO}_o{params.OUTER}p{params.PARTS}"
        f"x{params.X_WIDTH}y{params.Y_WIDTH}{'t' * params.HAS_TAIL}"
    )
    return kernel_ref("tiled", types, shape, params, overlaps=bool(params.OVERLAPS_PREVIOUS))
