"""``attention_backward_wgmma``: gradients of attention on the tensor cores of sm_90a with TMA and wgmma; nothing of the
size of the scores lies in memory, and each product is formed once.

The graphs of ``attention_backward_mma``, where tensor maps describe q, k, v and d_o, and heads of q share the same
heads of k and v. dq is summed up in the workspace: in an order that does not depend on that of the blocks where the
graph asks for it or it costs little, otherwise as the blocks come, faster, in a plan that is NONDETERMINISTIC.
Kernels: ``attention_backward_widen.cu`` (of fp8, as for ``attention_backward_mma``), ``attention_backward_terms.cu`` (8
bytes of the workspace for each query), ``attention_backward_wgmma.cu`` or, for heads of more than 128 elements,
``attention_backward_wgmma_large.cu`` (dk and dv; dq as fp32 sums in the workspace), ``attention_backward_sums.cu``
(dq). If few blocks would each walk over many queries, several blocks divide the walk of each tile of keys
(SPLIT_K_SLC); if the last tiles would leave most of the device idle, several blocks divide each of these (STREAM_K).
Then dk and dv, too, are fp32 sums in the workspace, one for each split, which the last kernel adds in a fixed order.
"""

from __future__ import annotations

from dataclasses import replace

from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.engines.attention.backward import AttentionBackward, seen_pairs
from lowdnn.engines.attention.backward_wgmma_launches import BackwardLaunches
from lowdnn.engines.attention.backward_wgmma_policy import IN_ORDER, BackwardPolicy
from lowdnn.engines.attention.backward_wgmma_tiles import BackwardProblem, kind_for
from lowdnn.engines.attention.limits import BACKWARD_LIMITS
from lowdnn.engines.attention.mapped import refuse_map
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Knob,
    Refusal,
)
from lowdnn.engines.floor import Contraction, Floor, Floored, Multipliers
from lowdnn.engines.launch import MAX_EXTENT
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.status import Status


class AttentionBackwardWgmma(ProblemEngine[BackwardProblem], Floored):
    """See the module's docstring."""

    name = "attention_backward_wgmma"
    index = 33
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE, NumericalNote.NONDETERMINISTIC)
    anchors: Anchors = (SdpaBackward,)
    limits = BACKWARD_LIMITS
    target = WGMMA_TARGET

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> BackwardProblem | Refusal:
        """Refuses other architectures, what ``AttentionBackward.match`` does, heads shared in two ways, operands
        without a tensor map, more rows than it can count."""
        backward = AttentionBackward.match(self.name, graph)
        if isinstance(backward, Refusal):
            return backward
        if not backward.is_plain:
            expected = "no operations on scores and weights, no gradient of a bias, no packed rows"
            return Refusal(self.name, f"inner, dbias, ragged_offset: expected {expected}, got some")
        k, v = (backward.heads[port].tensor.dims[1] for port in ("k", "v"))
        if k != v:
            return Refusal(self.name, f"v.dims[1]: expected k's {k} heads, got {v}", Status.NOT_SUPPORTED_SHAPE)
        for port in ("q", "k", "v", "d_o"):
            if refused := refuse_map(backward.operands[port]):
                return Refusal(self.name, refused, Status.NOT_SUPPORTED_LAYOUT)
        problem = BackwardProblem(replace(backward, term_tile=kind_for(backward.size).queries))
        if (rows := backward.all_heads * problem.backward.term_rows) > MAX_EXTENT:
            reason = f"q.dims: expected at most {MAX_EXTENT} rows in whole tiles of {problem.kind.queries}, got {rows}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        return problem

    def floor(self, contraction: Contraction) -> Floor:
        """The floor, counting the multiplications of attended pairs only."""
        waste = seen_pairs(contraction) if isinstance(contraction, SdpaBackward) else 1.0
        return Floor(Multipliers.FASTEST, waste=waste)

    def knobs_of(self, problem: BackwardProblem, arch: ArchSpec) -> tuple[Knob, ...]:
        """SWIZZLE, REDUCTION_MODE, SPLIT_K_SLC, STREAM_K."""
        return BackwardPolicy(problem, arch).knobs()

    def parts(self, problem: BackwardProblem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Three launches; one more before fp8."""
        problem = problem.split(arch, chosen[KnobType.SPLIT_K_SLC], chosen[KnobType.STREAM_K])
        is_in_order = chosen[KnobType.REDUCTION_MODE] == IN_ORDER
        notes = (NumericalNote.TENSOR_CORE,) if is_in_order else self.numerical_notes
        launches_of = BackwardLaunches(problem, chosen[KnobType.SWIZZLE], is_in_order)
        steps = (*problem.prepare(), launches_of.gradients(arch), launches_of.rounded_sums())
        return PlanParts(steps, problem.workspace_bytes, notes)
