"""The launch of ``transform_narrow.cu``: a few columns, interleaved in one tensor and planar in the other."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices
from lowdnn.engines.launch import ceil_div, divider, i64, is_dependent
from lowdnn.engines.transform.batches import Batch, KernelIndex, kernel_ref, refuse_size
from lowdnn.engines.transform.layout import Axis
from lowdnn.plan import KernelRef, Launch, Struct

#: Threads of a block.
_THREADS = 128
#: Columns at most; more are tiles, or would cost registers.
_MOST_COLUMNS = 8
#: Elements of a thread's vector at most.
_MOST_VECTOR = 8
#: Elements along the other axis at least.
_MIN_EXTENT = 64


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of the kernel; field names are its macros."""

    X: str
    Y: str
    OUTER: int
    NARROW: int
    VECTOR: int
    THREADS: int
    X_WIDTH: int
    Y_WIDTH: int
    INTERLEAVED_Y: int
    OVERLAPS_PREVIOUS: int


@dataclass(frozen=True)
class Narrow:
    """One copy. Both tensors continue along ``u``; ``columns`` are interleaved in y (interleaved_y) or in x."""

    batch: Batch
    outer: tuple[Axis, ...]
    u: Axis
    columns: Axis
    interleaved_y: bool

    @staticmethod
    def of(batch: Batch) -> Narrow | None:
        """The copy of a batch, or None for other layouts and for several copies."""
        if len(batch.copies) > 1:
            return None
        for interleaved_y in (True, False):
            found = {_strides(axis, interleaved_y): axis for axis in batch.axes}
            columns = next(
                (axis for (interleaved, planar), axis in found.items() if interleaved == 1 and planar > 1), None
            )
            if columns is None or not 2 <= columns.extents[0] <= _MOST_COLUMNS:
                continue
            u = found.get((columns.extents[0], 1))
            if u is not None and u.extents[0] >= _MIN_EXTENT:
                return Narrow(batch, tuple(a for a in batch.axes if a not in (u, columns)), u, columns, interleaved_y)
        return None

    @property
    def refusal(self) -> str:
        return refuse_size([self._radices], prod(self._radices))

    def planned(self, chosen: Choices, arch: ArchSpec, kernel_index: KernelIndex) -> Launch:
        """The launch, which has no knobs."""
        params = self.params(overlaps=is_dependent(arch))
        return self.launch(params, kernel_index(kernel_of(params, self.batch.types_name)))

    def params(self, *, overlaps: bool) -> Params:
        """overlaps: whether it is a dependent launch, which sm_90a has."""
        x_type, y_type = self.batch.c_types
        interleaved = self.batch.with_axes((*self.outer, self.u))
        planar = self.batch.with_axes((*self.outer, self.columns, self.u))
        x, y = (planar, interleaved) if self.interleaved_y else (interleaved, planar)
        return Params(
            X=x_type,
            Y=y_type,
            OUTER=len(self.outer),
            NARROW=self.columns.extents[0],
            VECTOR=self._vector,
            THREADS=_THREADS,
            X_WIDTH=x.x_width(len(x.axes) - 1, self._vector),
            Y_WIDTH=y.y_width(len(y.axes) - 1, self._vector),
            INTERLEAVED_Y=int(self.interleaved_y),
            OVERLAPS_PREVIOUS=int(overlaps),
        )

    def launch(self, params: Params, kernel: int) -> Launch:
        _, planar_stride = _strides(self.columns, self.interleaved_y)
        strides = self.batch.with_axes((*self.outer, self.u)).strides(0)
        axes = (field for radix in (1, *self._radices[1:]) for field in divider(radix))
        sizes = i64((self.u.extents[0], planar_stride))
        return Launch(
            kernel=kernel,
            grid=(prod(self._radices), 1, 1),
            block=(_THREADS, 1, 1),
            arguments=(Struct((*self.batch.pointers(0), *sizes, *strides, *axes)),),
            work=self.batch.work,
            overlaps_previous=bool(params.OVERLAPS_PREVIOUS),
        )

    @property
    def _vector(self) -> int:
        return min(_MOST_VECTOR, 16 // max(self.batch.element_bytes))

    @property
    def _radices(self) -> list[int]:
        """Rows along each outer axis, then the blocks of a row."""
        return [*(axis.extents[0] for axis in self.outer), ceil_div(self.u.extents[0], _THREADS * self._vector)]


def kernel_of(params: Params, types: str) -> KernelRef:
    form = f"n{params.NARROW}{'y' if params.INTERLEAVED_Y else 'x'}"
    shape = f"{form}_o{params.OUTER}v{params.VECTOR}x{params.X_WIDTH}y{params.Y_WIDTH}"
    return kernel_ref("narrow", types, shape, params, overlaps=bool(params.OVERLAPS_PREVIOUS))


def _strides(axis: Axis, interleaved_y: bool) -> tuple[int, int]:
    """(the axis' stride in the interleaved tensor, that in the planar one)."""
    x, y = axis.x_strides[0], axis.y_strides[0]
    return (y, x) if interleaved_y else (x, y)
