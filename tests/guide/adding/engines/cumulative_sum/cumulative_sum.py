"""``cumulative_sum``: the sums of all elements up to each one along an axis (``cumulative_sum.cu``)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors
from lowdnn.engines.launch import MAX_GRID_X, bytes_of, conversion_target, divider, i64, macros, target_label
from lowdnn.engines.limits import alone
from lowdnn.engines.single_operation import OneLaunch
from lowdnn.ops.cumulative_sum import CumulativeSum
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work

#: Threads of a block.
_THREADS = 256


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of the kernel; field names are its macros."""

    X: str
    Y: str
    SUM: str
    RANK: int
    THREADS: int


class CumulativeSumEngine(OneLaunch[CumulativeSum]):
    """See the module's docstring."""

    name = "cumulative_sum"
    index = 1000
    anchors: Anchors = (CumulativeSum,)
    limits = alone(*anchors)
    expects = "one CumulativeSum"

    def limit(self, operation: CumulativeSum, arch: ArchSpec) -> str:
        """Limits the number of blocks."""
        rows = prod(_radices(operation))
        return "" if rows <= MAX_GRID_X else f"x.dims: expected at most {MAX_GRID_X} rows, got {rows}"

    def kernel(self, operation: CumulativeSum, arch: ArchSpec) -> KernelRef:
        """A kernel for the types and the rank, which converts by instructions where ``arch`` has them."""
        types = (operation.x.data_type, operation.y.data_type)
        x, y, total = (dtypes.info(data_type) for data_type in (*types, operation.compute_type))
        target, rank = conversion_target(types, arch), operation.x.rank
        return KernelRef(
            name=f"cumulative_sum_{x.short_name}_{y.short_name}_r{rank}_{target_label(target)}",
            source="cumulative_sum/cumulative_sum.cu",
            target=target,
            parameters=macros(Params(x.c_type, y.c_type, total.c_type, rank, _THREADS)),
        )

    def launch(self, operation: CumulativeSum) -> Launch:
        """A block for each row; the digits of its number over the radices are the row's position."""
        x, y, radices = operation.x, operation.y, _radices(operation)
        row = (x.dims[operation.axis], x.strides[operation.axis], y.strides[operation.axis])
        pointers = (TensorPointer(tensor.uid) for tensor in (x, y))
        axes = (field for radix in radices for field in divider(radix))
        return Launch(
            kernel=0,
            grid=(prod(radices), 1, 1),
            block=(_THREADS, 1, 1),
            arguments=(Struct((*pointers, *i64((*row, *x.strides, *y.strides)), *axes)),),
            work=Work(bytes=bytes_of((x, y))),
        )


def _radices(operation: CumulativeSum) -> tuple[int, ...]:
    """The numbers of rows along each axis: x's dims, with 1 for the axis of the sums."""
    return tuple(1 if axis == operation.axis else extent for axis, extent in enumerate(operation.x.dims))
