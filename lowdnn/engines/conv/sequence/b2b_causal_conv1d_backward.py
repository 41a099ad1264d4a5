"""``b2b_causal_conv1d_backward``: the gradients of back-to-back gated causal convolutions along sequences, for any
float types and strides, and filters for which shared memory has room.

One launch makes dx, and the parts of the filters' gradients in the workspace (``b2b_causal_conv1d_backward.cu``); two
more add the parts in a fixed order (``causal_conv1d_sums.cu``).
"""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Knob
from lowdnn.engines.conv.sequence.b2b import Blocks, width
from lowdnn.engines.conv.sequence.gradients import MOST_SUMS, Sums
from lowdnn.engines.conv.sequence.tiles import THREADS, kernel_of
from lowdnn.engines.launch import bytes_of, fma_unit
from lowdnn.engines.limits import alone
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.single_operation import SingleOperation
from lowdnn.enums import KnobType
from lowdnn.ops.b2b_causal_conv1d import ROWS
from lowdnn.ops.b2b_causal_conv1d_backward import B2BCausalConv1dBackward
from lowdnn.ops.base import outputs_of
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work, WorkspacePointer

#: Positions of a block, which has twice as many lines in shared memory as that of the forward operation.
_CHUNK = 512


@dataclass(frozen=True)
class Params:
    """The macros of ``b2b_causal_conv1d_backward.cu`` that other kernels do not have."""

    Y: str
    DY: str
    DX: str
    Y_WIDTH: int
    DY_WIDTH: int
    DX_WIDTH: int


class B2BCausalConv1dBackwardEngine(SingleOperation[B2BCausalConv1dBackward]):
    """See the module's docstring."""

    name = "b2b_causal_conv1d_backward"
    index = 73
    anchors: Anchors = (B2BCausalConv1dBackward,)
    limits = alone(*anchors)
    expects = "one B2BCausalConv1dBackward"

    def limit(self, operation: B2BCausalConv1dBackward, arch: ArchSpec) -> str:
        """Limits taps, positions, blocks and sums."""
        operands = operation.operands
        rows = {"weights_proj": ROWS * operands.projection_taps, "weights_mixer": operands.mixer_taps + 1}
        for port, count in rows.items():
            if (sums := count * operands.channels) > MOST_SUMS:
                return f"{port}.dims: expected gradients of at most {MOST_SUMS} sums, got {sums}"
        return _blocks(operation).limit(arch)

    def knobs_of(self, operation: B2BCausalConv1dBackward, arch: ArchSpec) -> tuple[Knob, ...]:
        """See ``Blocks.knobs``."""
        return _blocks(operation).knobs(arch, _CHUNK)

    def has_results(self, operation: B2BCausalConv1dBackward) -> bool:
        """The gradients of the filters are results too where dx is empty."""
        return any(tensor.element_count for tensor in outputs_of(operation).values())

    def launches(self, operation: B2BCausalConv1dBackward, arch: ArchSpec, chosen: Choices) -> PlanParts:
        found, operands, chunk = PlanParts(), operation.operands, chosen[KnobType.TILE_SIZE]
        compute, blocks = operation.compute_type, _blocks(operation)
        count = operands.dims[0] * blocks.chunks(chunk) if operation.dx.element_count else 0
        part_bytes = count * operands.channels * dtypes.info(compute).storage.itemsize
        projection = found.reserve(ROWS * (operands.projection_taps + 1) * part_bytes)
        mixer = found.reserve((operands.mixer_taps + 1) * part_bytes)
        if count:
            found.add(*_gradients(operation, arch, chunk, (projection, mixer)))
        found.add(*Sums(projection, count, operation.dweights_proj, None, compute).step(operation, arch))
        found.add(*Sums(mixer, count, operation.dweights_mixer, operation.dskip_bias, compute).step(operation, arch))
        return found


def _blocks(operation: B2BCausalConv1dBackward) -> Blocks:
    return Blocks(operation.operands, lines=8, is_two_sided=True)


def _gradients(
    operation: B2BCausalConv1dBackward, arch: ArchSpec, chunk: int, parts: tuple[int, int]
) -> tuple[KernelRef, Launch]:
    """dx, and the parts of the filters' gradients.  parts: the offsets in the workspace of the projection's and the
    mixer's."""
    blocks, given = _blocks(operation), (operation.y, operation.dy, operation.dx)
    params = Params(
        Y=dtypes.info(operation.y.data_type).c_type,
        DY=dtypes.info(operation.dy.data_type).c_type,
        DX=dtypes.info(operation.dx.data_type).c_type,
        Y_WIDTH=width(operation.y),
        DY_WIDTH=width(operation.dy),
        DX_WIDTH=width(operation.dx),
    )
    pointers = (*blocks.inputs, *(TensorPointer(tensor.uid) for tensor in given), *map(WorkspacePointer, parts))
    launch = Launch(
        kernel=0,
        grid=(blocks.blocks(chunk), 1, 1),
        block=(THREADS, 1, 1),
        arguments=(Struct((*pointers, *blocks.fields(chunk, given))),),
        shared_bytes=blocks.shared_bytes(chunk),
        work=Work(operation.flops, bytes_of((operation.x, *given)), fma_unit(operation.compute_type)),
    )
    return kernel_of("b2b_causal_conv1d_backward", operation, arch, blocks.params, params), launch
