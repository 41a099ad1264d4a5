"""What both directions share of a thread's work and its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn.engines.launch import fma_unit
from lowdnn.engines.resample.problem import Problem
from lowdnn.enums import DataType
from lowdnn.plan import MathUnit, Scalar, ScalarType

CHANNELS = (1, 2, 4, 8)
TILES = (1, 2, 4, 8, 16)
BLOCK_SIZES = (64, 128, 256)

_SCALARS = {DataType.FLOAT: ScalarType.F32, DataType.DOUBLE: ScalarType.F64, DataType.INT32: ScalarType.I32}


@dataclass(frozen=True)
class Tile:
    """A thread's work: neighbouring channels, neighbouring elements of the target along the columns.

    threads: of a block.
    """

    channels: int
    columns: int
    threads: int

    def index_type(self, problem: Problem) -> str:
        """The type of the number of a thread's group."""
        return "u32" if prod(problem.radices(self.channels, self.columns)) < 2**31 else "i64"


def scalar(problem: Problem, value: int) -> Scalar:
    """A number of the compute type."""
    kind = _SCALARS[problem.resample.compute_type]
    return Scalar(kind, value if kind is ScalarType.I32 else float(value))


def compute_unit(problem: Problem) -> MathUnit:
    return fma_unit(problem.resample.compute_type)
