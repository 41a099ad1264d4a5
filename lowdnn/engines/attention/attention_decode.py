"""``attention_decode``: attention forward of few queries over many keys, for sm_80 and newer, bound by reading k and v
once.

The graphs of ``attention_mma``, pages of a cache among them. The queries of the heads that share keys are rows of one
tile; the keys are split over warps and, where there are too few blocks to keep the memory busy, over blocks, whose
results are combined in a fixed order: by two blocks themselves, which are a cluster on sm_90a, otherwise in a second
launch. On sm_90a each launch may start while the one before it ends.
Kernels: ``attention_forward_decode.cu``, ``attention_forward_combine.cu`` (from the workspace, for each part of the
keys and each query v's padded head and two more fp32).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.attention.forward import AttentionForward
from lowdnn.engines.attention.forward_kernel import ForwardKernel, ForwardTile
from lowdnn.engines.attention.heads import Place, pitch_bytes
from lowdnn.engines.attention.limits import FORWARD_LIMITS
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.launch import aligned_bytes, ceil_div, dependent_target, divider, i32, i64, is_dependent, macros
from lowdnn.engines.model.clock import utilisation
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.softmax import Softmax
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, Work, WorkspacePointer
from lowdnn.status import Status

#: Most rows (queries times heads) that share keys; with more of them arithmetic is the limit, not memory.
_MAX_ROWS = 128
#: Rows of a tile.
_TILES_OF_ROWS = (16, 32)
#: The largest size of heads of v beside which the registers hold the accumulators of 32 rows.
_MAX_SIZE_OF_32_ROWS = 128
#: Keys of a warp's tile: with small heads, and with larger ones or pages.
_TILES_OF_KEYS = (32, 16)
#: The largest sum of the sizes of small heads of q and v.
_MAX_SIZES_OF_32_KEYS = 128
_WARPS, _LEAST_STAGES, _MAX_STAGES = 4, 2, 8
#: The most stages by default: their copies keep memory busy; one more of small heads in pages is slower.
_ENOUGH_STAGES = 3
_COMBINE_WARPS = 4
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
#: Splits whose blocks are a cluster: larger ones leave multiprocessors without any, at 20 to 60 % more time.
_PAIR = 2
#: Fewest tiles of a warp for which its ring pays.
_FEWEST_TILES = 4
#: Share of the best utilisation of the multiprocessors from which on fewer splits are preferred.
_WAVES_ATTAINED = 0.85
_F32_BYTES = 4
#: Bytes of page-table entries in a stage (``Stage::NOTES``).
_NOTES_BYTES = 128


@dataclass(frozen=True)
class Params:
    """Macros of ``attention_forward_decode.cu`` beside those of ``ForwardParams``."""

    WARPS: int
    STAGES: int
    BLOCKS_PER_SM: int
    IS_SPLIT: int
    IN_CLUSTER: int
    OVERLAPS_PREVIOUS: int
    FILLS_DEVICE: int


@dataclass(frozen=True)
class CombineParams:
    """Macros of ``attention_forward_combine.cu`` beside those of ``ForwardParams``."""

    WARPS: int
    OVERLAPS_PREVIOUS: int


class AttentionDecode(ProblemEngine["_Shape"]):
    """See the module's docstring."""

    name = "attention_decode"
    index = 34
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE,)
    anchors: Anchors = (Softmax,)
    limits = FORWARD_LIMITS

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Shape | Refusal:
        """Refuses what ``AttentionForward.match`` does, many queries, and devices without room for the rings."""
        problem = self._matched(graph)
        if isinstance(problem, Refusal):
            return problem
        shape = _Shape.of(problem, arch)
        most_stages = shape.most_stages(1)
        if most_stages < _LEAST_STAGES:
            reason = f"shared memory: expected room for {_LEAST_STAGES} stages of a block's warps, got {most_stages}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT)
        return shape

    def knobs_of(self, default: _Shape, arch: ArchSpec) -> tuple[Knob, ...]:
        """SPLIT_K_SLC, STAGES."""
        return default.knobs()

    def parts(self, default: _Shape, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch, two where keys are split over blocks that are no cluster, none where there is no query."""
        shape, splits = replace(default, stages=chosen[KnobType.STAGES]), chosen[KnobType.SPLIT_K_SLC]
        if not shape.problem.rows:
            return PlanParts()
        if splits == 1 or shape.in_cluster(splits):
            return PlanParts([shape.decode(splits)])
        return PlanParts([shape.decode(splits), shape.combine(splits)], shape.workspace_bytes(splits))

    def _matched(self, graph: OperationGraph) -> AttentionForward | Refusal:
        problem = AttentionForward.match(self.name, graph)
        if isinstance(problem, Refusal):
            return problem
        rows = problem.queries * _pack(problem)
        if rows > _MAX_ROWS:
            reason = f"q.dims: expected at most {_MAX_ROWS} queries of heads that share keys, got {rows}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        return problem


def _pack(problem: AttentionForward) -> int:
    """Neighbouring heads of q that share one of k and one of v."""
    return gcd(problem.k.sharing, problem.v.sharing)


@dataclass(frozen=True)
class _Shape:
    """The shape of a block: its rows, keys, warps and stages."""

    problem: AttentionForward
    tile: ForwardTile
    stages: int
    arch: ArchSpec

    @staticmethod
    def of(problem: AttentionForward, arch: ArchSpec) -> _Shape:
        """The most stages that fit beside another block, or in a block alone where two blocks do not fit."""
        pack, size_v = _pack(problem), problem.padded_v
        rows = _TILES_OF_ROWS[problem.queries * pack > _TILES_OF_ROWS[0] and size_v <= _MAX_SIZE_OF_32_ROWS]
        is_large = problem.padded_qk + size_v > _MAX_SIZES_OF_32_KEYS
        is_paged = any(operand.load is not None for operand in (problem.k, problem.v))
        keys = _TILES_OF_KEYS[is_large or is_paged]
        tile = ForwardTile(rows, keys, rows, pack)
        shape = _Shape(problem, tile, _LEAST_STAGES, arch)
        return replace(shape, stages=min(shape.most_stages(shape.blocks_per_sm), _ENOUGH_STAGES))

    @property
    def overlaps(self) -> bool:
        """Whether launches are dependent ones."""
        return is_dependent(self.arch)

    @property
    def blocks_per_sm(self) -> int:
        """Two where there is room."""
        return 2 if self.stages <= self.most_stages(2) else 1

    def in_cluster(self, splits: int) -> bool:
        """Whether the blocks that divide the same keys are a cluster, which combines their results."""
        return self.overlaps and splits == _PAIR

    def knobs(self) -> tuple[Knob, ...]:
        """Splits that leave warps enough to do; the default is the least one with which nearly as much is attained as
        with any: blocks that are all there at once share the memory, of which one on each multiprocessor asks enough;
        more of them come in waves."""
        tiles = ceil_div(self.problem.attention.first.c.dims[3], self.tile.keys)
        most = max(1, tiles // (_WARPS * _FEWEST_TILES))
        values = tuple(splits for splits in _SPLITS if splits <= most)
        sm_count = self.arch.sm_count
        slots = sm_count * self.blocks_per_sm

        def attained(splits: int) -> float:
            blocks = self._blocks * splits
            return min(1.0, blocks / sm_count) if blocks <= slots else utilisation(blocks, slots)

        best = max(map(attained, values))
        default = next(splits for splits in values if attained(splits) >= _WAVES_ATTAINED * best)
        stages = tuple(range(_LEAST_STAGES, self.most_stages(1) + 1))
        return (
            Knob(
                "split_kv", KnobType.SPLIT_K_SLC, values, default, "parts of the keys, more than 2 joined in a launch"
            ),
            Knob("stages", KnobType.STAGES, stages, self.stages, "tiles in a warp's rings of keys and of values"),
        )

    def decode(self, splits: int) -> tuple[KernelRef, Launch]:
        in_cluster, is_split, fills_device = self.in_cluster(splits), splits > 1, self._fills_device(splits)
        switches = map(int, (is_split, in_cluster, self.overlaps, fills_device))
        params = Params(_WARPS, self.stages, self.blocks_per_sm, *switches)
        parts = "c" if in_cluster else "p" * is_split
        variant = f"r{self.stages}x{self.blocks_per_sm}{parts}" + "f" * fills_device
        kernel = self._kernel.kernel("decode", self._target, macros(params), variant)
        operands = tuple(operand.argument for operand in (self.problem.q, self.problem.k, self.problem.v))
        partials = (self._partials(splits),) if is_split and not in_cluster else ()
        launch = self._kernel.launch(
            (*operands, *partials), _WARPS * WARP_SIZE, self._shared_bytes, MathUnit.MMA_F16, splits
        )
        work = replace(launch.work, bytes=launch.work.bytes + (self.workspace_bytes(splits) if partials else 0))
        cluster = (1, splits if in_cluster else 1, 1)
        return kernel, replace(launch, work=work, overlaps_previous=self.overlaps, cluster=cluster)

    def combine(self, splits: int) -> tuple[KernelRef, Launch]:
        problem = self.problem
        _, heads, queries, _ = problem.attention.first.c.dims
        arguments = Struct(
            (
                self._partials(splits),
                Struct(divider(queries)),
                Struct(divider(heads)),
                *i32((splits,)),
                self._kernel.argument,
            )
        )
        launch = Launch(
            kernel=1,
            grid=(problem.rows, 1, 1),
            block=(_COMBINE_WARPS * WARP_SIZE, 1, 1),
            arguments=(arguments,),
            work=Work(
                flops=2 * splits * problem.rows * problem.padded_v,
                bytes=self.workspace_bytes(splits),
                unit=MathUnit.FMA_F32,
            ),
            overlaps_previous=self.overlaps,
        )
        params = CombineParams(_COMBINE_WARPS, int(self.overlaps))
        return self._kernel.kernel("combine", self._target, macros(params)), launch

    @property
    def _kernel(self) -> ForwardKernel:
        return ForwardKernel(self.problem, self.tile)

    def workspace_bytes(self, splits: int) -> int:
        return self._extremes_bytes(splits) + aligned_bytes(
            splits * self.problem.rows * self.problem.padded_v * _F32_BYTES
        )

    @property
    def _target(self) -> str:
        return dependent_target(self.arch)

    @property
    def _blocks(self) -> int:
        """Blocks of one part of the keys, at least one."""
        batch, heads, queries, _ = self.problem.attention.first.c.dims
        return max(1, batch * (heads // self.tile.pack) * ceil_div(queries * self.tile.pack, self.tile.queries))

    @property
    def _shared_bytes(self) -> int:
        """The partial results that warps exchange at the end reuse the memory of the rings."""
        problem, tile = self.problem, self.tile
        parts = tile.queries // 16
        extremes, outputs = parts * 4, parts * problem.padded_v // 2
        handed_bytes = ((_WARPS + 1) * extremes + _WARPS * outputs) * WARP_SIZE * _F32_BYTES
        ring_bytes = self.stages * _stage_bytes(problem, tile)
        return tile.queries * pitch_bytes(problem.padded_qk) + max(ring_bytes, handed_bytes)

    def _fills_device(self, splits: int) -> bool:
        """Whether blocks of the next launch find no room before those of this one end, where no second launch comes
        between: let in earlier than that, they would crowd some multiprocessors and leave others without any."""
        each = ceil_div(self._blocks * splits, self.arch.sm_count)
        is_full = self._shared_bytes > shared_room(self.arch, each + 1)
        return self.overlaps and is_full and (splits == 1 or self.in_cluster(splits))

    def most_stages(self, blocks: int) -> int:
        """The most stages with which so many blocks fit a multiprocessor."""
        queries_bytes = self.tile.queries * pitch_bytes(self.problem.padded_qk)
        room = shared_room(self.arch, blocks) - queries_bytes
        return min(_MAX_STAGES, room // _stage_bytes(self.problem, self.tile))

    def _extremes_bytes(self, splits: int) -> int:
        return aligned_bytes(splits * self.problem.rows * 2 * _F32_BYTES)

    def _partials(self, splits: int) -> Struct:
        """The kernels' ``Partials``."""
        outputs = WorkspacePointer(self._extremes_bytes(splits))
        return Struct((WorkspacePointer(), outputs, *i64((self.problem.rows,))))


def _stage_bytes(problem: AttentionForward, tile: ForwardTile) -> int:
    """Bytes of one stage of the rings of all warps."""
    rows_bytes = tile.keys * (pitch_bytes(problem.padded_qk) + pitch_bytes(problem.padded_v))
    places = {operand.place(tile.keys) for operand in (problem.k, problem.v)}
    return _WARPS * (rows_bytes + (_NOTES_BYTES if Place.IN_LARGE_PAGES in places else 0))
