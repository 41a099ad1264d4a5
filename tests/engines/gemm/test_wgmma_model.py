from __future__ import annotations

from dataclasses import replace

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.engines.base import resolve_choices
from lowdnn.engines.gemm.instructions import WGMMA_TYPES
from lowdnn.engines.gemm.wgmma_model import (
    best,
    busy_seconds,
    knobs,
    least_seconds,
    may_transpose,
    tiling_of,
    transpose_margin,
)
from lowdnn.engines.gemm.wgmma_product import Conversion, WgmmaProduct
from lowdnn.engines.gemm.wgmma_tiles import TileStore
from lowdnn.enums import DataType, KnobType
from lowdnn.status import BadParamError

BF16 = WGMMA_TYPES[DataType.BFLOAT16, DataType.BFLOAT16]


def product(m: int, n: int, k: int, batches: int = 1) -> WgmmaProduct:
    sizes = {"a_bytes": m * k * 2, "b_bytes": n * k * 2, "output_bytes": m * n * 2}
    return WgmmaProduct(BF16, batches, m, n, -(-k // 64), **{name: size * batches for name, size in sizes.items()})


@pytest.mark.parametrize(
    "extents", [(1, 1, 1), (4096, 4096, 4096), (64, 8192, 8192), (128, 128, 65536), (100000, 8, 40), (7, 5000, 64)]
)
@pytest.mark.parametrize("is_mn_major", [False, True])
def test_defaults_fit_shared_memory_and_are_knob_values(extents: tuple[int, int, int], is_mn_major: bool) -> None:
    given = replace(product(*extents), is_a_mn_major=is_mn_major, is_b_mn_major=is_mn_major)
    tiling = best(given, SM_90A)
    assert tiling.tile.shared_bytes(TileStore.MAP) * tiling.tile.blocks_per_sm <= SM_90A.shared_bytes_per_sm
    assert not is_mn_major or tiling.tile.b_lines % 64 == 0
    chosen = resolve_choices("engine", knobs(given, best(given, SM_90A)), {})
    assert tiling_of("engine", given, SM_90A, chosen) == tiling


def test_large_products_take_large_tiles_and_skinny_ones_small_tiles() -> None:
    large, skinny = best(product(8192, 8192, 8192), SM_90A).tile, best(product(8192, 16, 8192), SM_90A).tile
    assert large.m * large.n >= 128 * 192
    assert skinny.n == 16


@pytest.mark.parametrize("is_a", [False, True])
def test_few_rows_that_are_no_whole_lines_cost_more_where_all_blocks_load_them_for_many_tiles(is_a: bool) -> None:
    plain = product(64, 1 << 20, 64) if is_a else product(1 << 20, 64, 64)
    few = replace(plain, is_a_misaligned=is_a, is_b_misaligned=not is_a)
    many = replace(plain, is_a_misaligned=not is_a, is_b_misaligned=is_a)
    assert few.shares_misaligned == (is_a, not is_a)
    assert not any(many.shares_misaligned)
    tiling = best(plain, SM_90A)
    assert busy_seconds(few, tiling, SM_90A) > busy_seconds(many, tiling, SM_90A)


def test_deep_sums_are_split_unless_that_is_not_allowed() -> None:
    deep = product(128, 128, 65536)
    assert best(deep, SM_90A).splits > 8
    assert best(replace(deep, allows_split=False), SM_90A).splits == 1


def test_parts_of_k_are_of_single_blocks() -> None:
    tiling = best(product(256, 256, 65536), SM_90A)
    assert tiling.splits > 8
    assert tiling.tile.cluster == 1


def test_near_estimates_go_to_deep_rings_of_single_blocks_where_memory_bounds() -> None:
    tiling = best(product(128, 2112, 7168), SM_90A)
    assert tiling.tile.stages >= 8
    assert tiling.tile.cluster_k == 1


def test_a_second_launch_must_pay_where_memory_bounds_and_rings_are_shallow() -> None:
    row = replace(product(6144, 1, 4096), is_transposed=True)
    tiling = best(row, SM_90A)
    assert (tiling.splits, tiling.tile.cluster_k) == (1, 2)


def test_registers_that_wait_to_be_converted_take_time_and_room() -> None:
    ready = replace(
        product(4096, 4096, 4096), conversion=Conversion.REGISTERS, allows_clusters=False, allows_split=False
    )
    late = replace(ready, converts_late=True)
    assert least_seconds(late, SM_90A) > 1.4 * least_seconds(ready, SM_90A)
    tile = best(late, SM_90A).tile
    assert tile.accumulators + 66 <= tile.launched_registers
    assert best(ready, SM_90A).tile.warpgroups == 3


def test_sums_of_fp8_that_are_promoted_take_wide_tiles() -> None:
    """The latency of a stage is the same for each width."""
    fp8 = WGMMA_TYPES[DataType.FP8_E4M3, DataType.FP8_E4M3]
    large = replace(product(8192, 4096, 8192), type=fp8, is_promoted=True, most_accumulators=192)
    tile = best(large, SM_90A).tile
    assert tile.m * tile.n > 128 * 128
    assert 128 < tile.accumulators <= 192


def test_two_blocks_read_large_weights_together() -> None:
    """A block reads half of the bytes that both need, if otherwise each would read all of them from device memory."""
    tile = best(product(128, 8192, 8192), SM_90A).tile
    assert (tile.m, tile.cluster_m, tile.cluster_n) == (64, 2, 1)


def test_rows_past_the_end_and_transposed_outputs_take_time() -> None:
    few = product(8, 8192, 8192)
    tiling = best(product(64, 8192, 8192), SM_90A)
    same_bytes = replace(few, m=64)
    assert busy_seconds(few, tiling, SM_90A) > busy_seconds(same_bytes, tiling, SM_90A)
    assert busy_seconds(few, tiling, SM_90A) > busy_seconds(replace(few, rows_continue=True), tiling, SM_90A)
    assert busy_seconds(replace(few, is_transposed=True), tiling, SM_90A) > busy_seconds(few, tiling, SM_90A)


def test_boxes_of_mn_major_operands_take_time_past_the_end_and_inside_lines() -> None:
    """Every other tile of 96 columns begins inside a cache line; one of two boxes of 64 columns may be past the end."""
    columns = replace(product(3136, 192, 4096), is_b_mn_major=True)
    chosen = {knob.type: knob.default for knob in knobs(columns, best(columns, SM_90A))}
    chosen |= {KnobType.TILE_M: 64, KnobType.WARP_SPEC_CFG: 1, KnobType.STAGES: 6, KnobType.SPLIT_K_SLC: 1}

    def seconds(n: int, extent: int) -> float:
        given = replace(columns, n=extent)
        return busy_seconds(given, tiling_of("engine", given, SM_90A, chosen | {KnobType.TILE_N: n}), SM_90A)

    assert seconds(96, 192) > 1.2 * seconds(96, 96)
    assert seconds(128, 192) > 1.05 * seconds(128, 256)


def test_outputs_of_many_rows_and_columns_turn_where_deep_columns_are_mn_major() -> None:
    deep = replace(product(3136, 192, 1152), is_b_mn_major=True)
    assert may_transpose(deep)
    assert not may_transpose(replace(deep, k_blocks=4))
    assert not may_transpose(replace(deep, is_a_mn_major=True))
    assert not may_transpose(replace(deep, is_b_mn_major=False))
    many = replace(product(4104, 4104, 4104), is_b_mn_major=True)
    assert transpose_margin(deep) == transpose_margin(replace(deep, is_b_misaligned=True)) == transpose_margin(many) > 1
    assert transpose_margin(replace(many, is_b_misaligned=True)) < 1


def test_large_tiles_have_a_fourth_stage_unless_columns_are_summed_where_they_are_staged() -> None:
    large = product(4104, 4104, 4104)
    chosen = {knob.type: knob.default for knob in knobs(large, best(large, SM_90A))} | {
        KnobType.TILE_M: 192,
        KnobType.TILE_N: 192,
        KnobType.WARP_SPEC_CFG: 3,
        KnobType.STAGES: 4,
    }
    assert tiling_of("engine", large, SM_90A, chosen).tile.staging_buffers == 1
    assert tiling_of("engine", large, SM_90A, chosen | {KnobType.STAGES: 3}).tile.staging_buffers == 2
    with pytest.raises(BadParamError, match="shared memory"):
        tiling_of("engine", replace(large, sums_columns=True), SM_90A, chosen)


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({KnobType.TILE_M: 64, KnobType.WARP_SPEC_CFG: 0}, "for each warpgroup"),
        ({KnobType.TILE_N: 256, KnobType.TILE_M: 256, KnobType.STAGES: 2}, "accumulators"),
        ({KnobType.TILE_N: 256, KnobType.TILE_M: 128, KnobType.WARP_SPEC_CFG: 0, KnobType.STAGES: 9}, "shared memory"),
    ],
)
def test_tiles_that_do_not_exist_are_refused(choices: dict[KnobType, int], reason: str) -> None:
    given = product(4096, 4096, 4096)
    chosen = resolve_choices("engine", knobs(given, best(given, SM_90A)), choices)
    with pytest.raises(BadParamError, match=reason):
        tiling_of("engine", given, SM_90A, chosen)
