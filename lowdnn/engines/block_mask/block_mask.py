"""``block_mask``: scores of attention with minus infinity in tiles that a mask leaves out, where no engine of attention
takes the whole graph (``block_mask.cu``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import contiguous_elements
from lowdnn.engines.base import BEHAVIOR_NOTES, Anchors, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.launch import (
    ACCESS_BYTES,
    MAX_EXTENT,
    MAX_GRID_X,
    bytes_of,
    ceil_div,
    conversion_target,
    divider,
    i64,
    macros,
    target_label,
)
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.block_mask import BlockMask
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, Plan, Struct, TensorPointer, Work
from lowdnn.status import Status

_THREADS = 128


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of the kernel; field names are its macros."""

    X: str
    Y: str
    THREADS: int
    VECTOR: int
    X_WIDTH: int
    Y_WIDTH: int
    INDEX: str


class BlockMaskEngine:
    """See the module's docstring."""

    name = "block_mask"
    index = 37
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    behavior_notes = BEHAVIOR_NOTES
    anchors: Anchors = (BlockMask,)

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses everything but one such operation between tensors in device memory."""
        found = self._matched(graph)
        if isinstance(found, Refusal):
            return found
        radices = _radices(found)
        blocks = ceil_div(prod(radices), _THREADS)
        if max(radices) > MAX_EXTENT or blocks > MAX_GRID_X:
            reason = f"tensor.dims: expected at most {MAX_GRID_X} blocks of {_THREADS} groups of keys, got {blocks}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        return None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """None."""
        return ()

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch, none where y is empty."""
        operation = accepted(self._matched(graph))
        chosen = resolve_choices(self.name, (), choices)
        if not operation.y.element_count:
            return plan_of(self, graph, arch, chosen, (), ())
        return plan_of(self, graph, arch, chosen, (_kernel(operation, arch),), (_launch(operation),))

    def precompiled(self) -> tuple[KernelRef, ...]:
        """None: too rare."""
        return ()

    def _matched(self, graph: OperationGraph) -> BlockMask | Refusal:
        operation = graph.operations[0]
        if len(graph.operations) != 1 or not isinstance(operation, BlockMask):
            names = ", ".join(type(op).__name__ for op in graph.operations)
            return Refusal(self.name, f"operations: expected one BlockMask, got {names}")
        if any(tensor.is_scalar_value or tensor.is_virtual for tensor in graph.tensors.values()):
            return Refusal(self.name, "tensors: expected all in device memory, got a virtual one or a value")
        return operation


def _vector(operation: BlockMask) -> int:
    return ACCESS_BYTES // min(operation.x.element_bytes, operation.y.element_bytes)


def _radices(operation: BlockMask) -> tuple[int, ...]:
    """Batches, heads, queries, groups of keys."""
    *outer, keys = operation.y.dims
    return (*outer, ceil_div(keys, _vector(operation)))


def _width(tensor: Tensor, vector: int) -> int:
    """Elements of an access, 0 where those of a row are not neighbours."""
    return min(vector, contiguous_elements(tensor, tensor.strides, 3)) if tensor.strides[3] == 1 else 0


def _kernel(operation: BlockMask, arch: ArchSpec) -> KernelRef:
    types = [operation.x.data_type, operation.y.data_type]
    x, y = (dtypes.info(data_type) for data_type in types)
    vector = _vector(operation)
    params = Params(
        X=x.c_type,
        Y=y.c_type,
        THREADS=_THREADS,
        VECTOR=vector,
        X_WIDTH=_width(operation.x, vector),
        Y_WIDTH=_width(operation.y, vector),
        INDEX="u32" if prod(_radices(operation)) < 2**31 else "i64",
    )
    target = conversion_target(types, arch)
    shape = f"v{vector}x{params.X_WIDTH}y{params.Y_WIDTH}_{params.INDEX}"
    return KernelRef(
        name=f"block_mask_{x.short_name}_{y.short_name}_{shape}_{target_label(target)}",
        source="block_mask/block_mask.cu",
        target=target,
        parameters=macros(params),
    )


def _launch(operation: BlockMask) -> Launch:
    tensors, radices = (operation.x, operation.mask, operation.y), _radices(operation)
    strides = (stride for tensor in tensors for stride in tensor.strides)
    axes = (field for radix in (1, *radices[1:]) for field in divider(radix))
    pointers = (TensorPointer(tensor.uid) for tensor in tensors)
    return Launch(
        kernel=0,
        grid=(ceil_div(prod(radices), _THREADS), 1, 1),
        block=(_THREADS, 1, 1),
        arguments=(Struct((*pointers, *i64((prod(radices), operation.y.dims[3], *strides)), *axes)),),
        work=Work(bytes=bytes_of(tensors)),
    )
