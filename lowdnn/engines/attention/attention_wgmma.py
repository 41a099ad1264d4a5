"""``attention_wgmma``: attention forward on the tensor cores of sm_90a with TMA and wgmma; the scores never lie in
memory.

The graphs of ``attention_mma``, where tensor maps describe q, k and v.
Kernel: ``attention_forward_wgmma.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.specs import SM_90A, ArchSpec
from lowdnn.engines.attention.forward import AttentionForward, ForwardTile
from lowdnn.engines.attention.heads import Heads, padded
from lowdnn.engines.base import BEHAVIOR_NOTES, Choices, Knob, Refusal, accepted, plan_of, refuse_arch, resolve_choices
from lowdnn.engines.gemm.wgmma_tiles import WGMMA_TYPES
from lowdnn.engines.launch import i32
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.plan import Argument, KernelRef, Launch, Plan, TensorMap, TensorPointer
from lowdnn.status import Status
from lowdnn.tensor_map import TensorMapL2Promotion, TensorMapSwizzle, TiledMap, tensor_map_problem

#: Queries of a block: 64 for each multiplying warpgroup.
_TILES = (64, 128, 192)
#: Of keys, the best first; the last one fits beside everything.
_TILES_OF_KEYS = (128, 96, 80, 64, 48, 32)
#: Registers of a thread for scores, weights and outputs: where scores are scaled only; beside more arithmetic.
_MAX_VALUES, _MAX_VALUES_BESIDE_ARITHMETIC = 176, 148
_WARPGROUP_QUERIES = 64
_WARP_QUERIES = 16
_WARPGROUP_THREADS = 128
#: Of a box, whose rows have the 128 bytes that the swizzle takes.
_BOX_ELEMENTS = 64
_STAGES = 2
#: Heads of which two blocks fit into the shared memory of a multiprocessor.
_SMALL_SIZE = 64
_BARRIER_BYTES = 8
_REGISTERS_PER_SM = 65536
#: What the loading warpgroup keeps; and the most that a multiplying one can use.
_PRODUCER_REGISTERS = 24
_MAX_CONSUMER_REGISTERS = 240


@dataclass(frozen=True)
class Params:
    """Macros of ``attention_forward_wgmma.cu`` beside those of ``ForwardParams``.

    CONSUMER_REGISTERS: 0 where warpgroups keep those that they are launched with.
    """

    STAGES: int
    BLOCKS_PER_SM: int
    PRODUCER_REGISTERS: int
    CONSUMER_REGISTERS: int


class AttentionWgmma:
    """See the module's docstring."""

    name = "attention_wgmma"
    index = 32
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE,)
    behavior_notes = BEHAVIOR_NOTES

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses other architectures, what ``AttentionForward.match`` does, operands without a tensor map."""
        if refusal := refuse_arch(self.name, arch, SM_90A.name):
            return refusal
        problem = graph.derive(self._problem)
        return problem if isinstance(problem, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M."""
        return _knobs(self._accepted(graph, arch))

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch."""
        problem = self._accepted(graph, arch)
        chosen = resolve_choices(self.name, _knobs(problem), choices)
        kernel, launch = _launch(problem, chosen[KnobType.TILE_M])
        return plan_of(self, graph, arch, chosen, (kernel,), (launch,))

    def precompiled(self) -> tuple[KernelRef, ...]:
        return ()

    def _accepted(self, graph: OperationGraph, arch: ArchSpec) -> AttentionForward:
        return accepted(self.refuse(graph, arch) or graph.derive(self._problem))

    def _problem(self, graph: OperationGraph) -> AttentionForward | Refusal:
        problem = AttentionForward.match(self.name, graph)
        if isinstance(problem, Refusal):
            return problem
        for heads in (problem.k, problem.v):
            if heads.load is not None:
                reason = f"{heads.tensor.label}: expected heads whose rows a stride joins, got pages of a cache"
                return Refusal(self.name, reason, Status.NOT_SUPPORTED_LAYOUT)
        for heads in (problem.q, problem.k, problem.v):
            if refused := tensor_map_problem(_map(heads, _WARPGROUP_QUERIES)):
                reason = f"{heads.tensor.label}: expected a tensor that a tensor map describes, got {refused}"
                return Refusal(self.name, reason, Status.NOT_SUPPORTED_LAYOUT)
        return problem


def _knobs(problem: AttentionForward) -> tuple[Knob, ...]:
    default = _TILES[problem.queries > _WARPGROUP_QUERIES]
    tiles = _TILES if _is_light(problem) else _TILES[:2]
    return (Knob("tile_m", KnobType.TILE_M, tiles, default, "queries of a block"),)


def _is_plain(problem: AttentionForward) -> bool:
    """Whether there is no arithmetic on scores and weights, but for a scale."""
    return not problem.has_weights and len(problem.attention.inside.operations) <= 1


def _is_light(problem: AttentionForward) -> bool:
    """Whether a third of the registers is enough for a warpgroup."""
    return _is_plain(problem) and problem.padded_v <= _SMALL_SIZE


def _tile_of(problem: AttentionForward, queries: int) -> ForwardTile:
    """With as many keys as leave room in shared memory, and in the registers for scores, weights and outputs."""
    most = _MAX_VALUES if _is_plain(problem) else _MAX_VALUES_BESIDE_ARITHMETIC
    tiles = [ForwardTile(queries, keys, _WARP_QUERIES) for keys in _TILES_OF_KEYS]

    def fits(tile: ForwardTile) -> bool:
        values = tile.keys // 2 + tile.keys // 4 + problem.padded_v // 2
        return values <= most and _shared_bytes(problem, tile) <= SM_90A.shared_bytes_per_block

    return next(filter(fits, tiles), tiles[-1])


def _launch(problem: AttentionForward, queries: int) -> tuple[KernelRef, Launch]:
    size = max(problem.q.size, problem.v.size)
    tile = _tile_of(problem, queries)
    warpgroups = queries // _WARPGROUP_QUERIES
    params = _params(warpgroups, size)
    boxes = ((problem.q, tile.queries), (problem.k, tile.keys), (problem.v, tile.keys))
    operands: tuple[Argument, ...] = (
        *(TensorMap(TensorPointer(heads.tensor.uid), _map(heads, rows)) for heads, rows in boxes),
        *i32((problem.k.sharing, problem.v.sharing, problem.k.tensor.dims[0], problem.v.tensor.dims[0])),
    )
    kernel = problem.kernel("wgmma", SM_90A.name, tile, tuple(vars(params).items()))
    unit = WGMMA_TYPES[problem.data_type, problem.data_type].unit
    threads = (warpgroups + 1) * _WARPGROUP_THREADS
    return kernel, problem.launch(operands, tile, threads, _shared_bytes(problem, tile), unit)


def _params(warpgroups: int, size: int) -> Params:
    """Registers go from the loading warpgroup to the others, unless there are enough for all."""
    blocks = 2 if warpgroups == 1 and size <= _SMALL_SIZE else 1
    launched = _REGISTERS_PER_SM // ((warpgroups + 1) * _WARPGROUP_THREADS * blocks) // 8 * 8
    left = (launched * (warpgroups + 1) - _PRODUCER_REGISTERS) // warpgroups // 8 * 8
    given = 0 if launched > _MAX_CONSUMER_REGISTERS else min(left, _MAX_CONSUMER_REGISTERS)
    return Params(_STAGES, blocks, _PRODUCER_REGISTERS, given)


def _shared_bytes(problem: AttentionForward, tile: ForwardTile) -> int:
    qk, v = (padded(size, _BOX_ELEMENTS) * 2 for size in (problem.q.size, problem.v.size))
    return tile.queries * qk + _STAGES * tile.keys * (qk + v) + (1 + 4 * _STAGES) * _BARRIER_BYTES


def _map(heads: Heads, rows: int) -> TiledMap:
    """Of (elements, rows, heads, batches), in boxes of ``rows`` rows."""
    tensor = heads.tensor
    batches, head_count = tensor.dims[:2]
    data_type = WGMMA_TYPES[tensor.data_type, tensor.data_type].map_type
    return TiledMap(
        data_type,
        address=0,
        dims=(heads.size, heads.rows, head_count, batches),
        strides_bytes=tuple(stride * data_type.size_bytes for stride in reversed(heads.strides)),
        box=(_BOX_ELEMENTS, rows, 1, 1),
        element_strides=(1,) * 4,
        swizzle=TensorMapSwizzle.BYTES_128,
        l2_promotion=TensorMapL2Promotion.BYTES_128,
    )
