from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec
from lowdnn.engines.gemm.instructions import MMA_ACCUMULATORS
from lowdnn.engines.gemm.tiles import MmaTile, Product, TileShape, Tiling, best_tiling, knobs
from lowdnn.enums import DataType, KnobType

SHAPE = TileShape(64, 64, 2, 2, 1.0, 4)


@pytest.mark.parametrize("arch", [SM_80, SM_90A])
@pytest.mark.parametrize("data_type", tuple(MMA_ACCUMULATORS))
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (4096, 4096, 4096), (128, 128, 65536), (100000, 8, 40), (7, 5000, 0)]
)
def test_default_fits_shared_memory_and_covers_the_product(
    arch: ArchSpec, data_type: DataType, m: int, n: int, k: int
) -> None:
    product = Product(data_type, 2, m, n, k)
    tiling = best_tiling(product, arch)
    assert tiling.tile.shared_bytes * tiling.tile.shape.blocks_per_sm <= arch.shared_bytes_per_sm
    assert tiling.tile.shared_bytes <= arch.shared_bytes_per_block
    assert tiling.rows * tiling.tile.shape.m >= m
    assert tiling.columns * tiling.tile.shape.n >= n
    assert tiling.splits * tiling.split_tiles * tiling.tile.k >= k
    assert tiling.flops(product) >= 2 * 2 * m * n * k


@pytest.mark.parametrize("splits", [1, 2, 3, 7, 32])
@pytest.mark.parametrize("k", [1, 64, 65, 640, 1000])
def test_no_part_of_k_is_empty(k: int, splits: int) -> None:
    tiling = Tiling.of(Product(DataType.HALF, 1, 64, 64, k), MmaTile(SHAPE, 64, 3, 2), splits)
    assert tiling.splits <= splits
    assert (tiling.splits - 1) * tiling.split_tiles * 64 < k <= tiling.splits * tiling.split_tiles * 64


def test_one_wave_with_little_work_takes_small_tiles_and_deep_sums_are_split() -> None:
    small = best_tiling(Product(DataType.BFLOAT16, 1, 512, 512, 512), SM_90A)
    deep = best_tiling(Product(DataType.BFLOAT16, 1, 128, 128, 65536), SM_90A)
    assert small.tile.shape.m * small.tile.shape.n <= 64 * 128
    assert deep.splits > 8


@pytest.mark.parametrize("k", [16, 64, 240, 480])
def test_few_blocks_are_small_and_have_all_of_k_on_its_way(k: int) -> None:
    product = Product(DataType.BFLOAT16, 1, 64, 672, k, allows_small_shape=True)
    tiling = best_tiling(product, SM_90A)
    assert (tiling.tile.shape.m, tiling.tile.shape.n, tiling.splits) == (32, 32, 1)
    assert (tiling.tile.stages - 1) * tiling.tile.k >= k


@pytest.mark.parametrize(
    "product",
    [
        Product(DataType.BFLOAT16, 1, 64, 672, 64),
        Product(DataType.INT8, 1, 64, 672, 64, allows_small_shape=True),
        Product(DataType.BFLOAT16, 4, 64, 672, 64, allows_small_shape=True),
        Product(DataType.BFLOAT16, 1, 64, 64, 2048, allows_small_shape=True),
    ],
)
def test_many_blocks_deep_sums_and_reductions_have_large_tiles(product: Product) -> None:
    assert best_tiling(product, SM_90A).tile.shape.m >= 64


def test_small_pieces_avoid_the_largest_warp_tiles() -> None:
    tiling = best_tiling(Product(DataType.BFLOAT16, 1, 8192, 8192, 512, has_small_pieces=True), SM_90A)
    assert tiling.tile.shape.accumulators <= 64


def test_splits_are_offered_only_where_the_reduction_can_count_the_outputs() -> None:
    def offered(product: Product) -> tuple[int, ...]:
        return next(knob.values for knob in knobs(product, SM_90A) if knob.type is KnobType.SPLIT_K_SLC)

    assert 32 in offered(Product(DataType.HALF, 1, 64, 64, 64))
    assert offered(Product(DataType.HALF, 1, 2**16, 2**16, 64)) == (1,)
    assert offered(Product(DataType.HALF, 2**28, 1, 1, 64)) == (1,)
    assert offered(Product(DataType.HALF, 1, 64, 64, 64, allows_split=False)) == (1,)
