"""A product with its epilogue that is cut into tiles for a kernel on mma.sync."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.gemm.epilogue_reductions import EpilogueReductions, ReductionSlices
from lowdnn.engines.gemm.output_space import OutputSpace, Slices, add_slice_sum, functor_of
from lowdnn.engines.gemm.tiles import Product, Tiling
from lowdnn.engines.launch import bytes_of, is_dependent, macros, moved_bytes, target_label
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, KernelRef, Scalar, ScalarType, Struct, WorkspacePointer


@dataclass(frozen=True)
class MmaCut:
    """A product and its epilogue with the tiling of both.

    dag: the epilogue, whose values in ``output`` are stored and reduced by ``reductions``.
    """

    product: Product
    dag: PointwiseDag
    output: OutputSpace
    reductions: EpilogueReductions
    tiling: Tiling

    @property
    def is_split(self) -> bool:
        """Whether the kernel stores sums over parts of k, which another launch adds up."""
        return self.tiling.splits > 1

    @cached_property
    def functor(self) -> Functor:
        return functor_of(self.dag, self.product.data_type, self.output, self.reductions.reduced)

    @cached_property
    def slices(self) -> Slices:
        return Slices(self.tiling.splits, self.output.rows, self.output.columns)

    def reserve(self, parts: PlanParts) -> int:
        """Reserves the slices in the workspace; returns their offset in bytes."""
        return parts.reserve(self.slices.size_bytes if self.is_split else 0)

    def slices_pointer(self, slices_at: int) -> Argument:
        return WorkspacePointer(slices_at) if self.is_split else Scalar(ScalarType.U64, 0)

    @property
    def epilogue_arguments(self) -> tuple[Argument, ...]:
        """The output's map, and the functor's arguments if the kernel calls it."""
        return (self.output.map,) if self.is_split else (self.output.map, self.functor.arguments)

    def kernel(self, source: str, layout: str, params: object, vector: int, target: str) -> KernelRef:
        """The kernel of the file ``source``, named after the file.

        layout: the part of its name for the operands' layouts.  vector: elements of a call of the functor.
        """
        family, label = source.rpartition("/")[2].removesuffix(".cu"), target_label(target)
        ending = (
            f"partial_{label}" if self.is_split else f"v{vector}{self.reductions.label}_{label}_{self.functor.digest}"
        )
        rank = self.output.space.rank
        return KernelRef(
            name=f"{family}_{self.product.type_label}_{self.tiling.tile.label}_{layout}_r{rank}_{ending}",
            source=source,
            target=target,
            parameters=(*macros(params), *self.reductions.macros),
            generated="" if self.is_split else self.functor.text,
        )

    def add_to(
        self,
        parts: PlanParts,
        kernel: KernelRef,
        arguments: Struct,
        operands: Iterable[Tensor],
        left: ReductionSlices,
        slices_at: int,
        vector: int,
        arch: ArchSpec,
    ) -> None:
        """Adds the kernel's launch, and the one that sums the slices.  left: the totals that the kernel leaves."""
        stored_bytes = moved_bytes(self.dag)
        written_bytes = self.slices.size_bytes if self.is_split else stored_bytes + self.reductions.totals_bytes(left)
        moved = bytes_of(tuple(operands)) + written_bytes
        parts.launches.append(self.tiling.launch(parts.kernel(kernel), self.product, arguments, moved, arch))
        if self.is_split:
            overlaps = is_dependent(arch)
            add_slice_sum(
                parts, self.output, self.functor, vector, self.slices, slices_at, stored_bytes, overlaps=overlaps
            )
