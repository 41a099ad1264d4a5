"""``paged_cache``: sequences in pages of a cache, copied into one tensor (``paged_cache_load.cu``)."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import BEHAVIOR_NOTES, Anchors, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.launch import ACCESS_BYTES, MAX_EXTENT, MAX_GRID_X, bytes_of, ceil_div, divider, i32, i64, macros
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, Plan, Struct, TensorPointer, Work
from lowdnn.status import Status

_THREADS = 128
#: Elements move as these.
_BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


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
        extent, blocks = max(_radices(operation)[1:]), ceil_div(_groups(operation), _THREADS)
        if extent > MAX_EXTENT or blocks > MAX_GRID_X:
            reason = f"y.dims: expected at most {MAX_EXTENT} along an axis and {MAX_GRID_X} blocks, got {blocks}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        return operation


def _vector(operation: PagedCacheLoad) -> int:
    return ACCESS_BYTES // operation.y.element_bytes


def _radices(operation: PagedCacheLoad) -> tuple[int, ...]:
    *outer, size = operation.y.dims
    return (*outer, ceil_div(size, _vector(operation)))


def _groups(operation: PagedCacheLoad) -> int:
    batch, heads, rows, groups = _radices(operation)
    return batch * heads * rows * groups


def _width(operation: PagedCacheLoad) -> int:
    """Elements of one access to both tensors, 0 where rows are not contiguous."""
    tensors = (operation.container, operation.y)
    if any(tensor.strides[3] != 1 for tensor in tensors):
        return 0
    width = _vector(operation)
    while width > 1 and not all(_begins_at(tensor, width) for tensor in tensors):
        width //= 2
    return width


def _begins_at(tensor: Tensor, width: int) -> bool:
    """Whether each row begins at a multiple of ``width`` elements."""
    is_aligned = tensor.alignment_bytes % (width * tensor.element_bytes) == 0
    return is_aligned and not any(stride % width for stride in tensor.strides[:3])


def _kernel(operation: PagedCacheLoad) -> KernelRef:
    lengths = dtypes.info(operation.sequence.data_type).c_type
    index = "u32" if _groups(operation) < 2**31 else "i64"
    bits, width = _BITS[operation.y.element_bytes], _width(operation)
    return KernelRef(
        name=f"paged_cache_load_{bits}_w{width}_{lengths}_{index}_sm80",
        source="paged_cache/paged_cache_load.cu",
        target="sm_80",
        parameters=macros(Params(bits, lengths, _vector(operation), width, _THREADS, index)),
    )


def _launch(operation: PagedCacheLoad) -> Launch:
    container, y, table = operation.container, operation.y, operation.page_table
    arguments = Struct(
        (
            *(TensorPointer(tensor.uid) for tensor in (container, y, table, operation.sequence)),
            *i64((_groups(operation), y.dims[3], *container.strides, *y.strides)),
            *i64((table.strides[0], table.strides[2], operation.sequence.strides[0])),
            *(field for radix in (1, *_radices(operation)[1:]) for field in divider(radix)),
            *i32((operation.page_rows.bit_length() - 1,)),
        )
    )
    return Launch(
        kernel=0,
        grid=(ceil_div(_groups(operation), _THREADS), 1, 1),
        block=(_THREADS, 1, 1),
        arguments=(arguments,),
        work=Work(bytes=2 * bytes_of((y,))),
    )
