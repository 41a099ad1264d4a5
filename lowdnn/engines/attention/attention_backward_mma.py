"""``attention_backward_mma``: gradients of attention on tensor cores with ``mma.sync``, for sm_80 and newer; nothing of
the size of the scores lies in memory, and no sum depends on the order of blocks.

fp16 and bf16, sums and exponentials in fp32. Heads of any size up to 256 that is a multiple of 8, different ones for
q k and v; heads of k and v that heads of q share. Keys outside of the band are passed over.
Kernels: ``attention_backward_terms.cu`` (the workspace, 8 bytes for each query), ``attention_backward_keys.cu`` (dk and
dv), ``attention_backward_queries.cu`` (dq).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.attention.backward import TERM_BYTES, AttentionBackward
from lowdnn.engines.attention.heads import padded, pitch_bytes
from lowdnn.engines.base import BEHAVIOR_NOTES, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.launch import aligned_bytes, bytes_of, ceil_div, divider, macros
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.plan import KernelRef, Launch, MathUnit, Plan, Struct, Work

#: In shared memory, of a row of 16-bit elements beside them.


@dataclass(frozen=True)
class QueriesParams:
    """Macros of ``attention_backward_queries.cu``."""

    TYPE: str
    OUT: str
    TILE_Q: int
    TILE_KV: int
    PARTS: int
    HEAD_QK: int
    HEAD_V: int


@dataclass(frozen=True)
class KeysParams(QueriesParams):
    """Macros of ``attention_backward_keys.cu``."""

    SPLIT: int
    HAS_DK: int
    HAS_DV: int


class AttentionBackwardMma:
    """See the module's docstring."""

    name = "attention_backward_mma"
    index = 31
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE,)
    behavior_notes = BEHAVIOR_NOTES

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses what ``AttentionBackward.match`` does."""
        problem = graph.derive(self._problem)
        return problem if isinstance(problem, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M."""
        return accepted(graph.derive(self._problem)).knobs(arch)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """Three launches, four where heads of q share others of k than of v; none that has nothing to write."""
        problem = accepted(graph.derive(self._problem))
        chosen = resolve_choices(self.name, problem.knobs(arch), choices)
        tiles = _Tiles.of(chosen[KnobType.TILE_M], problem.backward.size)
        steps = (problem.terms(), *problem.keys(tiles), problem.queries(tiles))
        made = [(kernel, launch) for kernel, launch in steps if launch.grid[0]]
        kernels = tuple(kernel for kernel, _ in made)
        launches = tuple(replace(launch, kernel=place) for place, (_, launch) in enumerate(made))
        return plan_of(self, graph, arch, chosen, kernels, launches, problem.workspace_bytes)

    def precompiled(self) -> tuple[KernelRef, ...]:
        return ()

    def _problem(self, graph: OperationGraph) -> _Problem | Refusal:
        problem = AttentionBackward.match(self.name, graph)
        return problem if isinstance(problem, Refusal) else _Problem(problem)


@dataclass(frozen=True)
class _Tile:
    """Macros of the tiles of a kernel: what a block has of queries and keys at a time, and of each a warp."""

    queries: int
    keys: int
    parts: int
    split: int = 1


@dataclass(frozen=True)
class _Tiles:
    """Of the kernels that own keys and queries."""

    of_keys: _Tile
    of_queries: _Tile

    @staticmethod
    def of(rows: int, size: int) -> _Tiles:
        """``rows`` of a block's own; for heads of up to ``size`` as many others as leave the accumulators room."""
        if size <= 64:
            return _Tiles(_Tile(32, rows, rows // 64), _Tile(rows, 4096 // rows, rows // 64))
        if size <= 128:
            return _Tiles(_Tile(32, rows, 1), _Tile(rows, 32, 1))
        return _Tiles(_Tile(16, rows, 1, split=2), _Tile(rows, 16, 1))


@dataclass(frozen=True)
class _Problem:
    """The operation as the kernels on mma.sync take it."""

    backward: AttentionBackward

    @property
    def operation(self) -> SdpaBackward:
        return self.backward.operation

    @property
    def workspace_bytes(self) -> int:
        return aligned_bytes(self.backward.all_heads * self.backward.queries * TERM_BYTES)

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        """Tiles that fit shared memory; by default the larger one where there are enough rows for it."""
        size = self.backward.size
        values = tuple(
            rows
            for rows in ((32, 64) if size > 128 else (64, 128))
            if self._shared_bytes(_Tiles.of(rows, size)) <= arch.shared_bytes_per_block
        )
        longest = max(self.backward.queries, self.backward.keys)
        default = values[-1] if longest > values[0] else values[0]
        return (Knob("tile_m", KnobType.TILE_M, values, default, "keys, and queries, of a block"),)

    def terms(self) -> tuple[KernelRef, Launch]:
        return self.backward.terms(self.backward.queries)

    def keys(self, tiles: _Tiles) -> list[tuple[KernelRef, Launch]]:
        """dk and dv, in one launch where each head of q shares the same ones."""
        same = self.operation.k.dims[1] == self.operation.v.dims[1]
        return [self._keys(tiles.of_keys, outputs) for outputs in ([("dk", "dv")] if same else [("dk",), ("dv",)])]

    def _keys(self, tile: _Tile, outputs: tuple[str, ...]) -> tuple[KernelRef, Launch]:
        has_dk, has_dv = (int(port in outputs) for port in ("dk", "dv"))
        params = KeysParams(*self._macros(tile), tile.split, has_dk, has_dv)
        own = self.backward.heads[outputs[0]]
        size, size_v = self.backward.size_qk, self.backward.size_v
        kernel = self._kernel("keys", params, f"_{tile.split}{'k' * has_dk}{'v' * has_dv}")
        return kernel, self._launch(
            outputs,
            tiles=ceil_div(own.rows, tile.keys),
            heads=own.tensor.dims[1],
            warps=tile.keys // (16 * tile.parts) * tile.split,
            shared_bytes=self._keys_bytes(tile),
            products=size + has_dv * size_v + has_dk * (size + size_v),
        )

    def queries(self, tiles: _Tiles) -> tuple[KernelRef, Launch]:
        """dq."""
        tile = tiles.of_queries
        return self._kernel("queries", QueriesParams(*self._macros(tile))), self._launch(
            ("dq",),
            tiles=ceil_div(self.backward.queries, tile.queries),
            heads=self.operation.q.dims[1],
            warps=tile.queries // (16 * tile.parts),
            shared_bytes=self._queries_bytes(tile),
            products=2 * self.backward.size_qk + self.backward.size_v,
        )

    def _kernel(self, role: str, params: QueriesParams, suffix: str = "") -> KernelRef:
        shape = f"{params.TILE_Q}x{params.TILE_KV}x{params.PARTS}_d{params.HEAD_QK}v{params.HEAD_V}{suffix}"
        return KernelRef(
            name=f"attention_backward_{role}_{self.backward.types_name}_{shape}_sm80",
            source=f"attention/attention_backward_{role}.cu",
            target="sm_80",
            parameters=macros(params),
        )

    def _launch(
        self, outputs: tuple[str, ...], *, tiles: int, heads: int, warps: int, shared_bytes: int, products: int
    ) -> Launch:
        """tiles: of a head.  products: multiplications for each pair of a query and a key."""
        operation = self.operation
        arguments = Struct(
            (
                self.backward.arguments(self.backward.queries),
                *(self.backward.heads[port].argument for port in ("q", "k", "v", "d_o", *outputs)),
                Struct(divider(max(1, tiles))),
                Struct(divider(max(1, heads))),
            )
        )
        moved = bytes_of(getattr(operation, port) for port in ("q", "k", "v", "d_o", *outputs))
        return Launch(
            kernel=0,
            grid=(tiles * heads * operation.q.dims[0], 1, 1),
            block=(warps * 32, 1, 1),
            arguments=(arguments,),
            shared_bytes=shared_bytes,
            work=Work(
                flops=self.backward.flops(products),
                bytes=moved + self.backward.all_heads * self.backward.queries * TERM_BYTES,
                unit=MathUnit.MMA_F16,
            ),
        )

    def _macros(self, tile: _Tile) -> tuple[str, str, int, int, int, int, int]:
        """The fields of ``QueriesParams``."""
        return (*self.backward.c_types, tile.queries, tile.keys, tile.parts, *self._padded_sizes(tile))

    def _padded_sizes(self, tile: _Tile) -> tuple[int, int]:
        """Elements of a row of q and of v in shared memory, of which each share is whole fragments."""
        granule = 16 * tile.split
        return padded(self.backward.size_qk, granule), padded(self.backward.size_v, granule)

    def _pair_bytes(self, tile: _Tile) -> int:
        """In shared memory, of a row of q and one of d_o, or of one of k and one of v."""
        return sum(map(pitch_bytes, self._padded_sizes(tile)))

    def _keys_bytes(self, tile: _Tile) -> int:
        return tile.keys * self._pair_bytes(tile) + 2 * tile.queries * (self._pair_bytes(tile) + TERM_BYTES)

    def _queries_bytes(self, tile: _Tile) -> int:
        return (tile.queries + 2 * tile.keys) * self._pair_bytes(tile)

    def _shared_bytes(self, tiles: _Tiles) -> int:
        """Of the kernel that takes more."""
        return max(self._keys_bytes(tiles.of_keys), self._queries_bytes(tiles.of_queries))
