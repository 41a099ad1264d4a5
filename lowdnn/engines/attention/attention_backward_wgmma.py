"""``attention_backward_wgmma``: gradients of attention on the tensor cores of sm_90a with TMA and wgmma; nothing of the
size of the scores lies in memory, and each product is formed once.

The graphs of ``attention_backward_mma``, where tensor maps describe q, k, v and d_o, heads have at most 128 elements,
and heads of q share the same heads of k and v.
Kernels: ``attention_backward_terms.cu`` (in the workspace 8 bytes for each query), ``attention_backward_wgmma.cu`` (dk
and dv; dq as fp32 sums in the workspace), ``attention_backward_sums.cu`` (dq).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowdnn.arch.specs import SM_90A, ArchSpec
from lowdnn.engines.attention.backward import TERM_BYTES, AttentionBackward, ClearedWords
from lowdnn.engines.attention.heads import padded
from lowdnn.engines.attention.mapped import (
    BARRIER_BYTES,
    PRODUCER_REGISTERS,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
    boxed_bytes,
    consumer_registers,
    map_of,
    math_unit,
    refuse_map,
)
from lowdnn.engines.base import BEHAVIOR_NOTES, Choices, Knob, Refusal, accepted, plan_of, refuse_arch, resolve_choices
from lowdnn.engines.launch import aligned_bytes, bytes_of, ceil_div, divider, i32, macros
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.plan import KernelRef, Launch, MathUnit, Plan, Struct, Work, WorkspacePointer
from lowdnn.status import Status

#: Elements of the largest head.
_MAX_SIZE = 128
#: Heads that leave the accumulators room for twice as many queries.
_SMALL_SIZE = 64
_WARPGROUPS = 2
_KEYS = _WARPGROUPS * WARPGROUP_ROWS
_STAGES = 2
#: Gradients of scores in shared memory.
_GRADIENT_TILES = 2
_WORD_BYTES, _SUM_BYTES = 4, 4
_STAGE_GRANULE_BYTES = 1024


@dataclass(frozen=True)
class SumsParams:
    """Macros of ``attention_backward_sums.cu``."""

    OUT: str
    TILE_Q: int
    HEAD_QK: int


@dataclass(frozen=True)
class Params:
    """Macros of ``attention_backward_wgmma.cu``."""

    TYPE: str
    OUT: str
    TILE_Q: int
    TILE_KV: int
    HEAD_QK: int
    HEAD_V: int
    STAGES: int
    IN_ORDER: int
    PRODUCER_REGISTERS: int
    CONSUMER_REGISTERS: int


class AttentionBackwardWgmma:
    """See the module's docstring."""

    name = "attention_backward_wgmma"
    index = 33
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE,)
    behavior_notes = BEHAVIOR_NOTES

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses other architectures, what ``AttentionBackward.match`` does, larger heads, heads shared in two ways,
        operands without a tensor map."""
        if refusal := refuse_arch(self.name, arch, SM_90A.name):
            return refusal
        problem = graph.derive(self._problem)
        return problem if isinstance(problem, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """REDUCTION_MODE."""
        accepted(self.refuse(graph, arch) or graph)
        return _KNOBS

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """Three launches."""
        problem = accepted(self.refuse(graph, arch) or graph.derive(self._problem))
        chosen = resolve_choices(self.name, _KNOBS, choices)
        is_in_order = chosen[KnobType.REDUCTION_MODE] == 0
        notes = self.numerical_notes if is_in_order else (*self.numerical_notes, NumericalNote.NONDETERMINISTIC)
        steps = (problem.terms(), problem.gradients(arch, is_in_order), problem.rounded_sums())
        kernels = tuple(kernel for kernel, _ in steps)
        launches = tuple(replace(launch, kernel=place) for place, (_, launch) in enumerate(steps))
        return plan_of(self, graph, arch, chosen, kernels, launches, problem.workspace_bytes, notes)

    def precompiled(self) -> tuple[KernelRef, ...]:
        return ()

    def _problem(self, graph: OperationGraph) -> _Problem | Refusal:
        backward = AttentionBackward.match(self.name, graph)
        if isinstance(backward, Refusal):
            return backward
        if backward.size > _MAX_SIZE:
            reason = f"q.dims[3], v.dims[3]: expected at most {_MAX_SIZE}, got {backward.size}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        k, v = (backward.heads[port].tensor.dims[1] for port in ("k", "v"))
        if k != v:
            return Refusal(self.name, f"v.dims[1]: expected k's {k} heads, got {v}", Status.NOT_SUPPORTED_SHAPE)
        for port in ("q", "k", "v", "d_o"):
            if refused := refuse_map(backward.heads[port]):
                return Refusal(self.name, refused, Status.NOT_SUPPORTED_LAYOUT)
        return _Problem(backward)


_KNOBS = (Knob("order", KnobType.REDUCTION_MODE, (0, 1), 0, "0: dq is summed up in a fixed order; 1: in any"),)


@dataclass(frozen=True)
class _Problem:
    """The operation as the kernels on wgmma take it."""

    backward: AttentionBackward

    @property
    def queries(self) -> int:
        """Of a tile."""
        return 128 if self.backward.size <= _SMALL_SIZE else 64

    @property
    def head_qk(self) -> int:
        """Elements in shared memory, and columns of dq; each warpgroup has some of these where a tile has 64 queries."""
        size = padded(self.backward.size_qk)
        return size if self.queries > WARPGROUP_ROWS else max(size, padded(_SMALL_SIZE + 1))

    @property
    def head_v(self) -> int:
        return padded(self.backward.size_v)

    @property
    def query_tiles(self) -> int:
        """Of a head."""
        return ceil_div(self.backward.queries, self.queries)

    @property
    def key_tiles(self) -> int:
        return ceil_div(self.backward.keys, _KEYS)

    @property
    def all_query_tiles(self) -> int:
        """Of all heads."""
        return self.backward.all_heads * self.query_tiles

    @property
    def term_rows(self) -> int:
        """Of a head, in whole tiles."""
        return self.query_tiles * self.queries

    @property
    def workspace_bytes(self) -> int:
        return self._sums_offset + self.all_query_tiles * self._tile_sum_bytes

    def terms(self) -> tuple[KernelRef, Launch]:
        """Turns are cleared, too, and the tickets behind them."""
        return self.backward.terms(self.term_rows, ClearedWords(self._turns_offset, self.all_query_tiles + 1))

    def gradients(self, arch: ArchSpec, is_in_order: bool) -> tuple[KernelRef, Launch]:
        """dk, dv, and the sums of dq."""
        backward, params = self.backward, self._params(is_in_order)
        kernel = KernelRef(
            name=f"attention_backward_{backward.types_name}_{params.TILE_Q}x{params.TILE_KV}"
            f"_d{params.HEAD_QK}v{params.HEAD_V}_{'ordered' if is_in_order else 'unordered'}_sm90a",
            source="attention/attention_backward_wgmma.cu",
            target=SM_90A.name,
            parameters=macros(params),
        )
        boxes = (("q", self.queries), ("k", _KEYS), ("v", _KEYS), ("d_o", self.queries))
        batch, key_heads = backward.operation.k.dims[:2]
        blocks = self.key_tiles * key_heads * batch
        arguments = (
            *(map_of(backward.heads[port], rows) for port, rows in boxes),
            backward.arguments(self.term_rows),
            *(backward.heads[port].argument for port in ("dk", "dv")),
            WorkspacePointer(self._sums_offset),
            WorkspacePointer(self._turns_offset),
            WorkspacePointer(self._tickets_offset),
            Struct(divider(key_heads)),
            *i32((self.query_tiles, self.key_tiles, key_heads * batch, max(1, arch.sm_count // self.key_tiles))),
        )
        moved = bytes_of(getattr(backward.operation, port) for port in ("q", "k", "v", "d_o", "dk", "dv"))
        return kernel, Launch(
            kernel=0,
            grid=(blocks, 1, 1),
            block=((_WARPGROUPS + 1) * WARPGROUP_THREADS, 1, 1),
            arguments=(Struct(arguments),),
            shared_bytes=self._shared_bytes,
            work=Work(
                flops=backward.flops(3 * backward.size_qk + 2 * backward.size_v),
                bytes=moved + self._turns_offset + self.all_query_tiles * self._tile_sum_bytes,
                unit=math_unit(backward.data_type),
            ),
            overlaps_previous=True,
        )

    def rounded_sums(self) -> tuple[KernelRef, Launch]:
        """dq."""
        backward = self.backward
        params = SumsParams(backward.c_types[1], self.queries, self.head_qk)
        kernel = KernelRef(
            name=f"attention_backward_sums_{params.OUT}_{params.TILE_Q}_d{params.HEAD_QK}_sm90a",
            source="attention/attention_backward_sums.cu",
            target=SM_90A.name,
            parameters=macros(params),
        )
        arguments = Struct(
            (
                backward.heads["dq"].argument,
                WorkspacePointer(self._sums_offset),
                WorkspacePointer(self._turns_offset),
                backward.scale,
                *i32((backward.queries, backward.size_qk)),
                Struct(divider(self.query_tiles)),
                Struct(divider(backward.operation.q.dims[1])),
            )
        )
        moved = bytes_of((backward.operation.dq,)) + self.all_query_tiles * self._tile_sum_bytes
        return kernel, Launch(
            kernel=0,
            grid=(self.all_query_tiles, 1, 1),
            block=(self._tile_sum_bytes // (2 * 8 * _SUM_BYTES), 1, 1),
            arguments=(arguments,),
            work=Work(flops=backward.operation.dq.element_count, bytes=moved, unit=MathUnit.FMA_F32),
            overlaps_previous=True,
        )

    def _params(self, is_in_order: bool) -> Params:
        return Params(
            *self.backward.c_types,
            TILE_Q=self.queries,
            TILE_KV=_KEYS,
            HEAD_QK=self.head_qk,
            HEAD_V=self.head_v,
            STAGES=_STAGES,
            IN_ORDER=int(is_in_order),
            PRODUCER_REGISTERS=PRODUCER_REGISTERS,
            CONSUMER_REGISTERS=consumer_registers(_WARPGROUPS),
        )

    @property
    def _tile_sum_bytes(self) -> int:
        """Of a tile of queries; whole parts of warpgroups where they share columns."""
        columns = self.head_qk if self.queries > WARPGROUP_ROWS else padded(self.head_qk, _SMALL_SIZE)
        return self.queries * columns * _SUM_BYTES

    @property
    def _turns_offset(self) -> int:
        return aligned_bytes(self.backward.all_heads * self.term_rows * TERM_BYTES)

    @property
    def _tickets_offset(self) -> int:
        return self._turns_offset + self.all_query_tiles * _WORD_BYTES

    @property
    def _sums_offset(self) -> int:
        return self._turns_offset + aligned_bytes((self.all_query_tiles + 1) * _WORD_BYTES)

    @property
    def _shared_bytes(self) -> int:
        pair = boxed_bytes(self.head_qk) + boxed_bytes(self.head_v)
        stage = padded(self.queries * (pair + TERM_BYTES), _STAGE_GRANULE_BYTES)
        gradients = _KEYS * boxed_bytes(self.queries)
        barriers = (3 + 2 * _STAGES) * BARRIER_BYTES + _WORD_BYTES
        return _KEYS * pair + _STAGES * stage + _GRADIENT_TILES * gradients + self._tile_sum_bytes + barriers
