"""A product that is cut into tiles for a kernel on wgmma."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.engines.gemm.wgmma_model import WgmmaTiling
from lowdnn.engines.gemm.wgmma_tiles import TileStore, WgmmaTile
from lowdnn.plan import Launch, Struct, Work


@dataclass(frozen=True)
class WgmmaCut:
    """The parts that the kernels' launches have in common; a subclass adds the product.

    allows_map: whether the output may be stored by tensor map.
    """

    tiling: WgmmaTiling
    allows_map: bool

    @property
    def tile(self) -> WgmmaTile:
        return self.tiling.tile

    def tile_launch(self, kernel: int, grid: int, arguments: Struct, store: TileStore, work: Work) -> Launch:
        """A dependent launch of ``grid`` blocks, whole clusters."""
        return Launch(
            kernel,
            grid=(grid, 1, 1),
            block=(self.tile.threads, 1, 1),
            arguments=(arguments,),
            shared_bytes=self.tile.shared_bytes(store),
            cluster=(self.tile.cluster, 1, 1),
            work=work,
            overlaps_previous=True,
        )
