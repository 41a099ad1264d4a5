"""Epochs, the memory of accesses, clocks, and what is read off a kernel."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.checking import epochs
from lowdnn.driver.emulated.checking.accesses import ASYNC_READER, READER_ROWS, READERS, of_shared
from lowdnn.driver.emulated.checking.clocks import Clocks, joined
from lowdnn.driver.emulated.checking.epochs import CTA, MOST_COLUMNS, NEVER, SITES

LOAD_BYTE = "ld.param.u64 %rd1, [out]; ld.global.u8 %r1, [%rd1];"
WIDE = "ld.param.u64 %rd1, [out]; ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1]; st.shared.v2.u32 [tile], {%r1, %r2};"


def test_an_epoch_gives_back_what_it_is_made_of(rng):
    column, site, time = (int(rng.integers(1, most + 1)) for most in (MOST_COLUMNS, SITES, NEVER))
    epoch = epochs.marked(np.int64(column)) + epochs.stamp(time, site, CTA, asynchronous=bool(rng.integers(2)))
    assert epochs.column_of(epoch) == column
    assert epochs.site_of(epoch) == site
    assert epochs.time_of(epoch) == time
    assert epochs.scope_of(epoch) == CTA


def test_epochs_are_ordered_by_time_and_work_under_way_comes_last():
    late = epochs.marked(np.int64(0)) + epochs.stamp(6, 0)
    early = epochs.marked(np.int64(MOST_COLUMNS)) + epochs.stamp(5, SITES, CTA)
    under_way = epochs.stamp(0, 0, asynchronous=True)
    assert 0 < early < late < epochs.stamp(NEVER, SITES) < under_way


@pytest.mark.parametrize("shift", range(5))
def test_units_of_all_sizes_share_granules(rng, shift):
    accesses = of_shared(256, shift)
    for unit in rng.permutation(5).tolist():
        place = np.array([int(rng.integers(256 >> unit))])
        epoch = np.array([int(rng.integers(1, 1 << 62))])
        accesses.write(place, unit, epoch)
        accesses.read(np.array([unit % READERS]), place, unit, epoch + 1)
        granules = np.unique((int(place[0]) << unit) + np.arange(1 << unit) >> shift)
        assert (accesses.written(granules, shift) == epoch).all()
        assert (accesses.read_by(unit % READERS, granules, shift) == epoch + 1).all()
        assert accesses.written(place, unit).shape == (1, granules.size)


def test_memory_far_from_all_accesses_is_known_to_be_untouched(rng):
    accesses = of_shared(1 << 20, 2)
    written, read, copied = (np.array([place]) for place in (rng.permutation(8)[:3] << 15).tolist())
    accesses.write(written, 2, np.array([5]))
    accesses.read(np.array([1]), read, 2, np.array([6]))
    accesses.read(ASYNC_READER, copied, 2, np.array([7]))
    assert accesses.touched(written, 2) == (True, range(ASYNC_READER, ASYNC_READER))
    assert accesses.touched(read, 2) == (False, range(READERS))
    assert accesses.touched(copied, 2) == (False, range(ASYNC_READER, READER_ROWS))
    everything = np.arange(0, 1 << 18, 1 << 13)
    assert accesses.touched(everything, 2) == (True, range(READER_ROWS))


def test_of_reads_of_one_row_the_last_one_is_kept(rng):
    accesses = of_shared(256, 2)
    place, row = np.array([int(rng.integers(64))]), np.array([int(rng.integers(READERS))])
    for epoch in (3, 9, 4):
        accesses.read(row, place, 2, np.array([epoch]))
    assert accesses.read_by(int(row[0]), place, 2).tolist() == [[4]]
    accesses.read(row, place >> 2, 4, np.array([8]))
    assert accesses.read_by(int(row[0]), place, 2).tolist() == [[8]]


def test_what_is_joined_is_the_latest_of_each_key(rng):
    clocks, keys = rng.integers(0, 100, (20, 3)), rng.integers(0, 4, 20)
    found, latest = joined(clocks, keys)
    assert found.tolist() == sorted(set(keys.tolist()))
    for key, clock in zip(found, latest, strict=True):
        assert (clock == clocks[keys == key].max(axis=0)).all()


def test_a_warp_knows_itself_and_what_it_has_learned():
    clocks = Clocks(np.arange(3), 3, proxies=True)
    rows = np.array([0, 1, 2])
    assert clocks.knows(rows, rows, np.full(3, 50)).all()
    clocks.learn(np.array([2]), clocks.released(np.array([0]), 7))
    assert clocks.knows(np.array([2, 2, 1]), np.array([0, 0, 0]), np.array([6, 7, 6])).tolist() == [True, False, False]
    assert not clocks.has_fenced(np.array([2]), np.array([0]), np.array([6])).any()
    clocks.fence_proxy(np.array([2]), 9)
    assert clocks.has_fenced(np.array([2, 2]), np.array([0, 2]), np.array([6, 8])).all()


@pytest.mark.parametrize(
    ("body", "shared_shift", "global_shift", "orders", "asynchronous"),
    [
        (LOAD_BYTE, 4, 0, False, False),
        (WIDE, 3, 4, False, False),
        ("fence.acq_rel.gpu;", 4, 4, True, False),
        ("fence.proxy.async;", 4, 4, False, False),
        ("mbarrier.init.shared.b64 [tile], 1;", 3, 4, False, True),
        ("cp.async.ca.shared.global [tile], [%rd1], 8;", 3, 3, False, False),
        ("ld.u16 %h1, [%rd1];", 1, 1, False, False),
    ],
)
def test_traits_of_a_kernel(bench, body, shared_shift, global_shift, orders, asynchronous):
    module = bench.ptx(body, declarations=".shared .align 16 .b8 tile[64];")
    traits = module.functions["k"].kernel.traits
    assert (traits.shared_shift, traits.global_shift) == (shared_shift, global_shift)
    assert (traits.orders_memory, traits.asynchronous) == (orders, asynchronous)
