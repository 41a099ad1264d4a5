"""``attention_wgmma``: attention forward on the tensor cores of sm_90a with TMA and wgmma; the scores never lie in
memory.

The graphs of ``attention_mma``, where tensor maps describe q, k and v: heads with strides or packed sequences, and of k
and v pages of at least 8 rows; and fp8 heads with strides, with numbers that q, k, v, weights and outputs are scaled
by, and the largest magnitudes of the last two. Weights in fp8 are rounded relative to the largest one of their row,
whatever they are scaled by.
Kernel: ``attention_forward_wgmma.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import dropwhile
from math import gcd

import numpy as np

from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.engines.attention.forward import AttentionForward
from lowdnn.engines.attention.forward_kernel import ForwardKernel, ForwardTile
from lowdnn.engines.attention.heads import Heads
from lowdnn.engines.attention.limits import FORWARD_LIMITS
from lowdnn.engines.attention.mapped import (
    boxed_bytes,
    consumer_registers,
    mapped,
    math_unit,
    refuse_map,
)
from lowdnn.engines.attention.order import TileOrder
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Knob,
    Refusal,
)
from lowdnn.engines.floor import Modelled
from lowdnn.engines.gemm.wgmma_tiles import WARPGROUP_ROWS, WARPGROUP_THREADS
from lowdnn.engines.launch import BARRIER_BYTES, ceil_div, i32
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.block_mask import SIDE
from lowdnn.ops.softmax import Softmax
from lowdnn.plan import Argument, KernelRef, Launch, Struct
from lowdnn.status import Status

#: Queries of a block: 64 for each multiplying warpgroup.
_TILES = (64, 128, 192)
#: Keys of a tile; the last number fits beside everything. In fp8 they are whole steps of the products.
_TILES_OF_KEYS = (192, 176, 160, 144, 128, 112, 96, 80, 64, 48, 32)
_TILES_OF_FP8_KEYS = (192, 160, 128, 96, 64, 32)
#: Fewest queries for which large tiles are faster; without a mask half as many.
_MANY_QUERIES = 1024
#: The most keys of a tile, but for long rows of fp8.
_MANY_KEYS_AT_A_TIME = 128
#: The most keys of a tile without a mask, but for long rows of fp8.
_MANY_KEYS_WITHOUT_MASK = 144
#: Attended keys of a query from which on fp8 tiles may have more keys.
_MANY_KEYS = 3000
#: Most rows that the largest tiles cover for each row that smaller ones cover, if large heads are to use them.
_MOST_PADDING = 1.04
#: Fixed cost of a tile of keys, in keys.
_KEYS_BESIDE = 24
#: Registers of a thread for scores, weights and outputs, with three multiplying warpgroups.
_MAX_VALUES_OF_A_THIRD = 128
#: Registers of a thread for scores, weights and outputs, with fewer multiplying warpgroups.
_MAX_VALUES = 200
#: Registers of a thread for scores, weights and outputs, where 16-bit heads of v are large.
_MAX_VALUES_OF_LARGE = 176
#: Registers of a thread for scores, weights and outputs, where scores are changed by more than their scale.
_MAX_VALUES_BESIDE_ARITHMETIC = 148
#: The size from which on heads are large.
_LARGE_SIZE = 128
_WARP_QUERIES = 16
#: Stages of queries, and of keys and of values; the first that there is room for: with four of the latter, short
#: sequences arrive in time.
_RINGS = ((2, 4), (2, 2), (1, 2))
#: Registers that a thread of the loading warpgroup keeps beside two multiplying ones, and beside three.
_PRODUCER_REGISTERS = (24, 32)
#: Registers that it keeps where it transposes values.
_TRANSPOSING_REGISTERS = 56
#: Elements of the largest head with which two blocks fit into a multiprocessor's shared memory.
_SMALL_SIZE = 64
#: Fixed cost of a tile of queries, in tiles of keys.
_TILES_BESIDE = 1.0
#: Bytes after a stage's queries for their Work (head and tile); the granule at which stages begin.
_WORK_BYTES = 1024
#: The most packed sequences whose order fits shared memory.
_MAX_SEQUENCES = 512
#: Bytes of the order for each sequence.
_SEQUENCE_BYTES = 20
#: Bytes of the order besides.
_ORDER_BYTES = 8
#: Least rows of a page: fewer are not whole swizzle patterns.
_LEAST_PAGE_ROWS = 8
#: Least rows of a copy from a page of at least as many rows.
_ROWS_OF_A_COPY = 32


@dataclass(frozen=True)
class Params:
    """Macros of ``attention_forward_wgmma.cu`` beside those of ``ForwardParams``.

    TAKES_TURNS: whether warpgroups alternate, one's products with another's softmax. CONSUMER_REGISTERS: 0 if
    warpgroups keep the registers of the launch.
    K_BOX, V_BOX: rows of a copy.
    """

    TAKES_TURNS: int
    QUERY_STAGES: int
    STAGES: int
    BLOCKS_PER_SM: int
    PRODUCER_REGISTERS: int
    CONSUMER_REGISTERS: int
    K_BOX: int
    V_BOX: int


class AttentionWgmma(ProblemEngine[AttentionForward], Modelled):
    """See the module's docstring."""

    name = "attention_wgmma"
    index = 32
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE,)
    anchors: Anchors = (Softmax,)
    limits = FORWARD_LIMITS
    target = WGMMA_TARGET

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> AttentionForward | Refusal:
        """Refuses other architectures, what ``AttentionForward.match`` does, operands without a tensor map."""
        problem = AttentionForward.match(self.name, graph, takes_fp8=True)
        if isinstance(problem, Refusal):
            return problem
        if problem.is_fp8 and any(heads.load or heads.ragged for heads in (problem.q, problem.k, problem.v)):
            reason = "expected heads with strides, got pages of a cache or a ragged tensor of fp8"
            return Refusal(self.name, f"{problem.q.tensor.label}: {reason}", Status.NOT_SUPPORTED_LAYOUT)
        batches = problem.attention.first.c.dims[0]
        if problem.stores_packed and batches > _MAX_SEQUENCES:
            reason = f"q.dims: expected at most {_MAX_SEQUENCES} ragged sequences, got {batches}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        for heads in (problem.k, problem.v):
            if heads.load is not None and heads.load.page_rows < _LEAST_PAGE_ROWS:
                reason = f"{heads.tensor.label}: expected pages of at least {_LEAST_PAGE_ROWS} rows"
                return Refusal(self.name, f"{reason}, got {heads.load.page_rows}", Status.NOT_SUPPORTED_LAYOUT)
        for heads in (problem.q, problem.k, problem.v):
            if refused := refuse_map(heads):
                return Refusal(self.name, refused, Status.NOT_SUPPORTED_LAYOUT)
        return problem

    def busy_launch(self, graph: OperationGraph, arch: ArchSpec) -> Launch:
        problem = self.accepted(graph, arch)
        queries, keys, _ = (knob.default for knob in self.knobs(graph, arch))
        tile = _tile(problem, queries, keys, arch)
        grid = _grid(problem, tile, arch)
        work = ForwardKernel(problem, tile).work(math_unit(problem.data_type))
        return Launch(0, grid, (1, 1, 1), (), work=work, overlaps_previous=True)

    def knobs_of(self, problem: AttentionForward, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M, TILE_N, WARP_SPEC_CFG."""
        return _knobs(problem, arch)

    def parts(self, problem: AttentionForward, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch; one before it where largest magnitudes are stored."""
        tile = _tile(problem, chosen[KnobType.TILE_M], chosen[KnobType.TILE_N], arch)
        step = _launch(problem, tile, arch, bool(chosen[KnobType.WARP_SPEC_CFG]))
        return PlanParts([_clear(problem.largest_arguments), step] if problem.largest_arguments else [step])


def _knobs(problem: AttentionForward, arch: ArchSpec) -> tuple[Knob, ...]:
    tiles = _TILES if _is_light(problem) else _TILES[:2]
    is_full = problem.keys_seen == problem.keys
    many = _MANY_QUERIES // 2 if is_full else _MANY_QUERIES
    queries = _most_queries(problem, tiles) if problem.queries >= many else _TILES[problem.queries > WARPGROUP_ROWS]
    of_keys = _keys_that_fit(problem, tiles[1], arch)
    most = _MANY_KEYS_WITHOUT_MASK if is_full else _MANY_KEYS_AT_A_TIME
    if problem.is_fp8 and problem.keys_seen >= _MANY_KEYS:
        most = of_keys[0]
    fitting = _keys_that_fit(problem, queries, arch)
    candidates = [keys for keys in of_keys if keys <= most and keys in fitting] or of_keys[-1:]
    keys = min(candidates, key=lambda keys: ceil_div(problem.keys, keys) * (keys + _KEYS_BESIDE))
    # Where heads are not larger, a tile's softmax takes as long as its multiplications.
    takes_turns = int(max(problem.padded_qk, problem.padded_v) <= _LARGE_SIZE)
    return (
        Knob("tile_m", KnobType.TILE_M, tiles, queries, "queries of a block"),
        Knob("tile_n", KnobType.TILE_N, of_keys, keys, "keys that are taken at a time, as far as there is room"),
        Knob("turns", KnobType.WARP_SPEC_CFG, (0, 1), takes_turns, "1: warpgroups take turns at multiplying"),
    )


def _most_queries(problem: AttentionForward, tiles: tuple[int, ...]) -> int:
    """The most queries of a block, of ``tiles``.

    Larger heads have the most where all tiles are alike and few of the queries are missing, since beside so many there
    is room for few keys at a time.
    """
    if problem.stores_packed:  # larger tiles of short sequences are empty
        return _TILES[1]
    if problem.padded_v <= _SMALL_SIZE:
        return tiles[-1]
    smaller, larger = (ceil_div(problem.queries, tile) * tile for tile in _TILES[1:])
    pays = problem.keys_seen == problem.keys and larger <= _MOST_PADDING * smaller
    return tiles[-1] if pays else _TILES[1]


def _is_plain(problem: AttentionForward) -> bool:
    """Whether there is no arithmetic on scores and weights, but for a scale."""
    return not problem.has_weights and problem.scale is not None


def _is_light(problem: AttentionForward) -> bool:
    """Whether a third of the registers suffices for each multiplying warpgroup."""
    size = _LARGE_SIZE if problem.is_fp8 else _SMALL_SIZE
    return _is_plain(problem) and problem.padded_v <= size


def _tiles_of_keys(problem: AttentionForward) -> tuple[int, ...]:
    """Numbers of keys of which parts of a mask's tiles (whole ones are passed over) and copies from pages are made."""
    is_masked = problem.attention.band.blocks is not None
    pages = [heads.load.page_rows for heads in (problem.k, problem.v) if heads.load is not None]
    rows = min(max(pages, default=1), _ROWS_OF_A_COPY)
    tiles = _TILES_OF_FP8_KEYS if problem.is_fp8 else _TILES_OF_KEYS
    return tuple(keys for keys in tiles if keys % rows == 0 and (not is_masked or SIDE % keys == 0))


def _box_rows(heads: Heads, tile_rows: int) -> int:
    """Rows of a copy: from pages, as many as whole pages and tiles are made of."""
    return tile_rows if heads.load is None else gcd(heads.load.page_rows, tile_rows)


def _tile(problem: AttentionForward, queries: int, most_keys: int, arch: ArchSpec) -> ForwardTile:
    """The tile with the most keys that fit, ``most_keys`` at most."""
    fitting = _keys_that_fit(problem, queries, arch)
    keys = next((keys for keys in fitting if keys <= most_keys), fitting[-1])
    return ForwardTile(queries, keys, _WARP_QUERIES)


def _keys_that_fit(problem: AttentionForward, queries: int, arch: ArchSpec) -> tuple[int, ...]:
    """Keys that shared memory has room for, and registers for scores, weights and outputs; if none, the fewest."""
    is_large = problem.padded_v > _LARGE_SIZE and not problem.is_fp8
    most = _MAX_VALUES_OF_LARGE if is_large else _MAX_VALUES
    if not _is_plain(problem):
        most = _MAX_VALUES_BESIDE_ARITHMETIC
    if queries == _TILES[-1]:
        most = min(most, _MAX_VALUES_OF_A_THIRD)

    def fits(keys: int) -> bool:
        values = keys // 2 + keys * problem.element_bytes // 8 + problem.padded_v // 2
        return values <= most and _rings(problem, ForwardTile(queries, keys, _WARP_QUERIES), arch) is not None

    tiles = _tiles_of_keys(problem)
    return tuple(dropwhile(lambda keys: not fits(keys), tiles)) or tiles[-1:]


def _rings(problem: AttentionForward, tile: ForwardTile, arch: ArchSpec) -> tuple[int, int] | None:
    """The first of ``_RINGS`` (stages of queries, stages of keys and values) that fits shared memory."""
    room = shared_room(arch, _blocks_per_sm(problem, tile))
    return next((rings for rings in _RINGS if _shared_bytes(problem, tile, *rings) <= room), None)


def _blocks_per_sm(problem: AttentionForward, tile: ForwardTile) -> int:
    size = max(problem.q.size, problem.v.size)
    return 2 if tile.queries == WARPGROUP_ROWS and size <= _SMALL_SIZE else 1


def _shared_bytes(problem: AttentionForward, tile: ForwardTile, query_stages: int, stages: int) -> int:
    qk, v = (boxed_bytes(heads.size, problem.element_bytes) for heads in (problem.q, problem.v))
    rows = query_stages * (tile.queries * qk + _WORK_BYTES) + stages * tile.keys * (qk + v)
    cut = int(problem.lengths is not None and problem.v.ragged is None)
    barriers = 2 * (query_stages + 2 * stages)
    if problem.is_fp8:
        rows += stages * problem.padded_v * boxed_bytes(tile.keys, problem.element_bytes)
        cut, barriers = 0, barriers + 2 * stages
    order = _MAX_SEQUENCES * _SEQUENCE_BYTES + _ORDER_BYTES if problem.stores_packed else 0
    return rows + (barriers + cut * stages) * BARRIER_BYTES + order


def _launch(
    problem: AttentionForward, tile: ForwardTile, arch: ArchSpec, takes_turns: bool
) -> tuple[KernelRef, Launch]:
    warpgroups, blocks_per_sm = tile.queries // WARPGROUP_ROWS, _blocks_per_sm(problem, tile)
    query_stages, stages = _rings(problem, tile, arch) or _RINGS[-1]
    kept = _TRANSPOSING_REGISTERS if problem.is_fp8 else _PRODUCER_REGISTERS[warpgroups > 2]
    registers = consumer_registers(warpgroups, kept, blocks_per_sm)
    k_box, v_box = _box_rows(problem.k, tile.keys), _box_rows(problem.v, tile.keys)
    takes_turns = takes_turns and warpgroups > 1
    params = Params(int(takes_turns), query_stages, stages, blocks_per_sm, kept, registers, k_box, v_box)
    blocks = arch.sm_count * blocks_per_sm
    boxes = ((problem.q, tile.queries), (problem.k, k_box), (problem.v, v_box))
    operands: tuple[Argument, ...] = (
        *(mapped(heads, rows) for heads, rows in boxes),
        _order(problem, tile, blocks),
    )
    variant = f"t{params.TAKES_TURNS}"
    if problem.k.load or problem.v.load:
        variant += f"b{k_box}x{v_box}"
    forward = ForwardKernel(problem, tile)
    kernel = forward.kernel("wgmma", WGMMA_TARGET, tuple(vars(params).items()), variant)
    threads, shared_bytes = (warpgroups + 1) * WARPGROUP_THREADS, _shared_bytes(problem, tile, query_stages, stages)
    launch = forward.launch(operands, threads, shared_bytes, math_unit(problem.data_type))
    return kernel, replace(launch, grid=_grid(problem, tile, arch), overlaps_previous=True)


def _grid(problem: AttentionForward, tile: ForwardTile, arch: ArchSpec) -> tuple[int, int, int]:
    """Blocks that are resident at once, no more than there is work for."""
    return min(ForwardKernel(problem, tile).blocks, arch.sm_count * _blocks_per_sm(problem, tile)), 1, 1


def _clear(numbers: tuple[Argument, ...]) -> tuple[KernelRef, Launch]:
    """The launch that sets the largest magnitudes to 0."""
    source, count = "attention/attention_forward_amax.cu", len(numbers)
    kernel = KernelRef(f"attention_forward_amax_{count}_sm90a", source, WGMMA_TARGET, (("NUMBERS", count),))
    return kernel, Launch(kernel=0, grid=(1, 1, 1), block=(32, 1, 1), arguments=(Struct(numbers),))


def _order(problem: AttentionForward, tile: ForwardTile, blocks: int) -> Struct:
    """The kernel's ``Order``; of packed sequences ``PackedOrder::Args``, in pairs where a head's tiles differ."""
    batch, heads, queries, keys = problem.attention.first.c.dims
    left, right = problem.bounds
    first = np.arange(ceil_div(queries, tile.queries))[::-1] * tile.queries
    end = np.clip(np.minimum(first + tile.queries, queries) + right, 0, keys)
    seen = np.maximum(end - np.clip(first - left, 0, keys), 0)
    if problem.stores_packed:
        return Struct(i32((batch, heads, 1 + bool(np.ptp(seen)))))
    elements = problem.q.size // problem.k.sharing + problem.v.size // problem.v.sharing
    bytes_of_head = problem.element_bytes * keys * elements
    return TileOrder.of(seen / tile.keys + _TILES_BESIDE, batch * heads, blocks, bytes_of_head).argument
