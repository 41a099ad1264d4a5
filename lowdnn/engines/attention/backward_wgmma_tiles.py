"""Tiles of ``attention_backward_wgmma``: its kernels' kinds, the tiles of a problem, and what lies in the workspace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.attention.backward import TERM_BYTES, AttentionBackward, ClearedWords
from lowdnn.engines.attention.heads import kernel_bounds, padded
from lowdnn.engines.attention.mapped import boxed_bytes
from lowdnn.engines.launch import BARRIER_BYTES, aligned_bytes, ceil_div
from lowdnn.plan import KernelRef, Launch

#: Warpgroups of a block that multiply.
WARPGROUPS = 2
#: Warps of a warpgroup.
_WARPS = 4
#: Tiles of d_o in shared memory, if there is room for two.
_OUTPUT_STAGES = 2
#: Warps of a block that add dq to the sums in memory.
_ADDING_WARPS = 2
#: Stages of the ring of sums.
_SUM_STAGES = 2
#: Columns of dq that a warpgroup accumulates in one pass.
_PART_COLUMNS = 64
#: Bytes of a turn or ticket.
_WORD_BYTES = 4
#: Bytes of a sum.
SUM_BYTES = 4
#: A stage of queries begins at a multiple of this.
_STAGE_GRANULE_BYTES = 1024


@dataclass(frozen=True)
class BackwardKind:
    """A kernel and the tiles of its blocks.

    size: elements of the largest heads that it takes.  keys, queries: rows of a tile.
    column_parts: parts of the columns of dq.
    key_stages, stages: tiles of keys, and of queries, in shared memory.
    sum_pieces: pieces of a tile's dq, two of which fit shared memory.  weight_bytes: bytes of weights there.
    producer_registers: registers of a thread that loads or adds, which grow with the pieces.
    fewest_heads, banded_heads: heads whose blocks start together, without a band and with one.
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
    BackwardKind(
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
    BackwardKind(
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
    BackwardKind(
        "wgmma_large",
        256,
        64,
        64,
        column_parts=4,
        key_stages=1,
        stages=2,
        sum_pieces=4,
        weight_bytes=64 * 64 * SUM_BYTES,
        producer_registers=40,
        fewest_heads=4,
        banded_heads=8,
    ),
)


def kind_for(size: int) -> BackwardKind:
    """The kind for heads whose larger one of q and v has ``size`` elements."""
    return next(kind for kind in _KINDS if size <= kind.size)


@dataclass(frozen=True)
class BackwardProblem:
    """The operation as the kernels on wgmma take it.

    splits: blocks that share the queries of the same keys.  whole_tiles: tiles of keys, the first ones, that are not
    shared.
    """

    backward: AttentionBackward
    splits: int = 1
    whole_tiles: int = 0

    @cached_property
    def kind(self) -> BackwardKind:
        return kind_for(self.backward.size)

    @cached_property
    def head_qk(self) -> int:
        """Elements of a head of q and k in shared memory: some columns for each part of dq."""
        return padded(max(self.backward.size_qk, (self.kind.column_parts - 1) * _PART_COLUMNS + 1))

    @property
    def head_v(self) -> int:
        return padded(self.backward.size_v)

    @property
    def query_tiles(self) -> int:
        """Tiles of queries of a head."""
        return ceil_div(self.backward.queries, self.kind.queries)

    @property
    def key_tiles(self) -> int:
        return ceil_div(self.backward.keys, self.kind.keys)

    @property
    def all_query_tiles(self) -> int:
        """Tiles of queries of all heads."""
        return self.backward.all_heads * self.query_tiles

    @property
    def all_key_tiles(self) -> int:
        """Number of tiles of keys, over all heads of k and batches."""
        return self.key_heads * self.key_tiles

    @property
    def key_heads(self) -> int:
        """Heads of k in all batches."""
        batch, heads = self.backward.operation.k.dims[:2]
        return batch * heads

    @property
    def is_split(self) -> bool:
        return self.splits > 1

    @property
    def split_tiles(self) -> int:
        """Number of tiles of keys that several blocks share."""
        return self.all_key_tiles - self.whole_tiles if self.is_split else 0

    @property
    def shares(self) -> int:
        """Units of work that blocks take one after another: tiles of keys, or splits of them."""
        return self.all_key_tiles + self.split_tiles * (self.splits - 1)

    @property
    def has_band(self) -> bool:
        return self.backward.operation.left is not None or self.backward.operation.right is not None

    @property
    def mean_steps(self) -> float:
        """Mean number of steps of a tile of keys: tiles of queries, over the heads of q that share it, that attend to
        it."""
        return self.query_tiles * self._sharing * self.backward.seen_share

    @property
    def most_steps(self) -> int:
        """Largest number of steps of a tile of keys."""
        left, right = kernel_bounds(self.backward.operation.left, self.backward.operation.right)
        widest = min(self.query_tiles, ceil_div(self.kind.keys + left + right, self.kind.queries) + 1)
        return widest * self._sharing

    def split(self, arch: ArchSpec, splits: int, stream: int) -> BackwardProblem:
        """This problem with ``splits`` splits; stream: the value of STREAM_K."""
        whole_tiles = self.all_key_tiles - self.all_key_tiles % arch.sm_count if stream else 0
        return replace(self, splits=splits, whole_tiles=whole_tiles)

    def prepare(self) -> list[tuple[KernelRef, Launch]]:
        """The launches before the gradients; they clear turns, and the tickets behind them, too."""
        return self.backward.prepare(ClearedWords(self.turns_offset, self.all_query_tiles + 1))

    @property
    def workspace_bytes(self) -> int:
        return self.sums_offset + self.sums_bytes

    @property
    def tile_sum_bytes(self) -> int:
        """Bytes of the sums of a tile of queries, with columns rounded up to whole parts."""
        return self.kind.queries * self.kind.column_parts * min(self.head_qk, _PART_COLUMNS) * SUM_BYTES

    @property
    def sums_bytes(self) -> int:
        """Bytes of the sums of all gradients."""
        return self.all_query_tiles * self.tile_sum_bytes + self.key_sums_bytes

    @property
    def key_sums_bytes(self) -> int:
        return self._split_rows * (self.head_qk + self.head_v) * SUM_BYTES

    @property
    def key_sums_offsets(self) -> tuple[int, int]:
        """Offsets of the sums of dk and of dv in the workspace."""
        first = self.sums_offset + self.all_query_tiles * self.tile_sum_bytes
        return first, first + self._split_rows * self.head_qk * SUM_BYTES

    @property
    def turns_offset(self) -> int:
        return self.backward.workspace_bytes

    @property
    def tickets_offset(self) -> int:
        return self.turns_offset + self.all_query_tiles * _WORD_BYTES

    @property
    def sums_offset(self) -> int:
        return self.turns_offset + aligned_bytes((self.all_query_tiles + 1) * _WORD_BYTES)

    def output_stages(self, arch: ArchSpec) -> int:
        """Tiles of d_o in shared memory: ``_OUTPUT_STAGES`` if they fit, otherwise 1."""
        fits = self.shared_bytes_with(_OUTPUT_STAGES) <= arch.shared_bytes_per_block
        return _OUTPUT_STAGES if fits else 1

    def shared_bytes_with(self, output_stages: int) -> int:
        kind, row_qk, row_v = self.kind, boxed_bytes(self.head_qk), boxed_bytes(self.head_v)
        loaded = kind.queries * (row_qk + TERM_BYTES)
        stage = padded(loaded, _STAGE_GRANULE_BYTES)
        barriers = 2 * (kind.key_stages + kind.stages + output_stages) + _ADDING_WARPS * kind.sum_pieces + _SUM_STAGES
        words = kind.key_stages + (0 if self.backward.fp8 is None else WARPGROUPS * _WARPS)
        has_spare = stage > loaded  # whether the stage's padding has room for barriers and words
        return (
            kind.key_stages * kind.keys * (row_qk + row_v)
            + kind.stages * stage
            + output_stages * kind.queries * row_v
            + kind.keys * boxed_bytes(kind.queries)
            + _SUM_STAGES * self.tile_sum_bytes // kind.sum_pieces
            + kind.weight_bytes
            + (0 if has_spare else barriers * BARRIER_BYTES + words * _WORD_BYTES)
        )

    @property
    def _split_rows(self) -> int:
        """Rows of dk, and of dv, of which there are sums."""
        return self.splits * self.split_tiles * self.kind.keys

    @property
    def _sharing(self) -> int:
        """Heads of q for each of k."""
        return max(1, self.backward.all_heads // max(1, self.key_heads))
