"""The modelled time of a product with wgmma tiles, for all tiles of a menu at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES
from lowdnn.engines.gemm.wgmma_machine import Machine
from lowdnn.engines.gemm.wgmma_product import WgmmaProduct
from lowdnn.engines.gemm.wgmma_tile_costs import (
    MISALIGNED_ROW_COST,
    STAGE_S,
    arithmetic_seconds,
    copy_seconds,
    function_seconds,
    leaving_seconds,
    stage_seconds,
)
from lowdnn.engines.gemm.wgmma_tiles import ACCUMULATOR_BYTES, MN_MAJOR_BOX, WgmmaTile
from lowdnn.engines.model.clock import Times, moving_s, overlap, slowest
from lowdnn.engines.model.occupancy import clustered_sms
from lowdnn.engines.model.serpentine import busiest_of_many

Counts = NDArray[np.int64]

#: Seconds for a misaligned row of an operand whose few rows all blocks load for each of many tiles.
_SHARED_ROW_S = 12e-9
#: Seconds that are added for a stage's row past its operand's end, which a copy fills with zeros.
_EMPTY_ROW_S = 2.4e-9
#: Seconds from a kernel's start to its first multiplication, plus those from its last one to the end.
_START_S = 1.7e-6
#: Seconds of ``_START_S`` that blocks save if they start while the previous kernel leaves them room.
_EARLY_START_S = 0.8e-6
#: Seconds from one tile of a multiprocessor to the next.
_NEXT_TILE_S = 0.53e-6
#: Seconds until the first byte of the accumulators is stored.
_STORE_LATENCY_S = 0.42e-6
#: Bytes per second that a warpgroup stores.
_STORE_BYTES_PER_S = 55e9
#: Seconds that are added for an element of a transposed store.
_TRANSPOSED_ELEMENT_S = 0.1e-9
#: Share of the stores that copies do not hide if no other warpgroup multiplies meanwhile.
_LONE_STORE_LOSS = 0.27
#: Seconds of the cluster barrier at the start of blocks that share an operand.
_CLUSTER_START_S = 0.7e-6
#: Seconds until two blocks have exchanged a sum that they share.
_SUM_EXCHANGE_S = 1.8e-6
#: Seconds until more than two blocks have exchanged a sum; fitted to three products only.
_LARGE_SUM_EXCHANGE_S = 0.9e-6
#: Share of the shorter of arithmetic and memory time that the longer one does not hide.
_EXPOSED = 0.31
#: Multiple of a copy's rate at which a product moves its bytes, most of which are reads.
_COPY_REACH = 1.18
#: Share of an operand that is read again if several clusters read it and the L2 cache does not keep it.
_REREAD_LOSS = 0.15


@dataclass(frozen=True, eq=False)
class Rates:
    """The facts about the menu's tiles that do not depend on a product's extents: one array element for each tile.

    own_rows, own_columns: rows and columns of a block.  rows, columns: rows and columns of a cluster.
    cluster: blocks of a cluster.  usable: multiprocessors that have room for a cluster.
    clusters: clusters that are resident at once.  stages: stages of the ring.
    sustained_s: seconds of a stage's multiplications while all multiprocessors are busy.
    multiply_s: seconds of a stage's multiplications.
    copy_s: seconds of a stage's copies, with one block on a multiprocessor and with as many as fit.
    lone_copy_s: seconds of a stage's copies while a neighbouring multiprocessor has no work.
    a_lines, b_lines: rows of the operands that a block loads for a stage.
    slice_s: seconds to store accumulators to a slice.
    leaving_s, stored_elements: seconds of the epilogue without its bytes, and the elements that a warpgroup stores;
    where blocks share the k of a tile, as for a slice.
    sharers: blocks and teams that store while others multiply.  store_loss: share of the stores that nothing hides.
    exposed_s: seconds of the epilogue's functions that nothing hides.
    parts: blocks that share the k of a tile.  meeting_s: seconds until blocks that share operands or k have
    synchronised.
    leaves_room: whether blocks of the next kernel fit next to one of these.
    most_rows, most_columns: the most of all clusters.
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
    multiply_s: Times
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
        lone_l2 = machine.arch.timings.lone_l2
        sharers = np.array([tile.teams * tile.blocks_per_sm for tile in tiles])
        parts = np.array([tile.cluster_k for tile in tiles])
        elements = np.array([tile.m * tile.n / tile.warpgroups for tile in tiles])
        turned_s = elements * (_TRANSPOSED_ELEMENT_S * traits.is_transposed)
        slice_s = elements * ACCUMULATOR_BYTES / _STORE_BYTES_PER_S
        sharing_s = np.where(parts > 2, _LARGE_SUM_EXCHANGE_S, (parts > 1) * _SUM_EXCHANGE_S)
        slice_s = _STORE_LATENCY_S + slice_s + turned_s + sharing_s
        leaving_s = np.array([leaving_seconds(traits, tile, machine) for tile in tiles])
        leaving_s = _STORE_LATENCY_S + leaving_s + turned_s
        return cls(
            tiles,
            np.array([tile.m for tile in tiles]),
            np.array([tile.n for tile in tiles]),
            np.array([tile.m * tile.cluster_m for tile in tiles]),
            np.array([tile.n * tile.cluster_n for tile in tiles]),
            np.array([tile.cluster for tile in tiles]),
            np.array([clustered_sms(machine.sm_count, tile.cluster) for tile in tiles]),
            np.array([machine.clusters(tile) for tile in tiles]),
            np.array([tile.stages for tile in tiles]),
            np.array([arithmetic_seconds(tile, machine) + STAGE_S for tile in tiles]),
            np.array([stage_seconds(traits, tile, machine) for tile in tiles]),
            (
                np.array([copy_seconds(traits, tile, 1, machine) for tile in tiles]),
                np.array([copy_seconds(traits, tile, tile.blocks_per_sm, machine) for tile in tiles]),
            ),
            np.array([copy_seconds(traits, tile, 1, machine, lone_l2) for tile in tiles]),
            np.array([tile.loaded_a_lines / tile.cluster_n for tile in tiles]),
            np.array([tile.loaded_b_lines / tile.cluster_m for tile in tiles]),
            slice_s,
            np.where(parts > 1, slice_s, leaving_s),
            np.where(parts > 1, 0, elements),
            sharers,
            _LONE_STORE_LOSS * (sharers == 1),
            np.array([function_seconds(traits, tile, machine) for tile in tiles]) * (sharers == 1),
            parts,
            np.array([_CLUSTER_START_S * (tile.cluster > tile.cluster_k) for tile in tiles]),
            np.array([tile.blocks_per_sm > 1 for tile in tiles]),
            max(tile.m * tile.cluster_m for tile in tiles),
            max(tile.n * tile.cluster_n for tile in tiles),
        )

    def items(self, m: int, n: int, batches: int) -> Counts:
        """Tiles of all products, in clusters."""
        return -(-m // self.rows) * -(-n // self.columns) * batches


def total_times(product: WgmmaProduct, rates: Rates, splits: Counts, machine: Machine) -> tuple[Times, Times]:
    """Seconds of all launches from start to end, with the launch that sums the slices of splits, and ``busy_times``."""
    is_split = len(splits) > 1
    if is_split:
        splits = _filled(product, splits)
    busy = _busy_times(product, rates, splits, is_split, machine)
    times = _START_S + busy
    if is_split:
        slice_bytes = _slice_bytes(product, splits)
        times += (slice_bytes > 0) * moving_s(machine.arch, (slice_bytes + product.output_bytes).astype(np.float64))
    return times, busy


def busy_times(product: WgmmaProduct, rates: Rates, splits: Counts, machine: Machine) -> Times:
    """Seconds of the tiles of the busiest multiprocessor, at least those of the bytes."""
    splits = _filled(product, splits)
    return _busy_times(product, rates, splits, bool(splits.max() > 1), machine)


def _busy_times(product: WgmmaProduct, rates: Rates, splits: Counts, is_split: bool, machine: Machine) -> Times:
    """``busy_times`` without empty splits.  is_split: whether any tile has more than one part."""
    outputs = product.batches * product.m * product.n
    blocks = rates.items(product.m, product.n, product.batches) * splits * rates.cluster
    if product.classes:
        waves, stages = _waves_of_classes(product, rates, machine)
        tile_stages, mean_stages = stages / waves, stages.astype(np.float64)
    else:
        waves = -(-blocks // rates.usable)
        stages = waves * -(-product.k_blocks // (splits * rates.parts if is_split else rates.parts))
        tile_stages = stages / waves
        mean_stages = tile_stages * blocks / machine.sm_count
    # Most products have several tiles for each multiprocessor, whatever their shape: then no tile is alone there.
    fewest = product.batches * -(-product.m // rates.most_rows) * -(-product.n // rates.most_columns)
    is_large = not product.classes and fewest > machine.sm_count
    stage = slowest(rates.multiply_s, _copy_times(product, rates, waves, blocks, is_large, machine))
    store = rates.leaving_s + rates.stored_elements * (product.output_bytes / outputs / _STORE_BYTES_PER_S)
    if is_split:
        store = np.where(splits > 1, rates.slice_s, store)
    # Blocks on one multiprocessor, and alternating teams, multiply while others store; copies go on all the time.
    shared = slowest(stages * stage, mean_stages * rates.sustained_s) + waves * _NEXT_TILE_S + store
    shared += (waves - 1) * (rates.store_loss * store + rates.exposed_s)
    shares_a, shares_b = product.shares_misaligned
    if shares_a or shares_b:
        shared += stages * _SHARED_ROW_S * (rates.a_lines * shares_a + rates.b_lines * shares_b)
    alone = -(-waves // rates.sharers) * (tile_stages * rates.multiply_s + store)
    stored_bytes = np.where(splits > 1, _slice_bytes(product, splits), product.output_bytes) if is_split else None
    moved = _moved_times(product, rates, stored_bytes, waves, blocks, machine)
    times = overlap(slowest(shared, alone), moved, _EXPOSED)
    times += rates.meeting_s if is_large else rates.meeting_s - _EARLY_START_S * (rates.leaves_room & (waves == 1))
    has_room = (rates.parts <= 2) | (blocks <= rates.usable)
    has_work = (product.k_blocks >= rates.parts) & has_room
    if product.is_b_resident:
        has_work = has_work & (rates.columns >= product.n)
    return np.where(has_work, times, np.inf)


def _waves_of_classes(product: WgmmaProduct, rates: Rates, machine: Machine) -> tuple[Counts, Counts]:
    """Waves, and the stages of the busiest multiprocessor."""
    items = [rates.items(m, n, product.batches) for m, n, _ in product.classes]
    resident = np.maximum(machine.sm_count // rates.cluster, 1)
    depths = (k_blocks for _, _, k_blocks in product.classes)
    stages = busiest_of_many(zip(depths, items, strict=True), resident)
    return -(-np.sum(items, axis=0) // resident)[np.newaxis], stages[np.newaxis]


def _copy_times(
    product: WgmmaProduct, rates: Rates, waves: Counts, blocks: Counts, is_large: bool, machine: Machine
) -> Times:
    """Seconds of a stage's copies.  is_large: whether there are several waves."""
    copy: Times = rates.copy_s[1] if is_large else np.where(waves > 1, rates.copy_s[1], rates.copy_s[0])
    if not (is_large or product.classes):
        copy = np.where(2 * blocks <= machine.sm_count, rates.lone_copy_s, copy)
    if product.is_b_mn_major and not (product.is_b_misaligned or product.is_b_resident):
        share = (1 + 1 / waves) / 2
        row_s = MISALIGNED_ROW_COST * STAGE_ROW_BYTES / machine.arch.timings.l2_bytes_per_s
        copy = copy + _shifted_rows(product, rates) * share * row_s
    return copy + _empty_rows(product, rates) * _EMPTY_ROW_S


def _moved_times(
    product: WgmmaProduct,
    rates: Rates,
    stored_bytes: Counts | None,
    waves: Counts,
    blocks: Counts,
    machine: Machine,
) -> Times:
    """Seconds of the bytes of device memory.  stored_bytes: None if they are the output's."""
    # Half of the L2 cache keeps an operand.
    arch, kept_bytes = machine.arch, machine.arch.l2_bytes // 2
    stored = product.output_bytes if stored_bytes is None else stored_bytes
    moved = (product.a_bytes + product.b_bytes + stored) * 1.0
    if product.a_bytes > kept_bytes:
        moved = moved + _REREAD_LOSS * product.a_bytes * (rates.columns < product.n)
    if product.b_bytes > kept_bytes:
        moved = moved + _REREAD_LOSS * product.b_bytes * (rates.rows < product.m)
    times: Times = np.asarray(moved / (arch.copy_bytes_per_s * _COPY_REACH))
    if product.classes:
        return times
    # Multiprocessors without a tile in the last wave leave the others more of the memory's rate than they can use.
    last = blocks - (waves - 1) * machine.sm_count
    last_rate = np.where(2 * last <= machine.sm_count, arch.timings.lone_read, 1) * arch.timings.read_bytes_per_s
    return slowest(times, times * (1 - last / blocks) + moved / blocks / last_rate)


def _empty_rows(product: WgmmaProduct, rates: Rates) -> Times:
    """Mean number of a stage's rows past the end of an operand; MN-major operands come in whole boxes."""
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
    """Rows of a stage whose boxes begin inside cache lines, where B is MN-major and its rows are aligned: half of the
    tiles have them if a tile's columns are no whole boxes.
    """
    shifts = (rates.own_columns % MN_MAJOR_BOX > 0) & (rates.own_columns < product.n)
    found: Times = rates.b_lines * shifts
    return found


def _filled(product: WgmmaProduct, splits: Counts) -> Counts:
    """``splits`` without empty parts."""
    found: Counts = -(-product.k_blocks // -(-product.k_blocks // np.minimum(splits, product.k_blocks)))
    return found


def _slice_bytes(product: WgmmaProduct, splits: Counts) -> Counts:
    """Bytes of a split product's partial sums; 0 if it is whole."""
    return (splits > 1) * splits * (product.batches * product.m * product.n * ACCUMULATOR_BYTES)
