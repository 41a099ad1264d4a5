"""A kernel of attention forward, its arguments and its launch (``attention_forward.cuh``)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from lowdnn import dtypes
from lowdnn.engines.attention.forward import AttentionForward
from lowdnn.engines.attention.forward_rows import length_type, lengths_arguments, row_values, statistics_of
from lowdnn.engines.attention.heads import offsets_argument
from lowdnn.engines.launch import ceil_div, divider, i32, i64, target_label
from lowdnn.plan import Argument, KernelRef, Launch, MathUnit, Scalar, ScalarType, Struct, TensorPointer, Work


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
class ForwardKernel:
    """A problem with one choice of the tile: its kernel, arguments and launch."""

    problem: AttentionForward
    tile: ForwardTile

    @cached_property
    def params(self) -> ForwardParams:
        problem, tile, band = self.problem, self.tile, self.problem.attention.band
        statistics = {name: int(tensor is not None) for name, tensor in statistics_of(problem.attention).items()}
        return ForwardParams(
            TYPE=dtypes.info(problem.data_type).c_type,
            TILE_Q=tile.queries,
            TILE_KV=tile.keys,
            WARP_Q=tile.warp_queries,
            PACK=tile.pack,
            HEAD_QK=problem.padded_qk,
            HEAD_V=problem.padded_v,
            HAS_SCORES=int(problem.scale is None),
            LENGTH_TYPE=length_type(problem.lengths),
            HAS_LENGTHS=int(problem.lengths is not None),
            QUERY_LENGTH_TYPE=length_type(band.query_lengths),
            HAS_QUERY_LENGTHS=int(band.query_lengths is not None),
            HAS_WEIGHTS=int(problem.has_weights),
            HAS_BLOCKS=int(band.blocks is not None),
            HAS_SINK=int(problem.attention.softmax.sink is not None),
            CUTS_SINK=int(problem.attention.cuts_sink),
            **statistics,
            STORES_PACKED=int(problem.stores_packed),
            SCORE_FACTORS=0 if problem.scale is None else len(problem.score_factors.tensors),
            IS_FP8=int(problem.is_fp8),
            VALUE_FACTORS=len(problem.value_factors),
            AMAX_S=int(problem.attention.amax_s is not None),
            AMAX_O=int(problem.attention.amax_o is not None),
            Q_PLACE=int(problem.q.place(tile.queries)),
            K_PLACE=int(problem.k.place(tile.keys)),
            V_PLACE=int(problem.v.place(tile.keys)),
        )

    def kernel(self, idea: str, target: str, macros: tuple[tuple[str, int | str], ...], variant: str = "") -> KernelRef:
        """The kernel ``attention_forward_<idea>.cu`` with ``macros`` in addition to those of ``params``. variant: the
        part of the kernel's name for macros that do not follow from the tile.
        """
        params, text = self.params, "\n".join(functor.text for functor in self.problem.functors)
        shape = f"{params.TILE_Q}x{params.TILE_KV}_d{params.HEAD_QK}v{params.HEAD_V}"
        switches = "".join((*_switches(params), variant, *_extras(params)))
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        data_type = dtypes.info(self.problem.data_type).short_name
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
        threads: int,
        shared_bytes: int,
        unit: MathUnit,
        splits: int = 1,
    ) -> Launch:
        """``splits`` blocks for each tile of rows of ``pack`` heads; ``operands``: the kernel's parameters before
        ``Forward``."""
        return Launch(
            kernel=0,
            grid=(self.blocks, splits, 1),
            block=(threads, 1, 1),
            arguments=(Struct((*operands, self.argument)),),
            shared_bytes=shared_bytes,
            work=self.work(unit),
        )

    @property
    def blocks(self) -> int:
        """Tiles of rows of ``pack`` heads."""
        batch, heads, _, _ = self.problem.attention.first.c.dims
        return self._tiles * heads // self.tile.pack * batch

    def work(self, unit: MathUnit) -> Work:
        problem, tile = self.problem, self.tile
        flops = problem.attention.first.flops + problem.attention.second.flops
        seen_share = problem.keys_seen / max(1, problem.keys)
        multiplied = seen_share * self._tiles * tile.queries / (problem.queries * tile.pack)
        return Work(flops=round(multiplied * flops), bytes=self.problem.moved_bytes, unit=unit)

    @property
    def argument(self) -> Struct:
        """The kernels' ``Forward``, the parts as members in the order of its bases."""
        _, heads, queries, keys = self.problem.attention.first.c.dims
        return Struct(
            (
                Struct(divider(self._tiles)),
                Struct(divider(heads // self.tile.pack)),
                *i32((queries, keys, self.problem.q.size, self.problem.v.size)),
                *self.problem.bounds_arguments,
                Scalar(ScalarType.F32, 1.0 if self.problem.scale is None else self.problem.scale),
                *lengths_arguments(self.problem.lengths),
                *lengths_arguments(self.problem.attention.band.query_lengths),
                *self._blocks_arguments,
                *self._row_arguments,
                *self._packed_arguments,
                *self._scaling_arguments,
                *(functor.arguments for functor in self.problem.functors),
            )
        )

    @property
    def _tiles(self) -> int:
        return ceil_div(self.problem.queries * self.tile.pack, self.tile.queries)

    @property
    def _blocks_arguments(self) -> tuple[Argument, ...]:
        blocks = self.problem.attention.band.blocks
        return () if blocks is None else (Struct((TensorPointer(blocks.uid), *i64(blocks.strides))),)

    @property
    def _row_arguments(self) -> tuple[Argument, ...]:
        """Arguments of the sink and of the statistics that exist."""
        softmax = self.problem.attention.softmax
        arguments: list[Argument] = [] if softmax.sink is None else [row_values(softmax.sink)]
        if softmax.stats is not None:
            arguments.append(Scalar(ScalarType.F32, softmax.stats_factor))
        statistics = statistics_of(self.problem.attention).values()
        arguments += [row_values(tensor) for tensor in statistics if tensor is not None]
        return tuple(arguments)

    @property
    def _packed_arguments(self) -> tuple[Argument, ...]:
        """The offsets of the output and of the statistics."""
        if not self.problem.stores_packed:
            return ()
        statistics = [tensor for tensor in statistics_of(self.problem.attention).values() if tensor is not None]
        return tuple(
            offsets_argument(next((self.problem.attention.ragged.get(tensor.uid) for tensor in tensors), None))
            for tensors in (self.problem.attention.output.stores, statistics)
        )

    @property
    def _scaling_arguments(self) -> tuple[Argument, ...]:
        """The factors, of scores and of values, and where the largest magnitudes go."""
        problem = self.problem
        scores = () if problem.scale is None else problem.score_factors.tensors
        value_scale = Scalar(ScalarType.F32, problem.weight_factors.constant * problem.output_factors.constant)
        return (
            *(TensorPointer(tensor.uid) for tensor in scores),
            *((value_scale,) if problem.is_fp8 else ()),
            *(TensorPointer(tensor.uid) for tensor in problem.value_factors),
            *problem.largest_arguments,
        )


def _switches(params: ForwardParams) -> Iterator[str]:
    """The parts of a kernel's name that stand for its macros, before those of the variant."""
    yield f"f{params.HAS_SCORES}w{params.HAS_WEIGHTS}s{params.STATS}{params.MAX}{params.SUM_EXP}"
    places = (params.Q_PLACE, params.K_PLACE, params.V_PLACE, params.STORES_PACKED)
    if any(places):
        yield "l" + "".join(map(str, places))
    if params.PACK > 1:
        yield f"p{params.PACK}"
    scaling = (params.SCORE_FACTORS, params.VALUE_FACTORS, params.AMAX_S, params.AMAX_O)
    if any(scaling):
        yield "x" + "".join(map(str, scaling))


def _extras(params: ForwardParams) -> Iterator[str]:
    """The parts of a kernel's name that stand for lengths, blocks and a sink."""
    if params.HAS_LENGTHS:
        yield f"_{params.LENGTH_TYPE}"
    if params.HAS_QUERY_LENGTHS:
        yield f"_q{params.QUERY_LENGTH_TYPE}"
    if params.HAS_BLOCKS:
        yield "_blocks"
    if params.HAS_SINK:
        yield "_sink" + "_cut" * params.CUTS_SINK
