from __future__ import annotations

import pytest

from lowdnn.engines.gemm.instructions import WGMMA_TYPES, wgmma_type
from lowdnn.engines.gemm.wgmma_tiles import Schedule, TileStore, WgmmaTile
from lowdnn.enums import DataType
from lowdnn.plan import MathUnit, Scalar, Struct

COOPERATIVE = WgmmaTile(128, 256, 4, 1, 2, 1, 1, 1, 2)
PING_PONG = WgmmaTile(128, 128, 6, 2, 1, 1, 1, 1, 2)
TWO_BLOCKS = WgmmaTile(128, 64, 4, 1, 1, 1, 1, 2, 2)


def test_registers_fill_the_multiprocessor_and_no_more() -> None:
    for tile in (COOPERATIVE, PING_PONG, TWO_BLOCKS):
        handed_out = tile.registers.producer + tile.consumers * tile.registers.consumer
        assert handed_out * 128 * tile.blocks_per_sm <= 65536
        assert tile.registers.consumer % 8 == 0
    assert COOPERATIVE.registers.consumer == 232
    assert TWO_BLOCKS.registers.consumer == 216


def test_shared_memory_holds_ring_staging_and_barriers() -> None:
    assert COOPERATIVE.shared_bytes(TileStore.MAP) == 4 * (128 + 256) * 128 + 8 * 4096 + 4 * 16
    assert COOPERATIVE.shared_bytes(TileStore.SLICE) == 4 * (128 + 256) * 128 + 4 * 16
    assert TWO_BLOCKS.threads == 256


@pytest.mark.parametrize("key", tuple(WGMMA_TYPES))
def test_types_take_32_bytes_of_k(key: tuple[DataType, DataType]) -> None:
    kind = WGMMA_TYPES[key]
    assert kind.k * kind.element_bytes == 32
    assert kind.stage_k * kind.element_bytes == 128
    assert dict(kind.macros)["WGMMA_K"] == kind.k


def test_pairs_of_different_types_are_fp8_only() -> None:
    mixed = wgmma_type(DataType.FP8_E4M3, DataType.FP8_E5M2)
    assert mixed is not None
    assert (mixed.instruction, mixed.label, mixed.unit) == ("f32.e4m3.e5m2", "e4m3_e5m2", MathUnit.WGMMA_FP8)
    assert wgmma_type(DataType.HALF, DataType.BFLOAT16) is None
    assert wgmma_type(DataType.DOUBLE, DataType.DOUBLE) is None


@pytest.mark.parametrize("splits", [1, 2, 3, 7, 32])
@pytest.mark.parametrize("k_blocks", [1, 2, 10, 17])
def test_no_part_of_k_is_empty(k_blocks: int, splits: int) -> None:
    schedule = Schedule.of(COOPERATIVE, 300, 300, k_blocks, splits=splits)
    assert schedule.splits <= splits
    assert (schedule.splits - 1) * schedule.split_blocks < k_blocks <= schedule.splits * schedule.split_blocks


def test_items_and_grid_count_clusters() -> None:
    tile = WgmmaTile(128, 128, 4, 1, 2, 2, 1, 1, 2)
    schedule = Schedule.of(tile, 300, 200, 8, batches=3, splits=2)
    assert (schedule.rows, schedule.columns, schedule.items) == (2, 2, 24)
    assert schedule.grid(132) == 48
    assert schedule.grid(5) == 4
    assert schedule.flops == 2 * 512 * 256 * 3 * 8 * 64
    assert schedule.occupied_flops(32) == 2 * 32 * 128 * 128 * 2 * 4 * 64


@pytest.mark.parametrize(("cluster", "blocks"), [((1, 1), 132), ((2, 1), 132), ((1, 4), 120), ((4, 2), 120)])
def test_large_clusters_find_room_on_a_part_of_the_device(cluster: tuple[int, int], blocks: int) -> None:
    tile = WgmmaTile(64, 64, 4, 2, 1, *cluster, 1, 2)
    assert Schedule.of(tile, 10_000, 10_000, 8).grid(132) == blocks


@pytest.mark.parametrize(
    ("m", "resident", "whole", "items", "stages"),
    [
        (3, 0, 0, 3, 6),  # two clusters of two blocks: three shared tiles, of at most 3 stages, take two waves
        (3, 2, 0, 3, 6),
        (4, 2, 2, 2, 5),
        (5, 2, 2, 3, 8),
        (11, 2, 4, 7, 16),
    ],
)
def test_whole_tiles_come_first(m: int, resident: int, whole: int, items: int, stages: int) -> None:
    tile = WgmmaTile(128, 64, 4, 1, 1, 1, 1, 2, 2, cluster_k=2)
    schedule = Schedule.of(tile, m * 128, 64, 5, resident=resident)
    assert (schedule.whole, schedule.items) == (whole, items)
    grid = schedule.grid(2)
    assert schedule.occupied_flops(grid) == 2 * 128 * 64 * 64 * stages * grid
    assert schedule.flops == 2 * m * 128 * 64 * 64 * 5


def test_argument_lies_as_the_kernel_reads_it() -> None:
    fields = Schedule.of(COOPERATIVE, 1000, 512, 5, batches=2, group=4).argument.fields
    divisors = [part.fields[0] for part in fields if isinstance(part, Struct)]
    numbers = [part.value for part in fields if isinstance(part, Scalar)]
    assert [part.value for part in divisors if isinstance(part, Scalar)] == [16, 8]
    assert numbers == [32, 2, 8, 4, 5, 5, 0]
