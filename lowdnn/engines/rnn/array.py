"""Arrays of a plan: tensors, parts of tensors, and intermediates in the workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from lowdnn import dtypes
from lowdnn.engines.launch import WORKSPACE_ALIGNMENT_BYTES
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.enums import DataType
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.plan import Pointer, Scalar, ScalarType, TensorPointer, WorkspacePointer

_NULL = Scalar(ScalarType.U64, 0)


@dataclass(frozen=True)
class Array:
    """Elements ``strides`` apart from the one at ``pointer``, whose address is a multiple of ``alignment_bytes``."""

    pointer: Pointer
    data_type: DataType
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    alignment_bytes: int

    @classmethod
    def of(cls, tensor: Tensor) -> Array:
        return cls(TensorPointer(tensor.uid), tensor.data_type, tensor.dims, tensor.strides, tensor.alignment_bytes)

    @classmethod
    def reserved(cls, parts: PlanParts, data_type: DataType, dims: tuple[int, ...]) -> Array:
        """A row-major array in the workspace of ``parts``."""
        offset_bytes = parts.reserve(prod(dims) * dtypes.info(data_type).size_bytes)
        return cls(WorkspacePointer(offset_bytes), data_type, dims, packed_strides(dims), WORKSPACE_ALIGNMENT_BYTES)

    @property
    def element_bytes(self) -> int:
        return dtypes.info(self.data_type).size_bytes

    @property
    def size_bytes(self) -> int:
        return prod(self.dims) * self.element_bytes

    def part(self, offset: int, dims: Sequence[int], strides: Sequence[int]) -> Array:
        """The elements from the one ``offset`` elements behind the first, in another shape."""
        offset_bytes = offset * self.element_bytes
        pointer = replace(self.pointer, offset_bytes=self.pointer.offset_bytes + offset_bytes)
        alignment_bytes = gcd(self.alignment_bytes, offset_bytes)
        return replace(self, pointer=pointer, dims=tuple(dims), strides=tuple(strides), alignment_bytes=alignment_bytes)

    def at(self, index: int) -> Array:
        """The elements at ``index`` of the first axis, which they have no more."""
        return self.part(index * self.strides[0], self.dims[1:], self.strides[1:])

    def columns(self, first: int, count: int) -> Array:
        """``count`` elements along the last axis."""
        return self.part(first * self.strides[-1], (*self.dims[:-1], count), self.strides)

    def rows(self, first: int, count: int) -> Array:
        """``count`` elements along the last axis but one."""
        dims = (*self.dims[:-2], count, self.dims[-1])
        return self.part(first * self.strides[-2], dims, self.strides)

    def permuted(self, *axes: int) -> Array:
        """The axes in another order."""
        dims, strides = (tuple(values[axis] for axis in axes) for values in (self.dims, self.strides))
        return replace(self, dims=dims, strides=strides)

    def split(self, axis: int, inner: int) -> Array:
        """``axis`` as two, the second of ``inner`` elements."""
        outer, stride = self.dims[axis] // inner, self.strides[axis]
        dims = (*self.dims[:axis], outer, inner, *self.dims[axis + 1 :])
        strides = (*self.strides[:axis], inner * stride, stride, *self.strides[axis + 1 :])
        return replace(self, dims=dims, strides=strides)

    @property
    def is_mergeable(self) -> bool:
        """Whether the first two axes are one."""
        return self.dims[0] == 1 or self.dims[1] == 1 or self.strides[0] == self.dims[1] * self.strides[1]

    def merged(self) -> Array:
        """The first two axes as one, where they are."""
        stride = self.strides[0] if self.dims[1] == 1 else self.strides[1]
        dims = (self.dims[0] * self.dims[1], *self.dims[2:])
        return replace(self, dims=dims, strides=(stride, *self.strides[2:]))

    def tensor(self, uid: int) -> Tensor:
        """The array as a tensor in a graph of its own."""
        return Tensor(uid, self.data_type, self.dims, self.strides, self.alignment_bytes)

    def is_aligned(self, element_count: int, *strides: int) -> bool:
        """Whether runs of ``element_count`` elements begin at multiples of their size, at multiples of ``strides``."""
        run_bytes = element_count * self.element_bytes
        return all(
            length % run_bytes == 0 for length in (self.alignment_bytes, *(s * self.element_bytes for s in strides))
        )


def address_of(array: Array | None) -> Pointer | Scalar:
    """The argument of a kernel; null for None."""
    return _NULL if array is None else array.pointer
