"""``matmul_list_wgmma``: lists of independent matrix products as one launch on the tensor cores of sm_90a.

A graph of several products that share no intermediate tensors, each with its own operands, extents and output: one
persistent kernel computes the tiles of all of them, the deepest products first, so that small ones fill the device
together. A list that is too long for a kernel's parameters takes several launches. All products have the same data
types, the same orders of operands in memory and the same pointwise epilogue, each with its own operands; at most one
batch axis. Types, repacking and accuracy are those of ``matmul_wgmma``.
Kernels: ``matmul_list_wgmma.cu``, those of ``gemm/packing.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Knob,
    Refusal,
)
from lowdnn.engines.gemm import tiles, wgmma_model
from lowdnn.engines.gemm.instructions import WGMMA_TYPES, WgmmaType, wgmma_type
from lowdnn.engines.gemm.wgmma_cut import WgmmaCut
from lowdnn.engines.gemm.wgmma_model import WgmmaTiling
from lowdnn.engines.gemm.wgmma_output import MAP_COLUMNS, OutputStore
from lowdnn.engines.gemm.wgmma_product import WgmmaProduct
from lowdnn.engines.gemm.wgmma_tiles import Schedule
from lowdnn.engines.launch import ceil_div, divider, i32, macros, moved_bytes
from lowdnn.engines.limits import fused
from lowdnn.engines.matmul.product_space import ProductSpace, is_contiguous_along_m, refuse_nothing
from lowdnn.engines.matmul.shared_batches import match_matmul
from lowdnn.engines.matmul.wgmma_operand import WgmmaOperand, operand_maps
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.parts import independent_parts
from lowdnn.graph.pattern import Anchored, PointwiseDag
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.plan import Argument, KernelRef, Struct, TensorMap, Work
from lowdnn.status import Status
from lowdnn.tensor_map import TENSOR_MAP_BYTES

#: Most bytes of a kernel's parameters, from PTX ISA 8.1 on.
_MAX_PARAMETER_BYTES = 32764
#: Most bytes of an argument that is no tensor map, with its padding.
_ARGUMENT_BYTES = 8
#: Bytes of parameters outside the products: items, batches, the padding after the last product.
_LIST_BYTES = 512


@dataclass(frozen=True)
class Params:
    """Macros of ``matmul_list_wgmma.cu``, in addition to those of the tile, its data types and the output."""

    P_MN_MAJOR: int
    Q_MN_MAJOR: int
    PRODUCTS: int
    TRANSPOSED: int = 0


class MatmulListWgmma(ProblemEngine["tuple[_Product, ...]"]):
    """See the module's docstring."""

    name = "matmul_list_wgmma"
    index = 23
    numerical_notes = (*tiles.NUMERICAL_NOTES, NumericalNote.REDUCED_PRECISION_REDUCTION)
    anchors: Anchors = (MatmulOperation,)
    limits = replace(fused(MatmulOperation), are_independent=True)
    target = WGMMA_TARGET

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> tuple[_Product, ...] | Refusal:
        """Refuses other architectures, graphs of one part, and parts that are no products or that differ."""
        parts = independent_parts(graph)
        if len(parts) < 2:
            return Refusal(self.name, "operations: expected several independent products, got 1 part")
        products: list[_Product] = []
        for part in parts:
            matched = match_matmul(part)
            if isinstance(matched, str):
                return Refusal(self.name, matched)
            product = _Product.of(matched)
            if isinstance(product, Refusal):
                return product
            products.append(product)
        for what, property_of in _SHARED.items():
            found = sorted({str(property_of(product)) for product in products})
            if len(found) > 1:
                return Refusal(self.name, f"operations: expected products of one {what}, got {', '.join(found)}")
        return tuple(sorted(products, key=lambda product: -product.k_blocks))

    def knobs_of(self, products: tuple[_Product, ...], arch: ArchSpec) -> tuple[Knob, ...]:
        """The tiles' knobs (``wgmma_model``), OUTPUT_TMA_ENABLE and for fp8 REDUCTION_MODE."""
        return _defaults(products, arch)

    def parts(self, products: tuple[_Product, ...], arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Repacking launches where they are needed, and the products."""
        model = _model(products, is_promoted=bool(chosen.get(KnobType.REDUCTION_MODE, 0)))
        tiling = wgmma_model.tiling_of(self.name, model, arch, chosen)
        parts = PlanParts(numerical_notes=wgmma_model.sum_notes(products[0].kind, chosen))
        for cut in _Cut(tiling, bool(chosen[KnobType.OUTPUT_TMA_ENABLE]), products).pieces():
            cut.launch(parts, arch)
        return parts


@dataclass(frozen=True)
class _Product:
    """One product as rows and columns of its output, whose columns are contiguous, and the operands that give them."""

    dag: PointwiseDag
    space: ProductSpace
    kind: WgmmaType
    rows: WgmmaOperand
    columns: WgmmaOperand

    @classmethod
    def of(cls, matched: Anchored[MatmulOperation]) -> _Product | Refusal:
        """The product, or why it cannot belong to a list."""

        def refused(reason: str, status: Status) -> Refusal:
            return Refusal(MatmulListWgmma.name, reason, status)

        anchor, dag = matched.anchor, matched.epilogue
        kind = wgmma_type(anchor.a.data_type, anchor.b.data_type)
        if kind is None or anchor.matmul.compute_type is DataType.DOUBLE:
            known = ", ".join(f"{a.name} x {b.name}" for a, b in WGMMA_TYPES)
            got = f"{anchor.a.data_type.name} x {anchor.b.data_type.name}"
            reason = f"matmul.a, b: expected one of {known}, not summed in fp64, got {got}"
            return refused(reason, Status.NOT_SUPPORTED_DATA_TYPE)
        if reason := refuse_nothing(anchor, dag.dims):
            return refused(reason, Status.NOT_SUPPORTED_SHAPE)
        last = len(dag.dims) - 1
        a, b = WgmmaOperand.of(anchor.a, last - 1, last, kind), WgmmaOperand.of(anchor.b, last, last - 1, kind)
        if isinstance(a, str):
            return refused(a, Status.NOT_SUPPORTED_LAYOUT)
        if isinstance(b, str):
            return refused(b, Status.NOT_SUPPORTED_LAYOUT)
        is_swapped = is_contiguous_along_m(dag)
        rows, columns = (b, a) if is_swapped else (a, b)
        space = ProductSpace.of(dag, rows, columns, is_swapped=is_swapped)
        if space.batch_axes > 1:
            reason = (
                f"matmul.c.dims: expected at most 1 batch axis that does not merge, got {list(space.batch_extents)}"
            )
            return refused(reason, Status.NOT_SUPPORTED_LAYOUT)
        if problem := space.extent_problem(rows.depth):
            return refused(problem, Status.NOT_SUPPORTED_SHAPE)
        return cls(
            dag,
            space,
            WGMMA_TYPES[rows.tensor.data_type, columns.tensor.data_type],
            rows.over(space.row_strides[: space.batch_axes] or (0,), space.row_stride, space.rows),
            columns.over(space.column_strides[: space.batch_axes] or (0,), columns.stride, space.columns),
        )

    @property
    def k_blocks(self) -> int:
        return ceil_div(self.rows.depth, self.kind.stage_k)

    @property
    def batch_extents(self) -> tuple[int, ...]:
        """The batch extents, at least one: kernels have a batch axis."""
        return self.space.batch_extents or (1,)

    @property
    def moved_bytes(self) -> int:
        return self.rows.moved_bytes + self.columns.moved_bytes + moved_bytes(self.dag)

    def store(self, tile_columns: int, *, by_map: bool) -> OutputStore:
        space = self.space
        return OutputStore.of(
            self.dag, space.output, self.kind.accumulator, space.rows, tile_columns=tile_columns, by_map=by_map
        )

    def schedule(self, tiling: WgmmaTiling) -> Schedule:
        space = self.space
        return Schedule.of(tiling.tile, space.rows, space.columns, self.k_blocks, space.batches, group=tiling.group)


#: The properties that all products of a list must share, by their names in errors.
_SHARED: dict[str, Callable[[_Product], object]] = {
    "pair of data types": lambda product: product.kind.label,
    "order of operands": lambda product: (product.rows.is_mn_major, product.columns.is_mn_major),
    "index space": lambda product: (product.space.output.space.rank, product.space.output.row_axes),
    "epilogue": lambda product: product.store(MAP_COLUMNS, by_map=False).functor.digest,
}


def _model(products: tuple[_Product, ...], *, is_promoted: bool | None = None) -> WgmmaProduct:
    """The list as the tiles' model sees it: classes that are computed one after the other."""
    kind = products[0].kind
    classes = tuple((product.space.output.rows, product.space.columns, product.k_blocks) for product in products)
    rows, columns = products[0].rows, products[0].columns
    return WgmmaProduct(
        kind,
        batches=1,
        m=sum(rows * columns for rows, columns, _ in classes) // max(columns for _, columns, _ in classes),
        n=max(columns for _, columns, _ in classes),
        k_blocks=classes[0][2],
        a_bytes=sum(product.rows.moved_bytes for product in products),
        b_bytes=sum(product.columns.moved_bytes for product in products),
        output_bytes=sum(moved_bytes(product.dag) for product in products),
        is_a_mn_major=rows.is_mn_major,
        is_b_mn_major=columns.is_mn_major,
        allows_split=False,
        is_promoted=kind.is_fp8 if is_promoted is None else is_promoted,
        is_a_misaligned=any(product.rows.is_misaligned for product in products),
        is_b_misaligned=any(product.columns.is_misaligned for product in products),
        classes=classes,
    )


def _defaults(products: tuple[_Product, ...], arch: ArchSpec) -> tuple[Knob, ...]:
    model = _model(products)
    promotion = Knob("promotion", KnobType.REDUCTION_MODE, (0, 1), 1, "1: sums of 128 are added up in full fp32")
    return (
        *wgmma_model.knobs(model, wgmma_model.best(model, arch)),
        Knob("store", KnobType.OUTPUT_TMA_ENABLE, (0, 1), 1, "1: store by tensor map where all outputs have one"),
        *((promotion,) if model.type.is_fp8 else ()),
    )


@dataclass(frozen=True)
class _Cut(WgmmaCut):
    """A list and how it is cut: the plan's kernels and launches."""

    products: tuple[_Product, ...]

    @cached_property
    def stores(self) -> tuple[OutputStore, ...]:
        """The stores of all products, all by tensor map or none, in vectors that suit all."""
        for by_map in (self.allows_map, False):
            stores = tuple(product.store(self.tile.n, by_map=by_map) for product in self.products)
            if len({(store.store, store.functor.digest) for store in stores}) == 1:
                break
        vector = min(store.vector for store in stores)
        return tuple(replace(store, vector=vector) for store in stores)

    @cached_property
    def schedules(self) -> tuple[Schedule, ...]:
        return tuple(product.schedule(self.tiling) for product in self.products)

    def pieces(self) -> list[_Cut]:
        """The list in pieces of about equally many products, few enough that a kernel's parameters hold a piece."""
        arguments = (
            Struct((store.argument(self.tile), schedule.argument))
            for store, schedule in zip(self.stores, self.schedules, strict=True)
        )
        largest = max(2 * TENSOR_MAP_BYTES + _most_bytes(argument) for argument in arguments)
        count = ceil_div(len(self.products), max((_MAX_PARAMETER_BYTES - _LIST_BYTES) // largest, 1))
        size = ceil_div(len(self.products), count)
        firsts = range(0, len(self.products), size)
        return [replace(self, products=self.products[first : first + size]) for first in firsts]

    def launch(self, parts: PlanParts, arch: ArchSpec) -> None:
        tile = self.tile
        products = tuple(
            self._argument(parts, *item) for item in zip(self.products, self.stores, self.schedules, strict=True)
        )
        items = tuple(accumulate((schedule.items for schedule in self.schedules), initial=0))
        batches = Struct((Struct(divider(1)),))
        work = Work(
            sum(schedule.flops for schedule in self.schedules),
            sum(product.moved_bytes for product in self.products),
            self.products[0].kind.unit,
        )
        kernel = parts.kernel(self._kernel())
        grid = min(items[-1], tile.resident_clusters(arch.sm_count)) * tile.cluster
        arguments = Struct((*products, *i32(items), batches))
        parts.launches.append(self.tile_launch(kernel, grid, arguments, self.stores[0].store, work))

    def _argument(self, parts: PlanParts, product: _Product, store: OutputStore, schedule: Schedule) -> Struct:
        """``ProductList::Product``, after launches that repack its operands if necessary."""
        batches = (product.batch_extents, product.batch_extents)
        maps = operand_maps(parts, self.tile, product.kind, (product.rows, product.columns), batches)
        return Struct((*maps, store.argument(self.tile), schedule.argument))

    def _kernel(self) -> KernelRef:
        product, store = self.products[0], self.stores[0]
        params = Params(int(product.rows.is_mn_major), int(product.columns.is_mn_major), len(self.products))
        layout = f"{'km'[params.P_MN_MAJOR]}{'kn'[params.Q_MN_MAJOR]}{params.PRODUCTS}"
        space = f"{store.output.row_axes}of{store.output.space.rank}_{store.label}"
        return KernelRef(
            name=f"matmul_list_wgmma_{product.kind.label}_{self.tile.label}_{layout}_{space}_v{store.vector}_sm90a_"
            f"{store.functor.digest}",
            source="matmul/matmul_list_wgmma.cu",
            target=WGMMA_TARGET,
            parameters=(*product.kind.macros, *self.tile.macros, *macros(params), *store.macros),
            generated=store.functor.text,
        )


def _most_bytes(argument: Argument) -> int:
    """The most bytes that an argument takes, with its padding."""
    if isinstance(argument, Struct):
        return sum(map(_most_bytes, argument.fields))
    return TENSOR_MAP_BYTES if isinstance(argument, TensorMap) else _ARGUMENT_BYTES
