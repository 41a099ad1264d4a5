"""``resample``: pooling and interpolation, forward and backward, in one launch.

It takes maxima with and without an index tensor, averages, bilinear and nearest interpolation, over 1 to 3 spatial
axes. It takes any strides, fractional windows, paddings, layouts and data types, computes in fp32, fp64 or int32, and
fuses any pointwise epilogue. The backward pass gathers: each element of dx sums the outputs that read it, in ascending
order. Kernels: ``resample_forward.cu``, ``resample_backward.cu``.
"""

from __future__ import annotations

from itertools import product
from types import ModuleType

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.limits import fused
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.engines.resample import backward, forward
from lowdnn.engines.resample.problem import Problem
from lowdnn.engines.resample.tile import BLOCK_SIZES, CHANNELS, Tile, chosen_tile, counts, launch
from lowdnn.enums import KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import match_anchored
from lowdnn.ops.resample import ResampleOperation
from lowdnn.status import NotSupportedError, Status

#: Threads of a block by default.
_THREADS = 128

_TILE_KNOBS = (KnobType.LOAD_SIZE, KnobType.TILE_ROWS, KnobType.TILE_COLS)


class ResampleEngine(ProblemEngine[Problem]):
    """Pooling and interpolation, as the module's docstring says."""

    name = "resample"
    index = 29
    anchors: Anchors = (ResampleOperation,)
    limits = fused(ResampleOperation)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> Problem | Refusal:
        """Refuses other operations, an index that the graph reads, and positions past 32 bits."""
        matched = match_anchored(graph, ResampleOperation)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        problem, index = Problem(matched.anchor, matched.epilogue), matched.anchor.index
        if index is not None and graph.producer(index) is not None and graph.consumers(index):
            return Refusal(self.name, f"ResampleForward.index: expected a tensor that is not read, got {index.label}")
        reason = problem.refuse()
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else problem

    def knobs_of(self, problem: Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """LOAD_SIZE, TILE_ROWS and TILE_COLS: channels, rows and columns of a thread; and BLOCK_SIZE."""
        return _knobs(problem, arch)

    def parts(self, problem: Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch, or none if the output is empty."""
        tile = Tile(*(chosen[kind] for kind in (*_TILE_KNOBS, KnobType.BLOCK_SIZE)))
        fitting = _fitting(problem, tile.channels)
        if (tile.rows, tile.columns) not in fitting:
            allowed = [f"{rows}x{columns}" for rows, columns in fitting]
            raise NotSupportedError.at(
                f"{self.name}.TILE_ROWS x TILE_COLS",
                expected=f"one of {', '.join(allowed)} with {tile.channels} channels",
                got=f"{tile.rows}x{tile.columns}",
            )
        if problem.target.element_count == 0:
            return PlanParts()
        kernel = _direction(problem).kernel(problem, tile)
        return PlanParts([(kernel, launch(problem, tile))])


def _direction(problem: Problem) -> ModuleType:
    """The module ``forward`` or ``backward``, which chooses for a problem."""
    return backward if problem.is_backward else forward


def _fitting(problem: Problem, channels: int) -> list[tuple[int, int]]:
    """The pairs (rows, columns) that a thread can have: 1 x 1 always, more if taps are known and registers suffice."""
    direction = _direction(problem)
    tiles = product(*counts(problem, direction.periods(problem)))
    return [
        tile for tile in tiles if direction.can_walk(problem, *tile) or direction.can_tile(problem, channels, *tile)
    ]


def _default_tile(problem: Problem, channels: int, arch: ArchSpec) -> tuple[int, int]:
    """The default (rows, columns) of a thread.

    It is all of dx where the thread spreads the one average of an image (``holds_image``). Otherwise it is the largest
    tile, up to the direction's ``most`` or a period, that leaves the device enough threads.
    Neighbouring windows read the same elements, which one thread loads once.
    """
    direction = _direction(problem)
    if problem.is_backward and backward.holds_image(problem):
        return backward.image(problem)
    down, along = map(max, direction.most(problem)[1:], direction.periods(problem))
    return chosen_tile(problem, channels, _fitting(problem, channels), (down, along), arch)


def _default_channels(problem: Problem, arch: ArchSpec) -> int:
    """The default number of channels of a thread: few if images of many channels leave the device too few threads."""
    if problem.is_backward and backward.holds_image(problem):
        few, many = backward.IMAGE_CHANNELS
        return many if backward.fills_device(problem, many, arch) else few
    most: int = _direction(problem).most(problem)[0]
    return most


def _knobs(problem: Problem, arch: ArchSpec) -> tuple[Knob, ...]:
    channels = tuple(c for c in CHANNELS if c <= problem.most_channels)
    row_counts, column_counts = counts(problem, _direction(problem).periods(problem))
    default = min(channels[-1], _default_channels(problem, arch))
    rows, columns = _default_tile(problem, default, arch)
    return (
        Knob("channels", KnobType.LOAD_SIZE, channels, default, "channels of a thread"),
        Knob("rows", KnobType.TILE_ROWS, row_counts, rows, "neighbouring rows of a thread"),
        Knob("columns", KnobType.TILE_COLS, column_counts, columns, "neighbouring columns of a thread"),
        Knob("block_size", KnobType.BLOCK_SIZE, BLOCK_SIZES, _THREADS, "threads of a block"),
    )
