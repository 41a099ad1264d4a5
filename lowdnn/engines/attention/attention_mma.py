"""``attention_mma``: attention forward on tensor cores with ``mma.sync``, for sm_80 and newer; the scores never lie in
memory.

fp16 and bf16, sums and softmax in fp32. Heads of any size up to 256 that is a multiple of 8, different ones for q k and
v; heads of k and v that heads of q share; any pointwise operations on the scores, products with the weights (dropout),
any epilogue. Keys outside of a band that masks leave (causal, sliding window, lengths) are passed over.
Kernel: ``attention_forward_mma.cu``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor, generate
from lowdnn.engines.attention.heads import (
    MAX_LENGTH,
    MAX_SIZE,
    TYPES,
    Heads,
    kernel_bounds,
    padded,
    refuse_heads,
    seen_share,
)
from lowdnn.engines.base import BEHAVIOR_NOTES, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.launch import MAX_GRID_X, bytes_of, ceil_div, divider, i32, i64, macros, moved_bytes
from lowdnn.enums import DataType, KnobType, NumericalNote, PointwiseMode
from lowdnn.graph.attention_pattern import Attention, match_attention
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, KernelRef, Launch, MathUnit, Plan, Struct, TensorPointer, Work
from lowdnn.status import Status

_LENGTH_TYPES = {DataType.INT32: "i32", DataType.INT64: "i64"}
#: Operations of the softmax for each score.
_SCORE_FLOPS = 8
_TILES = (64, 128)
#: Of queries in a block that is not worth halving.
_MANY_QUERIES = 64


@dataclass(frozen=True)
class Params:
    """Macros of ``attention_forward_mma.cu``."""

    TYPE: str
    TILE_Q: int
    TILE_KV: int
    WARPS: int
    PARTS: int
    HEAD_QK: int
    HEAD_V: int
    IS_BANDED: int
    LENGTH_TYPE: str
    HAS_LENGTHS: int
    HAS_WEIGHTS: int
    STATS: int
    MAX: int
    SUM_EXP: int


class AttentionMma:
    """See the module's docstring."""

    name = "attention_mma"
    index = 30
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE,)
    behavior_notes = BEHAVIOR_NOTES

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses data types without an mma instruction, sizes of heads, strides and alignments that 16-byte copies do
        not reach, statistics that are not fp32, more than it can count."""
        problem = graph.derive(self._problem)
        return problem if isinstance(problem, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M."""
        return _knobs(accepted(graph.derive(self._problem)))

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch, none where there is no query."""
        problem = accepted(graph.derive(self._problem))
        chosen = resolve_choices(self.name, _knobs(problem), choices)
        if not problem.rows:
            return plan_of(self, graph, arch, chosen, (), ())
        kernel, launch = problem.launch(chosen[KnobType.TILE_M])
        return plan_of(self, graph, arch, chosen, (kernel,), (launch,))

    def precompiled(self) -> tuple[KernelRef, ...]:
        return ()

    def _problem(self, graph: OperationGraph) -> _Problem | Refusal:
        matched = match_attention(graph)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        if refused := _refuse_types(matched):
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_DATA_TYPE)
        if refused := _refuse_shape(matched):
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE)
        problem = _Problem.of(matched)
        for heads in (problem.q, problem.k, problem.v):
            if refused := refuse_heads(heads):
                return Refusal(self.name, refused, Status.NOT_SUPPORTED_LAYOUT)
        return problem


@dataclass(frozen=True)
class _Tile:
    """Macros of the tile of a block."""

    queries: int
    keys: int
    warps: int
    parts: int

    @staticmethod
    def of(queries: int, size: int) -> _Tile:
        """Warps of large heads have accumulators for 16 queries only."""
        keys, parts = (32, 1) if size > 128 else (64, queries // 64)
        return _Tile(queries, keys, queries // (16 * parts), parts)


@dataclass(frozen=True)
class _Problem:
    """The operands as the kernel reads them."""

    attention: Attention
    q: Heads
    k: Heads
    v: Heads

    @staticmethod
    def of(attention: Attention) -> _Problem:
        first, second = attention.first, attention.second
        heads = first.c.dims[1]
        return _Problem(
            attention,
            Heads.of(first.a, heads, row_axis=2),
            Heads.of(attention.k, heads, row_axis=3),
            Heads.of(second.b, heads, row_axis=2),
        )

    @property
    def rows(self) -> int:
        """Queries of all heads."""
        batch, heads, queries, _ = self.attention.first.c.dims
        return batch * heads * queries if self.v.size else 0

    @property
    def lengths(self) -> Tensor | None:
        return self.attention.band.lengths

    @property
    def is_banded(self) -> bool:
        band = self.attention.band
        return band.scores.uid != self.attention.softmax.x.uid

    @property
    def has_weights(self) -> bool:
        """Whether weights are more than rounded to the type of the product."""
        operations = self.attention.weights.operations
        tensors = [self.attention.softmax.y, *(op.output for op in operations)]
        is_plain = all(op.mode is PointwiseMode.IDENTITY and op.alpha1 == 1 for op in operations)
        return not is_plain or any(t.data_type not in (DataType.FLOAT, self.q.tensor.data_type) for t in tensors)

    def launch(self, tile_queries: int) -> tuple[KernelRef, Launch]:
        attention, size = self.attention, max(self.q.size, self.v.size)
        batch, heads, queries, keys = attention.first.c.dims
        tile = _Tile.of(tile_queries, size)
        functors = self._functors()
        text = "\n".join(functor.text for functor in functors)
        kernel = self._kernel(tile, text)
        tiles = ceil_div(queries, tile.queries)
        pitches = [padded(self.q.size) * 2 + 16, padded(self.v.size) * 2 + 16]
        arguments = Struct(
            (
                *(operand.argument for operand in (self.q, self.k, self.v)),
                Struct(divider(tiles)),
                Struct(divider(heads)),
                *i32((queries, keys, self.q.size, self.v.size)),
                *i32(self._bounds),
                *self._lengths_arguments,
                *(_row_output(tensor) for tensor in _statistics(attention).values() if tensor is not None),
                *(functor.arguments for functor in functors),
            )
        )
        operands = (attention.first.a, attention.k, attention.second.b, *attention.scores.loads)
        launch = Launch(
            kernel=0,
            grid=(tiles * heads * batch, 1, 1),
            block=(tile.warps * 32, 1, 1),
            arguments=(arguments,),
            shared_bytes=(tile.queries + tile.keys) * pitches[0] + tile.keys * pitches[1],
            work=Work(
                flops=round(self._share * (attention.first.flops + attention.second.flops)),
                bytes=bytes_of(operands) + moved_bytes(attention.output),
                unit=MathUnit.MMA_F16,
            ),
        )
        return kernel, launch

    @property
    def _bounds(self) -> tuple[int, int]:
        """(left, right), large where there is no bound."""
        return kernel_bounds(self.attention.band.left, self.attention.band.right)

    @property
    def _share(self) -> float:
        """Of the scores, those within the band."""
        _, _, queries, keys = self.attention.first.c.dims
        return seen_share(queries, keys, *self._bounds)

    @property
    def _lengths_arguments(self) -> tuple[Argument, ...]:
        if self.lengths is None:
            return ()
        stride = self.lengths.strides[0] if self.lengths.dims[0] > 1 else 0
        return (TensorPointer(self.lengths.uid), *i64((stride,)))

    def _functors(self) -> tuple[Functor, ...]:
        """In the order of the kernel's parameters."""
        attention = self.attention
        functors = [_scores(attention.scores, "Scores")]
        if self.is_banded:
            functors.append(_scores(attention.inside, "Inside"))
        if self.has_weights:
            functors.append(
                generate(
                    attention.weights,
                    accumulator=DataType.FLOAT,
                    vector_axis=3,
                    stores_result=True,
                    name="Weights",
                )
            )
        functors.append(generate(attention.output, accumulator=DataType.FLOAT, vector_axis=3, name="Output"))
        return tuple(functors)

    def _kernel(self, tile: _Tile, text: str) -> KernelRef:
        facts = dtypes.info(self.q.tensor.data_type)
        statistics = {name: int(tensor is not None) for name, tensor in _statistics(self.attention).items()}
        params = Params(
            TYPE=facts.c_type,
            TILE_Q=tile.queries,
            TILE_KV=tile.keys,
            WARPS=tile.warps,
            PARTS=tile.parts,
            HEAD_QK=padded(self.q.size),
            HEAD_V=padded(self.v.size),
            IS_BANDED=int(self.is_banded),
            LENGTH_TYPE="i32" if self.lengths is None else _LENGTH_TYPES[self.lengths.data_type],
            HAS_LENGTHS=int(self.lengths is not None),
            HAS_WEIGHTS=int(self.has_weights),
            **statistics,
        )
        shape = f"{tile.queries}x{tile.keys}_d{params.HEAD_QK}v{params.HEAD_V}"
        switches = f"b{params.IS_BANDED}w{params.HAS_WEIGHTS}s{''.join(map(str, statistics.values()))}"
        if params.HAS_LENGTHS:
            switches += f"_{params.LENGTH_TYPE}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        return KernelRef(
            name=f"attention_forward_mma_{facts.short_name}_{shape}_{switches}_sm80_{digest}",
            source="attention/attention_forward_mma.cu",
            target="sm_80",
            parameters=macros(params),
            generated=text,
        )


def _knobs(problem: _Problem) -> tuple[Knob, ...]:
    queries = problem.attention.first.c.dims[2]
    default = _TILES[queries > _MANY_QUERIES]
    return (Knob("tile_m", KnobType.TILE_M, _TILES, default, "queries of a block"),)


def _scores(dag: PointwiseDag, name: str) -> Functor:
    return generate(dag, accumulator=DataType.FLOAT, vector_axis=3, result=DataType.FLOAT, name=name)


def _row_output(tensor: Tensor) -> Struct:
    return Struct((TensorPointer(tensor.uid), *i64(tensor.strides[:3])))


def _statistics(attention: Attention) -> dict[str, Tensor | None]:
    """By the kernel's macros, in the order of its parameters."""
    softmax = attention.softmax
    return {"STATS": softmax.stats, "MAX": softmax.max, "SUM_EXP": softmax.sum_exp}


def _refuse_types(attention: Attention) -> str:
    """Why the kernel does not compute in these types, or an empty string."""
    first, second, softmax = attention.first, attention.second, attention.softmax
    operands = {"first product's a": first.a, "first product's b": attention.k}
    operands |= {"second product's a": second.a, "second product's b": second.b}
    for name, tensor in operands.items():
        if tensor.data_type not in TYPES or tensor.data_type is not first.a.data_type:
            return f"{name}: expected HALF or BFLOAT16, all the same, got {tensor.data_type.name}"
    for name, product in {"first": first, "second": second}.items():
        if product.matmul.compute_type is not DataType.FLOAT:
            return f"{name} product's compute_type: expected FLOAT, got {product.matmul.compute_type.name}"
    if softmax.x.data_type is not DataType.FLOAT:
        return f"softmax.x: expected FLOAT, got {softmax.x.data_type.name}"
    for name, statistic in _statistics(attention).items():
        if statistic is not None and statistic.data_type is not DataType.FLOAT:
            return f"softmax's {name}: expected FLOAT, got {statistic.data_type.name}"
    lengths = attention.band.lengths
    if lengths is not None and lengths.data_type not in _LENGTH_TYPES:
        return f"{lengths.label}: expected INT32 or INT64, got {lengths.data_type.name}"
    return ""


def _refuse_shape(attention: Attention) -> str:
    """Why the kernel cannot count it, or an empty string."""
    batch, heads, queries, keys = attention.first.c.dims
    sizes = {"q": attention.first.a.dims[3], "v": attention.second.b.dims[3]}
    for name, size in sizes.items():
        if size % 8 or not 0 < size <= MAX_SIZE:
            return f"{name}'s head: expected a multiple of 8 up to {MAX_SIZE}, got {size}"
    if attention.first.a.dims[:2] != (batch, heads) or attention.second.c.dims[:2] != (batch, heads):
        return f"q's batch and heads: expected those of the output, got {list(attention.first.a.dims[:2])}"
    for name, tensor in {"k": attention.k, "v": attention.second.b}.items():
        if tensor.dims[0] not in (1, batch):
            return f"{name}'s batch: expected 1 or {batch}, got {tensor.dims[0]}"
    if max(queries, keys) > MAX_LENGTH:
        return f"lengths: expected at most {MAX_LENGTH}, got {queries} and {keys}"
    blocks = batch * heads * ceil_div(queries, _TILES[0])
    if blocks > MAX_GRID_X:
        return f"dims: expected at most {MAX_GRID_X} tiles of {_TILES[0]} queries, got {blocks}"
    return ""
