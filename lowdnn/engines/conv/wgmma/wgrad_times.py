"""The modelled time of a filter gradient by wgmma: stages of the busiest cluster, and the resources that all share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lowdnn.arch.multiprocessor import SHARED_BYTES_PER_CLOCK
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.wgmma.wgrad_product import WgradProduct
from lowdnn.engines.conv.wgmma.wgrad_tiles import copied_bytes, transposed_bytes
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES, WgmmaType
from lowdnn.engines.gemm.wgmma_tile_costs import conversion_clocks
from lowdnn.engines.gemm.wgmma_tiles import ACCUMULATOR_BYTES, MN_MAJOR_BOX, WARPGROUP_ROWS, WgmmaTile
from lowdnn.engines.model.clock import launch_s, overlap, stage_latency_s
from lowdnn.engines.model.serpentine import busiest

#: Share of the L2 cache's rate at which all multiprocessors fill their shared memory; these constants are measured on
#: an H200.
_L2_REACH = 0.69
#: Seconds of transposing a stage that the multiplications of the stage before do not hide.
_TRANSPOSE_S = 0.09e-6
#: Seconds from a kernel's start to its first multiplication, plus those from its last one to the end.
_START_S = 1.1e-6
#: Share of the shorter of memory time and concurrent work that the longer one does not hide.
_EXPOSED = 0.085
#: Fixed seconds of the launch that adds the slices: until its first bytes have arrived, and at its end.
_SUM_START_S = 1.6e-6
#: Share of a copy's rate at which slices are written and read again.
_SLICE_REACH = 0.93


class StageTraits(NamedTuple):
    """The properties of a product, except its extents, that the time of a tile's stages depends on.

    tap_run, window: taps of a window, and its pixels.  dy_clocks, x_clocks: clocks to copy a pixel.
    element_clocks: clocks to convert an element of x, or 0.
    """

    instruction: WgmmaType
    tap_run: int
    window: int
    dy_clocks: float
    x_clocks: float
    element_clocks: float

    @classmethod
    def of(cls, product: WgradProduct, cluster_m: int = 1) -> StageTraits:
        element_clocks = conversion_clocks(product.converted.functions) if product.converted else 0.0
        window = product.window(cluster_m)
        return cls(product.instruction, product.tap_run, window, *product.pixel_clocks, element_clocks)


class Extents(NamedTuple):
    """The extents of a product, and the bytes that it moves.

    columns: columns of all taps, or of one if each tap has its own k_blocks.  sum_bytes: bytes of one slice of them.
    """

    filters: int
    columns: int
    k_blocks: tuple[int, ...]
    groups: int
    read_bytes: int
    sum_bytes: int

    @classmethod
    def of(cls, product: WgradProduct) -> Extents:
        k_blocks = product.tap_blocks if product.is_valid_only else (max(product.k_blocks, 1),)
        sum_bytes = product.operation.dw.element_count * ACCUMULATOR_BYTES // len(k_blocks)
        extents = (max(product.filters, 1), max(product.columns // len(k_blocks), 1), k_blocks)
        return cls(*extents, product.groups, product.read_bytes, sum_bytes)


@dataclass(frozen=True)
class TimedTile:
    """A tile, and the costs of its stages on a multiprocessor.

    flops: operations per second of the whole device.
    copied_bytes, stage_flops, stage_s: bytes that a stage copies, its operations and its seconds.
    resident: clusters that run at once.
    """

    tile: WgmmaTile
    arch: ArchSpec
    flops: float
    copied_bytes: int
    stage_flops: int
    stage_s: float
    resident: int

    @classmethod
    def of(cls, tile: WgmmaTile, traits: StageTraits, arch: ArchSpec) -> TimedTile:
        stage_bytes = copied_bytes(tile, traits.tap_run, traits.window)
        stage_s = _stage_seconds(tile, traits, stage_bytes, arch)
        flops = arch.attained_rate(traits.instruction.unit) / traits.instruction.terms
        resident = tile.resident_clusters(arch.sm_count)
        return cls(tile, arch, flops, stage_bytes, 2 * tile.m * tile.n * tile.k, stage_s, resident)

    @property
    def sustained_s(self) -> float:
        """Seconds of a stage at the clock that the device's power allows while all are busy. Measured, the clock does
        not rise when a few clusters have longer items than the others.
        """
        sms = self.resident * self.tile.cluster / self.tile.blocks_per_sm
        return max(self.stage_s, self.stage_flops * sms / self.flops)

    def clusters(self, extents: Extents) -> int:
        """Tiles in clusters, for each part of k."""
        rows = -(-extents.filters // (self.tile.m * self.tile.cluster_m))
        return rows * -(-extents.columns // (self.tile.n * self.tile.cluster_n)) * extents.groups

    def seconds(self, extents: Extents, splits: Sequence[int]) -> float:
        """Seconds of all launches from start to end, with k in ``splits`` parts."""
        lengths = [-(-k // min(split, k)) for k, split in zip(extents.k_blocks, splits, strict=True)]
        splits = [-(-k // length) for k, length in zip(extents.k_blocks, lengths, strict=True)]
        sum_s = self._sum_seconds(extents, sum(splits)) if max(splits) > 1 else 0.0
        return _START_S + self.busy_seconds(extents, splits) + sum_s

    def busy_seconds(self, extents: Extents, splits: Sequence[int]) -> float:
        """Seconds of the product's own launch without its start.  splits: none of them empty."""
        clusters = self.clusters(extents)
        parts = [(-(-k // split), clusters * split) for k, split in zip(extents.k_blocks, splits, strict=True)]
        return self._with_copies(extents, busiest(parts, self.resident))

    def bound_seconds(self, extents: Extents, least_stages: float) -> float:
        """A lower bound of ``seconds`` for any parts of k: all clusters are busy to the end, and the busiest has at
        least the longest k, or ``least_stages`` of it and the sum of slices.
        """
        even, slices = self.clusters(extents) * sum(extents.k_blocks) / self.resident, len(extents.k_blocks)
        whole_s = self._with_copies(extents, max(even, max(extents.k_blocks)))
        parts_s = self._with_copies(extents, max(even, least_stages)) + self._sum_seconds(extents, slices)
        return _START_S + min(whole_s, parts_s)

    def slice_seconds(self, slice_bytes: int) -> float:
        """Seconds to write and read ``slice_bytes`` bytes of slices."""
        return 2 * slice_bytes / (_SLICE_REACH * self.arch.copy_bytes_per_s)

    def _sum_seconds(self, extents: Extents, slices: int) -> float:
        return launch_s(self.arch, _SUM_START_S + self.slice_seconds(slices * extents.sum_bytes))

    def _with_copies(self, extents: Extents, busiest_stages: float) -> float:
        """Seconds of the busiest cluster's stages, and of the shared resources: power, L2 cache and memory."""
        tile, arch = self.tile, self.arch
        stage_s = self.stage_s if len(extents.k_blocks) == 1 else self.sustained_s
        stages = self.clusters(extents) * sum(extents.k_blocks) * tile.cluster
        power_s = stages * self.stage_flops / self.flops
        l2_s = stages * self.copied_bytes / (_L2_REACH * arch.timings.l2_bytes_per_s * arch.sm_count)
        busy_s = max(busiest_stages * tile.blocks_per_sm * stage_s, power_s, l2_s)
        return overlap(busy_s, extents.read_bytes / arch.copy_bytes_per_s, _EXPOSED)


def _stage_seconds(tile: WgmmaTile, traits: StageTraits, stage_bytes: int, arch: ArchSpec) -> float:
    """Seconds of a stage on a multiprocessor: the slowest of its products, shared memory and pixels, at least the
    latency that stages share.  stage_bytes: bytes of its copies.
    """
    terms = traits.instruction.terms
    multiply_clocks = 2 * terms * tile.m * tile.n * tile.k / arch.flops_per_clock[traits.instruction.unit]
    # Each 64 rows read all of x's columns again; the copies write both operands; transposing reads and writes.
    read_bytes = tile.m // WARPGROUP_ROWS * (WARPGROUP_ROWS + terms * tile.n) * STAGE_ROW_BYTES
    shared_bytes = read_bytes + stage_bytes + 2 * transposed_bytes(tile, traits.tap_run)
    if traits.instruction.is_split:
        shared_bytes += (2 * tile.m + tile.n) * STAGE_ROW_BYTES
    x_pixels = stage_bytes // STAGE_ROW_BYTES - tile.m
    copy_clocks = tile.m * traits.dy_clocks + x_pixels * traits.x_clocks
    convert_clocks = x_pixels * MN_MAJOR_BOX * traits.element_clocks
    clock_hz = arch.timings.light_clock_hz
    products_s = max(multiply_clocks, shared_bytes / SHARED_BYTES_PER_CLOCK) / clock_hz
    products_s = max(products_s, stage_latency_s(arch, tile.stages * tile.blocks_per_sm))
    transpose_s = 0.0 if traits.instruction.has_mn_major else _TRANSPOSE_S
    return max(products_s + transpose_s, max(copy_clocks, convert_clocks) / clock_hz)
