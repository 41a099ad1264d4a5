"""``causal_conv1d``: causal convolution along sequences, for any float types, strides and filter length.

It is bound by memory for short filters, by arithmetic for long ones: each sample is read from memory once, and lies in
registers for all taps of eight neighbouring positions (``causal_conv1d.cu``). The states after the sequences are a
launch of their own, after the first, so they may replace the initial ones in memory.
"""

from __future__ import annotations

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Knob
from lowdnn.engines.conv.sequence.convolution import SHORT, Activation, Convolution
from lowdnn.engines.conv.sequence.states import final_states
from lowdnn.engines.conv.sequence.tiles import Tiling
from lowdnn.engines.launch import bytes_of
from lowdnn.engines.limits import alone
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.single_operation import SingleOperation
from lowdnn.enums import KnobType
from lowdnn.ops.base import outputs_of
from lowdnn.ops.causal_conv1d_forward import CausalConv1dForward


class CausalConv1dEngine(SingleOperation[CausalConv1dForward]):
    """See the module's docstring."""

    name = "causal_conv1d"
    index = 52
    anchors: Anchors = (CausalConv1dForward,)
    limits = alone(*anchors)
    expects = "one CausalConv1dForward"

    def limit(self, operation: CausalConv1dForward, arch: ArchSpec) -> str:
        """Limits positions, channels and blocks."""
        return Tiling(operation.operands).limit()

    def knobs_of(self, operation: CausalConv1dForward, arch: ArchSpec) -> tuple[Knob, ...]:
        """MULTIPLY: the tiles of a thread, whose loads overlap. Two where a row of the tensor fills them."""
        tiling = Tiling(operation.operands)
        are_several = not tiling.along_channels and operation.operands.taps <= SHORT and tiling.length > tiling.span
        values = (1, 2) if are_several else (1,)
        return (Knob("tiles", KnobType.MULTIPLY, values, values[-1], "tiles of a thread"),)

    def has_results(self, operation: CausalConv1dForward) -> bool:
        """The final states are results too where y is empty."""
        return any(tensor.element_count for tensor in outputs_of(operation).values())

    def launches(self, operation: CausalConv1dForward, arch: ArchSpec, chosen: Choices) -> PlanParts:
        found, tiling, tiles = PlanParts(), Tiling(operation.operands), chosen[KnobType.MULTIPLY]
        if operation.y.element_count:
            activation = Activation.SILU if operation.operands.has_silu else Activation.NONE
            convolution = Convolution(tiling, tiling.rows_of(operation.x), tiling.rows_of(operation.y), activation)
            moved = bytes_of((operation.x, operation.y, operation.weight))
            found.add(convolution.kernel(operation, arch, tiles), convolution.launch(tiles, moved))
        if operation.final_states is not None and operation.final_states.element_count * operation.operands.count:
            found.add(*final_states(operation, tiling, arch))
        return found
