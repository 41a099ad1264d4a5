"""The launch of ``transform_tiled.cu``: tiles of x's fastest axis, u, by y's fastest axis, v."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn.engines.launch import ceil_div, divider, i64, macros
from lowdnn.engines.transform.batches import Batch, launch_struct, refuse_size
from lowdnn.plan import KernelRef, Launch, Struct

#: Threads along u, of _THREADS.
LANES_U = (4, 8, 16, 32, 64)
_THREADS = 256
#: Elements along a side of the square that a thread turns over, by the bytes of the wider type: 16 bytes, less where
#: the square would not fit into registers.
_MICRO = {1: 8, 2: 8, 4: 4, 8: 2}
#: Blocks that a squarer tile may take, as a multiple of the fewest.
_FEW_MORE = 1.06
#: Both axes have at least this extent.
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


@dataclass(frozen=True)
class Tiles:
    """batch: its axes in the kernel's order: the outer ones, u, v."""

    batch: Batch

    @staticmethod
    def of(batch: Batch) -> Tiles | None:
        """None where x and y are contiguous along the same axis, or not far enough along two."""
        *others, v = batch.axes
        u = next((axis for axis in others if set(axis.x_strides) == {1}), None)
        if u is None or set(v.y_strides) != {1} or min(max(u.extents), max(v.extents)) < _MIN_EXTENT:
            return None
        return Tiles(batch.with_axes([*(axis for axis in others if axis is not u), u, v]))

    @property
    def refusal(self) -> str:
        radices = [self._radices(part, min(LANES_U)) for part in range(len(self.batch.copies))]
        return refuse_size(radices, sum(map(prod, radices)))

    @property
    def default_lanes_u(self) -> int:
        """The squarest of the tiles with few threads beyond the edges."""
        squarest = LANES_U[len(LANES_U) // 2]
        blocks = {
            lanes: sum(prod(self._radices(part, lanes)) for part in range(len(self.batch.copies))) for lanes in LANES_U
        }
        few = _FEW_MORE * min(blocks.values())
        fitting = (lanes for lanes in LANES_U if blocks[lanes] <= few)
        return min(fitting, key=lambda lanes: abs(lanes.bit_length() - squarest.bit_length()))

    def params(self, lanes_u: int) -> Params:
        x_type, y_type = self.batch.c_types
        rank = len(self.batch.axes)
        return Params(
            X=x_type,
            Y=y_type,
            MICRO=self._micro,
            LANES_U=lanes_u,
            LANES_V=_THREADS // lanes_u,
            OUTER=rank - 2,
            PARTS=len(self.batch.copies),
            X_WIDTH=self._width(self.batch.x_width(rank - 2, self._micro)),
            Y_WIDTH=self._width(self.batch.y_width(rank - 1, self._micro)),
        )

    def launch(self, params: Params, kernel: int) -> Launch:
        parts = range(len(self.batch.copies))
        blocks = [prod(self._radices(part, params.LANES_U)) for part in parts]
        return Launch(
            kernel=kernel,
            grid=(sum(blocks), 1, 1),
            block=(_THREADS, 1, 1),
            arguments=(launch_struct((self._part(part, params) for part in parts), blocks),),
            work=self.batch.work,
        )

    @property
    def _micro(self) -> int:
        return _MICRO[max(self.batch.element_bytes)]

    def _width(self, aligned: int) -> int:
        """Elements of an access; 0 where two accesses at any address are fewer than aligned ones."""
        return aligned if 2 * aligned >= self._micro else 0

    def _radices(self, part: int, lanes_u: int) -> list[int]:
        """Tiles along each axis."""
        *outer, u, v = (axis.extents[part] for axis in self.batch.axes)
        sides = (lanes_u * self._micro, _THREADS // lanes_u * self._micro)
        return [*outer, ceil_div(u, sides[0]), ceil_div(v, sides[1])]

    def _part(self, part: int, params: Params) -> Struct:
        axes = (field for radix in (1, *self._radices(part, params.LANES_U)[1:]) for field in divider(radix))
        extents = i64(axis.extents[part] for axis in self.batch.axes[-2:])
        return Struct((*self.batch.pointers(part), *extents, *self.batch.strides(part), *axes))


def kernel_of(params: Params, types: str) -> KernelRef:
    shape = (
        f"{params.LANES_U * params.MICRO}x{params.LANES_V * params.MICRO}_o{params.OUTER}p{params.PARTS}"
        f"x{params.X_WIDTH}y{params.Y_WIDTH}"
    )
    return KernelRef(f"transform_tiled_{types}_{shape}_sm80", "transform/transform_tiled.cu", "sm_80", macros(params))
