"""What engines of attention with TMA and wgmma share (``include/attention_wgmma.cuh``)."""

from __future__ import annotations

from lowdnn.engines.attention.heads import Heads, offsets_argument, padded, table_arguments
from lowdnn.engines.gemm.wgmma_tiles import WGMMA_TYPES
from lowdnn.engines.launch import i32
from lowdnn.enums import DataType
from lowdnn.plan import MathUnit, Struct, TensorMap
from lowdnn.tensor_map import TensorMapL2Promotion, TensorMapSwizzle, TiledMap, tensor_map_problem

WARPGROUP_THREADS = 128
#: Rows of a multiplying warpgroup.
WARPGROUP_ROWS = 64

#: That the swizzle takes.
_BOX_ROW_BYTES = 128
_REGISTERS_PER_SM = 65536
#: The most that a multiplying warpgroup can use.
_MAX_CONSUMER_REGISTERS = 240


def math_unit(data_type: DataType) -> MathUnit:
    """What multiplies."""
    return WGMMA_TYPES[data_type, data_type].unit


def refuse_map(heads: Heads) -> str:
    """Why no tensor map describes ``heads``, or an empty string."""
    refused = tensor_map_problem(_layout(heads, WARPGROUP_ROWS))
    return refused and f"{heads.tensor.label}: expected a tensor that a tensor map describes, got {refused}"


def map_of(heads: Heads, rows: int) -> TensorMap:
    """Of (elements, rows, heads, batches), in boxes of ``rows`` rows; of packed sequences all in one batch, of pages
    (elements, rows of a page, heads, pages)."""
    return TensorMap(heads.pointer, _layout(heads, rows))


def mapped(heads: Heads, rows: int) -> Struct:
    """The fields of the kernel's ``MappedHeads``, ``PackedMappedHeads`` or ``PagedMappedHeads``."""
    batches = heads.tensor.dims[0] if heads.load is None else heads.load.y.dims[0]
    by_map = Struct((map_of(heads, rows), *i32((heads.sharing, batches))))
    if heads.ragged is not None:
        return Struct((by_map, offsets_argument(heads.ragged)))
    return by_map if heads.load is None else Struct((by_map, *table_arguments(heads.load)))


def boxed_bytes(size: int, element_bytes: int = 2) -> int:
    """Of a row in shared memory."""
    return padded(size * element_bytes, _BOX_ROW_BYTES)


def consumer_registers(warpgroups: int, producer_registers: int, blocks_per_sm: int = 1) -> int:
    """Of a thread of each of ``warpgroups`` beside a loading one, whose threads keep ``producer_registers``; 0 where
    there are enough for all as launched."""
    launched = _REGISTERS_PER_SM // ((warpgroups + 1) * WARPGROUP_THREADS * blocks_per_sm) // 8 * 8
    left = (launched * (warpgroups + 1) - producer_registers) // warpgroups // 8 * 8
    return 0 if launched > _MAX_CONSUMER_REGISTERS else min(left, _MAX_CONSUMER_REGISTERS)


def _layout(heads: Heads, rows: int) -> TiledMap:
    tensor = heads.tensor
    batches, head_count, row_count = (*tensor.dims[:2], heads.rows)
    if heads.ragged is not None:
        batches, row_count = 1, heads.ragged.packed.dims[2]
    elif heads.load is not None:
        row_count = heads.load.page_rows
    data_type = WGMMA_TYPES[tensor.data_type, tensor.data_type].map_type
    return TiledMap(
        data_type,
        address=0,
        dims=(heads.size, row_count, head_count, batches),
        strides_bytes=tuple(stride * data_type.size_bytes for stride in reversed(heads.strides)),
        box=(_BOX_ROW_BYTES // data_type.size_bytes, rows, 1, 1),
        element_strides=(1,) * 4,
        swizzle=TensorMapSwizzle.BYTES_128,
        l2_promotion=TensorMapL2Promotion.BYTES_128,
    )
