"""Arguments and macros that the kernels of a mixture of experts share: ``token_groups.cuh``, ``routing.cuh``."""

from __future__ import annotations

from lowdnn import dtypes
from lowdnn.engines.launch import divider, i32, i64
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.token_groups import TokenGroups
from lowdnn.plan import Argument, Scalar, ScalarType, Struct, TensorPointer

#: Most groups for which a block's shared memory holds the table of tiles, one word each and one more.
MAX_GROUPS = 2**12 - 1
_WORD_BYTES = 4


def groups_argument(offsets: Tensor, groups: TokenGroups) -> Struct:
    """The kernel's ``TokenGroups``."""
    counts = (groups.count, groups.rows, int(groups.has_end))
    return Struct(
        (TensorPointer(offsets.uid), *i64(offsets.strides[:1]), Struct(divider(groups.experts)), *i32(counts))
    )


def routing_argument(operation: MoeGroupedMatmul) -> Struct:
    """The kernel's ``Routing``; tensors that the mode does not read are null."""
    tensors = (operation.token_index, operation.token_ks)
    pointers: tuple[Argument, ...] = tuple(
        Scalar(ScalarType.U64, 0) if tensor is None else TensorPointer(tensor.uid) for tensor in tensors
    )
    strides = (0 if tensor is None else tensor.strides[1] for tensor in tensors)
    return Struct((*pointers, *i64(strides), *i32((operation.top_k,))))


def routed_map(operation: MoeGroupedMatmul) -> Struct:
    """The kernel's ``RoutedMap``."""
    return Struct((routing_argument(operation), *i32((operation.output.dims[1] - 1,))))


def offset_type(offsets: Tensor) -> str:
    """The value of the macro OFFSET_TYPE."""
    return dtypes.info(offsets.data_type).c_type


def table_bytes(groups: TokenGroups) -> int:
    """Bytes of shared memory of ``GroupTiles``."""
    return (groups.count + 1) * _WORD_BYTES


def most_tiles(groups: TokenGroups, tile_rows: int) -> int:
    """The most tiles of ``tile_rows`` rows that the groups can have, whatever their sizes."""
    return (groups.rows + min(groups.count, groups.rows) * (tile_rows - 1)) // tile_rows


def groups_problem(where: str, groups: TokenGroups) -> str:
    """Why a kernel has no table for that many groups; empty if it has."""
    if groups.count > MAX_GROUPS:
        return f"{where}.first_token_offset.dims: expected at most {MAX_GROUPS} groups, got {groups.count}"
    return ""
