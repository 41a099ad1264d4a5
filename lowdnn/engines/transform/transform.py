"""``transform``: graphs that move elements: transposes, slices, reshapes, concatenations, changes of layout and type.

Whatever a graph moves through virtual tensors is one copy between two strided views for each stored tensor, or for each
part of a concatenation, whose parts share a launch. Where input and output are contiguous along different axes, tiles
go through shared memory (``transform_tiled.cu``, where rows begin anywhere ``transform_askew.cu``), and a few columns
that lie side by side in one of them too (``transform_narrow.cu``); otherwise rows go straight from memory to memory
(``transform_rows.cu``). Elements of equal types move as bits of their size, whatever the type.
"""

from __future__ import annotations

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A, SPECS, ArchSpec
from lowdnn.engines.base import BEHAVIOR_NOTES, Anchors, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.transform import askew, narrow, rows, tiles
from lowdnn.engines.transform.askew import Askew
from lowdnn.engines.transform.batches import Batch, batches_of
from lowdnn.engines.transform.matching import Moves, match
from lowdnn.engines.transform.narrow import Narrow
from lowdnn.engines.transform.rows import Rows
from lowdnn.engines.transform.samples import samples
from lowdnn.engines.transform.tiles import Tiles
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.plan import KernelRef, Launch, Plan
from lowdnn.status import Status

#: A knob's value that leaves the choice to each launch.
_OWN = 0


class Transform:
    """See the module's docstring."""

    name = "transform"
    index = 24
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    behavior_notes = BEHAVIOR_NOTES
    anchors: Anchors = ()

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses operations that compute, types in between that would round twice, and plain copies."""
        moves = graph.derive(self._matched)
        return moves if isinstance(moves, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_ROWS (threads along the input's rows of a tile) and MULTIPLY (groups in flight per thread)."""
        return _KNOBS

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """A launch for each stored tensor, more where its parts are many or unlike, none where it is empty."""
        moves = accepted(graph.derive(self._matched))
        chosen = resolve_choices(self.name, _KNOBS, choices)
        kernels: dict[KernelRef, int] = {}
        launches = tuple(_launch(batch, chosen, arch, kernels) for batch in batches_of(moves))
        return plan_of(self, graph, arch, chosen, tuple(kernels), launches, moves.workspace_bytes)

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Changes between NCHW and NHWC of elements of two and of four bytes."""
        return tuple(kernel for graph in samples() for arch in SPECS for kernel in self.plan(graph, arch, {}).kernels)

    def _matched(self, graph: OperationGraph) -> Moves | Refusal:
        moves = match(graph)
        if isinstance(moves, str):
            return Refusal(self.name, moves)
        found = [
            Askew.of(batch) or Tiles.of(batch) or Narrow.of(batch) or Rows.of(batch) for batch in batches_of(moves)
        ]
        are_conversions = all(isinstance(operation, PointwiseOperation) for operation in graph.operations)
        if are_conversions and all(isinstance(one, Rows) for one in found):
            return Refusal(self.name, "operations: expected a move of elements, got conversions within rows")
        reason = next((one.refusal for one in found if one.refusal), "")
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else moves


_KNOBS = (
    Knob("tile_rows", KnobType.TILE_ROWS, (_OWN, *tiles.LANES_U), _OWN, "threads along a tile's rows of the input"),
    Knob("unroll", KnobType.MULTIPLY, (_OWN, *rows.UNROLLS), _OWN, "groups in flight per thread, without tiles"),
)


def _launch(batch: Batch, chosen: Choices, arch: ArchSpec, kernels: dict[KernelRef, int]) -> Launch:
    """The launch of one batch; ``kernels`` gets its kernel."""
    types, overlaps = _type_names(batch), arch.name == SM_90A.name
    of_askew_rows = Askew.of(batch)
    if of_askew_rows is not None:
        lanes = chosen[KnobType.TILE_ROWS]
        lanes = lanes if lanes in askew.LANES_U else of_askew_rows.default_lanes_u
        params = of_askew_rows.params(lanes, overlaps=overlaps)
        kernel = askew.kernel_of(params, types)
        return of_askew_rows.launch(params, kernels.setdefault(kernel, len(kernels)))
    tiled = Tiles.of(batch)
    if tiled is not None:
        tile_params = tiled.params(chosen[KnobType.TILE_ROWS] or tiled.default_lanes_u, overlaps=overlaps)
        kernel = tiles.kernel_of(tile_params, types)
        return tiled.launch(tile_params, kernels.setdefault(kernel, len(kernels)))
    few = Narrow.of(batch)
    if few is not None:
        few_params = few.params(overlaps=overlaps)
        kernel = narrow.kernel_of(few_params, types)
        return few.launch(few_params, kernels.setdefault(kernel, len(kernels)))
    in_rows = Rows.of(batch)
    row_params = in_rows.params(chosen[KnobType.MULTIPLY] or in_rows.default_unroll(arch), overlaps=overlaps)
    kernel = rows.kernel_of(row_params, types)
    return in_rows.launch(row_params, kernels.setdefault(kernel, len(kernels)))


def _type_names(batch: Batch) -> str:
    """``b16`` for bits, ``fp32_bf16`` for a conversion."""
    x, y = map(dtypes.info, batch.types)
    return f"b{8 * x.size_bytes}" if x is y else f"{x.short_name}_{y.short_name}"
