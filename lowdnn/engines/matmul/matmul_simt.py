"""``matmul_simt``: matrix products in the true arithmetic of the compute type, without tensor cores.

Any strides, any data types that the operation takes, any number of batch axes, any pointwise epilogue. fp32 operands
are multiplied in fp32 (no TF32), fp64 in fp64, integers in int32; fp16, bf16 and fp8 are summed in fp32, or in fp64 if
that is the compute type. One kernel (``matmul_simt.cu``) serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec, spec_named
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.codegen.functor import Functor, generate
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.gemm.simt_tile import SimtTile, vector_axis
from lowdnn.engines.indices import MAX_TILED_EXTENT
from lowdnn.engines.launch import MAX_GRID_X, bytes_of, ceil_div, fma_unit, i32, i64, macros
from lowdnn.engines.limits import reduced
from lowdnn.engines.matmul.shared_batches import match_matmul
from lowdnn.engines.model.clock import ALL_EXPOSED, work_s
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, PointwiseDag
from lowdnn.ops.compute import accumulator_type
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work
from lowdnn.status import Status

_TILES = (32, 64, 128)


@dataclass(frozen=True)
class Params:
    """The macros of ``matmul_simt.cu``, described there."""

    ROWS_TYPE: str
    COLUMNS_TYPE: str
    TILE_ROWS: int
    TILE_COLUMNS: int
    TILE_DEPTH: int
    ROW_AXIS: int
    ROWS_ALONG_DEPTH: int
    COLUMNS_ALONG_DEPTH: int


class MatmulSimt(ProblemEngine["_Problem"]):
    """See the module's docstring."""

    name = "matmul_simt"
    index = 3
    anchors: Anchors = (MatmulOperation,)
    limits = reduced(MatmulOperation)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses graphs that are not one matmul with a pointwise epilogue, and extents past 32 bits."""
        matched = match_matmul(graph)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        problem = _Problem.of(matched)
        reason = _refuse_extents(problem)
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else problem

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M and TILE_N; the defaults have the least work on the busiest multiprocessor."""
        return _knobs(problem, arch)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch; none if c is empty."""
        tile = problem.tile(chosen[KnobType.TILE_M], chosen[KnobType.TILE_N])
        if 0 in problem.c_dims:
            return PlanParts()
        functor = problem.functor()
        return PlanParts([(problem.kernel(tile, functor), problem.launch(tile, functor, arch))])

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Plain products of packed fp32 and fp64 matrices at the common tiles."""
        return tuple(
            self._plain_kernel(data_type, tile)
            for data_type, tiles in ((DataType.FLOAT, (64, 128)), (DataType.DOUBLE, (32, 64)))
            for tile in tiles
        )

    def _plain_kernel(self, data_type: DataType, tile: int) -> KernelRef:
        """The kernel of a packed product of ``data_type`` at tile x tile; its extents are run-time values."""
        dims = (1, tile, tile)
        a, b, c = (Tensor(uid, data_type, dims, packed_strides(dims), alignment_bytes=16) for uid in (1, 2, 3))
        problem = self.accepted(OperationGraph([MatmulOperation(Matmul(data_type), a, b, c)]), spec_named(BASE_TARGET))
        return problem.kernel(problem.tile(tile, tile), problem.functor())


@dataclass(frozen=True)
class _Problem:
    """The product as the kernel sees it: c[b, r, s] = sum over k of rows[b, r, k] * columns[b, k, s].

    epilogue: over c's dims.  row_axis, column_axis: c's axes along r and s.
    rows_strides, columns_strides: strides of the batch axes (0 where the operand is broadcast), of r or s, and of k.
    """

    rows: Tensor
    columns: Tensor
    epilogue: PointwiseDag
    depth: int
    row_axis: int
    column_axis: int
    rows_strides: tuple[int, ...]
    columns_strides: tuple[int, ...]
    accumulator: DataType

    @classmethod
    def of(cls, matched: Anchored[MatmulOperation]) -> _Problem:
        anchor = matched.anchor
        last = anchor.c.rank - 1
        column_axis = vector_axis(matched.epilogue, (last, last - 1))
        a_strides = (*_batch_strides(anchor.a), anchor.a.strides[-2], anchor.a.strides[-1])
        b_strides = (*_batch_strides(anchor.b), anchor.b.strides[-1], anchor.b.strides[-2])
        is_transposed = column_axis != last
        return cls(
            rows=anchor.b if is_transposed else anchor.a,
            columns=anchor.a if is_transposed else anchor.b,
            epilogue=matched.epilogue,
            depth=anchor.a.dims[-1],
            row_axis=2 * last - 1 - column_axis,
            column_axis=column_axis,
            rows_strides=b_strides if is_transposed else a_strides,
            columns_strides=a_strides if is_transposed else b_strides,
            accumulator=accumulator_type(anchor.matmul.compute_type),
        )

    @property
    def c_dims(self) -> tuple[int, ...]:
        return self.epilogue.dims

    @property
    def tiles(self) -> tuple[int, ...]:
        """fp64 accumulators of the largest tile would not fit the registers."""
        return _TILES[:2] if self.accumulator is DataType.DOUBLE else _TILES

    def tile(self, tile_m: int, tile_n: int) -> SimtTile:
        rows, columns = (tile_n, tile_m) if self.column_axis < self.row_axis else (tile_m, tile_n)
        return SimtTile(rows, columns, 8 if max(rows, columns) == _TILES[-1] else 16)

    def best_tile(self, arch: ArchSpec) -> tuple[int, int]:
        """(TILE_M, TILE_N) with the least work on the busiest multiprocessor; the largest tile on ties."""

        def cost(extents: tuple[int, int]) -> float:
            tile = self.tile(*extents)
            return tile.busiest(self.block_count(tile), arch)

        return min(product(reversed(self.tiles), reversed(self.tiles)), key=cost)

    def grid(self, tile: SimtTile) -> tuple[int, int]:
        """Tiles along r and s."""
        return ceil_div(self.c_dims[self.row_axis], tile.rows), ceil_div(self.c_dims[self.column_axis], tile.columns)

    def block_count(self, tile: SimtTile) -> int:
        return prod(self.grid(tile)) * prod(self.c_dims[:-2])

    def params(self, tile: SimtTile) -> Params:
        return Params(
            ROWS_TYPE=dtypes.info(self.rows.data_type).c_type,
            COLUMNS_TYPE=dtypes.info(self.columns.data_type).c_type,
            TILE_ROWS=tile.rows,
            TILE_COLUMNS=tile.columns,
            TILE_DEPTH=tile.depth,
            ROW_AXIS=self.row_axis,
            ROWS_ALONG_DEPTH=int(self.rows_strides[-1] < self.rows_strides[-2]),
            COLUMNS_ALONG_DEPTH=int(self.columns_strides[-1] < self.columns_strides[-2]),
        )

    def functor(self) -> Functor:
        return generate(self.epilogue, accumulator=self.accumulator, vector_axis=self.column_axis)

    def kernel(self, tile: SimtTile, functor: Functor) -> KernelRef:
        params = self.params(tile)
        types = "_".join(dtypes.info(t).short_name for t in (self.rows.data_type, self.columns.data_type))
        layout = "rk"[params.ROWS_ALONG_DEPTH] + "sk"[params.COLUMNS_ALONG_DEPTH] + str(params.ROW_AXIS)
        return KernelRef(
            name=f"matmul_simt_{types}_{tile.rows}x{tile.columns}x{tile.depth}_{layout}_sm80_{functor.digest}",
            source="matmul/matmul_simt.cu",
            target=BASE_TARGET,
            parameters=macros(params),
            generated=functor.text,
        )

    def launch(self, tile: SimtTile, functor: Functor, arch: ArchSpec) -> Launch:
        row_tiles, column_tiles = self.grid(tile)
        blocks = self.block_count(tile)
        axes = (*range(len(self.c_dims) - 2), self.row_axis, self.column_axis)
        arguments = Struct(
            (
                TensorPointer(self.rows.uid),
                TensorPointer(self.columns.uid),
                *i64(self.rows_strides),
                *i64(self.columns_strides),
                *i32(self.c_dims[axis] for axis in axes),
                *i32((self.depth, row_tiles, column_tiles)),
                functor.arguments,
            )
        )
        read = (self.rows, self.columns, *self.epilogue.loads)
        steps = ceil_div(self.depth, tile.depth)
        work = Work(
            flops=2 * blocks * tile.rows * tile.columns * steps * tile.depth,
            bytes=bytes_of(read) + bytes_of(self.epilogue.stores),
            unit=fma_unit(self.accumulator),
        )
        return Launch(0, (blocks, 1, 1), (tile.threads, 1, 1), (arguments,), work=_in_steps(work, steps, arch))


def _in_steps(work: Work, steps: int, arch: ArchSpec) -> Work:
    """``work`` of blocks that go along k in ``steps`` steps, all but the last of which wait for the next operands."""
    waiting_s = (steps - 1) * arch.timings.load_latency_s
    return replace(work, busy_s=waiting_s) if waiting_s > work_s(work, arch, ALL_EXPOSED) else work


def _knobs(problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
    tile_m, tile_n = problem.best_tile(arch)
    return (
        Knob("tile_m", KnobType.TILE_M, problem.tiles, tile_m, "rows of c that one thread block computes"),
        Knob("tile_n", KnobType.TILE_N, problem.tiles, tile_n, "columns of c that one thread block computes"),
    )


def _refuse_extents(problem: _Problem) -> str:
    largest = max((*problem.c_dims, problem.depth))
    if largest > MAX_TILED_EXTENT:
        return f"matmul.dims: expected extents of at most {MAX_TILED_EXTENT}, got {largest}"
    smallest = problem.tiles[0]
    blocks = problem.block_count(problem.tile(smallest, smallest))
    if blocks > MAX_GRID_X:
        return f"matmul.c.dims: expected at most {MAX_GRID_X} tiles of {smallest} x {smallest}, got {blocks}"
    return ""


def _batch_strides(operand: Tensor) -> tuple[int, ...]:
    pairs = zip(operand.dims[:-2], operand.strides[:-2], strict=True)
    return tuple(0 if extent == 1 else stride for extent, stride in pairs)
