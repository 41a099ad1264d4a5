"""``moe_matmul_wgmma``: grouped products of routed rows on the tensor cores of sm_90a with TMA and wgmma.

One persistent launch over all experts; the device derives the tiles from the offsets. fp16, bf16, fp8 in any pair and
fp32 by TF32 (inputs rounded to 10 fraction bits) are summed in fp32, int8 in int32. Operands are read in place if a
tensor map describes them; others are repacked into the workspace first, and rows to gather are gathered there. Any
pointwise epilogue.
Kernels: ``moe_matmul_wgmma.cu``, ``moe_gather.cu``, those of ``gemm/packing.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.codegen.space import space_of
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Knob,
    Refusal,
)
from lowdnn.engines.gemm import tiles, wgmma_model
from lowdnn.engines.gemm.instructions import WGMMA_TYPES, WgmmaType, wgmma_type
from lowdnn.engines.gemm.output_space import OutputSpace
from lowdnn.engines.gemm.wgmma_cut import WgmmaCut
from lowdnn.engines.gemm.wgmma_output import MAP_COLUMNS, OutputStore
from lowdnn.engines.gemm.wgmma_product import WgmmaProduct
from lowdnn.engines.gemm.wgmma_tiles import TileStore
from lowdnn.engines.indices import MAX_TILED_EXTENT
from lowdnn.engines.launch import ceil_div, divider, i32, i64, macros, moved_bytes
from lowdnn.engines.limits import fused
from lowdnn.engines.matmul.wgmma_operand import WgmmaOperand, operand_maps
from lowdnn.engines.moe.arguments import groups_problem, offset_type, routed_map, table_bytes
from lowdnn.engines.moe.gather import Gather
from lowdnn.engines.moe.grouped_tiles import GroupSchedule, schedule_of
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType, MoeGroupedMatmulMode, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, PointwiseDag, match_anchored
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.plan import KernelRef, Struct, TensorMap, Work
from lowdnn.status import Status
from lowdnn.tensor_map import TiledMap

#: Bytes of a piece, in which the last rows of a group are stored (``grouped_output.cuh``).
_PIECE_BYTES = 16
_MAX_VECTOR = 8


@dataclass(frozen=True)
class Params:
    """Macros of ``moe_matmul_wgmma.cu``, in addition to those of the tile, its data types and the output's type."""

    P_MN_MAJOR: int
    Q_MN_MAJOR: int
    OFFSET_TYPE: str
    ROUTING: int
    BY_MAP: int
    VECTOR: int


class MoeMatmulWgmma(ProblemEngine["_Problem"]):
    """See the module's docstring."""

    name = "moe_matmul_wgmma"
    index = 18
    numerical_notes = (*tiles.NUMERICAL_NOTES, NumericalNote.REDUCED_PRECISION_REDUCTION)
    anchors: Anchors = (MoeGroupedMatmul,)
    limits = fused(MoeGroupedMatmul)
    target = WGMMA_TARGET

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses other architectures, types without wgmma, and extents that are empty or exceed 32-bit indices."""
        matched = match_anchored(graph, MoeGroupedMatmul)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        operation = matched.anchor
        kind = wgmma_type(operation.token.data_type, operation.weight.data_type)
        if kind is None or operation.compute_type is DataType.DOUBLE:
            known = ", ".join(f"{a.name} x {b.name}" for a, b in WGMMA_TYPES)
            got = f"{operation.token.data_type.name} x {operation.weight.data_type.name}"
            reason = f"moe_grouped_matmul.token, weight: expected one of {known}, not summed in fp64, got {got}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_DATA_TYPE)
        if refused := _extent_problem(operation):
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE)
        problem = _Problem.of(matched, kind)
        return Refusal(self.name, problem, Status.NOT_SUPPORTED_LAYOUT) if isinstance(problem, str) else problem

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """The tiles' knobs (``wgmma_model``), OUTPUT_TMA_ENABLE and for fp8 REDUCTION_MODE."""
        preferred = replace(problem.product(), column_unit=problem.column_unit)
        promotion = Knob("promotion", KnobType.REDUCTION_MODE, (0, 1), 1, "1: sums of 128 are added up in full fp32")
        return (
            *wgmma_model.knobs(preferred, wgmma_model.best(preferred, arch)),
            Knob("store", KnobType.OUTPUT_TMA_ENABLE, (0, 1), 1, "1: store by tensor map where the output has one"),
            *((promotion,) if problem.kind.is_fp8 else ()),
        )

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Launches that gather or repack if necessary, and the product."""
        product = problem.product(is_promoted=bool(chosen.get(KnobType.REDUCTION_MODE, 0)))
        tiling = wgmma_model.tiling_of(self.name, product, arch, chosen)
        parts = _Cut(tiling, bool(chosen[KnobType.OUTPUT_TMA_ENABLE]), problem).parts(arch)
        parts.numerical_notes = wgmma_model.sum_notes(problem.kind, chosen)
        return parts


@dataclass(frozen=True)
class _Problem:
    """The operands as tensor maps describe them.  gather: the copy that token's map describes, or None."""

    operation: MoeGroupedMatmul
    dag: PointwiseDag
    kind: WgmmaType
    token: WgmmaOperand
    weight: WgmmaOperand
    gather: Gather | None

    @classmethod
    def of(cls, matched: Anchored[MoeGroupedMatmul], kind: WgmmaType) -> _Problem | str:
        """The problem, or why an operand can be neither read in place nor repacked."""
        operation = matched.anchor
        weight = WgmmaOperand.of(operation.weight, 2, 1, kind)
        gather = Gather.of(operation)
        if gather is not None:
            depth = operation.token.dims[2]
            token = WgmmaOperand(operation.token, (0,), gather.pitch, 1, gather.rows, depth, is_mn_major=False)
        else:
            found = WgmmaOperand.of(operation.token, 1, 2, kind, allows_mn_major=False)
            if isinstance(found, str):
                return found
            token = found
        return weight if isinstance(weight, str) else cls(operation, matched.epilogue, kind, token, weight, gather)

    @property
    def rows(self) -> int:
        return self.operation.output.dims[1]

    @property
    def columns(self) -> int:
        return self.operation.output.dims[2]

    @property
    def k_blocks(self) -> int:
        return ceil_div(self.token.depth, self.kind.stage_k)

    @property
    def token_bytes(self) -> int:
        return self.token.moved_bytes if self.gather is None else self.gather.size_bytes

    @property
    def output(self) -> OutputSpace:
        return OutputSpace(space_of(self.dag), row_axes=2)

    @cached_property
    def column_unit(self) -> int:
        """A divisor of the tile's columns with which the output is stored by tensor map; 8 if it cannot be."""
        return MAP_COLUMNS if self.store(MAP_COLUMNS, by_map=True).store is TileStore.MAP else 8

    def store(self, tile_columns: int, *, by_map: bool) -> OutputStore:
        """The store: by tensor map if ``by_map`` allows it and rows stay in place and consist of whole pieces."""
        stays = self.operation.mode is not MoeGroupedMatmulMode.SCATTER
        has_pieces = self.columns * self.dag.stores[0].element_bytes % _PIECE_BYTES == 0
        return OutputStore.of(
            self.dag,
            self.output,
            self.kind.accumulator,
            self.rows,
            tile_columns=tile_columns,
            by_map=by_map and stays and has_pieces,
        )

    def product(self, *, is_promoted: bool | None = None) -> WgmmaProduct:
        """The product for groups of equal size as the tiles' model sees it; sums of fp8 are promoted by default."""
        groups = self.operation.groups
        filled = min(groups.count, self.rows)
        return WgmmaProduct(
            self.kind,
            filled,
            ceil_div(self.rows, filled),
            self.columns,
            self.k_blocks,
            a_bytes=self.token_bytes,
            b_bytes=self.weight.moved_bytes,
            output_bytes=moved_bytes(self.dag),
            is_a_mn_major=self.token.is_mn_major,
            is_b_mn_major=self.weight.is_mn_major,
            allows_split=False,
            is_promoted=self.kind.is_fp8 if is_promoted is None else is_promoted,
            is_a_misaligned=self.token.is_misaligned,
            is_b_misaligned=self.weight.is_misaligned,
            rows_continue=True,
            is_located=self.operation.mode is MoeGroupedMatmulMode.SCATTER,
            table_bytes=table_bytes(groups),
        )


@dataclass(frozen=True)
class _Cut(WgmmaCut):
    """A problem and how it is cut: the plan's kernels and launches."""

    problem: _Problem

    @cached_property
    def store(self) -> OutputStore:
        return self.problem.store(self.tile.n, by_map=self.allows_map)

    @property
    def is_mapped(self) -> bool:
        return self.store.store is TileStore.MAP

    @property
    def schedule(self) -> GroupSchedule:
        problem = self.problem
        return schedule_of(self.tile, problem.operation.groups, problem.columns, problem.k_blocks, self.tiling.group)

    def parts(self, arch: ArchSpec) -> PlanParts:
        problem, parts = self.problem, PlanParts()
        experts = problem.operation.groups.experts
        gathered = problem.gather.add_to(parts) if problem.gather else None
        maps = operand_maps(
            parts, self.tile, problem.kind, (problem.token, problem.weight), ((1,), (experts,)), p_at=gathered
        )
        batches = tuple(Struct((Struct(divider(extent)),)) for extent in (1, experts))
        offsets = problem.operation.first_token_offset
        grid = self.schedule.grid(arch.sm_count)
        product = problem.product()
        arguments = Struct((*maps, self._output(), self.schedule.argument(offsets), *batches))
        work = Work(self.tiling.schedule(product).occupied_flops(grid), product.moved_bytes, problem.kind.unit)
        kernel = parts.kernel(self._kernel())
        parts.launches.append(self.tile_launch(kernel, grid, arguments, self.store.store, work))
        return parts

    def _output(self) -> Struct:
        """The kernel's ``Epilogue::Output``."""
        extents = i32((self.problem.rows, self.problem.columns))
        if not self.is_mapped:
            return Struct((*extents, routed_map(self.problem.operation), self.store.functor.arguments))
        maps = self.store.maps(self.tile)
        rows = Struct((maps[0].target, *i64((_row_bytes(maps[0]),)), *i32((self.problem.columns,))))
        return Struct((*maps, *extents, rows, self.store.functor.arguments))

    def _kernel(self) -> KernelRef:
        problem, store = self.problem, self.store
        operation, kind = problem.operation, problem.kind
        params = Params(
            P_MN_MAJOR=int(problem.token.is_mn_major),
            Q_MN_MAJOR=int(problem.weight.is_mn_major),
            OFFSET_TYPE=offset_type(operation.first_token_offset),
            ROUTING=int(operation.mode is MoeGroupedMatmulMode.SCATTER) * int(operation.mode),
            BY_MAP=int(self.is_mapped),
            VECTOR=min(store.vector, _MAX_VECTOR),
        )
        stored = dtypes.info(self.store.stored.data_type).c_type if self.store.stored is not None else "void"
        layout = f"{'km'[params.P_MN_MAJOR]}{'kn'[params.Q_MN_MAJOR]}_{params.OFFSET_TYPE}"
        ending = f"{'map' if self.is_mapped else 'functor'}{params.ROUTING}_v{params.VECTOR}_sm90a"
        return KernelRef(
            name=f"moe_matmul_wgmma_{kind.label}_{self.tile.label}_{layout}_{ending}_{store.functor.digest}",
            source="moe/moe_matmul_wgmma.cu",
            target=WGMMA_TARGET,
            parameters=(*kind.macros, *self.tile.macros, *macros(params), ("OUTPUT_TYPE", stored)),
            generated=store.functor.text,
        )


def _row_bytes(output: TensorMap) -> int:
    """Bytes from one row of the output to the next."""
    layout = output.layout
    if not isinstance(layout, TiledMap):
        raise TypeError(type(layout).__name__)
    return layout.strides_bytes[0]


def _extent_problem(operation: MoeGroupedMatmul) -> str:
    """Why extents are empty or exceed the kernel's indices; empty if neither."""
    dims = (*operation.output.dims, *operation.token.dims)
    if 0 in dims:
        return f"moe_grouped_matmul.dims: expected no extent of 0, got {list(operation.token.dims)}"
    largest = max(*dims, operation.weight.dims[0])
    if largest > MAX_TILED_EXTENT:
        return f"moe_grouped_matmul.dims: expected extents of at most {MAX_TILED_EXTENT}, got {largest}"
    rows, columns = operation.output.dims[1:]
    tiles_least = (ceil_div(rows, 64) + operation.groups.count) * ceil_div(columns, 8)
    if tiles_least > MAX_TILED_EXTENT:
        return f"moe_grouped_matmul.output.dims: expected at most {MAX_TILED_EXTENT} tiles of 64 x 8, got {tiles_least}"
    gather = Gather.of(operation)
    return (gather.problem if gather else "") or groups_problem("moe_grouped_matmul", operation.groups)
