"""Copies that share a launch, with what all kernels need: element types, pointers, widths of accesses, bytes moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from math import gcd, prod

from lowdnn import dtypes
from lowdnn.engines.launch import MAX_EXTENT, MAX_GRID_X, ceil_div, divider, i64, macros, target_label, target_of_form
from lowdnn.engines.transform.layout import Axis, access_width, common_axes
from lowdnn.engines.transform.matching import Copy, Moves
from lowdnn.engines.transform.views import View
from lowdnn.enums import DataType
from lowdnn.ops.tensor import span_elements
from lowdnn.plan import KernelRef, Pointer, Scalar, ScalarType, Struct, Work

#: A function that returns the index of a kernel for ``Launch.kernel``.
KernelIndex = Callable[[KernelRef], int]

#: Parts of one launch at most, as a kernel's parameters have room for.
_MAX_PARTS = 8
#: Rounds at least, if blocks do not divide the parts' sizes.
_FEWEST_ROUNDS = 64
#: The C++ type as which elements of equal types move, by their bytes.
_BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


@dataclass(frozen=True)
class Batch:
    """Copies of the same types that write parts of one tensor, none of them empty.  axes: their common axes."""

    copies: tuple[Copy, ...]
    axes: tuple[Axis, ...]

    @property
    def types(self) -> tuple[DataType, DataType]:
        return self.copies[0].x.data_type, self.copies[0].y.data_type

    @property
    def c_types(self) -> tuple[str, str]:
        """The kernel's X and Y."""
        x, y = map(dtypes.info, self.types)
        return (_BITS[x.size_bytes],) * 2 if x is y else (x.c_type, y.c_type)

    @property
    def element_bytes(self) -> tuple[int, int]:
        x, y = (dtypes.info(data_type).size_bytes for data_type in self.types)
        return x, y

    @property
    def types_name(self) -> str:
        """The types in kernel names: ``b16`` for bits, ``fp32_bf16`` for a conversion."""
        x, y = map(dtypes.info, self.types)
        return f"b{8 * x.size_bytes}" if x is y else f"{x.short_name}_{y.short_name}"

    @cached_property
    def elements(self) -> int:
        return sum(prod(copy.y.dims) for copy in self.copies)

    @property
    def work(self) -> Work:
        return Work(bytes=self.elements * sum(self.element_bytes))

    def with_axes(self, axes: Iterable[Axis]) -> Batch:
        return replace(self, axes=tuple(axes))

    def x_width(self, axis: int, most: int) -> int:
        """Elements of one access along ``axis``, along which x is contiguous; a divisor of the axis' extents."""
        steps = [
            [extent, *(row.x_strides[n] for row in self._others(axis))]
            for n, extent in enumerate(self.axes[axis].extents)
        ]
        return access_width([copy.x for copy in self.copies], steps, most)

    def y_width(self, axis: int, most: int) -> int:
        """Elements of one access along ``axis``, along which y is contiguous."""
        strides = [[row.y_strides[n] for row in self._others(axis)] for n in range(len(self.copies))]
        return access_width([copy.y for copy in self.copies], strides, most)

    def strides(self, part: int) -> tuple[Scalar, ...]:
        """The fields ``x_strides`` and ``y_strides`` of one part."""
        return i64([*(axis.x_strides[part] for axis in self.axes), *(axis.y_strides[part] for axis in self.axes)])

    def span(self, part: int) -> int:
        """Elements from the first that one part reads to just past the last."""
        return span_elements(
            tuple(axis.extents[part] for axis in self.axes), tuple(axis.x_strides[part] for axis in self.axes)
        )

    def pointers(self, part: int) -> tuple[Pointer, Pointer]:
        """The fields ``x`` and ``y`` of one part."""
        return _pointer(self.copies[part].x), _pointer(self.copies[part].y)

    def _others(self, axis: int) -> tuple[Axis, ...]:
        return self.axes[:axis] + self.axes[axis + 1 :]


def batches_of(moves: Moves) -> Iterator[Batch]:
    """The launches of ``moves``, in order."""
    for stage in moves.stages:
        filled = [copy for copy in stage.copies if 0 not in copy.y.dims]
        for _, alike in groupby(filled, key=lambda copy: copy.x.data_type):
            copies = tuple(alike)
            for first in range(0, len(copies), _MAX_PARTS):
                some = copies[first : first + _MAX_PARTS]
                yield Batch(some, common_axes(some))


@dataclass(frozen=True)
class Rounds:
    """The round-robin assignment of blocks to the parts of a launch (``PartRounds``).

    shares: blocks of each part in a round.  count: rounds.
    """

    shares: tuple[int, ...]
    count: int = 1

    @staticmethod
    def of(sizes: Sequence[int], block: int = 1) -> Rounds:
        """The assignment with the most rounds.

        sizes: the parts' sizes, ``block`` elements of which a block takes. If a block does not divide them, the last
        blocks of parts have nothing to do, at most one in ``_FEWEST_ROUNDS``.
        """
        unit = gcd(*sizes)
        count = ceil_div(unit, block)
        if block > 1 and count < _FEWEST_ROUNDS:
            return Rounds(tuple(ceil_div(size, block) for size in sizes))
        return Rounds(tuple(size // unit for size in sizes), count)

    @property
    def blocks(self) -> int:
        return sum(self.shares) * self.count

    @property
    def argument(self) -> Struct:
        ends = (Scalar(ScalarType.U32, end) for end in accumulate(self.shares))
        return Struct((*divider(sum(self.shares)), *ends))


def kernel_ref(idea: str, types: str, shape: str, params: object, *, overlaps: bool) -> KernelRef:
    """``transform_<idea>.cu`` with ``params``.  overlaps: whether it is a dependent launch, which sm_90a has."""
    target = target_of_form(is_newer=overlaps)
    name = f"transform_{idea}_{types}_{shape}_{target_label(target)}"
    return KernelRef(name, f"transform/transform_{idea}.cu", target, macros(params))


def refuse_size(radices: Sequence[Sequence[int]], blocks: int) -> str:
    """The reason why a kernel does not reach all elements of its parts, or an empty string."""
    extent = max((radix for part in radices for radix in part[1:]), default=1)
    if extent > MAX_EXTENT:
        return f"tensor.dims: expected at most {MAX_EXTENT} groups along an axis, got {extent}"
    return f"tensor.dims: expected at most {MAX_GRID_X} blocks, got {blocks}" if blocks > MAX_GRID_X else ""


def _pointer(view: View) -> Pointer:
    size = dtypes.info(view.data_type).size_bytes
    return replace(view.target, offset_bytes=view.target.offset_bytes + view.offset * size)
