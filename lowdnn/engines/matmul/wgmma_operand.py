"""One operand of ``matmul_wgmma``: its tensor map, and whether it has to be repacked first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES, WgmmaType
from lowdnn.engines.gemm.packing import Packing, packed_operand
from lowdnn.engines.gemm.tf32_split import Tf32Split
from lowdnn.engines.gemm.wgmma_tiles import MN_MAJOR_BOX, WgmmaTile, box_rows
from lowdnn.engines.launch import bytes_touched
from lowdnn.engines.matmul.mma_operand import MAX_PACKED_AXES, packed_matrix
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Pointer, TensorMap
from lowdnn.tensor_map import TensorMapDataType, TensorMapL2Promotion, TensorMapSwizzle, TiledMap

#: Bytes of which a tensor map's address and strides are multiples.
_ALIGNMENT = 16
_MAX_STRIDE_BYTES = 2**40
#: Bytes of two neighbouring cache lines, which neighbouring stages read.
_PAIR_BYTES = 256
#: Rows from which on device memory should fetch both lines of a pair at once; measured, it should not for fewer and
#: longer rows.
_MANY_ROWS = 1 << 17


@dataclass(frozen=True)
class WgmmaOperand:
    """Strides in elements (0 where the operand is broadcast) of the batch axes, and of the rows or columns and k.

    extent, depth: extents of the row or column dimension, and of k.  is_mn_major: whether rows or columns are
    contiguous in the tensor map, otherwise k is.  packing: the repacked form that has these strides.
    """

    tensor: Tensor
    batch_strides: tuple[int, ...]
    stride: int
    k_stride: int
    extent: int
    depth: int
    is_mn_major: bool
    packing: Packing | None = None

    @classmethod
    def of(
        cls, tensor: Tensor, line_axis: int, k_axis: int, kind: WgmmaType, *, allows_mn_major: bool = True
    ) -> WgmmaOperand | str:
        """``tensor`` in place if a tensor map can describe it, otherwise repacked, or why neither is possible.

        allows_mn_major: whether every tile begins at whole 16 bytes of rows or columns.
        """
        may_be_mn_major = kind.has_mn_major and allows_mn_major
        pairs = zip(tensor.dims, tensor.strides, strict=True)
        strides = tuple(0 if extent == 1 else stride for extent, stride in pairs)

        def lying(strides: tuple[int, ...], is_mn_major: bool, packing: Packing | None) -> WgmmaOperand:
            extents = tensor.dims[line_axis], tensor.dims[k_axis]
            return cls(tensor, strides[:-2], strides[line_axis], strides[k_axis], *extents, is_mn_major, packing)

        orders = ((k_axis, line_axis), (line_axis, k_axis)) if may_be_mn_major else ((k_axis, line_axis),)
        for along, _ in orders:
            if _has_map(tensor, strides, along):
                return lying(strides, along == line_axis, None)
        is_mn_major = may_be_mn_major and strides[line_axis] == 1
        along, other = (line_axis, k_axis) if is_mn_major else (k_axis, line_axis)
        packed = packed_matrix(tensor, along, other)
        if packed is None:
            return (
                f"{tensor.label}.strides: expected a tensor that a tensor map describes, or at most {MAX_PACKED_AXES} "
                f"axes to repack it, got {list(tensor.strides)}"
            )
        packing, packed_strides = packed
        return lying(packed_strides, is_mn_major, packing)

    @property
    def moved_bytes(self) -> int:
        return self.packing.size_bytes if self.packing is not None else bytes_touched(self.tensor)

    @property
    def is_misaligned(self) -> bool:
        """Whether rows of the tensor map begin inside cache lines."""
        strides = (self.k_stride if self.is_mn_major else self.stride, *self.batch_strides)
        return any(stride * self.tensor.element_bytes % STAGE_ROW_BYTES for stride in strides)

    @property
    def _comes_in_pairs(self) -> bool:
        has_pairs = self.stride * self.tensor.element_bytes % _PAIR_BYTES == 0
        return has_pairs and not self.is_mn_major and self.extent >= _MANY_ROWS

    def in_parts(self, batch_extents: tuple[int, ...]) -> tuple[Tf32Split, WgmmaOperand]:
        """How a K-major operand of FLOAT over batch axes of ``batch_extents`` is split, and the operand in parts."""
        own = tuple(axis for axis, stride in enumerate(self.batch_strides) if stride)
        extents = (*(batch_extents[axis] for axis in own), self.extent)
        split = Tf32Split(extents, (*(self.batch_strides[axis] for axis in own), self.stride), self.depth)
        *batches, stride = split.split_strides
        strides = dict(zip(own, batches, strict=True))
        in_parts = replace(
            self,
            batch_strides=tuple(strides.get(axis, 0) for axis in range(len(self.batch_strides))),
            stride=stride,
            depth=split.row_elements,
            packing=None,
        )
        return split, in_parts

    def over(self, batch_strides: tuple[int, ...], stride: int, extent: int) -> WgmmaOperand:
        """This operand over other batch axes, with ``extent`` rows or columns."""
        return replace(self, batch_strides=batch_strides, stride=stride, extent=extent)

    def layout(
        self, map_type: TensorMapDataType, batch_extents: tuple[int, ...], lines: int, stage_k: int, sharers: int = 1
    ) -> TiledMap:
        """The tensor map with dimensions (contiguous dimension, other dimension, batch axes from the last to the
        first).

        lines: rows or columns of a tile, in a stage of ``stage_k`` elements of k; each of ``sharers`` blocks loads a
        part of them.
        """
        size = map_type.size_bytes
        boxed, boxed_k = (
            (MN_MAJOR_BOX, stage_k // sharers) if self.is_mn_major else (box_rows(lines // sharers), stage_k)
        )
        across = (self.extent, self.stride, boxed)
        depth = (self.depth, self.k_stride, boxed_k)
        (inner, _, inner_box), (outer, outer_stride, outer_box) = (
            (across, depth) if self.is_mn_major else (depth, across)
        )
        strides = (outer_stride, *reversed(self.batch_strides))
        rank = 2 + len(batch_extents)
        return TiledMap(
            map_type,
            address=0,
            dims=(inner, outer, *reversed(batch_extents)),
            strides_bytes=tuple(stride * size for stride in strides),
            box=(inner_box, outer_box, *(1,) * len(batch_extents)),
            element_strides=(1,) * rank,
            swizzle=TensorMapSwizzle.BYTES_128,
            l2_promotion=TensorMapL2Promotion.BYTES_256 if self._comes_in_pairs else TensorMapL2Promotion.BYTES_128,
        )


def operand_maps(
    parts: PlanParts,
    tile: WgmmaTile,
    kind: WgmmaType,
    operands: tuple[WgmmaOperand, WgmmaOperand],
    batches: tuple[tuple[int, ...], tuple[int, ...]],
    p_at: Pointer | None = None,
    *,
    is_split: bool = False,
) -> tuple[TensorMap, TensorMap]:
    """Maps of the operands P (m x k) and Q (k x n) for ``tile``, after launches that repack them if necessary.

    batches: the extents of each operand's batch axes.  p_at: P's pointer, unless it is read in place or repacked.
    is_split: Q lies in parts already.
    """
    p, q = operands
    p_at = p_at or packed_operand(parts, p.tensor.uid, p.packing, overlaps=True)
    q_at = packed_operand(parts, q.tensor.uid, q.packing, overlaps=True)
    if kind.is_split:
        split, q = q.in_parts(batches[1])
        q_at = q_at if is_split else split.add_to(parts, q_at)
    return (
        TensorMap(p_at, p.layout(kind.map_type, batches[0], tile.m, kind.stage_k, tile.cluster_n)),
        TensorMap(q_at, q.layout(kind.map_type, batches[1], tile.n, kind.stage_k, tile.cluster_m)),
    )


def _has_map(tensor: Tensor, strides: tuple[int, ...], along: int) -> bool:
    """Whether a tensor map with dimension ``along`` innermost describes the tensor.  strides: 0 for extents of 1."""
    steps = (stride * tensor.element_bytes for axis, stride in enumerate(strides) if axis != along)
    is_dense = strides[along] == 1 or tensor.dims[along] == 1
    is_aligned = tensor.alignment_bytes % _ALIGNMENT == 0
    return is_dense and is_aligned and all(step % _ALIGNMENT == 0 and step < _MAX_STRIDE_BYTES for step in steps)
