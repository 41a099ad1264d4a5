"""``paged_cache``: sequences in pages of a cache, copied into one tensor (``paged_cache_load.cu``)."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.engines.base import Anchors
from lowdnn.engines.launch import bytes_of, i32, i64, macros
from lowdnn.engines.limits import alone
from lowdnn.engines.row_moves import THREADS, RowMove
from lowdnn.engines.single_operation import OneLaunch
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer


@dataclass(frozen=True)
class Params:
    """Macros of the kernel."""

    TYPE: str
    LENGTH_TYPE: str
    VECTOR: int
    ACCESS: int
    THREADS: int
    INDEX: str


class PagedCache(OneLaunch[PagedCacheLoad]):
    """See the module's docstring. No kernel is precompiled, since attention reads pages itself."""

    name = "paged_cache"
    index = 36
    anchors: Anchors = (PagedCacheLoad,)
    limits = alone(*anchors)
    expects = "one PagedCacheLoad"

    def limit(self, operation: PagedCacheLoad, arch: ArchSpec) -> str:
        """Limits the rows to those that the kernel can count."""
        reason = _move(operation).refuse()
        return reason and f"y.{reason}"

    def kernel(self, operation: PagedCacheLoad, arch: ArchSpec) -> KernelRef:
        """The kernel is the same on every device."""
        lengths = dtypes.info(operation.sequence.data_type).c_type
        move = _move(operation)
        return KernelRef(
            name=f"paged_cache_load_{move.integer}_w{move.width}_{lengths}_{move.index}_sm80",
            source="paged_cache/paged_cache_load.cu",
            target=BASE_TARGET,
            parameters=macros(Params(move.integer, lengths, move.vector, move.width, THREADS, move.index)),
        )

    def launch(self, operation: PagedCacheLoad) -> Launch:
        """A thread for each group of a row's elements."""
        container, y, table = operation.container, operation.y, operation.page_table
        move = _move(operation)
        arguments = Struct(
            (
                *(TensorPointer(tensor.uid) for tensor in (container, y, table, operation.sequence)),
                *i64((move.groups, y.dims[3], *container.strides, *y.strides)),
                *i64((table.strides[0], table.strides[2], operation.sequence.strides[0])),
                *move.axes,
                *i32((operation.page_rows.bit_length() - 1,)),
            )
        )
        return move.launch(arguments, 2 * bytes_of((y,)))


def _move(operation: PagedCacheLoad) -> RowMove:
    return RowMove(operation.y.dims, (operation.container, operation.y))
