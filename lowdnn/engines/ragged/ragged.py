"""``ragged``: copies the rows of a ragged tensor into a padded one, or back (``ragged_move.cu``).

It serves graphs whose other engines cannot read or write the ragged tensor in place.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.engines.base import Anchors
from lowdnn.engines.launch import bytes_of, i64, macros
from lowdnn.engines.limits import alone
from lowdnn.engines.row_moves import THREADS, RowMove
from lowdnn.engines.single_operation import OneLaunch
from lowdnn.ops.ragged import RaggedMove, RaggedStore
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer


@dataclass(frozen=True)
class Params:
    """Macros of the kernel."""

    TYPE: str
    OFFSET_TYPE: str
    IS_STORE: int
    VECTOR: int
    ACCESS: int
    THREADS: int
    INDEX: str


class Ragged(OneLaunch[RaggedMove]):
    """See the module's docstring. No kernel is precompiled, since attention moves packed sequences itself."""

    name = "ragged"
    index = 43
    anchors: Anchors = (RaggedMove,)
    limits = alone(*anchors)
    expects = "one load or store of a ragged tensor"

    def limit(self, operation: RaggedMove, arch: ArchSpec) -> str:
        """Limits the rows to those that the kernel can count."""
        reason = _rows(operation).refuse()
        return reason and f"padded.{reason}"

    def kernel(self, operation: RaggedMove, arch: ArchSpec) -> KernelRef:
        """The kernel is the same on every device."""
        rows, is_store = _rows(operation), isinstance(operation, RaggedStore)
        offsets = dtypes.info(operation.offsets.data_type).c_type
        way = "store" if is_store else "load"
        return KernelRef(
            name=f"ragged_{way}_{rows.integer}_w{rows.width}_{offsets}_{rows.index}_sm80",
            source="ragged/ragged_move.cu",
            target=BASE_TARGET,
            parameters=macros(
                Params(rows.integer, offsets, int(is_store), rows.vector, rows.width, THREADS, rows.index)
            ),
        )

    def launch(self, operation: RaggedMove) -> Launch:
        """A thread for each group of a row's elements."""
        packed, padded, offsets = operation.packed, operation.padded, operation.offsets
        rows = _rows(operation)
        arguments = Struct(
            (
                *(TensorPointer(tensor.uid) for tensor in (packed, padded, offsets)),
                *i64((rows.groups, padded.dims[3], *packed.strides[1:], *padded.strides)),
                *i64((offsets.strides[0], operation.multiplier)),
                *rows.axes,
            )
        )
        return rows.launch(arguments, 2 * bytes_of((padded,)))


def _rows(operation: RaggedMove) -> RowMove:
    return RowMove(operation.padded.dims, (operation.packed, operation.padded))
