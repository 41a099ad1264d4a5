"""Knobs of ``attention_backward_wgmma``: heads whose blocks start together, order of sums, and splits of the walks over
the queries."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.attention.backward_wgmma_tiles import BackwardProblem
from lowdnn.engines.base import Knob
from lowdnn.engines.launch import MAX_GRID_X, ceil_div, floor_power
from lowdnn.enums import KnobType

# -- values of REDUCTION_MODE
IN_ORDER, IN_ANY_ORDER = 0, 1

#: Elements of the largest heads under a band for which a fixed order of sums costs little.
_BANDED_ORDERED_SIZE = 64
#: Elements of the largest heads without a band for which a fixed order costs little: their blocks have many steps and
#: wait for few turns.
_ORDERED_SIZE = 128
#: Most tiles of keys of a head for which a fixed order costs little without a band, since few blocks wait.
_ORDERED_KEY_TILES = 4
#: Steps for which each further block of a head waits at its start.
_TURN_STEPS = 0.5
#: The largest share of all steps that may be spent waiting.
_WAITING_SHARE = 0.03
#: Duration of the blocks that start last, as a multiple of a block that runs alone.
_LAST_BLOCKS = 1.25
#: The largest share of the whole time that the device may wait for the last blocks.
_ENDING_SHARE = 0.1
#: Blocks that share the queries of the same keys.
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
#: Time of a block before its first tile and after its last one, in steps. A step is a tile of queries: 2.6 to 3.2 us
#: whatever the kind, as measured.
_BLOCK_STEPS = 3
#: Time of a launch that joins splits, in steps.
_JOIN_STEPS = 1
#: Bytes of sums that the joining launch moves in the time of a step.
_STEP_BYTES = 9 << 20
#: Elements of the smallest heads that gain by splits of the last tiles, as measured: 2 to 4 % of long ways.
_STREAM_SIZE = 128
#: Factor by which splits must look faster: about the error of the estimate.
_SPLIT_GAIN = 1.01


@dataclass(frozen=True)
class BackwardPolicy:
    """The choices for one problem on one architecture."""

    problem: BackwardProblem
    arch: ArchSpec

    def knobs(self) -> tuple[Knob, ...]:
        """SWIZZLE, REDUCTION_MODE, SPLIT_K_SLC, STREAM_K."""
        heads = tuple(2**power for power in range(8))
        orders = (IN_ORDER,) if self.problem.backward.operation.is_deterministic else (IN_ORDER, IN_ANY_ORDER)
        splits, streams = self._split_values, (0, 1) if self._has_last_tiles() else (0,)
        choices = product(splits, streams if self.problem.kind.size >= _STREAM_SIZE else (0,))
        split, stream = min(choices, key=lambda choice: self._steps(*choice))
        heads_at_once = self._heads_at_once(split)
        order = orders[0] if self._has_cheap_order(heads_at_once) else orders[-1]
        return (
            Knob("heads", KnobType.SWIZZLE, heads, heads_at_once, "heads whose blocks start together"),
            Knob("order", KnobType.REDUCTION_MODE, orders, order, "0: dq is summed up in a fixed order; 1: in any"),
            Knob("split_q", KnobType.SPLIT_K_SLC, splits, split, "parts of the queries, joined in the last launch"),
            Knob(
                "stream_q",
                KnobType.STREAM_K,
                streams,
                stream,
                "1: only the last tiles of keys, of which there is not one for every block, have parts",
            ),
        )

    def _has_last_tiles(self) -> bool:
        """Whether the tiles of keys leave a remainder after every block has had equally many.

        Under a band the last tiles are the shortest and leave little time behind them.
        """
        tiles, blocks = self.problem.all_key_tiles, self.arch.sm_count
        return not self.problem.has_band and tiles > blocks and tiles % blocks > 0

    @property
    def _split_values(self) -> tuple[int, ...]:
        """Numbers of splits for which each split has at least one tile of queries."""
        most = min(self.problem.most_steps, MAX_GRID_X // max(1, self.problem.all_key_tiles))
        return tuple(splits for splits in _SPLITS if splits <= max(1, most))

    def _steps(self, splits: int, stream: int) -> float:
        """The estimated time in steps: the maximum of the longest block's and of waves of mean blocks."""
        problem = self.problem.split(self.arch, splits, stream)
        longest, mean, parts = self.problem.most_steps, self.problem.mean_steps, problem.split_tiles * splits
        whole_waves, split_waves = (ceil_div(own, self.arch.sm_count) for own in (problem.shares - parts, parts))
        waves = whole_waves * (_BLOCK_STEPS + mean) + split_waves * (_BLOCK_STEPS + mean / splits)
        steps = max(_BLOCK_STEPS + longest / splits, waves)
        if splits == 1:
            return steps
        return _SPLIT_GAIN * (steps + _JOIN_STEPS + 2 * problem.key_sums_bytes / _STEP_BYTES)

    def _heads_at_once(self, splits: int) -> int:
        """Heads whose blocks start together.

        Blocks of a head wait for each other at the same queries. The more heads there are at once, the fewer blocks
        of each, so the less they wait, but the more the L2 cache has to hold, of large heads above all. Under a band,
        where blocks have unequally many queries, they would wait the longest; without one, heads that fill the device
        are enough. The longest blocks of the last heads start behind all others: where those heads are too few for the
        device to have enough to do meanwhile, twice as many start together.
        """
        kind, has_band = self.problem.kind, self.problem.has_band
        filling = max(kind.fewest_heads, self.arch.sm_count // max(1, self.problem.key_tiles))
        wanted = kind.banded_heads if has_band else filling
        if has_band and self._ending_share(splits, wanted) > _ENDING_SHARE:
            wanted *= 2
        return floor_power(min(wanted, self.problem.key_heads))

    def _ending_share(self, splits: int, heads: int) -> float:
        """The share of the whole time for which the device waits for the longest blocks of the last ``heads``."""
        head_steps = self.problem.key_tiles * (_BLOCK_STEPS * splits + self.problem.mean_steps) / self.arch.sm_count
        missing = _LAST_BLOCKS * (_BLOCK_STEPS + self.problem.most_steps / splits) - heads * head_steps
        return missing / max(1.0, self.problem.key_heads * head_steps)

    def _has_cheap_order(self, heads_at_once: int) -> bool:
        """Whether a fixed order costs at most 3 %, as measured."""
        waiting = min(self.problem.key_tiles, ceil_div(self.arch.sm_count, heads_at_once)) - 1
        waves = max(1.0, self.problem.all_key_tiles / self.arch.sm_count)
        if waiting * _TURN_STEPS > _WAITING_SHARE * waves * self.problem.mean_steps:
            return False
        if self.problem.has_band:
            return self.problem.kind.size <= _BANDED_ORDERED_SIZE
        return self.problem.kind.size <= _ORDERED_SIZE or self.problem.key_tiles <= _ORDERED_KEY_TILES
