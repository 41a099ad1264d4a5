"""``attention_backward_mma``: gradients of attention on tensor cores with ``mma.sync``, for sm_80 and newer; nothing of
the size of the scores lies in memory, and no sum depends on the order of blocks.

fp16 and bf16, sums and exponentials in fp32. Heads of any size up to 256 that is a multiple of 8, different ones for
q k and v; heads of k and v that heads of q share. Keys outside of the band are passed over.
Kernels: ``attention_backward_terms.cu`` (the workspace, 8 bytes for each query), ``attention_backward_keys.cu`` (dk and
dv), ``attention_backward_queries.cu`` (dq).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
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
from lowdnn.engines.launch import (
    MAX_EXTENT,
    MAX_GRID_X,
    aligned_bytes,
    bytes_of,
    ceil_div,
    ceil_power,
    divider,
    i32,
    i64,
    macros,
)
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import (
    Argument,
    KernelRef,
    Launch,
    MathUnit,
    Plan,
    Scalar,
    ScalarType,
    Struct,
    TensorPointer,
    TensorValue,
    Work,
    WorkspacePointer,
)
from lowdnn.status import Status

_OUTPUT_TYPES = (*TYPES, DataType.FLOAT)
#: Of a query's terms, and of a row of 16-bit elements in shared memory beside the elements.
_TERM_BYTES, _PITCH_BYTES = 8, 16
#: Elements that a lane of the terms' kernel reads at a time, and its warps.
_PIECE, _TERMS_WARPS = 8, 4
#: Queries or keys of a block.
_FEWEST_ROWS = 32
_NULL = Scalar(ScalarType.I64, 0)


@dataclass(frozen=True)
class TermsParams:
    """Macros of ``attention_backward_terms.cu``."""

    TYPE: str
    LANES: int
    WARPS: int


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
        """Refuses data types without an mma instruction, sizes of heads, strides and alignments that 16-byte copies do
        not reach, more than it can count."""
        problem = graph.derive(self._problem)
        return problem if isinstance(problem, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M."""
        return accepted(graph.derive(self._problem)).knobs(arch)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """Three launches, four where heads of q share others of k than of v; none that has nothing to write."""
        problem = accepted(graph.derive(self._problem))
        chosen = resolve_choices(self.name, problem.knobs(arch), choices)
        tiles = _Tiles.of(chosen[KnobType.TILE_M], problem.size)
        steps = (problem.terms(), *problem.keys(tiles), problem.queries(tiles))
        made = [(kernel, launch) for kernel, launch in steps if launch.grid[0]]
        kernels = tuple(kernel for kernel, _ in made)
        launches = tuple(replace(launch, kernel=place) for place, (_, launch) in enumerate(made))
        return plan_of(self, graph, arch, chosen, kernels, launches, aligned_bytes(problem.rows * _TERM_BYTES))

    def precompiled(self) -> tuple[KernelRef, ...]:
        return ()

    def _problem(self, graph: OperationGraph) -> _Problem | Refusal:
        if len(graph.operations) != 1 or not isinstance(operation := graph.operations[0], SdpaBackward):
            got = [type(op).__name__ for op in graph.operations]
            return Refusal(self.name, f"operations: expected one SdpaBackward, got {got}")
        if refused := _refuse_types(operation):
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_DATA_TYPE)
        if refused := _refuse_shape(operation):
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE)
        problem = _Problem(operation)
        for heads in problem.heads.values():
            if refused := refuse_heads(heads):
                return Refusal(self.name, refused, Status.NOT_SUPPORTED_LAYOUT)
        return problem


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
    """The operation as the kernels read it."""

    operation: SdpaBackward

    @cached_property
    def heads(self) -> dict[str, Heads]:
        """All tensors of heads, by port."""
        ports = {port: getattr(self.operation, port) for port in ("q", "k", "v", "o", "d_o", "dq", "dk", "dv")}
        return {port: Heads.of(tensor, self.operation.q.dims[1], row_axis=2) for port, tensor in ports.items()}

    @property
    def size(self) -> int:
        return max(self.operation.q.dims[3], self.operation.v.dims[3])

    @property
    def rows(self) -> int:
        """Queries of all heads."""
        batch, heads, queries, _ = self.operation.q.dims
        return batch * heads * queries

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        """Tiles that fit shared memory; by default the larger one where there are enough rows for it."""
        values = tuple(
            rows
            for rows in ((32, 64) if self.size > 128 else (64, 128))
            if self._shared_bytes(_Tiles.of(rows, self.size)) <= arch.shared_bytes_per_block
        )
        longest = max(self.operation.q.dims[2], self.operation.k.dims[2])
        default = values[-1] if longest > values[0] else values[0]
        return (Knob("tile_m", KnobType.TILE_M, values, default, "keys, and queries, of a block"),)

    def terms(self) -> tuple[KernelRef, Launch]:
        operation, facts = self.operation, dtypes.info(self.operation.q.data_type)
        lanes = min(32, ceil_power(ceil_div(operation.v.dims[3], _PIECE)))
        kernel = KernelRef(
            name=f"attention_backward_terms_{facts.short_name}_{lanes}_sm80",
            source="attention/attention_backward_terms.cu",
            target="sm_80",
            parameters=macros(TermsParams(facts.c_type, lanes, _TERMS_WARPS)),
        )
        _, heads, queries, _ = operation.q.dims
        arguments = Struct(
            (
                self.heads["o"].argument,
                self.heads["d_o"].argument,
                Heads.of(operation.stats, heads, row_axis=2).argument,
                _lengths(operation.seq_len_q),
                WorkspacePointer(),
                *i32((self.rows, operation.v.dims[3])),
                Struct(divider(max(1, queries))),
                Struct(divider(max(1, heads))),
            )
        )
        moved = bytes_of((operation.o, operation.d_o, operation.stats)) + self.rows * _TERM_BYTES
        work = Work(flops=2 * operation.o.element_count, bytes=moved, unit=MathUnit.FMA_F32)
        blocks = ceil_div(self.rows, _TERMS_WARPS * 32 // lanes)
        return kernel, Launch(0, (blocks, 1, 1), (_TERMS_WARPS * 32, 1, 1), (arguments,), work=work)

    def keys(self, tiles: _Tiles) -> list[tuple[KernelRef, Launch]]:
        """dk and dv, in one launch where each head of q shares the same ones."""
        same = self.operation.k.dims[1] == self.operation.v.dims[1]
        return [self._keys(tiles.of_keys, outputs) for outputs in ([("dk", "dv")] if same else [("dk",), ("dv",)])]

    def _keys(self, tile: _Tile, outputs: tuple[str, ...]) -> tuple[KernelRef, Launch]:
        has_dk, has_dv = (int(port in outputs) for port in ("dk", "dv"))
        params = KeysParams(*self._macros(tile), tile.split, has_dk, has_dv)
        own = self.heads[outputs[0]]
        size, size_v = self.operation.q.dims[3], self.operation.v.dims[3]
        kernel = _kernel("keys", params, self.operation, f"_{tile.split}{'k' * has_dk}{'v' * has_dv}")
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
        tile, heads = tiles.of_queries, self.operation.q.dims[1]
        kernel = _kernel("queries", QueriesParams(*self._macros(tile)), self.operation)
        size, size_v = self.operation.q.dims[3], self.operation.v.dims[3]
        return kernel, self._launch(
            ("dq",),
            tiles=ceil_div(self.operation.q.dims[2], tile.queries),
            heads=heads,
            warps=tile.queries // (16 * tile.parts),
            shared_bytes=self._queries_bytes(tile),
            products=2 * size + size_v,
        )

    def _launch(
        self, outputs: tuple[str, ...], *, tiles: int, heads: int, warps: int, shared_bytes: int, products: int
    ) -> Launch:
        """tiles: of a head.  products: multiplications for each pair of a query and a key."""
        operation = self.operation
        arguments = Struct(
            (
                self._argument,
                *(self.heads[port].argument for port in outputs),
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
                flops=round(2 * self._share * self.rows * operation.k.dims[2] * products),
                bytes=moved + self.rows * _TERM_BYTES,
                unit=MathUnit.MMA_F16,
            ),
        )

    @property
    def _argument(self) -> Struct:
        """The kernels' ``Problem``."""
        operation = self.operation
        _, heads, queries, size = operation.q.dims
        return Struct(
            (
                *(self.heads[port].argument for port in ("q", "k", "v", "d_o")),
                WorkspacePointer(),
                *i32((heads, queries, operation.k.dims[2], size, operation.v.dims[3])),
                *i32((*kernel_bounds(operation.left, operation.right), operation.is_bottom_right)),
                _lengths(operation.seq_len_q),
                _lengths(operation.seq_len_kv),
                _factor(operation.scale),
            )
        )

    @property
    def _share(self) -> float:
        """Of the scores, those within the band, whatever the lengths are."""
        operation = self.operation
        queries, keys = operation.q.dims[2], operation.k.dims[2]
        shift = keys - queries if operation.is_bottom_right else 0
        left, right = kernel_bounds(operation.left, operation.right)
        return seen_share(queries, keys, left - shift, right + shift)

    def _macros(self, tile: _Tile) -> tuple[str, str, int, int, int, int, int]:
        """The fields of ``QueriesParams``."""
        facts, out = (dtypes.info(tensor.data_type) for tensor in (self.operation.q, self.operation.dq))
        sizes = self._padded_sizes(tile)
        return (facts.c_type, out.c_type, tile.queries, tile.keys, tile.parts, *sizes)

    def _padded_sizes(self, tile: _Tile) -> tuple[int, int]:
        """Elements of a row of q and of v in shared memory, of which each share is whole fragments."""
        granule = 16 * tile.split
        return padded(self.operation.q.dims[3], granule), padded(self.operation.v.dims[3], granule)

    def _pair_bytes(self, tile: _Tile) -> int:
        """In shared memory, of a row of q and one of d_o, or of one of k and one of v."""
        return sum(size * 2 + _PITCH_BYTES for size in self._padded_sizes(tile))

    def _keys_bytes(self, tile: _Tile) -> int:
        return tile.keys * self._pair_bytes(tile) + 2 * tile.queries * (self._pair_bytes(tile) + _TERM_BYTES)

    def _queries_bytes(self, tile: _Tile) -> int:
        return (tile.queries + 2 * tile.keys) * self._pair_bytes(tile)

    def _shared_bytes(self, tiles: _Tiles) -> int:
        """Of the kernel that takes more."""
        return max(self._keys_bytes(tiles.of_keys), self._queries_bytes(tiles.of_queries))


def _kernel(role: str, params: QueriesParams, operation: SdpaBackward, suffix: str = "") -> KernelRef:
    facts, out = (dtypes.info(tensor.data_type) for tensor in (operation.q, operation.dq))
    types = facts.short_name if out is facts else f"{facts.short_name}_{out.short_name}"
    shape = f"{params.TILE_Q}x{params.TILE_KV}x{params.PARTS}_d{params.HEAD_QK}v{params.HEAD_V}{suffix}"
    return KernelRef(
        name=f"attention_backward_{role}_{types}_{shape}_sm80",
        source=f"attention/attention_backward_{role}.cu",
        target="sm_80",
        parameters=macros(params),
    )


def _lengths(tensor: Tensor | None) -> Struct:
    """The kernels' ``Lengths``."""
    if tensor is None:
        return Struct((_NULL, *i64((0,)), *i32((0,))))
    is_i64 = tensor.data_type is DataType.INT64
    return Struct((TensorPointer(tensor.uid), *i64((tensor.strides[0],)), *i32((is_i64,))))


def _factor(scale: Tensor | None) -> Struct:
    """The kernels' ``Factor``."""
    pointer: Argument = _NULL
    given: Argument = Scalar(ScalarType.F32, 1.0)
    if scale is not None and scale.constant_value is not None:
        given = Scalar(ScalarType.F32, dtypes.rounded(np.asarray(scale.constant_value), scale.data_type).item())
    elif scale is not None and scale.is_by_value:
        given = TensorValue(scale.uid, ScalarType.F32)
    elif scale is not None:
        pointer = TensorPointer(scale.uid)
    return Struct((pointer, given))


def _refuse_types(operation: SdpaBackward) -> str:
    """Why the kernels do not compute in these types, or an empty string."""
    own = operation.q.data_type
    for port in ("q", "k", "v", "o", "d_o"):
        data_type = getattr(operation, port).data_type
        if data_type not in TYPES or data_type is not own:
            return f"{port}.data_type: expected HALF or BFLOAT16, the same for all, got {data_type.name}"
    for port, tensor in outputs_of(operation).items():
        if tensor.data_type not in _OUTPUT_TYPES or tensor.data_type is not operation.dq.data_type:
            return f"{port}.data_type: expected HALF, BFLOAT16 or FLOAT, the same for all, got {tensor.data_type.name}"
    scale = operation.scale
    if scale is not None and not scale.is_scalar_value and scale.data_type is not DataType.FLOAT:
        return f"scale.data_type: expected FLOAT in device memory, got {scale.data_type.name}"
    return ""


def _refuse_shape(operation: SdpaBackward) -> str:
    """Why the kernels cannot count it, or an empty string."""
    for port, tensor in (inputs_of(operation) | outputs_of(operation)).items():
        if tensor.is_scalar_value and port != "scale":
            return f"{port}: expected a tensor in device memory, got {tensor.label}"
    batch, heads, queries, size = operation.q.dims
    keys = operation.k.dims[2]
    if not heads:
        return "q.dims[1]: expected at least one head, got 0"
    for port, extent in {"q": size, "v": operation.v.dims[3]}.items():
        if extent % 8 or not 0 < extent <= MAX_SIZE:
            return f"{port}.dims[3]: expected a multiple of 8 up to {MAX_SIZE}, got {extent}"
    if max(queries, keys) > MAX_LENGTH:
        return f"q.dims[2], k.dims[2]: expected at most {MAX_LENGTH}, got {queries} and {keys}"
    if batch * heads * queries > MAX_EXTENT:
        return f"q.dims: expected at most {MAX_EXTENT} rows, got {batch * heads * queries}"
    blocks = batch * heads * ceil_div(max(queries, keys), _FEWEST_ROWS)
    if blocks > MAX_GRID_X:
        return f"dims: expected at most {MAX_GRID_X} tiles of {_FEWEST_ROWS} rows, got {blocks}"
    return ""
