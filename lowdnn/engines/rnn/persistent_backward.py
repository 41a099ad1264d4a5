"""The recurrence of a layer backward in one launch, which holds the recurrent weights on chip."""

from __future__ import annotations

from collections.abc import Iterator

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.layers import BackwardLayer
from lowdnn.engines.rnn.narrow_tile import narrow_backward_tiles
from lowdnn.engines.rnn.persistent_backward_tile import wide_backward_tiles
from lowdnn.engines.rnn.persistent_launch import LayerTile, add_layer, are_resident, fastest
from lowdnn.engines.rnn.stepwise import backward_fields
from lowdnn.ops.rnn import Rnn


def backward_tiles(rnn: Rnn, arch: ArchSpec, columns: int = 0, cluster: int = 0) -> Iterator[LayerTile]:
    """Tiles that fit ``arch``, all blocks at a time, the fastest first.

    columns, cluster: the only ones, or 0.
    """
    every: list[LayerTile] = [*narrow_backward_tiles(rnn, arch), *wide_backward_tiles(rnn, arch)]
    return iter(
        fastest(
            tile
            for tile in every
            if columns in (0, tile.columns) and cluster in (0, tile.cluster) and are_resident(rnn, tile, arch)
        )
    )


def add_persistent_backward(parts: PlanParts, layer: BackwardLayer, tile: LayerTile, arch: ArchSpec) -> None:
    """Adds the launch of a layer with ``tile``."""
    fields = backward_fields(layer, layer.recurrent, layer.dgates)
    add_layer(parts, layer.rnn, tile, arch, layer.recurrent, fields, 2 * layer.rnn.blocks + 2)
