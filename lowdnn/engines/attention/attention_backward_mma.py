"""``attention_backward_mma``: gradients of attention on tensor cores with ``mma.sync``, for sm_80 and newer; nothing of
the size of the scores lies in memory, and no sum depends on the order of blocks.

fp16 and bf16, and fp8 widened to fp16; sums and exponentials in fp32. Heads of any size up to 256 that is a multiple of
8, different ones for q k and v; heads of k and v that heads of q share. Keys outside of the band are passed over.
Any pointwise operations on the scores and on their gradients, factors of the weights (dropout); ragged tensors, but not
in fp8.
Kernels: ``attention_backward_widen.cu`` (of fp8, 2 bytes of the workspace for each element of q, k, v and the output's
gradient), ``attention_backward_terms.cu`` (8 bytes for each query), ``attention_backward_keys.cu`` (dk and dv),
``attention_backward_queries.cu`` (dq), ``attention_backward_bias.cu`` (dbias).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.attention.backward import TERM_BYTES, AttentionBackward, seen_pairs
from lowdnn.engines.attention.heads import padded, pitch_bytes
from lowdnn.engines.attention.limits import BACKWARD_LIMITS
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.floor import Contraction, Floor, Floored, Multipliers
from lowdnn.engines.launch import bytes_of, ceil_div, conversion_target, divider, i32, i64, macros, target_label
from lowdnn.engines.model.occupancy import no_tile_fits
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, KernelRef, Launch, MathUnit, Struct, TensorPointer, Work


@dataclass(frozen=True)
class QueriesParams:
    """Macros of ``attention_backward_queries.cu`` and ``attention_backward_bias.cu``."""

    TYPE: str
    OUT: str
    TILE_Q: int
    TILE_KV: int
    PARTS: int
    HEAD_QK: int
    HEAD_V: int
    HAS_SCORES: int
    HAS_GRADIENT: int
    HAS_FACTORS: int
    HAS_RAGGED: int
    IS_FP8: int
    WEIGHT_TYPE: str
    GRADIENT_TYPE: str


@dataclass(frozen=True)
class KeysParams(QueriesParams):
    """Macros of ``attention_backward_keys.cu``."""

    SPLIT: int
    HAS_DK: int
    HAS_DV: int


class AttentionBackwardMma(ProblemEngine["_Problem"], Floored):
    """See the module's docstring."""

    name = "attention_backward_mma"
    index = 31
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE,)
    anchors: Anchors = (SdpaBackward,)
    limits = BACKWARD_LIMITS

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses what ``AttentionBackward.match`` does."""
        backward = AttentionBackward.match(self.name, graph)
        return backward if isinstance(backward, Refusal) else _Problem.of(backward, arch)

    def floor(self, contraction: Contraction) -> Floor:
        """Scores and their gradients are computed twice, each time for all attended pairs."""
        if not isinstance(contraction, SdpaBackward):
            return Floor(Multipliers.MMA_SYNC)
        size, size_v = contraction.q.dims[3], contraction.v.dims[3]
        repeated = (4 * size + 3 * size_v) / max(1, 3 * size + 2 * size_v)
        return Floor(Multipliers.MMA_SYNC, waste=repeated * seen_pairs(contraction))

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M."""
        return problem.knobs(arch)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Three launches, and one more for each of: different numbers of heads of k and v, dbias, fp8. A launch without
        results is left out."""
        tiles = problem.tiles(chosen[KnobType.TILE_M])
        steps = (*problem.backward.prepare(), *problem.keys(tiles), problem.queries(tiles), *problem.bias(tiles))
        made = [(kernel, launch) for kernel, launch in steps if launch.grid[0]]
        return PlanParts(made, problem.backward.workspace_bytes)


@dataclass(frozen=True)
class _Tile:
    """Macros of a kernel's tiles: queries and keys of a block, the parts of 16 rows of a warp, and the shares of a
    row's columns."""

    queries: int
    keys: int
    parts: int
    split: int = 1


@dataclass(frozen=True)
class _Tiles:
    """The tiles of the kernels whose blocks own keys (dk, dv), queries (dq), or a tile of both (dbias)."""

    of_keys: _Tile
    of_queries: _Tile
    of_bias: _Tile

    @staticmethod
    def of(rows: int, size: int, functors: Collection[str], is_packed: bool, spills_early: bool) -> _Tiles:
        """The tiles with ``rows`` rows of the kind that a block owns. Rows of the other kind are as many as registers
        allow for heads of up to ``size`` elements, with the functors' values and the offsets of packed sequences."""
        if size > 128:
            return _Tiles(_Tile(16, rows, 1, split=2), _Tile(rows, 16, 1), _Tile(rows, 32, 1))
        # Further registers for each score, until its gradient has been computed.
        kept = sum(name in functors for name in ("Gradient", "Factors"))
        spills = spills_early and size > 64 and bool(functors)
        of_bias = _Tile(rows, 64 if rows <= 64 and kept + is_packed < 2 and not spills else 32, 1)
        if size <= 64 and not functors and not is_packed:
            return _Tiles(_Tile(32, rows, rows // 64), _Tile(rows, 4096 // rows, rows // 64), of_bias)
        # With few threads, each copies more rows and needs registers for their addresses.
        is_tight = size > 64 if functors else size > 112 and (rows <= 64 or (is_packed and spills_early))
        return _Tiles(_Tile(16 if is_tight else 32, rows, 1), _Tile(rows, 32, 1), of_bias)


@dataclass(frozen=True)
class _Problem:
    """The operation as the kernels on mma.sync take it."""

    backward: AttentionBackward
    target: str
    spills_early: bool

    @staticmethod
    def of(backward: AttentionBackward, arch: ArchSpec) -> _Problem:
        """The problem for ``arch``: with the target that rounds weights and gradients of scores there, and tiles that
        fit its registers."""
        types = (backward.operation.q.data_type, backward.operation.d_o.data_type)
        return _Problem(backward, conversion_target(types, arch), arch.spills_early)

    @property
    def operation(self) -> SdpaBackward:
        return self.backward.operation

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        """Tiles that fit shared memory; by default the larger one where there are enough rows for it, but the smaller
        one beside functors, with which blocks of more warps took 1.1 to 1.4 times as long."""
        size = self.backward.size
        values = tuple(
            rows
            for rows in ((32, 64) if size > 128 else (64, 128))
            if self._shared_bytes(self.tiles(rows)) <= arch.shared_bytes_per_block
        )
        if not values:
            raise no_tile_fits(arch)
        longest = max(self.backward.queries, self.backward.keys)
        is_alone = size > 128 or not self._functors_of_keys
        default = values[-1] if is_alone and longest > values[0] else values[0]
        return (Knob("tile_m", KnobType.TILE_M, values, default, "keys, and queries, of a block"),)

    def tiles(self, rows: int) -> _Tiles:
        is_packed = bool(self.backward.ragged)
        return _Tiles.of(rows, self.backward.size, self._functors_of_keys, is_packed, self.spills_early)

    def keys(self, tiles: _Tiles) -> list[tuple[KernelRef, Launch]]:
        """dk and dv, in one launch where each head of q shares the same ones."""
        same = self.operation.k.dims[1] == self.operation.v.dims[1]
        return [self._keys(tiles.of_keys, outputs) for outputs in ([("dk", "dv")] if same else [("dk",), ("dv",)])]

    def _keys(self, tile: _Tile, outputs: tuple[str, ...]) -> tuple[KernelRef, Launch]:
        has_dk, has_dv = (int(port in outputs) for port in ("dk", "dv"))
        functors = self._functors_of_keys
        params = KeysParams(*self._macros(outputs[0], tile, functors), tile.split, has_dk, has_dv)
        own = self.backward.heads[outputs[0]]
        size, size_v = self.backward.size_qk, self.backward.size_v
        kernel = self._kernel("keys", outputs[0], params, functors, f"_{tile.split}{'k' * has_dk}{'v' * has_dv}")
        return kernel, self._launch(
            outputs,
            functors,
            tiles=ceil_div(own.rows, tile.keys),
            heads=own.tensor.dims[1],
            warps=tile.keys // (16 * tile.parts) * tile.split,
            shared_bytes=self._keys_bytes(tile),
            products=size + has_dv * size_v + has_dk * (size + size_v),
        )

    def queries(self, tiles: _Tiles) -> tuple[KernelRef, Launch]:
        """dq."""
        tile, functors = tiles.of_queries, self._functors_of_queries
        params = QueriesParams(*self._macros("dq", tile, functors))
        return self._kernel("queries", "dq", params, functors), self._launch(
            ("dq",),
            functors,
            tiles=ceil_div(self.backward.queries, tile.queries),
            heads=self.operation.q.dims[1],
            warps=tile.queries // (16 * tile.parts),
            shared_bytes=self._queries_bytes(tile),
            products=2 * self.backward.size_qk + self.backward.size_v,
        )

    def bias(self, tiles: _Tiles) -> list[tuple[KernelRef, Launch]]:
        """dbias, if it is wanted."""
        dbias, tile, functors = self.operation.dbias, tiles.of_bias, self._functors_of_queries
        if dbias is None:
            return []
        params = QueriesParams(*self._macros("dbias", tile, functors))
        summed = [extent // kept for extent, kept in zip(self.operation.scores_dims[:2], dbias.dims[:2], strict=True)]
        tile_counts = ceil_div(self.backward.keys, tile.keys), ceil_div(self.backward.queries, tile.queries)
        kept = (0 if extent == 1 else stride for extent, stride in zip(dbias.dims, dbias.strides, strict=True))
        arguments = (
            *self._arguments(functors),
            TensorPointer(dbias.uid),
            *i64(tuple(kept)),
            *i32(tuple(summed)),
            *(Struct(divider(max(1, count))) for count in (*tile_counts, dbias.dims[1])),
        )
        launch = Launch(
            kernel=0,
            grid=(tile_counts[0] * tile_counts[1] * dbias.dims[0] * dbias.dims[1], 1, 1),
            block=(tile.queries // (16 * tile.parts) * WARP_SIZE, 1, 1),
            arguments=(Struct(arguments),),
            shared_bytes=self._bias_bytes(tile),
            work=self._work((dbias,), products=self.backward.size_qk + self.backward.size_v),
        )
        return [(self._kernel("bias", "dbias", params, functors), launch)]

    @cached_property
    def _functors_of_keys(self) -> Mapping[str, Functor]:
        """The functors for the kernel whose scores have keys along the rows."""
        return self.backward.functors(vector_axis=2)

    @cached_property
    def _functors_of_queries(self) -> Mapping[str, Functor]:
        return self.backward.functors(vector_axis=3)

    def _kernel(
        self, role: str, port: str, params: QueriesParams, functors: Mapping[str, Functor], suffix: str = ""
    ) -> KernelRef:
        """port: the name of the gradient that the kernel stores."""
        shape = f"{params.TILE_Q}x{params.TILE_KV}x{params.PARTS}_d{params.HEAD_QK}v{params.HEAD_V}{suffix}"
        text = "\n".join(functor.text for functor in functors.values())
        types = self.backward.types_name("dq" if role == "bias" else port)
        if role == "bias":
            types = f"{types}_{params.OUT}"
        digest = f"_{hashlib.sha256(text.encode()).hexdigest()[:10]}" if text else ""
        target = target_label(self.target)
        return KernelRef(
            name=f"attention_backward_{role}_{types}_{shape}{self.backward.rows_name}_{target}{digest}",
            source=f"attention/attention_backward_{role}.cu",
            target=self.target,
            parameters=macros(params),
            generated=text,
        )

    def _launch(
        self,
        outputs: tuple[str, ...],
        functors: Mapping[str, Functor],
        *,
        tiles: int,
        heads: int,
        warps: int,
        shared_bytes: int,
        products: int,
    ) -> Launch:
        """tiles: the number of a head's tiles.  products: multiplications for each pair of a query and a key."""
        arguments = (
            *self._arguments(functors),
            *(self.backward.rows_argument(self.backward.heads[port]) for port in outputs),
            Struct(divider(max(1, tiles))),
            Struct(divider(max(1, heads))),
        )
        return Launch(
            kernel=0,
            grid=(tiles * heads * self.operation.q.dims[0], 1, 1),
            block=(warps * WARP_SIZE, 1, 1),
            arguments=(Struct(arguments),),
            shared_bytes=shared_bytes,
            work=self._work(tuple(getattr(self.operation, port) for port in outputs), products),
        )

    def _arguments(self, functors: Mapping[str, Functor]) -> tuple[Argument, ...]:
        """The kernels' ``Problem``."""
        return (
            self.backward.argument,
            *(self.backward.rows_argument(self.backward.operands[port]) for port in ("q", "k", "v", "d_o")),
            *(functor.arguments for functor in functors.values()),
        )

    def _work(self, outputs: tuple[Tensor, ...], products: int) -> Work:
        operation = self.operation
        read = (operation.q, operation.k, operation.v, operation.d_o, *self._loads)
        terms_bytes = self.backward.all_heads * self.backward.queries * TERM_BYTES
        return Work(
            flops=self.backward.flops(products),
            bytes=bytes_of((*read, *outputs)) + terms_bytes,
            unit=MathUnit.MMA_F16,
        )

    @property
    def _loads(self) -> tuple[Tensor, ...]:
        """The tensors that the functors of the scores read."""
        inner = self.operation.inner
        return () if inner is None else tuple(tensor for tensor in inner.operands if not tensor.is_scalar_value)

    def _macros(
        self, port: str, tile: _Tile, functors: Mapping[str, Functor]
    ) -> tuple[str, str, int, int, int, int, int, int, int, int, int, int, str, str]:
        """The fields of ``QueriesParams`` of a kernel that stores the gradient ``port``."""
        scores, gradient, factors = (int(name in functors) for name in ("Scores", "Gradient", "Factors"))
        sizes = self._padded_sizes(tile)
        switches = (scores, gradient, factors, int(bool(self.backward.ragged)), int(self.backward.fp8 is not None))
        return (
            self.backward.c_type,
            self.backward.c_type_of(port),
            tile.queries,
            tile.keys,
            tile.parts,
            *sizes,
            *switches,
            *self.backward.rounded_types,
        )

    def _padded_sizes(self, tile: _Tile) -> tuple[int, int]:
        """Elements of a row of q and of v in shared memory, of which each share is whole fragments."""
        granule = 16 * tile.split
        return padded(self.backward.size_qk, granule), padded(self.backward.size_v, granule)

    def _pair_bytes(self, tile: _Tile) -> int:
        """Bytes in shared memory, of a row of q and one of d_o, or of one of k and one of v."""
        return sum(map(pitch_bytes, self._padded_sizes(tile)))

    def _keys_bytes(self, tile: _Tile) -> int:
        return tile.keys * self._pair_bytes(tile) + 2 * tile.queries * (self._pair_bytes(tile) + TERM_BYTES)

    def _queries_bytes(self, tile: _Tile) -> int:
        return (tile.queries + 2 * tile.keys) * self._pair_bytes(tile)

    def _bias_bytes(self, tile: _Tile) -> int:
        return (tile.queries + tile.keys) * self._pair_bytes(tile)

    def _shared_bytes(self, tiles: _Tiles) -> int:
        """Bytes of shared memory of the kernel that takes the most."""
        own = self._keys_bytes(tiles.of_keys), self._queries_bytes(tiles.of_queries)
        return max(own if self.operation.dbias is None else (*own, self._bias_bytes(tiles.of_bias)))
