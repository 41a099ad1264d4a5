"""``bit_mask``: between a mask with a byte for each element and its bits (``bit_mask.cu``)."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import BEHAVIOR_NOTES, Anchors, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.launch import MAX_GRID_X, bytes_of, ceil_div, i64, macros, target_label
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.bit_mask import BitMove, PackBits, UnpackBits
from lowdnn.plan import KernelRef, Launch, Plan, Struct, TensorPointer, Work
from lowdnn.status import Status

_THREADS = 256
_TARGET = "sm_80"
#: Bytes of a mask, elements of one byte of bits, that a thread reads or writes at a time.
_ACCESS_BYTES = 8


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of the kernel; field names are its macros."""

    PACKS: int
    ALIGNED: int
    THREADS: int


class BitMask:
    """See the module's docstring."""

    name = "bit_mask"
    index = 45
    numerical_notes: tuple[NumericalNote, ...] = ()
    behavior_notes = BEHAVIOR_NOTES
    anchors: Anchors = (PackBits, UnpackBits)

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses everything but one such operation between tensors in device memory."""
        found = self._matched(graph)
        if isinstance(found, Refusal):
            return found
        blocks = _blocks(found)
        if blocks > MAX_GRID_X:
            reason = f"{found.bits.label}.dims: expected at most {MAX_GRID_X} blocks of {_THREADS} bytes, got {blocks}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        return None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """None."""
        return ()

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch, none where the mask is empty."""
        operation = accepted(self._matched(graph))
        chosen = resolve_choices(self.name, (), choices)
        if not operation.mask.element_count:
            return plan_of(self, graph, arch, chosen, (), ())
        return plan_of(self, graph, arch, chosen, (_kernel(operation),), (_launch(operation),))

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Both directions."""
        return tuple(_kernel_of(Params(packs, 1, _THREADS)) for packs in (0, 1))

    def _matched(self, graph: OperationGraph) -> BitMove | Refusal:
        operation = graph.operations[0]
        if len(graph.operations) != 1 or not isinstance(operation, BitMove):
            names = ", ".join(type(op).__name__ for op in graph.operations)
            return Refusal(self.name, f"operations: expected one PackBits or UnpackBits, got {names}")
        if any(tensor.is_virtual for tensor in graph.tensors.values()):
            return Refusal(self.name, "tensors: expected all in device memory, got a virtual one")
        return operation


def _blocks(operation: BitMove) -> int:
    return ceil_div(operation.bits.element_count, _THREADS)


def _kernel(operation: BitMove) -> KernelRef:
    is_aligned = operation.mask.alignment_bytes % _ACCESS_BYTES == 0
    return _kernel_of(Params(int(isinstance(operation, PackBits)), int(is_aligned), _THREADS))


def _kernel_of(params: Params) -> KernelRef:
    direction, access = ("unpack", "pack")[params.PACKS], ("1", "8")[params.ALIGNED]
    return KernelRef(
        name=f"bit_mask_{direction}_v{access}_{target_label(_TARGET)}",
        source="bit_mask/bit_mask.cu",
        target=_TARGET,
        parameters=macros(params),
    )


def _launch(operation: BitMove) -> Launch:
    tensors = (operation.mask, operation.bits)
    pointers = (TensorPointer(tensor.uid) for tensor in tensors)
    return Launch(
        kernel=0,
        grid=(_blocks(operation), 1, 1),
        block=(_THREADS, 1, 1),
        arguments=(Struct((*pointers, *i64((operation.mask.element_count,)))),),
        work=Work(bytes=bytes_of(tensors)),
    )
