"""The time that wgmma tiles take for a product, of all tiles of a menu at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES
from lowdnn.engines.gemm.wgmma_machine import Machine
from lowdnn.engines.gemm.wgmma_product import Conversion, WgmmaProduct
from lowdnn.engines.gemm.wgmma_tiles import MN_MAJOR_BOX, WARPGROUP_ROWS, WgmmaTile

Counts = NDArray[np.int64]
Times = NDArray[np.float64]

_ACCUMULATOR_BYTES = 4

#: What follows was fitted to 8,300 variants of 480 products and convolutions that an H200 ran: the tile that the model
#: takes is 2.5 % slower in the mean than the best one of those tried.
#: Of the rate that the tensor cores sustain: what one multiprocessor reaches while others leave it their power. Seen
#: with matrices only, not with pixels.
_BURST = 1.05
#: Of one multiprocessor: bytes of shared memory that wgmma reads and copies write, bytes from the L2 cache.
_SHARED_BYTES_PER_S = 276e9
_L2_BYTES_PER_S = 114e9
#: Of the cost of a stage's row of 128 bytes: one of 64 bytes, and what is added where it lies in two lines.
_HALF_ROW_COST = 0.82
_ASKEW_ROW_COST = 0.9
#: Of that cost, where both operands are MN-major: blocks read the lines of the same k side by side.
_LINES_OF_K_COST = 0.85
#: Of a row of an operand, where all blocks load the same few that are no whole lines for each of many tiles.
_SHARED_ROW_S = 12e-9
#: Of a multiprocessor from device memory.
_READ_BYTES_PER_S = 40e9
#: What a multiprocessor gets whose neighbour has no block, of the rates from L2 cache and memory: they share their way.
_LONE_L2, _LONE_READ = 1.5, 2
#: Added for a stage's row that lies past its operand's end, which a copy fills with zeros.
_EMPTY_ROW_S = 2.4e-9
#: Of a stage's row that comes by im2col map, and of one that is mostly padding.
_PIXEL_S, _NARROW_PIXEL_S = 1.8e-9, 16e-9
#: Of the steps from one stage to the next; what it takes beside them to add up the sums of each.
_STAGE_S, _PROMOTED_STAGE_S = 16e-9, 70e-9
#: Clock of blocks that do not wait for the tensor cores: those draw the power that lowers it.
_LIGHT_CLOCK_HZ = 1.75e9
#: Elements of A that go through a functor in registers.
_CONVERTED_PER_CLOCK = 12
#: What the tensor cores wait for a stage of A in registers whose functor needs more than pairs of its elements.
_LATE_CONVERSION_S = 0.3e-6
#: Share that is added to the multiplications of three warpgroups with 64 rows each and fewer columns.
_NARROW_TEAM_LOSS, _NARROW_TEAM_COLUMNS = 0.1, 128
#: What each function in it adds, counted: 15 instructions of 128 lanes a clock.
_FUNCTION_CLOCKS = 15 / 128
#: From a copy's start to its bytes in shared memory.
_COPY_LATENCY_S = 0.89e-6
#: From a kernel's start to its first multiplication and from its last one to the end; what blocks save that start while
#: those of the kernel before them leave them room.
_START_S = 1.7e-6
_EARLY_START_S = 0.8e-6
#: From one tile of a multiprocessor to the next.
_TURN_S = 0.53e-6
#: Of the accumulators' way out: before the first byte, and bytes of a warpgroup per second.
_STORE_LATENCY_S = 0.42e-6
_STORE_BYTES_PER_S = 55e9
#: Until the blocks of a cluster that share an operand have met, and those that share a sum have exchanged it.
_CLUSTER_START_S = 0.7e-6
_MEETING_S = 1.8e-6
#: The latter of more than two blocks that share a sum: fitted to three products only.
_CROWD_MEETING_S = 0.9e-6
#: For 64 rows of a chunk of columns: by tensor map, as pixels of a part, with an operand of that size.
_CHUNK_S, _PIXELS_CHUNK_S, _OPERAND_CHUNK_S = 0.08e-6, 0.35e-6, 1.2e-6
_CHUNK_COLUMNS = 64
#: Share of the stores that copies do not hide where no other warpgroup multiplies meanwhile.
_LONE_STORE_LOSS = 0.27
#: Of an element that leaves across the tile's rows.
_TURNED_ELEMENT_S = 0.1e-9
#: Of a warpgroup whose functor stores at coordinates that it has to divide for, one warp on each part of the processor.
_LOCATED_ELEMENTS_PER_S = 4.2e9
#: Share of the shorter one of arithmetic and copies that the longer one does not hide.
_OVERLAP_LOSS = 0.31
#: Bytes of a product per second, most of which are read, relative to those of a copy.
_COPY_RATE = 1.18
#: Of an operand that half of the L2 cache keeps; of a larger one, the share that is read anew where several clusters
#: read it.
_KEPT_BYTES = 30 << 20
_REREAD_LOSS = 0.15


@dataclass(frozen=True, eq=False)
class Rates:
    """What is known of the menu's tiles whatever the extents of a product are: of each tile an element of the arrays.

    own_rows, own_columns: of a block.  rows, columns: of a cluster.  cluster: its blocks.  usable: multiprocessors that
    have room for it.  clusters: that are resident at once.  stages: of the ring.
    sustained_s: of a stage's multiplications while all multiprocessors are busy.
    multiply_s, copy_s: of a stage its multiplications and its copies, of one block on a multiprocessor and of as many
    as fit.  lone_copy_s: of one whose neighbour has none.
    a_lines, b_lines: rows of the operands that a block loads for a stage.
    slice_s: of accumulators on their way to a slice.  leaving_s, stored_elements: of their way through the epilogue,
    the time beside their bytes, and how many a warpgroup stores; where blocks share the k of a tile, as of a slice.
    sharers: blocks and teams that store while others multiply.  store_loss: share of the stores that nothing hides.
    exposed_s: of the epilogue's functions, where nothing hides them.
    parts: blocks that share the k of a tile.  meeting_s: until those that share operands have met.
    leaves_room: whether blocks of the next kernel fit beside one.
    most_rows, most_columns: of all clusters.
    """

    tiles: tuple[WgmmaTile, ...]
    own_rows: Counts
    own_columns: Counts
    rows: Counts
    columns: Counts
    cluster: Counts
    usable: Counts
    clusters: Counts
    stages: Counts
    sustained_s: Times
    multiply_s: tuple[Times, Times]
    copy_s: tuple[Times, Times]
    lone_copy_s: Times
    a_lines: Times
    b_lines: Times
    slice_s: Times
    leaving_s: Times
    stored_elements: Times
    sharers: Counts
    store_loss: Times
    exposed_s: Times
    parts: Counts
    meeting_s: Times
    leaves_room: NDArray[np.bool_]
    most_rows: int
    most_columns: int

    @classmethod
    def of(cls, traits: WgmmaProduct, tiles: tuple[WgmmaTile, ...], machine: Machine) -> Rates:
        one = [_stage_seconds(traits, tile, 1, machine) for tile in tiles]
        full = [_stage_seconds(traits, tile, tile.blocks_per_sm, machine) for tile in tiles]
        sharers = np.array([tile.teams * tile.blocks_per_sm for tile in tiles])
        parts = np.array([tile.cluster_k for tile in tiles])
        elements = np.array([tile.m * tile.n / tile.warpgroups for tile in tiles])
        turned_s = elements * (_TURNED_ELEMENT_S * traits.is_turned)
        slice_s = elements * _ACCUMULATOR_BYTES / _STORE_BYTES_PER_S
        sharing_s = np.where(parts > 2, _CROWD_MEETING_S, (parts > 1) * _MEETING_S)
        slice_s = _STORE_LATENCY_S + slice_s + turned_s + sharing_s
        leaving_s = _STORE_LATENCY_S + np.array([_leaving_seconds(traits, tile) for tile in tiles]) + turned_s
        return cls(
            tiles,
            np.array([tile.m for tile in tiles]),
            np.array([tile.n for tile in tiles]),
            np.array([tile.m * tile.cluster_m for tile in tiles]),
            np.array([tile.n * tile.cluster_n for tile in tiles]),
            np.array([tile.cluster for tile in tiles]),
            np.array([tile.usable_sms(machine.sm_count) for tile in tiles]),
            np.array([machine.clusters(tile) for tile in tiles]),
            np.array([tile.stages for tile in tiles]),
            np.array([_arithmetic_seconds(tile, machine) + _STAGE_S for tile in tiles]),
            (np.array([multiply for multiply, _ in one]), np.array([multiply for multiply, _ in full])),
            (np.array([copy for _, copy in one]), np.array([copy for _, copy in full])),
            np.array([_copy_seconds(traits, tile, 1, _LONE_L2 * _L2_BYTES_PER_S) for tile in tiles]),
            np.array([tile.loaded_a_lines / tile.cluster_n for tile in tiles]),
            np.array([tile.loaded_b_lines / tile.cluster_m for tile in tiles]),
            slice_s,
            np.where(parts > 1, slice_s, leaving_s),
            np.where(parts > 1, 0, elements),
            sharers,
            _LONE_STORE_LOSS * (sharers == 1),
            np.array([_function_seconds(traits, tile) for tile in tiles]) * (sharers == 1),
            parts,
            np.array([_CLUSTER_START_S * (tile.cluster > tile.cluster_k) for tile in tiles]),
            np.array([tile.blocks_per_sm > 1 for tile in tiles]),
            max(tile.m * tile.cluster_m for tile in tiles),
            max(tile.n * tile.cluster_n for tile in tiles),
        )

    def items(self, m: int, n: int, batches: int) -> Counts:
        """Tiles of all products, in clusters."""
        return -(-m // self.rows) * -(-n // self.columns) * batches


def conversion_clocks(functions: int) -> float:
    """Of a multiprocessor, for an element that goes through a functor with so many functions."""
    return 1 / _CONVERTED_PER_CLOCK + functions * _FUNCTION_CLOCKS


def _converted_elements(product: WgmmaProduct, tile: WgmmaTile) -> int:
    """Of one stage."""
    if product.conversion is Conversion.REGISTERS:
        return tile.m * tile.k
    lines = tile.a_lines if product.is_a_pixels else tile.b_lines
    return lines * tile.row_bytes // tile.element_bytes if product.conversion is Conversion.IN_PLACE else 0


def total_times(product: WgmmaProduct, rates: Rates, splits: Counts, machine: Machine) -> tuple[Times, Times]:
    """From the start to the end of all launches, also of the one that sums the slices of splits; and ``busy_times``."""
    is_split = len(splits) > 1
    if is_split:
        splits = _filled(product, splits)
    busy = _busy_times(product, rates, splits, is_split, machine)
    times = _START_S + busy
    if is_split:
        slice_bytes = _slice_bytes(product, splits)
        reduce_s = machine.launch_s + (slice_bytes + product.output_bytes) / machine.copy_bytes_per_s
        times += (slice_bytes > 0) * reduce_s
    return times, busy


def busy_times(product: WgmmaProduct, rates: Rates, splits: Counts, machine: Machine) -> Times:
    """Tiles of the busiest multiprocessor, but no less than the bytes take."""
    splits = _filled(product, splits)
    return _busy_times(product, rates, splits, bool(splits.max() > 1), machine)


def _busy_times(product: WgmmaProduct, rates: Rates, splits: Counts, is_split: bool, machine: Machine) -> Times:
    """``busy_times`` without empty splits; is_split: whether any are more than one."""
    outputs = product.batches * product.m * product.n
    blocks = rates.items(product.m, product.n, product.batches) * splits * rates.cluster
    if product.classes:
        turns, stages = _busiest(product, rates, machine)
        tile_stages, mean_stages = stages / turns, stages.astype(np.float64)
    else:
        turns = -(-blocks // rates.usable)
        stages = turns * -(-product.k_blocks // (splits * rates.parts if is_split else rates.parts))
        tile_stages = stages / turns
        mean_stages = tile_stages * blocks / machine.sm_count
    # Most products have several tiles for each multiprocessor, whatever their shape: then no tile is alone there.
    fewest = product.batches * -(-product.m // rates.most_rows) * -(-product.n // rates.most_columns)
    is_large = not product.classes and fewest > machine.sm_count
    multiply: Times = rates.multiply_s[1] if is_large else np.where(turns > 1, rates.multiply_s[1], rates.multiply_s[0])
    stage = np.maximum(multiply, _copy_times(product, rates, turns, blocks, is_large, machine))
    store = rates.leaving_s + rates.stored_elements * (product.output_bytes / outputs / _STORE_BYTES_PER_S)
    if is_split:
        store = np.where(splits > 1, rates.slice_s, store)
    # Blocks on one multiprocessor, and teams in turn, multiply while the others store; copies go on all the time.
    shared = np.maximum(stages * stage, mean_stages * rates.sustained_s) + turns * _TURN_S + store
    shared += (turns - 1) * (rates.store_loss * store + rates.exposed_s)
    shares_a, shares_b = product.shares_askew
    if shares_a or shares_b:
        shared += stages * _SHARED_ROW_S * (rates.a_lines * shares_a + rates.b_lines * shares_b)
    alone = -(-turns // rates.sharers) * (tile_stages * multiply + store)
    busy = np.maximum(shared, alone)
    stored_bytes = np.where(splits > 1, _slice_bytes(product, splits), product.output_bytes) if is_split else None
    moved = _moved_times(product, rates, stored_bytes, turns, blocks, machine)
    times = np.maximum(busy, moved) + _OVERLAP_LOSS * np.minimum(busy, moved)
    times += rates.meeting_s if is_large else rates.meeting_s - _EARLY_START_S * (rates.leaves_room & (turns == 1))
    has_room = (rates.parts <= 2) | (blocks <= rates.usable)
    has_work = (product.k_blocks >= rates.parts) & has_room
    if product.is_b_resident:
        has_work = has_work & (rates.columns >= product.n)
    return np.where(has_work, times, np.inf)


def _copy_times(
    product: WgmmaProduct, rates: Rates, turns: Counts, blocks: Counts, is_large: bool, machine: Machine
) -> Times:
    """Of a stage's copies; is_large: whether there are several turns."""
    copy: Times = rates.copy_s[1] if is_large else np.where(turns > 1, rates.copy_s[1], rates.copy_s[0])
    if not (is_large or product.classes):
        copy = np.where(2 * blocks <= machine.sm_count, rates.lone_copy_s, copy)
    if product.is_b_mn_major and not (product.is_b_askew or product.is_b_resident):
        share = (1 + 1 / turns) / 2
        copy = copy + _shifted_rows(product, rates) * share * (_ASKEW_ROW_COST * STAGE_ROW_BYTES / _L2_BYTES_PER_S)
    return copy + _empty_rows(product, rates) * _EMPTY_ROW_S


def _moved_times(
    product: WgmmaProduct,
    rates: Rates,
    stored_bytes: Counts | None,
    turns: Counts,
    blocks: Counts,
    machine: Machine,
) -> Times:
    """Of the bytes of device memory; stored_bytes: None where they are the output's."""
    stored = product.output_bytes if stored_bytes is None else stored_bytes
    moved = (product.a_bytes + product.b_bytes + stored) * 1.0
    if product.a_bytes > _KEPT_BYTES:
        moved = moved + _REREAD_LOSS * product.a_bytes * (rates.columns < product.n)
    if product.b_bytes > _KEPT_BYTES:
        moved = moved + _REREAD_LOSS * product.b_bytes * (rates.rows < product.m)
    rate = machine.copy_bytes_per_s * _COPY_RATE
    times = moved / rate
    if product.classes:
        return np.asarray(times)
    # Multiprocessors that have no tile in the last turn leave the others more of the memory than they can read.
    last = blocks - (turns - 1) * machine.sm_count
    last_rate = np.where(2 * last <= machine.sm_count, _LONE_READ * _READ_BYTES_PER_S, _READ_BYTES_PER_S)
    return np.maximum(times, times * (1 - last / blocks) + moved / blocks / last_rate)


def _empty_rows(product: WgmmaProduct, rates: Rates) -> Times:
    """Of a block's stage, in the mean: those past the end of an operand, of MN-major ones in whole boxes."""
    empty = np.zeros_like(rates.slice_s)
    if product.classes or product.rows_continue:
        return empty
    is_a_loaded, is_b_loaded = (
        not (is_pixels or is_resident)
        for is_pixels, is_resident in (
            (product.is_a_pixels, product.is_a_resident),
            (product.is_b_pixels, product.is_b_resident),
        )
    )
    operands = (
        (is_a_loaded, product.is_a_mn_major, product.m, rates.own_rows),
        (is_b_loaded, product.is_b_mn_major, product.n, rates.own_columns),
    )
    for is_loaded, is_mn_major, extent, own in operands:
        if is_loaded:
            box, tiles = MN_MAJOR_BOX if is_mn_major else 1, -(-extent // own)
            last = extent - (tiles - 1) * own
            empty += (-(-own // box) - -(-last // box)) * box / tiles
    return empty


def _shifted_rows(product: WgmmaProduct, rates: Rates) -> Times:
    """Of a block's stage, where B's boxes are MN-major and its rows begin with lines: those of boxes that begin amid
    lines, as those of every other tile do whose columns are no whole boxes."""
    shifts = (rates.own_columns % MN_MAJOR_BOX > 0) & (rates.own_columns < product.n)
    found: Times = rates.b_lines * shifts
    return found


def _filled(product: WgmmaProduct, splits: Counts) -> Counts:
    """``splits`` without those that would be empty."""
    found: Counts = -(-product.k_blocks // -(-product.k_blocks // np.minimum(splits, product.k_blocks)))
    return found


def _slice_bytes(product: WgmmaProduct, splits: Counts) -> Counts:
    """Of a split product's partial sums."""
    return (splits > 1) * splits * (product.batches * product.m * product.n * _ACCUMULATOR_BYTES)


def _busiest(product: WgmmaProduct, rates: Rates, machine: Machine) -> tuple[Counts, Counts]:
    """Turns, and the stages of the multiprocessor that has most: tiles of the deepest classes come first, and turns go
    to and fro up to the last one (``ClassSchedule``)."""
    step = np.maximum(machine.sm_count // rates.cluster, 1)
    items: dict[int, Counts] = {}  # by depth
    for m, n, k_blocks in product.classes:
        items[k_blocks] = items.get(k_blocks, 0) + rates.items(m, n, product.batches)
    depths = sorted(items, reverse=True)
    ends = np.cumsum([items[depth] for depth in depths], axis=0)
    turns = -(-ends[-1] // step)
    # One of those between whom a tile gets less deep, in either direction, is the busiest.
    bounds = np.concatenate((np.zeros_like(ends[:1]), ends))
    places = np.concatenate((bounds, bounds - 1, -bounds, -bounds - 1)) % step
    stages, before = np.zeros_like(places), np.zeros_like(places)
    for depth, end in zip(depths, ends, strict=True):
        until = _items_before(end, places, turns - 1, step) + _items_before(end, step - 1 - places, turns, step)
        stages, before = stages + (until - before) * depth, until
    return turns[np.newaxis], stages.max(axis=0)[np.newaxis]


def _items_before(end: Counts, place: Counts, turn: Counts, step: Counts) -> Counts:
    """Of the items at ``place`` of every second turn of ``step`` items, such as ``turn``, those before item ``end``."""
    first = turn % 2 * step + place
    found: Counts = np.maximum(-(-(end - first) // (2 * step)), 0)
    return found


def _leaving_seconds(traits: WgmmaProduct, tile: WgmmaTile) -> float:
    """Of a tile's accumulators on their way out, beside their bytes."""
    elements, computed_s = tile.m * tile.n / tile.warpgroups, _function_seconds(traits, tile)
    if traits.is_located:
        return elements / _LOCATED_ELEMENTS_PER_S + computed_s
    chunk_s = _OPERAND_CHUNK_S if traits.has_operand else _PIXELS_CHUNK_S if traits.classes else _CHUNK_S
    chunks = tile.m // (WARPGROUP_ROWS * tile.warpgroups) * (tile.n // gcd(tile.n, _CHUNK_COLUMNS))
    return chunks * chunk_s + computed_s


def _function_seconds(traits: WgmmaProduct, tile: WgmmaTile) -> float:
    """Of the epilogue's functions, for the accumulators of a warpgroup."""
    return tile.m * tile.n / tile.warpgroups * traits.epilogue_functions * _FUNCTION_CLOCKS / _LIGHT_CLOCK_HZ


def _arithmetic_seconds(tile: WgmmaTile, machine: Machine) -> float:
    """Of one stage, at the rate that the tensor cores sustain, and what they wait for its sums to be added up."""
    is_narrow_team = tile.m == 3 * WARPGROUP_ROWS and tile.n < _NARROW_TEAM_COLUMNS
    multiply = 2 * tile.m * tile.n * tile.k / machine.flops * (1 + _NARROW_TEAM_LOSS * is_narrow_team)
    return multiply + _PROMOTED_STAGE_S * tile.is_promoted


def _stage_seconds(traits: WgmmaProduct, tile: WgmmaTile, blocks: int, machine: Machine) -> tuple[float, float]:
    """Of one stage of one tile, ``blocks`` on a multiprocessor: its multiplications; its copies."""
    burst = 1 if traits.is_a_pixels or traits.is_b_pixels else _BURST
    arithmetic = _arithmetic_seconds(tile, machine) / burst
    # Each 64 rows read all of B again; the copies write both operands.
    read = (tile.m // 64) * (64 + tile.n) * tile.row_bytes * tile.taps
    if traits.conversion is Conversion.IN_PLACE:
        read += 2 * _converted_elements(traits, tile) * tile.element_bytes
    shared = (read + tile.stage_bytes) / _SHARED_BYTES_PER_S
    convert = _converted_elements(traits, tile) * conversion_clocks(traits.functions) / _LIGHT_CLOCK_HZ
    late = _LATE_CONVERSION_S * traits.converts_late
    return max(arithmetic, shared, convert) + late + _STAGE_S, _copy_seconds(traits, tile, blocks, _L2_BYTES_PER_S)


def _copy_seconds(traits: WgmmaProduct, tile: WgmmaTile, blocks: int, l2_bytes_per_s: float) -> float:
    """Of one stage's copies."""
    rows, columns = tile.loaded_a_lines / tile.cluster_n, tile.loaded_b_lines / tile.cluster_m
    lines = rows + columns + _ASKEW_ROW_COST * (rows * traits.is_a_askew + columns * traits.is_b_askew)
    line_bytes = max(tile.row_bytes, _HALF_ROW_COST * STAGE_ROW_BYTES)
    if traits.is_a_mn_major and traits.is_b_mn_major:
        line_bytes *= _LINES_OF_K_COST
    pixels = rows * traits.is_a_pixels + columns * traits.is_b_pixels
    pixel_s = _NARROW_PIXEL_S if traits.has_narrow_pixels else _PIXEL_S
    l2 = max(lines * line_bytes / l2_bytes_per_s, pixels * pixel_s)
    # One stage is multiplied while the copies of the others are on their way.
    arrival = _COPY_LATENCY_S + tile.stage_bytes / l2_bytes_per_s
    in_turn = arrival / ((tile.stages - 1) * blocks)
    return max(l2, in_turn)
