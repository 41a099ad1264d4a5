"""Parts of engines of attention with TMA and wgmma (``attention_wgmma.cuh``)."""

from __future__ import annotations

from lowdnn.arch.multiprocessor import MAX_HANDED_REGISTERS
from lowdnn.engines.attention.heads import Heads, offsets_argument, padded, table_arguments
from lowdnn.engines.gemm.instructions import WGMMA_TYPES
from lowdnn.engines.gemm.wgmma_tiles import WARPGROUP_ROWS, WARPGROUP_THREADS
from lowdnn.engines.launch import i32
from lowdnn.engines.model import occupancy
from lowdnn.enums import DataType
from lowdnn.ops.ragged import RaggedMove
from lowdnn.plan import MathUnit, Struct, TensorMap
from lowdnn.tensor_map import TensorMapL2Promotion, TensorMapSwizzle, TiledMap, tensor_map_problem

#: Bytes of a row of the box, as the swizzle needs them.
_BOX_ROW_BYTES = 128
#: The row of a map at which packed sequences end; the kernel's ``PackedMappedHead::END``.
_PACKED_END = 1 << 30
#: Rows of all sequences that coordinates can count.
_MOST_PACKED_ROWS = 1 << 31
#: The size of the address space, modulo which addresses are computed.
_ADDRESS_BYTES = 1 << 64


def math_unit(data_type: DataType) -> MathUnit:
    """The math unit of the products."""
    return WGMMA_TYPES[data_type, data_type].unit


def refuse_map(heads: Heads) -> str:
    """Why no tensor map describes ``heads``, or an empty string."""
    refused = tensor_map_problem(_layout(heads, WARPGROUP_ROWS))
    return refused and f"{heads.tensor.label}: expected a tensor that a tensor map describes, got {refused}"


def map_of(heads: Heads, rows: int) -> TensorMap:
    """A map in boxes of ``rows`` rows. Its axes are elements, rows, heads and batches; for pages elements, rows of a
    page, heads and pages; for packed sequences those of the kernel's ``PackedMappedHead``."""
    return TensorMap(heads.pointer, _layout(heads, rows))


def mapped(heads: Heads, rows: int) -> Struct:
    """The fields of the kernel's ``MappedHeads``, ``PackedMappedHeads`` or ``PagedMappedHeads``."""
    batches = heads.tensor.dims[0] if heads.load is None else heads.load.y.dims[0]
    by_map = Struct((map_of(heads, rows), *i32((heads.sharing, batches))))
    if heads.ragged is not None:
        return Struct((by_map, offsets_argument(heads.ragged)))
    return by_map if heads.load is None else Struct((by_map, *table_arguments(heads.load)))


def boxed_bytes(size: int, element_bytes: int = 2) -> int:
    """Bytes of a row in shared memory."""
    return padded(size * element_bytes, _BOX_ROW_BYTES)


def consumer_registers(warpgroups: int, producer_registers: int, blocks_per_sm: int = 1) -> int:
    """Registers of a thread of each of ``warpgroups`` beside a loading one, whose threads keep ``producer_registers``.

    0 where there are enough for all as launched.
    """
    launched = occupancy.launched_registers((warpgroups + 1) * WARPGROUP_THREADS, blocks_per_sm)
    handed = occupancy.consumer_registers(launched, warpgroups, producer_registers)
    return 0 if launched > MAX_HANDED_REGISTERS else handed


def _layout(heads: Heads, rows: int) -> TiledMap:
    data_type = WGMMA_TYPES[heads.tensor.data_type, heads.tensor.data_type].map_type
    outer = _axes(heads) if heads.ragged is None else _packed_axes(heads, heads.ragged)
    return TiledMap(
        data_type,
        address=0,
        dims=(heads.size, *(extent for extent, _ in outer)),
        strides_bytes=tuple(stride for _, stride in outer),
        box=(_BOX_ROW_BYTES // data_type.size_bytes, rows, *(1,) * (len(outer) - 1)),
        element_strides=(1,) * (len(outer) + 1),
        swizzle=TensorMapSwizzle.BYTES_128,
        l2_promotion=TensorMapL2Promotion.BYTES_128,
    )


def _axes(heads: Heads) -> tuple[tuple[int, int], ...]:
    """(extent, stride in bytes) of rows, heads and batches, or of pages' rows, heads and pages."""
    batches, head_count = heads.tensor.dims[:2]
    row_count = heads.rows if heads.load is None else heads.load.page_rows
    batch, head, row = (stride * heads.tensor.element_bytes for stride in heads.strides)
    return (row_count, row), (head_count, head), (batches, batch)


def _packed_axes(heads: Heads, move: RaggedMove) -> tuple[tuple[int, int], ...]:
    """(extent, stride in bytes) of the axes of ``PackedMappedHead``: rows, heads, ends of sequences, and the axis that
    makes addresses wrap around."""
    head, row = (elements * heads.tensor.element_bytes for elements in (heads.strides[1], move.row_elements))
    return (
        (_PACKED_END, row),
        (heads.tensor.dims[1], head),
        (_MOST_PACKED_ROWS, row),
        (1 + _PACKED_END, _ADDRESS_BYTES // _PACKED_END - row),
    )
