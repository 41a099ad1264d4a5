"""``causal_conv1d_backward``: the gradients of causal convolution along sequences, for any float types, strides and
filter length.

With few taps it is bound by memory: x and dy are read once, for dx and the parts of dweight and dbias at the same time
(``causal_conv1d_backward.cu``). With many it is bound by arithmetic: g = dy * activation'(z) goes to the workspace if
there is an activation, and dx and dweight are launches of their own. A last launch adds the parts in a fixed order.
"""

from __future__ import annotations

from dataclasses import replace

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Knob
from lowdnn.engines.conv.sequence.convolution import SHORT, Activation, Convolution
from lowdnn.engines.conv.sequence.gradients import MOST_SUMS, Parts
from lowdnn.engines.conv.sequence.states import state_gradients
from lowdnn.engines.conv.sequence.tiles import POSITIONS, Rows, Tiling
from lowdnn.engines.launch import bytes_of
from lowdnn.engines.limits import alone
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.single_operation import SingleOperation
from lowdnn.enums import KnobType
from lowdnn.ops.base import outputs_of
from lowdnn.ops.causal_conv1d_backward import CausalConv1dBackward

#: The greatest grid extent along y.
_MAX_GRID_Y = 65535


class CausalConv1dBackwardEngine(SingleOperation[CausalConv1dBackward]):
    """See the module's docstring."""

    name = "causal_conv1d_backward"
    index = 53
    anchors: Anchors = (CausalConv1dBackward,)
    limits = alone(*anchors)
    expects = "one CausalConv1dBackward"

    def limit(self, operation: CausalConv1dBackward, arch: ArchSpec) -> str:
        """Limits positions, channels, taps, sums and blocks."""
        tiling, most, taps = Tiling(operation.operands), POSITIONS * _MAX_GRID_Y, operation.operands.taps
        if taps > most:
            return f"weight.dims: expected at most {most} taps, got {taps}"
        if (sums := (taps + 1) * tiling.channel_count) > MOST_SUMS:
            return f"weight.dims: expected at most {MOST_SUMS} elements of all filters and biases, got {sums}"
        return tiling.limit()

    def knobs_of(self, operation: CausalConv1dBackward, arch: ArchSpec) -> tuple[Knob, ...]:
        """MULTIPLY: the tiles of a thread, which decide how many parts the sums have."""
        run = Tiling(operation.operands).run(arch)
        values = sorted({1 << shift for shift in range(12)} | {run})
        return (Knob("run", KnobType.MULTIPLY, tuple(values), run, "tiles of a thread"),)

    def has_results(self, operation: CausalConv1dBackward) -> bool:
        """dweight and dbias are results too where dx is empty."""
        return any(tensor.element_count for tensor in outputs_of(operation).values())

    def launches(self, operation: CausalConv1dBackward, arch: ArchSpec, chosen: Choices) -> PlanParts:
        found, tiling = PlanParts(), Tiling(operation.operands)
        parts = Parts(tiling, chosen[KnobType.MULTIPLY])
        g: Rows | None = None
        if operation.dx.element_count:
            parts = replace(parts, offset_bytes=found.reserve(parts.size_bytes))
            if operation.operands.taps <= SHORT:
                found.add(*parts.backward(operation, arch))
            else:
                g = _add_long(found, operation, parts, arch)
        found.add(*parts.sums(operation, arch))
        if operation.dinitial_states is not None and operation.dinitial_states.element_count:
            found.add(*state_gradients(operation, tiling, g, arch))
        return found


def _add_long(found: PlanParts, operation: CausalConv1dBackward, parts: Parts, arch: ArchSpec) -> Rows:
    """Adds the launches for dx and the parts of dweight, with many taps; g, of which both are sums."""
    tiling, compute_type = parts.tiling, operation.compute_type
    g, x = tiling.rows_of(operation.dy), tiling.rows_of(operation.x)
    if operation.operands.has_silu:
        dy, g = g, tiling.scratch(found.reserve(tiling.scratch_bytes(compute_type)), compute_type)
        gradient = Convolution(tiling, x, g, Activation.SILU_GRADIENT, dy)
        found.add(gradient.kernel(operation, arch, 1), gradient.launch(1, bytes_of((operation.x, operation.dy))))
    adjoint = Convolution(tiling, g, tiling.rows_of(operation.dx), is_adjoint=True)
    found.add(adjoint.kernel(operation, arch, 1), adjoint.launch(1, bytes_of((operation.dy, operation.dx))))
    found.add(*parts.dweight(operation, g, arch))
    return g
