"""The launch of ``reduction_short_rows.cu``: rows one after the other in memory, read as one row."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor, generate
from lowdnn.codegen.space import IndexSpace
from lowdnn.engines.launch import ceil_div, floor_power, fma_unit, i64, moved_bytes
from lowdnn.engines.reduction.layout import MAX_VECTOR, PROLOGUE, ReductionLayout, indexed_axes
from lowdnn.engines.reduction.stages import BLOCKS_PER_SM, THREADS, ShortParams, kernel_ref, moments_of, operator_of
from lowdnn.graph.reduction_pattern import FusedReduction
from lowdnn.plan import KernelRef, Launch, Struct, Work

#: Bytes of shared memory for the elements of a block.
_STAGED_BYTES = 32 << 10
#: Groups in flight for each thread.
_UNROLL = 4
#: Outputs of a block at least; fewer are not worth a barrier.
FEWEST_OUTPUTS = 32


@dataclass(frozen=True)
class ShortRows:
    """Short rows read as one row of all elements.

    before: the functor before the reduction over that row.  vector: elements of a group in it.
    """

    fused: FusedReduction
    layout: ReductionLayout
    before: Functor
    vector: int

    @staticmethod
    def of(fused: FusedReduction, layout: ReductionLayout, arch: ArchSpec) -> ShortRows | None:
        """The short rows of a reduction; None if its rows are not contiguous, few, long, or read in fair vectors
        anyway."""
        if not layout.is_row or layout.space.rank != 2 or indexed_axes(fused.before):
            return None
        strides = {t.uid: layout.space.strides[t.uid] for t in (*fused.before.loads, *fused.before.stores)}
        if any(outer != inner * layout.count for outer, inner in strides.values()):
            return None
        row = IndexSpace(
            (layout.outputs * layout.count,), {uid: (inner,) for uid, (_, inner) in strides.items()}, ((),)
        )
        before = generate(
            fused.before,
            accumulator=None,
            vector_axis=0,
            result=fused.compute_type,
            stores_result=not fused.before.operations,
            space=row,
            name=PROLOGUE,
        )
        found = ShortRows(fused, layout, before, min(before.vector, MAX_VECTOR // len(layout.after)))
        is_short = layout.outputs >= FEWEST_OUTPUTS * arch.sm_count and layout.count * FEWEST_OUTPUTS <= found._staged
        return found if is_short and found.vector > 2 * layout.vector else None

    @property
    def most_outputs(self) -> int:
        """The most outputs of a block whose elements fit into shared memory."""
        return floor_power(self._staged // self.layout.count)

    def default_outputs(self, arch: ArchSpec) -> int:
        """The default of TILE_ROWS: as many outputs as fit, fewer if multiprocessors would have no work."""
        enough = floor_power(self.layout.outputs // (arch.sm_count * BLOCKS_PER_SM))
        return max(FEWEST_OUTPUTS, min(self.most_outputs, enough))

    def kernel(self, block_outputs: int) -> KernelRef:
        team = min(32, max(1, THREADS // block_outputs))
        params = ShortParams(
            OPERATOR=operator_of(self.fused.operation),
            COMPUTE=dtypes.info(self.fused.compute_type).c_type,
            THREADS=THREADS,
            TEAM=team,
            UNROLL=_UNROLL,
            VECTOR=self.vector,
            STAGED=self._staged,
            MOMENTS=moments_of(self.fused),
        )
        functors = tuple((f.text, f.digest) for f in (self.before, *self.layout.after))
        shape = f"w{team}u{_UNROLL}v{self.vector}"
        return kernel_ref("short_rows", self.fused.operation.x.data_type, shape, params, functors)

    def launch(self, block_outputs: int) -> Launch:
        layout, fused = self.layout, self.fused
        sizes = i64((layout.outputs, block_outputs, layout.count))
        return Launch(
            kernel=0,
            grid=(ceil_div(layout.outputs, block_outputs), 1, 1),
            block=(THREADS, 1, 1),
            arguments=(Struct((*sizes, self.before.arguments, *layout.after_arguments)),),
            work=Work(
                flops=layout.outputs * layout.count * (len(fused.before.operations) + 1),
                bytes=moved_bytes(fused.before) + sum(moved_bytes(dag) for dag in fused.after),
                unit=fma_unit(fused.compute_type),
            ),
        )

    @property
    def _staged(self) -> int:
        """Elements that fit into shared memory."""
        return _STAGED_BYTES // dtypes.info(self.fused.compute_type).size_bytes
