"""``ragged``: copies the rows of a ragged tensor into a padded one, or back (``ragged_move.cu``).

It serves graphs whose other engines cannot read or write the ragged tensor in place."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import BEHAVIOR_NOTES, Anchors, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.launch import bytes_of, i64, macros
from lowdnn.engines.row_moves import THREADS, RowMove
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.ragged import RaggedMove, RaggedStore
from lowdnn.plan import KernelRef, Launch, Plan, Struct, TensorPointer, Work
from lowdnn.status import Status


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


class Ragged:
    """See the module's docstring."""

    name = "ragged"
    index = 43
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    behavior_notes = BEHAVIOR_NOTES
    anchors: Anchors = (RaggedMove,)

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses everything but one load or store of tensors in device memory, and more than it can count."""
        found = graph.derive(self._matched)
        return found if isinstance(found, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """None."""
        return ()

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch, none where the padded tensor is empty."""
        operation = accepted(graph.derive(self._matched))
        chosen = resolve_choices(self.name, (), choices)
        if not operation.padded.element_count:
            return plan_of(self, graph, arch, chosen, (), ())
        return plan_of(self, graph, arch, chosen, (_kernel(operation),), (_launch(operation),))

    def precompiled(self) -> tuple[KernelRef, ...]:
        """None: attention reads and writes packed sequences itself."""
        return ()

    def _matched(self, graph: OperationGraph) -> RaggedMove | Refusal:
        operation = graph.operations[0]
        if len(graph.operations) != 1 or not isinstance(operation, RaggedMove):
            names = ", ".join(type(op).__name__ for op in graph.operations)
            return Refusal(self.name, f"operations: expected one load or store of a ragged tensor, got {names}")
        for tensor in (operation.packed, operation.padded, operation.offsets):
            if tensor.is_scalar_value or tensor.is_virtual:
                return Refusal(self.name, f"{tensor.label}: expected a tensor in device memory, got another one")
        reason = _rows(operation).refuse()
        return Refusal(self.name, f"padded.{reason}", Status.NOT_SUPPORTED_SHAPE) if reason else operation


def _rows(operation: RaggedMove) -> RowMove:
    return RowMove(operation.padded.dims, (operation.packed, operation.padded))


def _kernel(operation: RaggedMove) -> KernelRef:
    rows, is_store = _rows(operation), isinstance(operation, RaggedStore)
    offsets = dtypes.info(operation.offsets.data_type).c_type
    way = "store" if is_store else "load"
    return KernelRef(
        name=f"ragged_{way}_{rows.integer}_w{rows.width}_{offsets}_{rows.index}_sm80",
        source="ragged/ragged_move.cu",
        target="sm_80",
        parameters=macros(Params(rows.integer, offsets, int(is_store), rows.vector, rows.width, THREADS, rows.index)),
    )


def _launch(operation: RaggedMove) -> Launch:
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
    return Launch(
        kernel=0,
        grid=(rows.blocks, 1, 1),
        block=(THREADS, 1, 1),
        arguments=(arguments,),
        work=Work(bytes=2 * bytes_of((padded,))),
    )
