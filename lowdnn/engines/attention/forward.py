"""Attention forward as its kernels take it, whichever instruction multiplies (``attention_forward.cuh``)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from lowdnn import dtypes
from lowdnn.codegen.functor import Functor, generate
from lowdnn.engines.attention.factors import Factors
from lowdnn.engines.attention.heads import (
    COPY_BYTES,
    MAX_LENGTH,
    MAX_SIZE,
    TYPES,
    Heads,
    kernel_bounds,
    offsets_argument,
    padded,
    refuse_heads,
    seen_share,
)
from lowdnn.engines.base import Refusal
from lowdnn.engines.launch import (
    MAX_EXTENT,
    MAX_GRID_X,
    bytes_of,
    ceil_div,
    divider,
    i32,
    i64,
    moved_bytes,
    target_label,
)
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.attention_pattern import Attention, match_attention
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import dag_of
from lowdnn.ops.ragged import RaggedLoad, RaggedStore
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, KernelRef, Launch, MathUnit, Scalar, ScalarType, Struct, TensorPointer, Work
from lowdnn.status import Status

_LENGTH_TYPES = {DataType.INT32: "i32", DataType.INT64: "i64"}
#: Of both operands along the sum of one instruction.
_STEP_BYTES = 32
#: Queries of a block, at the least.
_LEAST_QUERIES = 64


@dataclass(frozen=True)
class ForwardTile:
    """Rows of a block and of each of its warps, and keys that are taken at a time.

    pack: heads of q of which rows are together in a block; 1: a row is a query.
    """

    queries: int
    keys: int
    warp_queries: int
    pack: int = 1

    @property
    def warps(self) -> int:
        return self.queries // self.warp_queries


@dataclass(frozen=True)
class ForwardParams:
    """Macros of ``attention_forward.cuh``, and HEAD_QK, Q_PLACE, K_PLACE, V_PLACE."""

    TYPE: str
    TILE_Q: int
    TILE_KV: int
    WARP_Q: int
    PACK: int
    HEAD_QK: int
    HEAD_V: int
    HAS_SCORES: int
    LENGTH_TYPE: str
    HAS_LENGTHS: int
    QUERY_LENGTH_TYPE: str
    HAS_QUERY_LENGTHS: int
    HAS_WEIGHTS: int
    HAS_BLOCKS: int
    HAS_SINK: int
    CUTS_SINK: int
    STATS: int
    MAX: int
    SUM_EXP: int
    STORES_PACKED: int
    SCORE_FACTORS: int
    IS_FP8: int
    VALUE_FACTORS: int
    AMAX_S: int
    AMAX_O: int
    Q_PLACE: int
    K_PLACE: int
    V_PLACE: int


@dataclass(frozen=True)
class AttentionForward:
    """The operands as the kernels read them."""

    attention: Attention
    q: Heads
    k: Heads
    v: Heads

    @staticmethod
    def match(engine: str, graph: OperationGraph, *, takes_fp8: bool = False) -> AttentionForward | Refusal:
        """Refuses data types without a tensor core instruction, sizes of heads, strides and alignments that copies of
        16 bytes do not reach, statistics that are not fp32, more than the kernels can count; unless ``takes_fp8``, fp8
        and largest magnitudes."""
        matched = match_attention(graph)
        if isinstance(matched, str):
            return Refusal(engine, matched)
        if not takes_fp8 and (matched.amax_s or matched.amax_o):
            return Refusal(engine, "operations: expected none that reduces, got a ReductionOperation")
        if refused := _refuse_types(matched, TYPES + dtypes.FP8_TYPES if takes_fp8 else TYPES):
            return Refusal(engine, refused, Status.NOT_SUPPORTED_DATA_TYPE)
        found = graph.derive(_read)
        return Refusal(engine, *found) if isinstance(found, tuple) else found

    @property
    def rows(self) -> int:
        """Queries of all heads."""
        batch, heads, queries, _ = self.attention.first.c.dims
        return batch * heads * queries if self.v.size else 0

    @property
    def lengths(self) -> Tensor | None:
        return self.attention.band.lengths

    @property
    def is_fp8(self) -> bool:
        return self.data_type in dtypes.FP8_TYPES

    @cached_property
    def score_factors(self) -> Factors:
        """Of products of queries and keys; those in device memory where they are descales, which are positive."""
        scores, x = self.attention.scores, self.attention.first.c
        factors = Factors.of(scores, x)
        return factors if self.is_fp8 or not factors.tensors else Factors(x, scores.operations)

    @cached_property
    def scale(self) -> float | None:
        """A positive number that products of queries and keys are multiplied by, where that, and what lies in device
        memory, is all that is done, and nothing is rounded."""
        factors, is_exact = self.score_factors, self.attention.first.c.data_type is DataType.FLOAT
        return factors.constant if is_exact and not factors.rest and 0 < factors.constant < inf else None

    @cached_property
    def weight_factors(self) -> Factors:
        """Of fp8, whose weights are scaled for the sake of their rounding."""
        weights, y = self.attention.weights, self.attention.softmax.y
        return Factors.of(weights, y) if self.is_fp8 else Factors(y, weights.operations)

    @cached_property
    def output_factors(self) -> Factors:
        """Of fp8, up to the value whose largest magnitude is stored."""
        output, c, amax_o = self.attention.output, self.attention.second.c, self.attention.amax_o
        last = None if amax_o is None else amax_o.x
        return Factors.of(output, c, last) if self.is_fp8 else Factors(c, output.operations)

    @property
    def value_factors(self) -> tuple[Tensor, ...]:
        """That the output is multiplied by: those of the weights, too."""
        return self.weight_factors.tensors + self.output_factors.tensors

    @property
    def has_weights(self) -> bool:
        """Whether weights are more than rounded to the type of the product."""
        operations = self.weight_factors.rest
        types = {self.attention.softmax.y.data_type}
        types |= {kind for op in operations for kind in (op.pointwise.compute_type, op.output.data_type)}
        is_plain = all(op.mode is PointwiseMode.IDENTITY and op.alpha1 == 1 for op in operations)
        return not is_plain or not types <= {DataType.FLOAT, self.q.tensor.data_type}

    @property
    def queries(self) -> int:
        return self.attention.first.c.dims[2]

    @property
    def keys(self) -> int:
        return self.attention.first.c.dims[3]

    @cached_property
    def keys_seen(self) -> float:
        """By a query, on average, whatever the lengths are."""
        return self.keys * seen_share(self.queries, self.keys, *self.bounds)

    @property
    def data_type(self) -> DataType:
        return self.q.tensor.data_type

    @property
    def element_bytes(self) -> int:
        """Of q, k and v."""
        return self.q.tensor.element_bytes

    @property
    def padded_qk(self) -> int:
        """Of a head of q and k, in whole fragments."""
        return padded(self.q.size, _STEP_BYTES // self.element_bytes)

    @property
    def padded_v(self) -> int:
        return padded(self.v.size)

    def params(self, tile: ForwardTile) -> ForwardParams:
        statistics = {name: int(tensor is not None) for name, tensor in _statistics(self.attention).items()}
        return ForwardParams(
            TYPE=dtypes.info(self.data_type).c_type,
            TILE_Q=tile.queries,
            TILE_KV=tile.keys,
            WARP_Q=tile.warp_queries,
            PACK=tile.pack,
            HEAD_QK=self.padded_qk,
            HEAD_V=self.padded_v,
            HAS_SCORES=int(self.scale is None),
            LENGTH_TYPE=_length_type(self.lengths),
            HAS_LENGTHS=int(self.lengths is not None),
            QUERY_LENGTH_TYPE=_length_type(self.attention.band.query_lengths),
            HAS_QUERY_LENGTHS=int(self.attention.band.query_lengths is not None),
            HAS_WEIGHTS=int(self.has_weights),
            HAS_BLOCKS=int(self.attention.band.blocks is not None),
            HAS_SINK=int(self.attention.softmax.sink is not None),
            CUTS_SINK=int(self.attention.cuts_sink),
            **statistics,
            STORES_PACKED=int(self.stores_packed),
            SCORE_FACTORS=0 if self.scale is None else len(self.score_factors.tensors),
            IS_FP8=int(self.is_fp8),
            VALUE_FACTORS=len(self.value_factors),
            AMAX_S=int(self.attention.amax_s is not None),
            AMAX_O=int(self.attention.amax_o is not None),
            Q_PLACE=int(self.q.place(tile.queries)),
            K_PLACE=int(self.k.place(tile.keys)),
            V_PLACE=int(self.v.place(tile.keys)),
        )

    def kernel(
        self, idea: str, target: str, tile: ForwardTile, macros: tuple[tuple[str, int | str], ...], variant: str = ""
    ) -> KernelRef:
        """``attention_forward_<idea>.cu`` with ``macros`` beside those of ``params``.

        variant: in its name, of macros that do not follow from the tile.
        """
        params, text = self.params(tile), "\n".join(functor.text for functor in self._functors)
        shape = f"{tile.queries}x{tile.keys}_d{params.HEAD_QK}v{params.HEAD_V}"
        switches = f"f{params.HAS_SCORES}w{params.HAS_WEIGHTS}s{params.STATS}{params.MAX}{params.SUM_EXP}"
        places = (params.Q_PLACE, params.K_PLACE, params.V_PLACE, params.STORES_PACKED)
        if any(places):
            switches += "l" + "".join(map(str, places))
        if tile.pack > 1:
            switches += f"p{tile.pack}"
        scaling = (params.SCORE_FACTORS, params.VALUE_FACTORS, params.AMAX_S, params.AMAX_O)
        if any(scaling):
            switches += "x" + "".join(map(str, scaling))
        switches += variant
        if params.HAS_LENGTHS:
            switches += f"_{params.LENGTH_TYPE}"
        if params.HAS_QUERY_LENGTHS:
            switches += f"_q{params.QUERY_LENGTH_TYPE}"
        if params.HAS_BLOCKS:
            switches += "_blocks"
        if params.HAS_SINK:
            switches += "_sink" + "_cut" * params.CUTS_SINK
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        data_type = dtypes.info(self.data_type).short_name
        return KernelRef(
            name=f"attention_forward_{idea}_{data_type}_{shape}_{switches}_{target_label(target)}_{digest}",
            source=f"attention/attention_forward_{idea}.cu",
            target=target,
            parameters=(*vars(params).items(), *macros),
            generated=text,
        )

    def launch(
        self,
        operands: tuple[Argument, ...],
        tile: ForwardTile,
        threads: int,
        shared_bytes: int,
        unit: MathUnit,
        splits: int = 1,
    ) -> Launch:
        """Of ``splits`` blocks for each tile of rows of ``pack`` heads; ``operands``: the kernel's parameters before
        ``Forward``."""
        return Launch(
            kernel=0,
            grid=(self.blocks(tile), splits, 1),
            block=(threads, 1, 1),
            arguments=(Struct((*operands, self.argument(tile))),),
            shared_bytes=shared_bytes,
            work=self.work(tile, unit),
        )

    def blocks(self, tile: ForwardTile) -> int:
        """One for each tile of rows of ``pack`` heads."""
        batch, heads, _, _ = self.attention.first.c.dims
        return self._tiles(tile) * heads // tile.pack * batch

    def work(self, tile: ForwardTile, unit: MathUnit) -> Work:
        attention = self.attention
        _, _, queries, keys = attention.first.c.dims
        flops = attention.first.flops + attention.second.flops
        multiplied = self.keys_seen / max(1, keys) * self._tiles(tile) * tile.queries / (queries * tile.pack)
        return Work(flops=round(multiplied * flops), bytes=self._moved_bytes, unit=unit)

    @cached_property
    def _moved_bytes(self) -> int:
        attention = self.attention
        read = (*self.q.read, *self.k.read, *self.v.read, *attention.scores.loads)
        return bytes_of(read) + moved_bytes(attention.output)

    def argument(self, tile: ForwardTile) -> Struct:
        """The kernels' ``Forward``."""
        _, heads, queries, keys = self.attention.first.c.dims
        return Struct(
            (
                Struct(divider(self._tiles(tile))),
                Struct(divider(heads // tile.pack)),
                *i32((queries, keys, self.q.size, self.v.size)),
                *i32(self.bounds),
                Scalar(ScalarType.F32, 1.0 if self.scale is None else self.scale),
                *_lengths_arguments(self.lengths),
                *_lengths_arguments(self.attention.band.query_lengths),
                *self._blocks_arguments,
                *self._row_arguments,
                *self._packed_arguments,
                *self._scaling_arguments,
                *(functor.arguments for functor in self._functors),
            )
        )

    def _tiles(self, tile: ForwardTile) -> int:
        return ceil_div(self.queries * tile.pack, tile.queries)

    @property
    def bounds(self) -> tuple[int, int]:
        """Left and right, as the kernels have them."""
        return kernel_bounds(self.attention.band.left, self.attention.band.right)

    @property
    def _blocks_arguments(self) -> tuple[Argument, ...]:
        blocks = self.attention.band.blocks
        return () if blocks is None else (Struct((TensorPointer(blocks.uid), *i64(blocks.strides))),)

    @property
    def _row_arguments(self) -> tuple[Argument, ...]:
        """The sink and the statistics, of those that there are."""
        softmax = self.attention.softmax
        arguments: list[Argument] = [] if softmax.sink is None else [_row_values(softmax.sink)]
        if softmax.stats is not None:
            arguments.append(Scalar(ScalarType.F32, softmax.stats_factor))
        arguments += [_row_values(tensor) for tensor in _statistics(self.attention).values() if tensor is not None]
        return tuple(arguments)

    @property
    def stores_packed(self) -> bool:
        """Whether the output or the statistics are ragged."""
        return any(isinstance(move, RaggedStore) for move in self.attention.ragged.values())

    @property
    def _packed_arguments(self) -> tuple[Argument, ...]:
        """The offsets of the output and of the statistics."""
        if not self.stores_packed:
            return ()
        statistics = [tensor for tensor in _statistics(self.attention).values() if tensor is not None]
        return tuple(
            offsets_argument(next((self.attention.ragged.get(tensor.uid) for tensor in tensors), None))
            for tensors in (self.attention.output.stores, statistics)
        )

    @property
    def largest_arguments(self) -> tuple[TensorPointer, ...]:
        """Of the largest magnitudes that are stored."""
        reductions = (self.attention.amax_s, self.attention.amax_o)
        return tuple(TensorPointer(op.y.uid) for op in reductions if op is not None)

    @property
    def _scaling_arguments(self) -> tuple[Argument, ...]:
        """The factors, of scores and of values, and where the largest magnitudes go."""
        scores = () if self.scale is None else self.score_factors.tensors
        value_scale = Scalar(ScalarType.F32, self.weight_factors.constant * self.output_factors.constant)
        return (
            *(TensorPointer(tensor.uid) for tensor in scores),
            *((value_scale,) if self.is_fp8 else ()),
            *(TensorPointer(tensor.uid) for tensor in self.value_factors),
            *self.largest_arguments,
        )

    def refuse_scaling(self) -> str:
        """Why the kernel does not scale or measure weights and outputs so, or an empty string."""
        attention = self.attention
        if self.is_fp8 and self.has_weights:
            return "operations: expected weights in fp8 that numbers alone scale, got other operations on them"
        if attention.amax_o is not None and self.output_factors.product.uid != attention.amax_o.x.uid:
            return f"{attention.amax_o.x.label}: expected an output that numbers alone scale, got another tensor"
        for largest in (attention.amax_s, attention.amax_o):
            if largest is not None and largest.x.data_type is not DataType.FLOAT:
                return f"{largest.x.label}: expected FLOAT under an AMAX, got {largest.x.data_type.name}"
        return ""

    @cached_property
    def _functors(self) -> tuple[Functor, ...]:
        """In the order of the kernel's parameters."""
        attention = self.attention
        functors = []
        if self.scale is None:
            functors.append(
                generate(
                    attention.scores,
                    accumulator=DataType.FLOAT,
                    vector_axis=3,
                    result=DataType.FLOAT,
                    name="Scores",
                )
            )
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
        factors, dims = self.output_factors, attention.second.c.dims
        output = dag_of(dims, factors.rest, anchor=factors.product)
        functors.append(generate(output, accumulator=DataType.FLOAT, vector_axis=3, name="Output"))
        return tuple(functors)


def _length_type(lengths: Tensor | None) -> str:
    return "i32" if lengths is None else _LENGTH_TYPES[lengths.data_type]


def _lengths_arguments(lengths: Tensor | None) -> tuple[Argument, ...]:
    if lengths is None:
        return ()
    stride = lengths.strides[0] if lengths.dims[0] > 1 else 0
    return (TensorPointer(lengths.uid), *i64((stride,)))


def _row_values(tensor: Tensor) -> Struct:
    strides = (stride if extent > 1 else 0 for stride, extent in zip(tensor.strides, tensor.dims[:3], strict=False))
    return Struct((TensorPointer(tensor.uid), *i64(strides)))


def _statistics(attention: Attention) -> dict[str, Tensor | None]:
    """By the kernel's macros, in the order of its parameters."""
    softmax = attention.softmax
    return {"STATS": softmax.stats, "MAX": softmax.max, "SUM_EXP": softmax.sum_exp}


def _read(graph: OperationGraph) -> AttentionForward | tuple[str, Status]:
    """The operands of a graph that is an attention, or why kernels cannot read them: the reason and its status."""
    attention = match_attention(graph)
    if isinstance(attention, str):
        return attention, Status.NOT_SUPPORTED_GRAPH_PATTERN
    if refused := _refuse_shape(attention):
        return refused, Status.NOT_SUPPORTED_SHAPE
    heads, loads = attention.first.c.dims[1], (attention.k_load, attention.v_load)
    q = Heads.of(attention.first.a, heads, row_axis=2)
    k = Heads.loaded(loads[0], heads) if loads[0] else Heads.of(attention.k, heads, row_axis=3)
    v = Heads.loaded(loads[1], heads) if loads[1] else Heads.of(attention.second.b, heads, row_axis=2)
    q, k, v = (replace(operand, ragged=attention.ragged.get(operand.tensor.uid)) for operand in (q, k, v))
    if refused := _refuse_ragged(attention):
        return refused, Status.NOT_SUPPORTED_LAYOUT
    for operand in (q, k, v):
        if refused := refuse_heads(operand):
            return refused, Status.NOT_SUPPORTED_LAYOUT
    problem = AttentionForward(attention, q, k, v)
    if refused := problem.refuse_scaling():
        return refused, Status.NOT_SUPPORTED_GRAPH_PATTERN
    return problem


def _refuse_ragged(attention: Attention) -> str:
    """Why the kernel does not read or store what is ragged, or an empty string."""
    read = {attention.first.a.uid, attention.k.uid, attention.second.b.uid}
    for uid, move in attention.ragged.items():
        if isinstance(move, RaggedLoad) and uid not in read:
            return f"{move.packed.label}: expected ragged offsets of q, k and v outside of pages alone, got others"
    statistics = [tensor for tensor in _statistics(attention).values() if tensor is not None]
    for name, tensors in {"output": attention.output.stores, "statistics": statistics}.items():
        moves = [attention.ragged.get(tensor.uid) for tensor in tensors]
        kinds = {move and (move.offsets.uid, move.multiplier, move.packed.strides) for move in moves}
        if len(kinds) > 1:
            return f"{name}: expected the same ragged offsets for all, got different ones"
        if name == "output" and any(moves) and attention.output.loads:
            return "operations: expected none behind a ragged output that read tensors, got one"
        for move in filter(None, moves):
            if move.padded.dims[2] * move.row_elements > MAX_EXTENT:
                return f"{move.packed.label}.dims: expected at most {MAX_EXTENT} elements of a ragged batch, got more"
    return ""


def _refuse_types(attention: Attention, types: tuple[DataType, ...]) -> str:
    """Why the kernel does not compute in these types, or an empty string."""
    first, second, softmax = attention.first, attention.second, attention.softmax
    operands = {"first product's a": first.a, "first product's b": attention.k}
    operands |= {"second product's a": second.a, "second product's b": second.b}
    for name, tensor in operands.items():
        if tensor.data_type not in types or tensor.data_type is not first.a.data_type:
            expected = " or ".join(kind.name for kind in types)
            return f"{name}: expected {expected}, all the same, got {tensor.data_type.name}"
    for name, product in {"first": first, "second": second}.items():
        if product.matmul.compute_type is not DataType.FLOAT:
            return f"{name} product's compute_type: expected FLOAT, got {product.matmul.compute_type.name}"
    if softmax.x.data_type is not DataType.FLOAT:
        return f"softmax.x: expected FLOAT, got {softmax.x.data_type.name}"
    for name, of_rows in {"SINK": softmax.sink, **_statistics(attention)}.items():
        if of_rows is not None and of_rows.data_type is not DataType.FLOAT:
            return f"softmax's {name}: expected FLOAT, got {of_rows.data_type.name}"
    for lengths in (attention.band.lengths, attention.band.query_lengths):
        if lengths is not None and lengths.data_type not in _LENGTH_TYPES:
            return f"{lengths.label}: expected INT32 or INT64, got {lengths.data_type.name}"
    return ""


def _refuse_shape(attention: Attention) -> str:
    """Why the kernel cannot count it, or an empty string."""
    batch, heads, queries, keys = attention.first.c.dims
    for name, tensor in {"q": attention.first.a, "v": attention.second.b}.items():
        size, granule = tensor.dims[3], COPY_BYTES // tensor.element_bytes
        if size % granule or not 0 < size <= MAX_SIZE:
            return f"{name}'s head: expected a multiple of {granule} up to {MAX_SIZE}, got {size}"
    if attention.first.a.dims[:2] != (batch, heads) or attention.second.c.dims[:2] != (batch, heads):
        return f"q's batch and heads: expected those of the output, got {list(attention.first.a.dims[:2])}"
    for name, tensor in {"k": attention.k, "v": attention.second.b}.items():
        if tensor.dims[0] not in (1, batch):
            return f"{name}'s batch: expected 1 or {batch}, got {tensor.dims[0]}"
    if max(queries, keys) > MAX_LENGTH:
        return f"lengths: expected at most {MAX_LENGTH}, got {queries} and {keys}"
    blocks = batch * heads * ceil_div(queries, _LEAST_QUERIES)
    if blocks > MAX_GRID_X:
        return f"dims: expected at most {MAX_GRID_X} tiles of {_LEAST_QUERIES} queries, got {blocks}"
    return ""
