"""``moe_matmul_simt``: grouped products of routed rows in the true arithmetic of the compute type.

Any strides, any data types that the operation takes, every mode, any pointwise epilogue. fp32 operands are multiplied
in fp32 (no TF32), fp64 in fp64, integers in int32; fp16, bf16 and fp8 are summed in fp32. One kernel
(``moe_matmul_simt.cu``) serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.codegen.functor import generate
from lowdnn.engines.base import Anchors
from lowdnn.engines.gemm.simt_tile import SimtTile
from lowdnn.engines.indices import MAX_TILED_EXTENT
from lowdnn.engines.launch import MAX_GRID_X, bytes_of, ceil_div, fma_unit, i32, i64, macros
from lowdnn.engines.limits import fused
from lowdnn.engines.moe import simt_tiles
from lowdnn.engines.moe.arguments import (
    groups_argument,
    groups_problem,
    most_tiles,
    offset_type,
    routing_argument,
    table_bytes,
)
from lowdnn.engines.moe.simt_engine import MoeSimtEngine
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, PointwiseDag, match_anchored
from lowdnn.ops.base import inputs_of
from lowdnn.ops.compute import accumulator_type
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work


@dataclass(frozen=True)
class Params:
    """The macros of ``moe_matmul_simt.cu``, described there."""

    TOKEN_TYPE: str
    WEIGHT_TYPE: str
    OFFSET_TYPE: str
    ROUTING: int
    TILE_ROWS: int
    TILE_COLUMNS: int
    TILE_DEPTH: int
    TOKEN_ALONG_DEPTH: int
    WEIGHT_ALONG_DEPTH: int


class MoeMatmulSimt(MoeSimtEngine):
    """See the module's docstring."""

    name = "moe_matmul_simt"
    index = 16
    anchors: Anchors = (MoeGroupedMatmul,)
    limits = fused(*anchors)

    def grouped(self, graph: OperationGraph) -> _Problem | str:
        """The graph as one grouped product with a pointwise epilogue."""
        matched = match_anchored(graph, MoeGroupedMatmul)
        return matched if isinstance(matched, str) else _Problem.of(matched)


@dataclass(frozen=True)
class _Problem:
    """One grouped product and its pointwise epilogue."""

    operation: MoeGroupedMatmul
    epilogue: PointwiseDag

    @classmethod
    def of(cls, matched: Anchored[MoeGroupedMatmul]) -> _Problem:
        return cls(matched.anchor, matched.epilogue)

    @property
    def accumulator(self) -> DataType:
        return accumulator_type(self.operation.compute_type)

    @property
    def columns(self) -> int:
        return self.operation.output.dims[2]

    @property
    def depth(self) -> int:
        return self.operation.token.dims[2]

    def blocks(self, tile: SimtTile) -> int:
        return most_tiles(self.operation.groups, tile.rows) * ceil_div(self.columns, tile.columns)

    def extent_problem(self) -> str:
        """Why extents exceed the kernel's indices; empty if they do not."""
        operation = self.operation
        largest = max(*operation.output.dims, *operation.token.dims)
        if largest > MAX_TILED_EXTENT:
            return f"moe_grouped_matmul.dims: expected extents of at most {MAX_TILED_EXTENT}, got {largest}"
        blocks = self.blocks(simt_tiles.tile_of(32, 32))
        if blocks > MAX_GRID_X:
            return f"moe_grouped_matmul.output.dims: expected at most {MAX_GRID_X} tiles of 32 x 32, got {blocks}"
        return groups_problem("moe_grouped_matmul", operation.groups)

    def launch(self, tile: SimtTile) -> tuple[KernelRef, Launch]:
        operation = self.operation
        token, weight, offsets = operation.token, operation.weight, operation.first_token_offset
        functor = generate(self.epilogue, accumulator=self.accumulator, vector_axis=2)
        params = Params(
            TOKEN_TYPE=dtypes.info(token.data_type).c_type,
            WEIGHT_TYPE=dtypes.info(weight.data_type).c_type,
            OFFSET_TYPE=offset_type(offsets),
            ROUTING=int(operation.mode),
            TILE_ROWS=tile.rows,
            TILE_COLUMNS=tile.columns,
            TILE_DEPTH=tile.depth,
            TOKEN_ALONG_DEPTH=int(token.strides[2] < token.strides[1]),
            WEIGHT_ALONG_DEPTH=int(weight.strides[1] < weight.strides[2]),
        )
        names = [dtypes.info(tensor.data_type).short_name for tensor in (token, weight, offsets)]
        layout = f"{'rk'[params.TOKEN_ALONG_DEPTH]}{'nk'[params.WEIGHT_ALONG_DEPTH]}_{operation.mode.name.lower()}"
        kernel = KernelRef(
            name=f"moe_matmul_simt_{'_'.join(names)}_{tile.rows}x{tile.columns}x{tile.depth}_{layout}_sm80_"
            f"{functor.digest}",
            source="moe/moe_matmul_simt.cu",
            target=BASE_TARGET,
            parameters=macros(params),
            generated=functor.text,
        )
        arguments = Struct(
            (
                TensorPointer(token.uid),
                TensorPointer(weight.uid),
                routing_argument(operation),
                groups_argument(offsets, operation.groups),
                *i64((token.strides[1], token.strides[2])),
                *i64((weight.strides[0], weight.strides[2], weight.strides[1])),
                *i32((self.columns, self.depth, ceil_div(self.columns, tile.columns))),
                functor.arguments,
            )
        )
        blocks = self.blocks(tile)
        work = Work(
            flops=2 * blocks * tile.rows * tile.columns * ceil_div(self.depth, tile.depth) * tile.depth,
            bytes=bytes_of((*inputs_of(operation).values(), *self.epilogue.loads)) + bytes_of(self.epilogue.stores),
            unit=fma_unit(self.accumulator),
        )
        return kernel, Launch(
            0,
            (blocks, 1, 1),
            (tile.threads, 1, 1),
            (arguments,),
            shared_bytes=table_bytes(operation.groups),
            work=work,
        )
