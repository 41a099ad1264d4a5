"""The launches of the gradients: ``causal_conv1d_backward.cu``, ``causal_conv1d_dweight.cu``,
``causal_conv1d_sums.cu``."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.sequence.tiles import (
    POSITIONS,
    THREADS,
    Rows,
    TileParams,
    Tiling,
    kernel_of,
    pointer_of,
    sequences,
)
from lowdnn.engines.launch import MAX_GRID_X, bytes_of, ceil_div, fma_unit, i64, is_dependent
from lowdnn.enums import DataType
from lowdnn.ops.base import HasPorts
from lowdnn.ops.causal_conv1d_backward import CausalConv1dBackward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work, WorkspacePointer

#: Elements that a block of the last sums has.
_COLUMNS = 16
#: The most elements of dweight and dbias for whose blocks a grid has room.
MOST_SUMS = _COLUMNS * MAX_GRID_X
#: Threads that share the parts of one element.
_SHARES = 16


@dataclass(frozen=True)
class BackwardParams:
    """The macros of ``causal_conv1d_backward.cu`` that other kernels do not have."""

    W: str
    BIAS: str
    DY: str
    DX: str
    HAS_BIAS: int
    HAS_SILU: int
    TAPS: int
    X_WIDTH: int
    DY_WIDTH: int
    DX_WIDTH: int


@dataclass(frozen=True)
class FilterParams:
    """The macros of ``causal_conv1d_dweight.cu`` that other kernels do not have."""

    G: str
    X_WIDTH: int
    G_WIDTH: int


@dataclass(frozen=True)
class SumParams:
    """The macros of ``causal_conv1d_sums.cu``."""

    COMPUTE: str
    DWEIGHT: str
    DBIAS: str
    HAS_BIAS: int
    COLUMNS: int
    SHARES: int


@dataclass(frozen=True)
class Parts:
    """Sums of each channel in the workspace: ``count`` parts of (taps + 1, channels), from threads of ``run`` tiles."""

    tiling: Tiling
    run: int
    offset_bytes: int = 0

    @property
    def count(self) -> int:
        return self.tiling.parts(self.run)

    @property
    def size_bytes(self) -> int:
        operands = self.tiling.operands
        elements = self.count * (operands.taps + 1) * self.tiling.channel_count
        return elements * dtypes.info(operands.compute_type).storage.itemsize

    def backward(self, operation: CausalConv1dBackward, arch: ArchSpec) -> tuple[KernelRef, Launch]:
        """dx, and the parts, of a filter with few taps."""
        tiling, operands = self.tiling, operation.operands
        x, dy, dx = (tiling.rows_of(tensor) for tensor in (operation.x, operation.dy, operation.dx))
        bias = operands.bias or operands.weight
        params = BackwardParams(
            W=dtypes.info(operands.weight.data_type).c_type,
            BIAS=dtypes.info(bias.data_type).c_type,
            DY=dy.c_type,
            DX=dx.c_type,
            HAS_BIAS=int(operands.bias is not None),
            HAS_SILU=int(operands.has_silu),
            TAPS=operands.taps,
            X_WIDTH=x.width,
            DY_WIDTH=dy.width,
            DX_WIDTH=dx.width,
        )
        bias_stride = 0 if operands.bias is None else operands.bias.strides[0]
        fields = (
            x.pointer,
            TensorPointer(operands.weight.uid),
            pointer_of(operands.bias),
            dy.pointer,
            dx.pointer,
            WorkspacePointer(self.offset_bytes),
            sequences(operands),
            tiling.shape(self.run),
            *i64((*x.strides, *dy.strides, *dx.strides, *operands.weight.strides, bias_stride, self.run)),
        )
        moved = bytes_of((operation.x, operation.dy, operation.dx))
        work = Work(operation.flops, moved, fma_unit(operands.compute_type))
        grid, overlaps = (tiling.blocks(self.run), 1, 1), is_dependent(arch)
        launch = Launch(0, grid, (THREADS, 1, 1), (Struct(fields),), work=work, overlaps_previous=overlaps)
        shared = TileParams.of(tiling, operation.x.data_type, has_states=True)
        source = "causal_conv1d_backward"
        return kernel_of(source, operation, arch, shared, params, is_dependent_launch=True), launch

    def dweight(self, operation: CausalConv1dBackward, g: Rows, arch: ArchSpec) -> tuple[KernelRef, Launch]:
        """The parts of a filter with many taps, from g, dy times the activation's derivative."""
        tiling, operands = self.tiling, operation.operands
        x = tiling.rows_of(operation.x)
        fields = (
            x.pointer,
            g.pointer,
            WorkspacePointer(self.offset_bytes),
            sequences(operands),
            tiling.shape(self.run),
            *i64((*x.strides, *g.strides, self.run, operands.taps)),
        )
        grid = (tiling.blocks(self.run), ceil_div(operands.taps, POSITIONS), 1)
        work = Work(operands.flops, bytes_of((operation.x, operation.dy)), fma_unit(operands.compute_type))
        shared = TileParams.of(tiling, operation.x.data_type, has_states=True)
        kernel = kernel_of("causal_conv1d_dweight", operation, arch, shared, FilterParams(g.c_type, x.width, g.width))
        return kernel, Launch(0, grid, (THREADS, 1, 1), (Struct(fields),), work=work)

    def sums(self, operation: CausalConv1dBackward, arch: ArchSpec) -> tuple[KernelRef, Launch]:
        """dweight and dbias from the parts."""
        found = Sums(self.offset_bytes, self.count, operation.dweight, operation.dbias, operation.compute_type)
        return found.step(operation, arch)


@dataclass(frozen=True)
class Sums:
    """The gradients of filters and, if there is one, of a number for each of them: sums of ``count`` parts (taps + 1,
    channels) in the workspace."""

    offset_bytes: int
    count: int
    dweight: Tensor
    dbias: Tensor | None
    compute_type: DataType

    def step(self, operation: HasPorts, arch: ArchSpec) -> tuple[KernelRef, Launch]:
        """The launch for an operation that has these gradients."""
        dweight, dbias = self.dweight, self.dbias
        params = SumParams(
            COMPUTE=dtypes.info(self.compute_type).c_type,
            DWEIGHT=dtypes.info(dweight.data_type).c_type,
            DBIAS=dtypes.info((dbias or dweight).data_type).c_type,
            HAS_BIAS=int(dbias is not None),
            COLUMNS=_COLUMNS,
            SHARES=_SHARES,
        )
        channels, taps = dweight.dims
        fields = (
            WorkspacePointer(self.offset_bytes),
            TensorPointer(dweight.uid),
            pointer_of(dbias),
            *i64((self.count, channels, taps)),
            *i64((*dweight.strides, 0 if dbias is None else dbias.strides[0])),
        )
        rows = taps + params.HAS_BIAS
        grid = (ceil_div(rows * channels, _COLUMNS), 1, 1)
        added = self.count * rows * channels
        work = Work(added, added * dtypes.info(self.compute_type).storage.itemsize, fma_unit(self.compute_type))
        block, overlaps = (_COLUMNS * _SHARES, 1, 1), is_dependent(arch)
        launch = Launch(0, grid, block, (Struct(fields),), work=work, overlaps_previous=overlaps)
        return kernel_of("causal_conv1d_sums", operation, arch, params, is_dependent_launch=True), launch
