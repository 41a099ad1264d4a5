"""The recurrence of a layer in one launch, which holds the recurrent weights on chip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.layers import BackwardLayer, ForwardLayer
from lowdnn.engines.rnn.persistent_backward import add_persistent_backward, backward_tiles
from lowdnn.engines.rnn.persistent_forward import add_persistent_forward, forward_tiles
from lowdnn.status import BadParamError

TileT = TypeVar("TileT")


@dataclass(frozen=True)
class Persistent:
    """A ``Recurrence``. columns, cluster: those of the tiles, or 0 for those of the fastest one."""

    arch: ArchSpec
    columns: int = 0
    cluster: int = 0

    reads_transposed = True

    def forward(self, parts: PlanParts, layer: ForwardLayer) -> None:
        tile = self._first(forward_tiles(layer.rnn, self.arch, self.columns))
        add_persistent_forward(parts, layer, tile, self.arch)

    def backward(self, parts: PlanParts, layer: BackwardLayer) -> None:
        tile = self._first(backward_tiles(layer.rnn, self.arch, self.columns, self.cluster))
        add_persistent_backward(parts, layer, tile, self.arch)

    def _first(self, tiles: Iterator[TileT]) -> TileT:
        """The fastest tile; raises BadParamError where none fits."""
        tile = next(tiles, None)
        if tile is None:
            got = f"{self.columns} columns and clusters of {self.cluster}"
            raise BadParamError.at("rnn_persistent.knob_choices", expected="a tile that fits on chip", got=got)
        return tile
