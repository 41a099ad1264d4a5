"""Tiles of groups whose sizes are known only on the device: host side of ``grouped_tiles.cuh``."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.engines.gemm.wgmma_tiles import WgmmaTile
from lowdnn.engines.launch import MAX_EXTENT, ceil_div, divider, i32
from lowdnn.engines.moe.arguments import groups_argument, most_tiles
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.token_groups import TokenGroups
from lowdnn.plan import Struct


@dataclass(frozen=True)
class GroupSchedule:
    """The tiles of every group: ``columns`` clusters along a row, ``band`` rows of clusters walked together."""

    tile: WgmmaTile
    groups: TokenGroups
    columns: int
    band: int
    k_blocks: int

    @property
    def most_items(self) -> int:
        """The most items, tiles in clusters, whatever the groups' sizes."""
        return most_tiles(self.groups, self.tile.m * self.tile.cluster_m) * self.columns

    def grid(self, sm_count: int) -> int:
        """Blocks of the grid: as many as are resident at once, in whole clusters, at most one cluster for an item."""
        return min(self.most_items, self.tile.resident_clusters(sm_count)) * self.tile.cluster

    def argument(self, offsets: Tensor) -> Struct:
        """The kernel's ``GroupSchedule::Arguments``."""
        dividers = (Struct(divider(self.columns)), Struct(divider(self.band * self.columns)))
        return Struct((groups_argument(offsets, self.groups), *dividers, *i32((self.band, self.k_blocks))))


def schedule_of(tile: WgmmaTile, groups: TokenGroups, columns: int, k_blocks: int, band: int) -> GroupSchedule:
    """The schedule of groups.  columns: columns of the output."""
    clusters = ceil_div(columns, tile.n * tile.cluster_n)
    return GroupSchedule(tile, groups, clusters, max(1, min(band, MAX_EXTENT // clusters)), k_blocks)
