"""The launch of ``causal_conv1d.cu``: a sum over the taps of each sample, forward or backward along the sequences."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.sequence.tiles import THREADS, Rows, TileParams, Tiling, kernel_of, pointer_of, sequences
from lowdnn.engines.launch import fma_unit, i64
from lowdnn.ops.base import HasPorts
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work

#: The most taps that a kernel has as a constant.
SHORT = 8


class Activation(IntEnum):
    """ACTIVATION: the function of a sum z."""

    NONE = 0
    SILU = 1
    SILU_GRADIENT = 2  #: dy * silu'(z)


@dataclass(frozen=True)
class Params:
    """The macros of ``causal_conv1d.cu`` that other kernels do not have."""

    W: str
    BIAS: str
    DY: str
    Y: str
    HAS_BIAS: int
    TAPS: int
    ADJOINT: int
    ACTIVATION: int
    TILES: int
    X_WIDTH: int
    DY_WIDTH: int
    Y_WIDTH: int


@dataclass(frozen=True)
class Convolution:
    """y from x, and dy where there is one.  is_adjoint: sums over the samples that follow, without bias and states."""

    tiling: Tiling
    x: Rows
    y: Rows
    activation: Activation = Activation.NONE
    dy: Rows | None = None
    is_adjoint: bool = False

    def kernel(self, operation: HasPorts, arch: ArchSpec, tiles: int) -> KernelRef:
        operands, dy = self.tiling.operands, self.dy or self.x
        bias = operands.bias or operands.weight
        params = Params(
            W=dtypes.info(operands.weight.data_type).c_type,
            BIAS=dtypes.info(bias.data_type).c_type,
            DY=dy.c_type,
            Y=self.y.c_type,
            HAS_BIAS=int(operands.bias is not None and not self.is_adjoint),
            TAPS=operands.taps if operands.taps <= SHORT else 0,
            ADJOINT=int(self.is_adjoint),
            ACTIVATION=int(self.activation),
            TILES=tiles,
            X_WIDTH=self.x.width,
            DY_WIDTH=dy.width,
            Y_WIDTH=self.y.width,
        )
        shared = TileParams.of(self.tiling, self.x.data_type, has_states=not self.is_adjoint)
        return kernel_of("causal_conv1d", operation, arch, shared, params)

    def launch(self, tiles: int, bytes_moved: int) -> Launch:
        operands, dy = self.tiling.operands, self.dy or self.x
        bias_stride = 0 if operands.bias is None else operands.bias.strides[0]
        fields = (
            self.x.pointer,
            TensorPointer(operands.weight.uid),
            pointer_of(operands.bias),
            dy.pointer,
            self.y.pointer,
            sequences(operands),
            self.tiling.shape(tiles),
            *i64((*self.x.strides, *dy.strides, *self.y.strides)),
            *i64((*operands.weight.strides, bias_stride, operands.taps)),
        )
        return Launch(
            kernel=0,
            grid=(self.tiling.blocks(tiles), 1, 1),
            block=(THREADS, 1, 1),
            arguments=(Struct(fields),),
            work=Work(operands.flops, bytes_moved, fma_unit(operands.compute_type)),
        )
