"""``attention_mma``: attention forward on tensor cores with ``mma.sync``, for sm_80 and newer; the scores never lie in
memory.

fp16 and bf16, sums and softmax in fp32. Heads of any size up to 256 that is a multiple of 8, different ones for q k and
v; heads of k and v that heads of q share; any pointwise operations on the scores, products with the weights (dropout),
any epilogue; k and v in pages of a cache. Keys outside of a band that masks leave (causal, sliding window, lengths) are
passed over.
Kernel: ``attention_forward_mma.cu``.
"""

from __future__ import annotations

from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.engines.attention.forward import AttentionForward
from lowdnn.engines.attention.forward_kernel import ForwardKernel, ForwardTile
from lowdnn.engines.attention.heads import pitch_bytes
from lowdnn.engines.attention.limits import FORWARD_LIMITS
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.floor import Modelled
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.softmax import Softmax
from lowdnn.plan import KernelRef, Launch, MathUnit

_TILES = (64, 128)
#: The default tile has 64 queries where there are at most this many, otherwise 128.
_MANY_QUERIES = 64
#: Elements of the largest head of which 64 keys fit into shared memory.
_MAX_SIZE_BESIDE_64_KEYS = 128
#: The largest head of v, in elements, with which a warp's registers hold the outputs of 32 queries; with a larger one
#: they hold those of 16.
_MAX_SIZE_OF_32_QUERIES = 80


class AttentionMma(ProblemEngine[AttentionForward], Modelled):
    """See the module's docstring."""

    name = "attention_mma"
    index = 30
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE,)
    anchors: Anchors = (Softmax,)
    limits = FORWARD_LIMITS

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> AttentionForward | Refusal:
        """See ``AttentionForward.match``."""
        return AttentionForward.match(self.name, graph)

    def busy_launch(self, graph: OperationGraph, arch: ArchSpec) -> Launch:
        problem = self.accepted(graph, arch)
        tile = _tile(problem, _knobs(problem)[0].default)
        kernel = ForwardKernel(problem, tile)
        work = kernel.work(MathUnit.MMA_F16)
        return Launch(0, (kernel.blocks, 1, 1), (tile.warps * WARP_SIZE, 1, 1), (), work=work)

    def knobs_of(self, problem: AttentionForward, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M."""
        return _knobs(problem)

    def parts(self, problem: AttentionForward, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch, none where there is no query."""
        if not problem.rows:
            return PlanParts()
        return PlanParts([_launch(problem, chosen[KnobType.TILE_M])])


def _knobs(problem: AttentionForward) -> tuple[Knob, ...]:
    default = _TILES[problem.queries > _MANY_QUERIES]
    return (Knob("tile_m", KnobType.TILE_M, _TILES, default, "queries of a block"),)


def _tile(problem: AttentionForward, queries: int) -> ForwardTile:
    """The tile of blocks with ``queries`` queries: a warp accumulates up to 32 of them with small heads of v, otherwise
    16."""
    is_large = max(problem.q.size, problem.v.size) > _MAX_SIZE_BESIDE_64_KEYS
    warp_queries = 16 if is_large or problem.v.size > _MAX_SIZE_OF_32_QUERIES else queries // 4
    return ForwardTile(queries, 32 if is_large else 64, warp_queries)


def _launch(problem: AttentionForward, queries: int) -> tuple[KernelRef, Launch]:
    tile = _tile(problem, queries)
    pitch, pitch_v = pitch_bytes(problem.padded_qk), pitch_bytes(problem.padded_v)
    operands = tuple(operand.argument for operand in (problem.q, problem.k, problem.v))
    shared_bytes = (tile.queries + tile.keys) * pitch + tile.keys * pitch_v
    kernel = ForwardKernel(problem, tile)
    launch = kernel.launch(operands, tile.warps * WARP_SIZE, shared_bytes, MathUnit.MMA_F16)
    return kernel.kernel("mma", BASE_TARGET, ()), launch
