"""One operand of ``matmul_mma``: its layout in memory, and whether it has to be repacked first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowdnn.engines.gemm.packing import Packing
from lowdnn.engines.indices import MAX_INDEX
from lowdnn.ops.tensor import Tensor

#: Bytes of the largest copy, to which packed operands are aligned.
MAX_ALIGNMENT = 16
#: Most axes of a packed operand, except k.
MAX_PACKED_AXES = 4

#: Least alignment in bytes without which the kernel copies element by element.
_MIN_ALIGNMENT = 4
#: Multiplications from which on a repacking launch pays for such an operand.
_MIN_MULTIPLICATIONS = 2**24
#: Bytes of a cache line, to which long rows of a packed operand are aligned.
_LINE_BYTES = 128
#: Bytes of a row from which on it counts as long.
_MIN_ALIGNED_ROW_BYTES = 1024


@dataclass(frozen=True)
class Operand:
    """Strides in elements (0 where the operand is broadcast) of the batch axes, of the row or column dimension and of
    k.

    extent, depth: extents of the row or column dimension, and of k.  packing: the repacked form that has these strides.
    """

    tensor: Tensor
    batch_strides: tuple[int, ...]
    stride: int
    k_stride: int
    extent: int
    depth: int
    packing: Packing | None = None

    @classmethod
    def of(cls, tensor: Tensor, line_axis: int, k_axis: int, multiplications: int) -> Operand:
        """``tensor`` in place, or repacked if that is necessary or pays for ``multiplications`` multiplications."""
        pairs = zip(tensor.dims, tensor.strides, strict=True)
        strides = tuple(0 if extent == 1 else stride for extent, stride in pairs)
        in_place = cls(
            tensor,
            strides[:-2],
            strides[line_axis],
            tensor.strides[k_axis],
            tensor.dims[line_axis],
            tensor.dims[k_axis],
        )
        is_slow = in_place.alignment < _MIN_ALIGNMENT and multiplications >= _MIN_MULTIPLICATIONS
        if in_place.is_contiguous and not is_slow:
            return in_place
        return in_place._packed(line_axis, k_axis)

    @property
    def is_k_major(self) -> bool:
        return self.k_stride == 1 or self.depth <= 1

    @property
    def is_contiguous(self) -> bool:
        """Whether the operand is contiguous along k or along the other dimension; a vector is, which the output may
        merge with batch axes.
        """
        is_vector = self.extent <= 1 and not any(self.batch_strides)
        return self.is_k_major or self.stride == 1 or is_vector

    @property
    def leading_stride(self) -> int:
        return self.stride if self.is_k_major else self.k_stride

    @property
    def alignment(self) -> int:
        """The greatest power of two up to 16 bytes that divides the address, the contiguous extent and the other
        strides.
        """
        if self.packing is not None:
            return MAX_ALIGNMENT
        contiguous, lines = (self.depth, self.extent) if self.is_k_major else (self.extent, self.depth)
        strides = (*self.batch_strides, self.leading_stride if lines > 1 else 0, contiguous)
        size = self.tensor.element_bytes
        common = self.tensor.alignment_bytes | MAX_ALIGNMENT
        for stride in strides:
            common |= stride * size
        return common & -common

    def over(self, batch_strides: tuple[int, ...], stride: int) -> Operand:
        """This operand over other batch axes."""
        return replace(self, batch_strides=batch_strides, stride=stride)

    def _packed(self, line_axis: int, k_axis: int) -> Operand:
        """The operand repacked K-major; unchanged if it has too many axes or rows, or no elements."""
        packed = packed_matrix(self.tensor, k_axis, line_axis)
        if packed is None:
            return self
        packing, strides = packed
        return replace(
            self,
            batch_strides=strides[:-2],
            stride=strides[line_axis],
            k_stride=1,
            packing=packing,
        )


def packed_matrix(tensor: Tensor, along: int, other: int) -> tuple[Packing, tuple[int, ...]] | None:
    """Matrices repacked with axis ``along`` innermost and padded to MAX_ALIGNMENT or cache lines; ``other``: the second
    axis.

    The strides are those of the packed tensor over all axes, 0 where it is broadcast. None if there are too many axes
    or positions, or no elements.
    """
    axes = [axis for axis in range(tensor.rank) if axis != along and tensor.dims[axis] != 1 and tensor.strides[axis]]
    if len(axes) > MAX_PACKED_AXES or not tensor.element_count:
        return None
    image, *spatial = axes or [other]
    order = (image, along, *spatial)
    view = replace(
        tensor,
        dims=tuple(tensor.dims[axis] for axis in order),
        strides=tuple(tensor.strides[axis] for axis in order),
    )
    is_long = tensor.dims[along] * tensor.element_bytes >= _MIN_ALIGNED_ROW_BYTES
    packing = Packing(view, 1, MAX_ALIGNMENT, _LINE_BYTES if is_long else 0)
    if packing.positions > MAX_INDEX:
        return None
    packed = dict(zip(order, packing.strides, strict=True))
    return packing, tuple(packed.get(axis, 0) for axis in range(tensor.rank))
