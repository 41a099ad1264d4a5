"""``paged_cache``: sequences in pages of a cache, copied into one tensor (``paged_cache_load.cu``)."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import BEHAVIOR_NOTES, Anchors, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.launch import bytes_of, i32, i64, macros
from lowdnn.engines.row_moves import THREADS, RowMove
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.plan import KernelRef, Launch, Plan, Struct, TensorPointer, Work
from lowdnn.status import Status


@dataclass(frozen=True)
class Params:
    """Macros of the kernel."""

    TYPE: str
    LENGTH_TYPE: str
    VECTOR: int
    ACCESS: int
    THREADS: int
    INDEX: str


class PagedCache:
    """See the module's docstring."""

    name = "paged_cache"
    index = 36
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    behavior_notes = BEHAVIOR_NOTES
    anchors: Anchors = (PagedCacheLoad,)

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses everything but one such operation on tensors in device memory, and more than it can count."""
        found = graph.derive(self._matched)
        return found if isinstance(found, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """None."""
        return ()

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch, none where y is empty."""
        operation = accepted(graph.derive(self._matched))
        chosen = resolve_choices(self.name, (), choices)
        if not operation.y.element_count:
            return plan_of(self, graph, arch, chosen, (), ())
        return plan_of(self, graph, arch, chosen, (_kernel(operation),), (_launch(operation),))

    def precompiled(self) -> tuple[KernelRef, ...]:
        """None: attention reads pages itself."""
        return ()

    def _matched(self, graph: OperationGraph) -> PagedCacheLoad | Refusal:
        operation = graph.operations[0]
        if len(graph.operations) != 1 or not isinstance(operation, PagedCacheLoad):
            names = ", ".join(type(op).__name__ for op in graph.operations)
            return Refusal(self.name, f"operations: expected one PagedCacheLoad, got {names}")
        for tensor in (*inputs_of(operation).values(), operation.y):
            if tensor.is_scalar_value or tensor.is_virtual:
                return Refusal(self.name, f"{tensor.label}: expected a tensor in device memory, got another one")
        reason = _move(operation).refuse()
        return Refusal(self.name, f"y.{reason}", Status.NOT_SUPPORTED_SHAPE) if reason else operation


def _move(operation: PagedCacheLoad) -> RowMove:
    return RowMove(operation.y.dims, (operation.container, operation.y))


def _kernel(operation: PagedCacheLoad) -> KernelRef:
    lengths = dtypes.info(operation.sequence.data_type).c_type
    move = _move(operation)
    return KernelRef(
        name=f"paged_cache_load_{move.integer}_w{move.width}_{lengths}_{move.index}_sm80",
        source="paged_cache/paged_cache_load.cu",
        target="sm_80",
        parameters=macros(Params(move.integer, lengths, move.vector, move.width, THREADS, move.index)),
    )


def _launch(operation: PagedCacheLoad) -> Launch:
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
    return Launch(
        kernel=0,
        grid=(move.blocks, 1, 1),
        block=(THREADS, 1, 1),
        arguments=(arguments,),
        work=Work(bytes=2 * bytes_of((y,))),
    )
