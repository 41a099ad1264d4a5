"""Resident blocks: known values, bounds for what ptxas gives kernels, and the driver's own answers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lowdnn.arch.multiprocessor import (
    MAX_BLOCK_THREADS,
    MAX_THREAD_REGISTERS,
    REGISTERS_PER_SM,
    RESERVED_SHARED_BYTES,
    THREAD_REGISTER_GRANULE,
    WARP_SIZE,
)
from lowdnn.arch.specs import SM_80, SM_86, SM_90A, ArchSpec, all_specs, spec_named
from lowdnn.driver.base import Driver
from lowdnn.engines.model.occupancy import (
    blocks_by_registers,
    blocks_by_shared,
    clustered_sms,
    consumer_registers,
    launched_registers,
    resident_blocks,
    shared_room,
)
from lowdnn.engines.registry import ENGINES
from tests.support.data import fresh_seed
from tests.support.occupancy import differences
from tools.assemble import recorded_figures

#: Kernels whose occupancy the driver is asked for.
_ASKED = 24


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared_bytes", "blocks"),
    [
        (SM_90A, 128, 41, 0, 10),
        (SM_90A, 64, 33, 0, 24),
        (SM_90A, 32, 16, 0, 32),
        (SM_90A, 96, 168, 0, 4),
        (SM_90A, 384, 168, 0, 1),
        (SM_86, 32, 0, 0, 16),
        (SM_86, 256, 0, 0, 6),
        (SM_86, 32, 0, 48 << 10, 2),
        (SM_86, 32, 0, 99 << 10, 1),
        (SM_86, 32, 0, (99 << 10) + 1, 0),
        (SM_80, 1024, 64, 0, 1),
        (SM_80, 1024, 65, 0, 0),
    ],
)
def test_blocks_of_a_multiprocessor(
    arch: ArchSpec, threads: int, registers: int, shared_bytes: int, blocks: int
) -> None:
    assert resident_blocks(arch, threads, registers, shared_bytes) == blocks


def test_whole_warps_share_the_registers_of_a_scheduler() -> None:
    """Three warps of 176 registers take 3/11 of the registers; two schedulers have at most two of them each."""
    assert blocks_by_registers(176, 3 * WARP_SIZE) == 2
    assert REGISTERS_PER_SM // (176 * 3 * WARP_SIZE) == 3


@pytest.mark.parametrize("warps", [4, 8, 12, 16])
def test_a_thread_has_registers_up_to_the_share_of_as_many_blocks(warps: int) -> None:
    threads = warps * WARP_SIZE
    for blocks in range(1, 2048 // threads + 1):
        registers = launched_registers(threads, blocks)
        assert blocks_by_registers(registers, threads) >= blocks
        most = registers + THREAD_REGISTER_GRANULE > MAX_THREAD_REGISTERS
        assert most or blocks_by_registers(registers + THREAD_REGISTER_GRANULE, threads) < blocks


@pytest.mark.parametrize(
    ("consumers", "blocks", "kept", "registers"), [(2, 1, 40, 232), (1, 2, 40, 216), (3, 1, 40, 152), (1, 1, 40, 240)]
)
def test_warpgroups_hand_over_what_the_producer_does_not_keep(
    consumers: int, blocks: int, kept: int, registers: int
) -> None:
    launched = launched_registers((1 + consumers) * 4 * WARP_SIZE, blocks)
    assert consumer_registers(launched, consumers, kept) == registers
    assert registers * consumers + kept <= launched * (1 + consumers)


@pytest.mark.parametrize(
    ("sm_count", "cluster", "found"),
    [(132, 1, 132), (132, 2, 132), (132, 3, 120), (132, 8, 120), (114, 4, 103), (1, 4, 1)],
)
def test_large_clusters_do_not_find_room_everywhere(sm_count: int, cluster: int, found: int) -> None:
    assert clustered_sms(sm_count, cluster) == found


@pytest.mark.parametrize("arch", all_specs(), ids=lambda arch: arch.name)
def test_a_block_has_room_up_to_the_share_of_as_many(arch: ArchSpec) -> None:
    for blocks in range(1, arch.max_blocks_per_sm):
        room = shared_room(arch, blocks)
        assert resident_blocks(arch, WARP_SIZE, shared_bytes=room) >= blocks
        assert resident_blocks(arch, WARP_SIZE, shared_bytes=room + 1) < blocks or room == arch.shared_bytes_per_block
    assert shared_room(arch, 1) == arch.shared_bytes_per_sm - RESERVED_SHARED_BYTES


@pytest.mark.parametrize("arch", all_specs(), ids=lambda arch: arch.name)
def test_sizes_of_many_candidates_are_counted_at_once(arch: ArchSpec) -> None:
    sizes = np.random.default_rng(fresh_seed()).integers(0, arch.shared_bytes_per_sm, 100)
    assert blocks_by_shared(arch, sizes).tolist() == [blocks_by_shared(arch, int(size)) for size in sizes]


def test_assembled_kernels_have_blocks_between_bounds() -> None:
    """The least registers come in groups of eight and in blocks of four warps; the most are not rounded."""
    draw, seen = random.Random(fresh_seed()), 0
    for (name, arch_name), _, figures in recorded_figures():
        threads = WARP_SIZE * draw.randint(1, MAX_BLOCK_THREADS // WARP_SIZE)
        most = REGISTERS_PER_SM // (figures.registers * threads)
        least = REGISTERS_PER_SM // (-(-figures.registers // 8) * 8 * -(-threads // 128) * 128)
        assert least <= blocks_by_registers(figures.registers, threads) <= most, name
        arch = spec_named("sm_90a" if arch_name == "sm_90" else arch_name)
        assert resident_blocks(arch, WARP_SIZE, figures.registers, figures.shared) >= 1, name
        assert figures.registers <= MAX_THREAD_REGISTERS
        seen += 1
    assert seen > 1000


@pytest.mark.gpu
def test_the_driver_counts_alike(cuda_driver: Driver) -> None:
    kernels = [kernel for engine in ENGINES for kernel in engine.precompiled()]
    drawn = random.Random(fresh_seed()).sample(kernels, _ASKED)
    assert not differences(cuda_driver, drawn)
