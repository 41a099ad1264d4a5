"""The order in which blocks of ``attention_wgmma`` take tiles of queries: balanced, and tiles that run at the same time
share keys in L2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowdnn.engines.launch import ceil_div, divider, i32
from lowdnn.plan import Struct

#: Keys and values of a section's heads: half of what the L2 cache holds.
_SECTION_BYTES = 30 << 20
#: Numbers of heads of a section that are tried, besides the number that gives each block one tile.
_SECTIONS = (3, 11, 22, 33, 66)
#: Number of tiles from which on any order is balanced.
_MANY_TILES = 8192


@dataclass(frozen=True)
class TileOrder:
    """``heads`` heads, each with ``tiles`` tiles of queries, for ``blocks`` blocks.

    section_heads: heads of a section, whose tiles are dealt out by size in serpentine order; 0: pairs of a head's
    tiles, one from either end, are dealt out head by head.
    """

    tiles: int
    heads: int
    blocks: int
    section_heads: int

    @staticmethod
    def of(costs: NDArray[np.float64], heads: int, blocks: int, bytes_of_head: int) -> TileOrder:
        """Balanced for tiles of a head that cost as much, the last tile first; pairs where nothing is much better."""
        tiles = len(costs)
        at_once = TileOrder(tiles, heads, blocks, max(1, min(blocks // tiles, heads)))
        if costs.min() == costs.max():
            return at_once
        pairs = TileOrder(tiles, heads, blocks, 0)
        if tiles * heads > _MANY_TILES:
            return pairs
        most = min(heads, _SECTION_BYTES // max(1, bytes_of_head))
        sections = [TileOrder(tiles, heads, blocks, own) for own in (*_SECTIONS, heads) if own <= most]
        return min((pairs, at_once, *sections), key=lambda order: round(order.makespan(costs), 2))

    @property
    def turns(self) -> int:
        """Most tiles that a block takes."""
        if self.section_heads:
            return ceil_div(self.tiles * self.heads, self.blocks)
        return 2 * ceil_div(ceil_div(self.tiles, 2) * self.heads, self.blocks)

    @property
    def argument(self) -> Struct:
        """The fields of the kernel's ``Order``."""
        of_section = self.tiles * self.section_heads or ceil_div(self.tiles, 2)
        counts = i32((self.turns, self.tiles, self.heads, self.section_heads))
        return Struct((*counts, Struct(divider(of_section))))

    def makespan(self, costs: NDArray[np.float64]) -> float:
        """The work of the busiest block relative to the mean."""
        if not self.section_heads:
            pairs = costs[: ceil_div(self.tiles, 2)] + costs[::-1][: ceil_div(self.tiles, 2)]
            if self.tiles % 2:
                pairs[-1] /= 2
            of_turns = self._in_turns(np.tile(pairs, self.heads))
        else:
            sections, others = divmod(self.heads, self.section_heads)
            of_sections = np.tile(np.repeat(costs, self.section_heads), sections)
            of_turns = self._in_turns(np.concatenate((of_sections, np.repeat(costs, others))))
            of_turns[1::2] = of_turns[1::2, ::-1]
        loads = of_turns.sum(axis=0)
        return float(loads.max() / loads.mean())

    def _in_turns(self, costs: NDArray[np.float64]) -> NDArray[np.float64]:
        """(turns, blocks), with zeros behind the last one."""
        of_turns = np.zeros((ceil_div(costs.size, self.blocks), self.blocks))
        of_turns.ravel()[: costs.size] = costs
        return of_turns
