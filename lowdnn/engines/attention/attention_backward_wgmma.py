"""``attention_backward_wgmma``: gradients of attention on the tensor cores of sm_90a with TMA and wgmma; nothing of the
size of the scores lies in memory, and each product is formed once.

The graphs of ``attention_backward_mma``, where tensor maps describe q, k, v and d_o, and heads of q share the same
heads of k and v. dq is summed up in the workspace: in an order that does not depend on that of the blocks where the
graph asks for it or it costs little, otherwise as the blocks come, faster, in a plan that is NONDETERMINISTIC.
Kernels: ``attention_backward_widen.cu`` (of fp8, as for ``attention_backward_mma``), ``attention_backward_terms.cu`` (8
bytes of the workspace for each query), ``attention_backward_wgmma.cu`` or, for heads of more than 128 elements,
``attention_backward_wgmma_large.cu`` (dk and dv; dq as fp32 sums in the workspace), ``attention_backward_sums.cu``
(dq). Where few blocks have long ways along the queries, several share one; where the last blocks would leave most of
the device idle, several share the way of each of these. Then dk and dv, too, are fp32 sums in the workspace, one for
each split, which the last kernel adds in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from lowdnn.arch.specs import SM_90A, ArchSpec
from lowdnn.engines.attention.backward import TERM_BYTES, AttentionBackward, ClearedWords, seen_pairs
from lowdnn.engines.attention.heads import kernel_bounds, padded
from lowdnn.engines.attention.limits import BACKWARD_LIMITS
from lowdnn.engines.attention.mapped import (
    WARPGROUP_THREADS,
    boxed_bytes,
    consumer_registers,
    map_of,
    math_unit,
    refuse_map,
)
from lowdnn.engines.base import (
    BEHAVIOR_NOTES,
    Anchors,
    Choices,
    Knob,
    Refusal,
    accepted,
    plan_of,
    refuse_arch,
    resolve_choices,
)
from lowdnn.engines.floor import Contraction, Floor, Floored, Multipliers
from lowdnn.engines.launch import (
    BARRIER_BYTES,
    MAX_EXTENT,
    MAX_GRID_X,
    aligned_bytes,
    bytes_of,
    ceil_div,
    divider,
    floor_power,
    i32,
    macros,
)
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, KernelRef, Launch, MathUnit, Plan, Struct, Work, WorkspacePointer
from lowdnn.status import Status

#: That multiply, and warps of each.
_WARPGROUPS, _WARPS = 2, 4
#: Of gradients of the output, where there is room for two.
_OUTPUT_STAGES = 2
_ADDING_WARPS, _SUM_STAGES = 2, 2
_IN_ORDER, _IN_ANY_ORDER = 0, 1
#: Up to where a fixed order of sums costs little: elements of a head, under a band and without, as tiles of small ones
#: have the most queries and so the fewest turns; without a band also tiles of keys, as then few blocks wait.
_BANDED_ORDERED_SIZE, _ORDERED_SIZE, _ORDERED_KEY_TILES = 64, 128, 4
#: Blocks that start last end about so much of the longest one later than they would side by side; the share of all that
#: is too much of it.
_LAST_BLOCKS, _ENDING_SHARE = 1.25, 0.1
#: What each block behind the first one of a head waits at its start, in steps (below), and the share that may be so.
_TURN_STEPS, _WAITING_SHARE = 0.5, 0.03
#: Columns of dq that a warpgroup has at a time.
_PART_COLUMNS = 64
_WORD_BYTES, _SUM_BYTES = 4, 4
#: That a thread of the last launch rounds: 8 columns of two rows.
_THREAD_SUM_BYTES = 2 * 8 * _SUM_BYTES
#: Blocks that share the queries of the same keys.
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
#: In tiles of queries, which take 2.6 to 3.2 us whatever the kind, as measured: what a block takes before its first one
#: and behind its last one; a launch that joins splits, beside the bytes of their sums, of which so many move meanwhile.
_BLOCK_STEPS, _JOIN_STEPS, _STEP_BYTES = 3, 1, 9 << 20
#: Heads of from so many elements on gain by splits of the last tiles, as measured: 2 to 4 % of long ways.
_STREAM_SIZE = 128
#: What splits shall gain: about as much as the estimate may be wrong.
_SPLIT_GAIN = 1.01
_STAGE_GRANULE_BYTES = 1024


@dataclass(frozen=True)
class _Kind:
    """A kernel and what its blocks have.

    size: of the largest heads that it takes.  keys, queries: at a time.  column_parts: shares of the columns of dq.
    key_stages, stages: tiles of keys, and of queries, in shared memory.
    sum_pieces: of a tile's dq, of which two fit there.  weight_bytes: of weights there.
    producer_registers: what a thread needs that loads or adds, the more the more pieces there are.
    fewest_heads: whose blocks start together, without a band.  banded_heads: with one.
    """

    source: str
    size: int
    keys: int
    queries: int
    column_parts: int
    key_stages: int
    stages: int
    sum_pieces: int
    weight_bytes: int
    producer_registers: int
    fewest_heads: int = 8
    banded_heads: int = 32


_KINDS = (
    _Kind(
        "wgmma",
        64,
        128,
        128,
        column_parts=1,
        key_stages=2,
        stages=2,
        sum_pieces=1,
        weight_bytes=0,
        producer_registers=24,
    ),
    _Kind(
        "wgmma",
        128,
        128,
        64,
        column_parts=2,
        key_stages=1,
        stages=3,
        sum_pieces=1,
        weight_bytes=0,
        producer_registers=24,
        fewest_heads=16,
        banded_heads=16,
    ),
    _Kind(
        "wgmma_large",
        256,
        64,
        64,
        column_parts=4,
        key_stages=1,
        stages=2,
        sum_pieces=4,
        weight_bytes=64 * 64 * _SUM_BYTES,
        producer_registers=40,
        fewest_heads=4,
        banded_heads=8,
    ),
)


@dataclass(frozen=True)
class SumsParams:
    """Macros of ``attention_backward_sums.cu``."""

    OUT: str
    TILE_Q: int
    HEAD_QK: int
    TILE_KV: int
    HEAD_V: int
    IS_FP8: int
    IS_SPLIT: int


@dataclass(frozen=True)
class Params:
    """Macros of ``attention_backward_wgmma.cuh``."""

    TYPE: str
    OUT: str
    TILE_Q: int
    TILE_KV: int
    HEAD_QK: int
    HEAD_V: int
    KEY_STAGES: int
    STAGES: int
    OUTPUT_STAGES: int
    SUM_PIECES: int
    WEIGHT_BYTES: int
    IN_ORDER: int
    IS_SPLIT: int
    PRODUCER_REGISTERS: int
    CONSUMER_REGISTERS: int
    IS_FP8: int
    WEIGHT_TYPE: str
    GRADIENT_TYPE: str


class AttentionBackwardWgmma(Floored):
    """See the module's docstring."""

    name = "attention_backward_wgmma"
    index = 33
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE, NumericalNote.NONDETERMINISTIC)
    behavior_notes = BEHAVIOR_NOTES
    anchors: Anchors = (SdpaBackward,)
    limits = BACKWARD_LIMITS

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses other architectures, what ``AttentionBackward.match`` does, heads shared in two ways, operands
        without a tensor map, more rows than it can count."""
        if refusal := refuse_arch(self.name, arch, "sm_90a"):
            return refusal
        problem = graph.derive(self._problem)
        return problem if isinstance(problem, Refusal) else None

    def floor(self, contraction: Contraction) -> Floor:
        """Of pairs that see each other."""
        waste = seen_pairs(contraction) if isinstance(contraction, SdpaBackward) else 1.0
        return Floor(Multipliers.FASTEST, waste=waste)

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """SWIZZLE, REDUCTION_MODE, SPLIT_K_SLC, STREAM_K."""
        return self._accepted(graph, arch).knobs(arch)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """Three launches; one more before fp8."""
        problem = self._accepted(graph, arch)
        chosen = resolve_choices(self.name, problem.knobs(arch), choices)
        problem = problem.split(arch, chosen[KnobType.SPLIT_K_SLC], chosen[KnobType.STREAM_K])
        heads_at_once, is_in_order = chosen[KnobType.SWIZZLE], chosen[KnobType.REDUCTION_MODE] == _IN_ORDER
        notes = (NumericalNote.TENSOR_CORE,) if is_in_order else self.numerical_notes
        steps = (
            *problem.prepare(),
            problem.gradients(arch, heads_at_once, is_in_order),
            problem.rounded_sums(heads_at_once),
        )
        kernels = tuple(kernel for kernel, _ in steps)
        launches = tuple(replace(launch, kernel=place) for place, (_, launch) in enumerate(steps))
        return plan_of(self, graph, arch, chosen, kernels, launches, problem.workspace_bytes, notes)

    def precompiled(self) -> tuple[KernelRef, ...]:
        return ()

    def _accepted(self, graph: OperationGraph, arch: ArchSpec) -> _Problem:
        return accepted(self.refuse(graph, arch) or graph.derive(self._problem))

    def _problem(self, graph: OperationGraph) -> _Problem | Refusal:
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
        problem = _Problem(replace(backward, term_tile=_kind(backward.size).queries))
        if (rows := backward.all_heads * problem.backward.term_rows) > MAX_EXTENT:
            reason = f"q.dims: expected at most {MAX_EXTENT} rows in whole tiles of {problem.kind.queries}, got {rows}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        return problem


def _kind(size: int) -> _Kind:
    """Of the larger heads."""
    return next(kind for kind in _KINDS if size <= kind.size)


@dataclass(frozen=True)
class _Problem:
    """The operation as the kernels on wgmma take it.

    splits: blocks that share the queries of the same keys.  whole_tiles: of keys, before the others, that none shares.
    """

    backward: AttentionBackward
    splits: int = 1
    whole_tiles: int = 0

    @cached_property
    def kind(self) -> _Kind:
        return _kind(self.backward.size)

    @cached_property
    def head_qk(self) -> int:
        """Elements in shared memory, enough for some columns in each part of dq."""
        return padded(max(self.backward.size_qk, (self.kind.column_parts - 1) * _PART_COLUMNS + 1))

    @property
    def head_v(self) -> int:
        return padded(self.backward.size_v)

    @property
    def query_tiles(self) -> int:
        """Of a head."""
        return ceil_div(self.backward.queries, self.kind.queries)

    @property
    def key_tiles(self) -> int:
        return ceil_div(self.backward.keys, self.kind.keys)

    @property
    def all_query_tiles(self) -> int:
        """Of all heads."""
        return self.backward.all_heads * self.query_tiles

    @property
    def all_key_tiles(self) -> int:
        """Of all heads of k."""
        return self.key_heads * self.key_tiles

    @property
    def is_split(self) -> bool:
        return self.splits > 1

    @property
    def split_tiles(self) -> int:
        """Of keys that several blocks share."""
        return self.all_key_tiles - self.whole_tiles if self.is_split else 0

    @property
    def shares(self) -> int:
        """What blocks take one after another: tiles of keys, or splits of them."""
        return self.all_key_tiles + self.split_tiles * (self.splits - 1)

    @property
    def workspace_bytes(self) -> int:
        return self._sums_offset + self._sums_bytes

    @property
    def has_band(self) -> bool:
        return self.backward.operation.left is not None or self.backward.operation.right is not None

    @property
    def _sharing(self) -> int:
        """Heads of q for each of k."""
        return max(1, self.backward.all_heads // max(1, self.key_heads))

    @property
    def _mean_steps(self) -> float:
        """Tiles of queries of all heads that see a mean tile of keys."""
        return self.query_tiles * self._sharing * self.backward.seen_share

    @property
    def _most_steps(self) -> int:
        """The same of any tile of keys."""
        left, right = kernel_bounds(self.backward.operation.left, self.backward.operation.right)
        widest = min(self.query_tiles, ceil_div(self.kind.keys + left + right, self.kind.queries) + 1)
        return widest * self._sharing

    @property
    def key_heads(self) -> int:
        """Heads of k of all batches."""
        batch, heads = self.backward.operation.k.dims[:2]
        return batch * heads

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        """SWIZZLE, REDUCTION_MODE, SPLIT_K_SLC, STREAM_K."""
        heads = tuple(2**power for power in range(8))
        orders = (_IN_ORDER,) if self.backward.operation.is_deterministic else (_IN_ORDER, _IN_ANY_ORDER)
        splits, streams = self._split_values, (0, 1) if self._has_last_tiles(arch) else (0,)
        choices = product(splits, streams if self.kind.size >= _STREAM_SIZE else (0,))
        split, stream = min(choices, key=lambda choice: self._steps_of(arch, *choice))
        heads_at_once = self._heads_at_once(arch, split)
        order = orders[0] if self._has_cheap_order(arch, heads_at_once) else orders[-1]
        return (
            Knob("heads", KnobType.SWIZZLE, heads, heads_at_once, "heads whose blocks start together"),
            Knob("order", KnobType.REDUCTION_MODE, orders, order, "0: dq is summed up in a fixed order; 1: in any"),
            Knob("split_q", KnobType.SPLIT_K_SLC, splits, split, "parts of the queries, joined in the last launch"),
            Knob(
                "stream_q",
                KnobType.STREAM_K,
                streams,
                stream,
                "1: only the last tiles of keys, of which there is not one for every block, have parts",
            ),
        )

    def split(self, arch: ArchSpec, splits: int, stream: int) -> _Problem:
        """This with ``splits`` splits; stream: the knob STREAM_K."""
        whole_tiles = self.all_key_tiles - self.all_key_tiles % arch.sm_count if stream else 0
        return replace(self, splits=splits, whole_tiles=whole_tiles)

    def _has_last_tiles(self, arch: ArchSpec) -> bool:
        """Whether there are tiles behind those of which every block has as many. Under a band the last ones are the
        shortest and leave little time behind them."""
        return not self.has_band and self.all_key_tiles > arch.sm_count and self.all_key_tiles % arch.sm_count > 0

    @property
    def _split_values(self) -> tuple[int, ...]:
        """As far as each split has tiles of queries."""
        most = min(self._most_steps, MAX_GRID_X // max(1, self.all_key_tiles))
        return tuple(splits for splits in _SPLITS if splits <= max(1, most))

    def _steps_of(self, arch: ArchSpec, splits: int, stream: int) -> float:
        """The time, in steps of a tile: that of the longest block, or of waves of mean ones."""
        problem = self.split(arch, splits, stream)
        longest, mean, parts = self._most_steps, self._mean_steps, problem.split_tiles * splits
        whole_waves, split_waves = (ceil_div(own, arch.sm_count) for own in (problem.shares - parts, parts))
        waves = whole_waves * (_BLOCK_STEPS + mean) + split_waves * (_BLOCK_STEPS + mean / splits)
        steps = max(_BLOCK_STEPS + longest / splits, waves)
        if splits == 1:
            return steps
        return _SPLIT_GAIN * (steps + _JOIN_STEPS + 2 * problem._key_sums_bytes / _STEP_BYTES)

    def prepare(self) -> list[tuple[KernelRef, Launch]]:
        """Turns are cleared, too, and the tickets behind them."""
        return self.backward.prepare(ClearedWords(self._turns_offset, self.all_query_tiles + 1))

    def gradients(self, arch: ArchSpec, heads_at_once: int, is_in_order: bool) -> tuple[KernelRef, Launch]:
        """dk, dv, and the sums of dq."""
        backward, params = self.backward, self._params(is_in_order)
        order = "ordered" if is_in_order else "unordered"
        kernel = KernelRef(
            name=f"attention_backward_{backward.types_name}_{params.TILE_Q}x{params.TILE_KV}"
            f"_d{params.HEAD_QK}v{params.HEAD_V}_{order}{'_split' * params.IS_SPLIT}_sm90a",
            source=f"attention/attention_backward_{self.kind.source}.cu",
            target="sm_90a",
            parameters=macros(params),
        )
        kind = self.kind
        boxes = (("q", kind.queries), ("k", kind.keys), ("v", kind.keys), ("d_o", kind.queries))
        arguments: tuple[Argument, ...] = (
            *(map_of(backward.operands[port], rows) for port, rows in boxes),
            backward.argument,
            *(backward.heads[port].argument for port in ("dk", "dv")),
            WorkspacePointer(self._sums_offset),
            WorkspacePointer(self._turns_offset),
            WorkspacePointer(self._tickets_offset),
            self._key_order(heads_at_once),
            Struct(divider(backward.operation.k.dims[1])),
            *i32((self.query_tiles,)),
        )
        if self.is_split:
            arguments += tuple(map(WorkspacePointer, self._key_sums_offsets))
        moved = bytes_of(getattr(backward.operation, port) for port in ("q", "k", "v", "d_o", "dk", "dv"))
        return kernel, Launch(
            kernel=0,
            grid=(min(arch.sm_count, self.shares), 1, 1),
            block=((_WARPGROUPS + 1) * WARPGROUP_THREADS, 1, 1),
            arguments=(Struct(arguments),),
            shared_bytes=self._shared_bytes_with(self._output_stages),
            work=Work(
                flops=backward.flops(3 * backward.size_qk + 2 * backward.size_v),
                bytes=moved + self._turns_offset + self._sums_bytes,
                unit=math_unit(backward.data_type),
            ),
            overlaps_previous=True,
        )

    def rounded_sums(self, heads_at_once: int) -> tuple[KernelRef, Launch]:
        """dq; of splits dk and dv, too."""
        backward, operation, kind = self.backward, self.backward.operation, self.kind
        params = SumsParams(
            backward.c_types[1],
            TILE_Q=kind.queries,
            HEAD_QK=self.head_qk,
            TILE_KV=kind.keys,
            HEAD_V=self.head_v,
            IS_FP8=int(backward.fp8 is not None),
            IS_SPLIT=int(self.is_split),
        )
        kernel = KernelRef(
            name=f"attention_backward_sums_{'fp8_' * params.IS_FP8}{params.OUT}_{params.TILE_Q}"
            f"_d{params.HEAD_QK}v{params.HEAD_V}{'_split' * params.IS_SPLIT}_sm90a",
            source="attention/attention_backward_sums.cu",
            target="sm_90a",
            parameters=macros(params),
        )
        threads, blocks = self._tile_sum_bytes // _THREAD_SUM_BYTES, self.all_query_tiles
        arguments: tuple[Argument, ...] = (
            self._gradient("dq", self._sums_offset),
            Struct(divider(self.query_tiles)),
            WorkspacePointer(self._turns_offset),
            backward.argument,
        )
        gradients: tuple[Tensor, ...] = (operation.dq,)
        if self.is_split:
            of_keys = zip(("dk", "dv"), self._key_sums_offsets, strict=True)
            arguments += tuple(self._gradient(port, offset) for port, offset in of_keys)
            arguments += (self._key_order(heads_at_once), *i32((self.all_query_tiles,)))
            gradients += (operation.dk, operation.dv)
            tiles_bytes = (kind.keys * size * _SUM_BYTES for size in (self.head_qk, self.head_v))
            blocks += self.split_tiles * sum(ceil_div(own, threads * _THREAD_SUM_BYTES) for own in tiles_bytes)
        return kernel, Launch(
            kernel=0,
            grid=(blocks, 1, 1),
            block=(threads, 1, 1),
            arguments=(Struct(arguments),),
            work=Work(
                flops=sum(gradient.element_count for gradient in gradients),
                bytes=bytes_of(gradients) + self._sums_bytes,
                unit=MathUnit.FMA_F32,
            ),
            overlaps_previous=True,
        )

    def _gradient(self, port: str, sums_offset: int) -> Struct:
        """The kernel's ``Gradient``."""
        heads = self.backward.heads[port]
        return Struct((heads.argument, WorkspacePointer(sums_offset), Struct(divider(heads.tensor.dims[1]))))

    def _key_order(self, heads_at_once: int) -> Struct:
        """The kernels' ``KeyOrder``."""
        whole_tiles = self.all_key_tiles - self.split_tiles
        return Struct(i32((self.key_heads, self.key_tiles, heads_at_once, whole_tiles, self.splits)))

    def _heads_at_once(self, arch: ArchSpec, splits: int) -> int:
        """Blocks of a head wait for each other at the same queries. The more heads there are at once, the fewer blocks
        of each, so the less they wait, but the more the L2 cache has to hold, of large heads above all. Under a band,
        where blocks have unequally many queries, they would wait the longest; without one, heads that fill the device
        are enough. The longest blocks of the last heads start behind all others: where those heads are too few for the
        device to have enough to do meanwhile, twice as many start together.
        """
        kind = self.kind
        wanted = kind.banded_heads if self.has_band else max(kind.fewest_heads, arch.sm_count // self.key_tiles)
        if self.has_band and self._ending_share(arch, splits, wanted) > _ENDING_SHARE:
            wanted *= 2
        return floor_power(min(wanted, self.key_heads))

    def _ending_share(self, arch: ArchSpec, splits: int, heads: int) -> float:
        """Of the whole time, what the device waits for the longest blocks of the last ``heads``."""
        head_steps = self.key_tiles * (_BLOCK_STEPS * splits + self._mean_steps) / arch.sm_count
        missing = _LAST_BLOCKS * (_BLOCK_STEPS + self._most_steps / splits) - heads * head_steps
        return missing / max(1.0, self.key_heads * head_steps)

    def _has_cheap_order(self, arch: ArchSpec, heads_at_once: int) -> bool:
        """Whether a fixed order costs at most 3 %, as measured."""
        waiting = min(self.key_tiles, ceil_div(arch.sm_count, heads_at_once)) - 1
        waves = max(1.0, self.all_key_tiles / arch.sm_count)
        if waiting * _TURN_STEPS > _WAITING_SHARE * waves * self._mean_steps:
            return False
        if self.has_band:
            return self.kind.size <= _BANDED_ORDERED_SIZE
        return self.kind.size <= _ORDERED_SIZE or self.key_tiles <= _ORDERED_KEY_TILES

    def _params(self, is_in_order: bool) -> Params:
        return Params(
            *self.backward.c_types,
            TILE_Q=self.kind.queries,
            TILE_KV=self.kind.keys,
            HEAD_QK=self.head_qk,
            HEAD_V=self.head_v,
            KEY_STAGES=self.kind.key_stages,
            STAGES=self.kind.stages,
            OUTPUT_STAGES=self._output_stages,
            SUM_PIECES=self.kind.sum_pieces,
            WEIGHT_BYTES=self.kind.weight_bytes,
            IN_ORDER=int(is_in_order),
            IS_SPLIT=int(self.is_split),
            PRODUCER_REGISTERS=self.kind.producer_registers,
            CONSUMER_REGISTERS=consumer_registers(_WARPGROUPS, self.kind.producer_registers),
            IS_FP8=int(self.backward.fp8 is not None),
            WEIGHT_TYPE=self.backward.rounded_types[0],
            GRADIENT_TYPE=self.backward.rounded_types[1],
        )

    @property
    def _tile_sum_bytes(self) -> int:
        """Of a tile of queries, in whole parts."""
        return self.kind.queries * self.kind.column_parts * min(self.head_qk, _PART_COLUMNS) * _SUM_BYTES

    @property
    def _sums_bytes(self) -> int:
        """Of all gradients."""
        return self.all_query_tiles * self._tile_sum_bytes + self._key_sums_bytes

    @property
    def _split_rows(self) -> int:
        """Of dk, and of dv, that there are sums of."""
        return self.splits * self.split_tiles * self.kind.keys

    @property
    def _key_sums_bytes(self) -> int:
        return self._split_rows * (self.head_qk + self.head_v) * _SUM_BYTES

    @property
    def _key_sums_offsets(self) -> tuple[int, int]:
        """Of dk and of dv."""
        first = self._sums_offset + self.all_query_tiles * self._tile_sum_bytes
        return first, first + self._split_rows * self.head_qk * _SUM_BYTES

    @property
    def _turns_offset(self) -> int:
        return self.backward.workspace_bytes

    @property
    def _tickets_offset(self) -> int:
        return self._turns_offset + self.all_query_tiles * _WORD_BYTES

    @property
    def _sums_offset(self) -> int:
        return self._turns_offset + aligned_bytes((self.all_query_tiles + 1) * _WORD_BYTES)

    @property
    def _output_stages(self) -> int:
        fits = self._shared_bytes_with(_OUTPUT_STAGES) <= SM_90A.shared_bytes_per_block
        return _OUTPUT_STAGES if fits else 1

    def _shared_bytes_with(self, output_stages: int) -> int:
        kind, row_qk, row_v = self.kind, boxed_bytes(self.head_qk), boxed_bytes(self.head_v)
        loaded = kind.queries * (row_qk + TERM_BYTES)
        stage = padded(loaded, _STAGE_GRANULE_BYTES)
        barriers = 2 * (kind.key_stages + kind.stages + output_stages) + _ADDING_WARPS * kind.sum_pieces + _SUM_STAGES
        words = kind.key_stages + (0 if self.backward.fp8 is None else _WARPGROUPS * _WARPS)
        has_spare = stage > loaded  # where barriers and words fit in
        return (
            kind.key_stages * kind.keys * (row_qk + row_v)
            + kind.stages * stage
            + output_stages * kind.queries * row_v
            + kind.keys * boxed_bytes(kind.queries)
            + _SUM_STAGES * self._tile_sum_bytes // kind.sum_pieces
            + kind.weight_bytes
            + (0 if has_spare else barriers * BARRIER_BYTES + words * _WORD_BYTES)
        )
