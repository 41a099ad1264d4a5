"""``b2b_causal_conv1d``: back-to-back gated causal convolutions along sequences in one launch, for any float types and
strides, and filters for which shared memory has room.

With few taps it is bound by memory: x is read once, but for the positions before each block's own, and nothing between
x and y leaves the chip (``b2b_causal_conv1d.cu``). With many it is bound by the mixer's arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Knob
from lowdnn.engines.conv.sequence.b2b import Blocks, width
from lowdnn.engines.conv.sequence.tiles import THREADS, kernel_of, pointer_of
from lowdnn.engines.launch import bytes_of, fma_unit
from lowdnn.engines.limits import alone
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.single_operation import SingleOperation
from lowdnn.enums import KnobType
from lowdnn.ops.b2b_causal_conv1d_forward import B2BCausalConv1dForward
from lowdnn.plan import Launch, Struct, TensorPointer, Work

#: Positions of a block: with the taps of usual filters, several blocks fit on a multiprocessor.
_CHUNK = 1024


@dataclass(frozen=True)
class Params:
    """The macros of ``b2b_causal_conv1d.cu`` that other kernels do not have."""

    Y: str
    GATED: str
    HAS_Y: int
    Y_WIDTH: int
    GATED_WIDTH: int


class B2BCausalConv1dEngine(SingleOperation[B2BCausalConv1dForward]):
    """See the module's docstring."""

    name = "b2b_causal_conv1d"
    index = 72
    anchors: Anchors = (B2BCausalConv1dForward,)
    limits = alone(*anchors)
    expects = "one B2BCausalConv1dForward"

    def limit(self, operation: B2BCausalConv1dForward, arch: ArchSpec) -> str:
        """Limits taps, positions and blocks."""
        return _blocks(operation).limit(arch)

    def knobs_of(self, operation: B2BCausalConv1dForward, arch: ArchSpec) -> tuple[Knob, ...]:
        """See ``Blocks.knobs``."""
        return _blocks(operation).knobs(arch, _CHUNK)

    def launches(self, operation: B2BCausalConv1dForward, arch: ArchSpec, chosen: Choices) -> PlanParts:
        blocks, chunk = _blocks(operation), chosen[KnobType.TILE_SIZE]
        gated, y = operation.y_gated, operation.y
        stored = y or gated
        params = Params(
            Y=dtypes.info(stored.data_type).c_type,
            GATED=dtypes.info(gated.data_type).c_type,
            HAS_Y=int(y is not None),
            Y_WIDTH=width(stored),
            GATED_WIDTH=width(gated),
        )
        pointers = (*blocks.inputs, pointer_of(y), TensorPointer(gated.uid))
        moved = bytes_of(tensor for tensor in (operation.x, gated, y) if tensor is not None)
        launch = Launch(
            kernel=0,
            grid=(blocks.blocks(chunk), 1, 1),
            block=(THREADS, 1, 1),
            arguments=(Struct((*pointers, *blocks.fields(chunk, (y, gated)))),),
            shared_bytes=blocks.shared_bytes(chunk),
            work=Work(operation.flops, moved, fma_unit(operation.compute_type)),
        )
        return PlanParts([(kernel_of("b2b_causal_conv1d", operation, arch, blocks.params, params), launch)])


def _blocks(operation: B2BCausalConv1dForward) -> Blocks:
    return Blocks(operation.operands, lines=3, short_lines=1)
