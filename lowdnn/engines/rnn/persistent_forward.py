"""The recurrence of a layer forward in one launch, which holds the recurrent weights on chip."""

from __future__ import annotations

from collections.abc import Iterator

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.layers import ForwardLayer
from lowdnn.engines.rnn.narrow_tile import narrow_tiles
from lowdnn.engines.rnn.persistent_launch import LayerTile, add_layer, are_resident, fastest
from lowdnn.engines.rnn.persistent_tile import wide_tiles
from lowdnn.engines.rnn.stepwise import layer_fields
from lowdnn.ops.rnn import Rnn


def forward_tiles(rnn: Rnn, arch: ArchSpec, columns: int = 0) -> Iterator[LayerTile]:
    """Tiles that fit ``arch``, all blocks at a time, the fastest first.

    columns: the only ones, or 0.
    """
    every: list[LayerTile] = [*narrow_tiles(rnn, arch), *wide_tiles(rnn, arch)]
    return iter(fastest(tile for tile in every if columns in (0, tile.columns) and are_resident(rnn, tile, arch)))


def add_persistent_forward(parts: PlanParts, layer: ForwardLayer, tile: LayerTile, arch: ArchSpec) -> None:
    """Adds the launch of a layer with ``tile``."""
    rnn = layer.rnn
    fields = layer_fields(layer, rnn.hidden_size, layer.recurrent, layer.output, layer.output)
    saves, values = layer.gates is not None, 2 * rnn.gates + 1
    add_layer(parts, rnn, tile, arch, layer.recurrent, fields, values, saves)
