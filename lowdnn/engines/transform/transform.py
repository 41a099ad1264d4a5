"""``transform``: graphs that move elements: transposes, slices, reshapes, concatenations, changes of layout and type.

However many virtual tensors a graph has, there is one copy between two strided views for each stored tensor, or for
each part of a concatenation, whose parts share a launch. If input and output are contiguous along different axes, tiles
pass through shared memory (``transform_tiled.cu``, or ``transform_misaligned.cu`` for misaligned rows), and so do a few
columns that are interleaved in one of them (``transform_narrow.cu``). Otherwise rows go straight from memory to memory
(``transform_rows.cu``). Elements of equal types move as bits of their size.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec, all_specs
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.limits import Group, Limits
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.engines.transform import rows, tiles
from lowdnn.engines.transform.batches import Batch, batches_of
from lowdnn.engines.transform.matching import MOVES, match
from lowdnn.engines.transform.misaligned import Misaligned
from lowdnn.engines.transform.narrow import Narrow
from lowdnn.engines.transform.rows import Rows
from lowdnn.engines.transform.samples import samples
from lowdnn.engines.transform.tiles import Tiles
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.plan import KernelRef
from lowdnn.status import Status

_Form = Misaligned | Tiles | Narrow | Rows

#: The value of a knob that leaves the choice to each launch.
_OWN = 0


class Transform(ProblemEngine["_Problem"]):
    """Moves of elements, as the module's docstring says."""

    name = "transform"
    index = 24
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    anchors: Anchors = ()
    limits = Limits((Group((*MOVES, PointwiseOperation)),), spaces=None)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses operations that compute, intermediate types that would round twice, and plain copies."""
        moves = match(graph)
        if isinstance(moves, str):
            return Refusal(self.name, moves)
        forms = tuple(map(_form_of, batches_of(moves)))
        are_conversions = all(isinstance(operation, PointwiseOperation) for operation in graph.operations)
        if are_conversions and all(isinstance(form, Rows) for form in forms):
            return Refusal(self.name, "operations: expected a move of elements, got conversions within rows")
        reason = next((form.refusal for form in forms if form.refusal), "")
        if reason:
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        return _Problem(forms, moves.workspace_bytes)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """THREADS_PER_ROW (threads along the input's rows of a tile) and MULTIPLY (groups in flight for each
        thread)."""
        return _KNOBS

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """A launch for each stored tensor, several if its parts are many or of several types, none if it is empty."""
        parts = PlanParts(workspace_bytes=problem.workspace_bytes)
        parts.launches = [form.planned(chosen, arch, parts.kernel) for form in problem.forms]
        return parts

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Changes between NCHW and NHWC of elements of two and of four bytes."""
        plans = (self.plan(graph, arch, {}) for graph in samples() for arch in all_specs())
        return tuple(kernel for plan in plans for kernel in plan.kernels)


@dataclass(frozen=True)
class _Problem:
    """forms: the copies of each launch, with the kernel that moves them."""

    forms: tuple[_Form, ...]
    workspace_bytes: int


def _form_of(batch: Batch) -> _Form:
    """The kernel for a batch: tiles if x and y are contiguous along different axes, misaligned ones if rows begin
    neither at a thread's whole accesses nor at half ones; otherwise narrow columns or rows."""
    tiled = Tiles.of(batch)
    if tiled is not None:
        return Misaligned(tiled.batch) if tiled.is_misaligned else tiled
    return Narrow.of(batch) or Rows.of(batch)


_KNOBS = (
    Knob("lanes", KnobType.THREADS_PER_ROW, (_OWN, *tiles.LANES_U), _OWN, "threads along a tile's rows of the input"),
    Knob("unroll", KnobType.MULTIPLY, (_OWN, *rows.UNROLLS), _OWN, "groups in flight per thread, without tiles"),
)
