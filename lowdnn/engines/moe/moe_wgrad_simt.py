"""``moe_wgrad_simt``: gradients of experts' weights in the true arithmetic of the compute type.

Any strides, any float types, any pointwise epilogue. fp32 operands are multiplied in fp32 (no TF32), fp64 in fp64;
fp16, bf16 and fp8 are summed in fp32. One kernel (``moe_wgrad_simt.cu``) serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.codegen.functor import generate
from lowdnn.engines.base import Anchors
from lowdnn.engines.gemm.simt_tile import SimtTile, vector_axis
from lowdnn.engines.indices import MAX_TILED_EXTENT
from lowdnn.engines.launch import MAX_GRID_X, bytes_of, ceil_div, fma_unit, i32, i64, macros
from lowdnn.engines.limits import fused
from lowdnn.engines.moe import simt_tiles
from lowdnn.engines.moe.arguments import groups_argument, offset_type
from lowdnn.engines.moe.simt_engine import MoeSimtEngine
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, PointwiseDag, match_anchored
from lowdnn.ops.base import inputs_of
from lowdnn.ops.compute import accumulator_type
from lowdnn.ops.moe_grouped_matmul_backward import MoeGroupedMatmulBackward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work


@dataclass(frozen=True)
class Params:
    """The macros of ``moe_wgrad_simt.cu``, described there."""

    ROWS_TYPE: str
    COLUMNS_TYPE: str
    OFFSET_TYPE: str
    TILE_ROWS: int
    TILE_COLUMNS: int
    TILE_DEPTH: int
    ROW_AXIS: int
    ROWS_ALONG_DEPTH: int
    COLUMNS_ALONG_DEPTH: int


class MoeWgradSimt(MoeSimtEngine):
    """See the module's docstring."""

    name = "moe_wgrad_simt"
    index = 17
    anchors: Anchors = (MoeGroupedMatmulBackward,)
    limits = fused(*anchors)

    def grouped(self, graph: OperationGraph) -> _Problem | str:
        """The graph as one gradient of the experts' weights with a pointwise epilogue."""
        matched = match_anchored(graph, MoeGroupedMatmulBackward)
        return matched if isinstance(matched, str) else _Problem.of(matched)


@dataclass(frozen=True)
class _Problem:
    """The product as the kernel sees it, whose columns lie along dweight's ``column_axis``."""

    operation: MoeGroupedMatmulBackward
    epilogue: PointwiseDag
    column_axis: int

    @classmethod
    def of(cls, matched: Anchored[MoeGroupedMatmulBackward]) -> _Problem:
        return cls(matched.anchor, matched.epilogue, vector_axis(matched.epilogue, (2, 1)))

    @property
    def rows(self) -> Tensor:
        return self.operation.token if self.column_axis == 2 else self.operation.doutput

    @property
    def columns(self) -> Tensor:
        return self.operation.doutput if self.column_axis == 2 else self.operation.token

    @property
    def accumulator(self) -> DataType:
        return accumulator_type(self.operation.compute_type)

    def grid(self, tile: SimtTile) -> tuple[int, int]:
        """Tiles of rows and of columns."""
        return ceil_div(self.rows.dims[2], tile.rows), ceil_div(self.columns.dims[2], tile.columns)

    def blocks(self, tile: SimtTile) -> int:
        rows, columns = self.grid(tile)
        return self.operation.groups.experts * rows * columns

    def extent_problem(self) -> str:
        """Why extents exceed the kernel's indices; empty if they do not."""
        largest = max(*self.rows.dims, *self.columns.dims, *self.operation.dweight.dims)
        if largest > MAX_TILED_EXTENT:
            return f"moe_grouped_matmul_bwd.dims: expected extents of at most {MAX_TILED_EXTENT}, got {largest}"
        blocks = self.blocks(simt_tiles.tile_of(32, 32))
        if blocks > MAX_GRID_X:
            return f"moe_grouped_matmul_bwd.dweight.dims: expected at most {MAX_GRID_X} tiles of 32 x 32, got {blocks}"
        return ""

    def launch(self, tile: SimtTile) -> tuple[KernelRef, Launch]:
        operation, rows, columns = self.operation, self.rows, self.columns
        functor = generate(self.epilogue, accumulator=self.accumulator, vector_axis=self.column_axis)
        params = Params(
            ROWS_TYPE=dtypes.info(rows.data_type).c_type,
            COLUMNS_TYPE=dtypes.info(columns.data_type).c_type,
            OFFSET_TYPE=offset_type(operation.first_token_offset),
            TILE_ROWS=tile.rows,
            TILE_COLUMNS=tile.columns,
            TILE_DEPTH=tile.depth,
            ROW_AXIS=3 - self.column_axis,
            ROWS_ALONG_DEPTH=int(rows.strides[1] < rows.strides[2]),
            COLUMNS_ALONG_DEPTH=int(columns.strides[1] < columns.strides[2]),
        )
        names = [dtypes.info(t.data_type).short_name for t in (rows, columns, operation.first_token_offset)]
        layout = f"{'rk'[params.ROWS_ALONG_DEPTH]}{'sk'[params.COLUMNS_ALONG_DEPTH]}{params.ROW_AXIS}"
        kernel = KernelRef(
            name=f"moe_wgrad_simt_{'_'.join(names)}_{tile.rows}x{tile.columns}x{tile.depth}_{layout}_sm80_"
            f"{functor.digest}",
            source="moe/moe_wgrad_simt.cu",
            target=BASE_TARGET,
            parameters=macros(params),
            generated=functor.text,
        )
        row_tiles, column_tiles = self.grid(tile)
        arguments = Struct(
            (
                TensorPointer(rows.uid),
                TensorPointer(columns.uid),
                groups_argument(operation.first_token_offset, operation.groups),
                *i64((rows.strides[2], rows.strides[1], columns.strides[2], columns.strides[1])),
                *i32((rows.dims[2], columns.dims[2], row_tiles, column_tiles)),
                functor.arguments,
            )
        )
        blocks = self.blocks(tile)
        work = Work(
            flops=2 * row_tiles * column_tiles * tile.rows * tile.columns * operation.groups.rows,
            bytes=bytes_of((*inputs_of(operation).values(), *self.epilogue.loads)) + bytes_of(self.epilogue.stores),
            unit=fma_unit(self.accumulator),
        )
        return kernel, Launch(0, (blocks, 1, 1), (tile.threads, 1, 1), (arguments,), work=work)
