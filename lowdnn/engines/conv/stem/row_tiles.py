"""Common parts of the engines that walk an image of few channels in tiles of rows: forward, and backward filter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Knob, Refusal
from lowdnn.engines.conv.refusals import refuse_operand_types
from lowdnn.engines.conv.stem.exchanged import with_few_channels
from lowdnn.engines.conv.stem.rows import MAX_CHANNELS, StemRows
from lowdnn.engines.floor import Floored
from lowdnn.engines.gemm import tiles
from lowdnn.engines.limits import reduced
from lowdnn.engines.model.products import ProductCosts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, PointwiseDag, match_anchored
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.status import Status

#: Choices of a tile's columns if it is not a whole row.
TILE_WIDTHS = (1024, 512, 256, 128, 64)
#: Most outputs of a tile with several rows.
MAX_TILE_OUTPUTS = 2048


@dataclass(frozen=True)
class RowTile:
    """Rows and columns of outputs, and the tiles whose inputs a block keeps."""

    height: int
    width: int
    stages: int


@dataclass(frozen=True)
class TileCosts:
    """A kernel's costs of a tile on a multiprocessor, fitted on an H200."""

    products: ProductCosts
    #: Clocks to begin a tile.
    tile_clocks: int
    #: Bytes per clock that are copied into shared memory.
    copied_bytes_per_clock: int
    #: Factor of the time of a block that is alone on a multiprocessor.
    lone_slowness: float


TileT = TypeVar("TileT", bound=RowTile)


@dataclass(frozen=True)
class RowTiling(ABC, Generic[TileT]):
    """``operation``, a convolution of few channels, with the epilogue of the graph's own operation."""

    operation: ConvolutionOperation
    dag: PointwiseDag

    @cached_property
    def rows(self) -> StemRows:
        return StemRows(self.operation)

    @abstractmethod
    def refuse_shape(self) -> str:
        """Why the kernel cannot read the tensors in place, or an empty string."""

    @abstractmethod
    def tiles(self, arch: ArchSpec) -> Iterator[TileT]:
        """Tiles that fit."""

    @abstractmethod
    def busy_s(self, tile: TileT, arch: ArchSpec) -> float:
        """Seconds of the multiprocessor with the most tiles."""


ProblemT = TypeVar("ProblemT", bound=RowTiling[Any])


class RowTiledMma(ProblemEngine[ProblemT], Floored):
    """An engine; a subclass chooses the operation and its types."""

    limits = reduced(ConvolutionOperation)
    data_types: frozenset[DataType]
    numerical_notes = tiles.NUMERICAL_NOTES

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> ProblemT | Refusal:
        """Refuses groups, more than 4 channels, dilation along a row, rows that are not dense, and filters that do not
        fit.
        """
        matched = match_anchored(graph, ConvolutionOperation)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        problem = self.problem_of(with_few_channels(matched.anchor, MAX_CHANNELS), matched)
        if isinstance(problem, str):
            return Refusal(self.name, problem)
        operation = problem.operation
        if refusal := refuse_operand_types(self.name, operation, self.data_types):
            return refusal
        if refused := problem.refuse_shape():
            return Refusal(self.name, f"{operation.label}.{refused}", Status.NOT_SUPPORTED_SHAPE)
        if next(problem.tiles(arch), None) is not None:
            return problem
        where = f"{operation.label}.{operation.roles[1]}.dims"
        reason = f"expected filters and rows of at most {arch.shared_bytes_per_block} bytes of shared memory"
        got = list(operation.filter.dims)
        return Refusal(self.name, f"{where}: {reason}, got {got}", Status.NOT_SUPPORTED_SHAPE)

    @abstractmethod
    def problem_of(self, operation: ConvolutionOperation, matched: Anchored[ConvolutionOperation]) -> ProblemT | str:
        """The problem of ``operation``, which is the matched one or its exchanged form; otherwise a text that says why
        there is none."""

    def knobs_of(self, problem: ProblemT, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_ROWS and TILE_COLS, outputs of a tile; STAGES, tiles of a block."""
        fitting = tuple(problem.tiles(arch))
        best = min(fitting, key=lambda tile: problem.busy_s(tile, arch))
        heights, widths = (tuple(sorted({getattr(tile, side) for tile in fitting})) for side in ("height", "width"))
        return (
            Knob("tile_rows", KnobType.TILE_ROWS, heights, best.height, "rows of outputs of a tile"),
            Knob("tile_cols", KnobType.TILE_COLS, widths, best.width, "columns of outputs of a tile"),
            Knob("stages", KnobType.STAGES, (1, 2), best.stages, "tiles of a block"),
        )
