"""The launches for what lies before and after sequences: ``causal_conv1d_states.cu``, ``causal_conv1d_dstates.cu``."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.sequence.tiles import THREADS, Rows, TileParams, Tiling, kernel_of, pointer_of, sequences
from lowdnn.engines.launch import bytes_of, ceil_div, divider, fma_unit, i32, i64
from lowdnn.ops.causal_conv1d_backward import CausalConv1dBackward
from lowdnn.ops.causal_conv1d_forward import CausalConv1dForward
from lowdnn.plan import KernelRef, Launch, Struct, Work


@dataclass(frozen=True)
class StateGradientParams:
    """The macros of ``causal_conv1d_dstates.cu`` that other kernels do not have."""

    W: str
    BIAS: str
    G: str
    DSTATES: str
    HAS_BIAS: int
    HAS_SILU: int


def final_states(operation: CausalConv1dForward, tiling: Tiling, arch: ArchSpec) -> tuple[KernelRef, Launch]:
    """The states after the sequences, of an operation that has some."""
    operands, states = operation.operands, operation.final_states
    assert states is not None
    count, (_, channels, samples) = operands.count, states.dims
    fields = (
        pointer_of(operation.x),
        pointer_of(states),
        sequences(operands),
        *i64((*operation.x.strides, *states.strides)),
        *divider(channels),
        *i32((count * channels, samples)),
    )
    launch = Launch(
        kernel=0,
        grid=(ceil_div(count * channels, THREADS), 1, 1),
        block=(THREADS, 1, 1),
        arguments=(Struct(fields),),
        work=Work(bytes=2 * bytes_of((states,))),
    )
    params = TileParams.of(tiling, operation.x.data_type, has_states=True)
    return kernel_of("causal_conv1d_states", operation, arch, params), launch


def state_gradients(
    operation: CausalConv1dBackward, tiling: Tiling, g: Rows | None, arch: ArchSpec
) -> tuple[KernelRef, Launch]:
    """The gradients of the initial states, where there are some.

    g: dy times the activation's derivative; None: the kernel computes it.
    """
    operands, states = operation.operands, operation.dinitial_states
    assert states is not None
    bias, given = operands.bias or operands.weight, g or tiling.rows_of(operation.dy)
    params = StateGradientParams(
        W=dtypes.info(operands.weight.data_type).c_type,
        BIAS=dtypes.info(bias.data_type).c_type,
        G=given.c_type,
        DSTATES=dtypes.info(states.data_type).c_type,
        HAS_BIAS=int(operands.bias is not None),
        HAS_SILU=int(operands.has_silu and g is None),
    )
    count, channels, _ = states.dims
    fields = (
        pointer_of(operation.x),
        pointer_of(operation.weight),
        pointer_of(operands.bias),
        given.pointer,
        pointer_of(states),
        sequences(operands),
        *i64((*operation.x.strides, *given.strides, *states.strides, *operation.weight.strides)),
        *i64((0 if operands.bias is None else operands.bias.strides[0],)),
        *divider(channels),
        *i32((count * channels, operands.taps)),
    )
    work = Work(states.element_count * operands.taps, 2 * bytes_of((states,)), fma_unit(operands.compute_type))
    launch = Launch(0, (ceil_div(count * channels, THREADS), 1, 1), (THREADS, 1, 1), (Struct(fields),), work=work)
    shared = TileParams.of(tiling, operation.x.data_type, has_states=True)
    return kernel_of("causal_conv1d_dstates", operation, arch, shared, params), launch
