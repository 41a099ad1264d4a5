"""Exact patterns: graphs that an engine takes as one, with what their inputs hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType
from lowdnn.graph.expansion import written_out
from lowdnn.ops.base import HasPorts, Operation
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor

Array = NDArray[Any]


class Sketch(CaseBuilder):
    """A builder that also keeps what some inputs hold.

    values: float64 arrays by uid; other inputs hold random numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[int, Array] = {}

    def holding(self, values: Any, data_type: DataType, *, name: str = "") -> Tensor:
        """A new packed input that holds ``values``."""
        array = np.asarray(values, np.float64)
        tensor = self.tensor(array.shape, data_type, name=name)
        self.values[tensor.uid] = array
        return tensor

    def number(self, value: float, *, rank: int = 4, name: str = "") -> Tensor:
        """A new FLOAT input of one element in device memory."""
        return self.holding(np.full((1,) * rank, value), DataType.FLOAT, name=name)

    def value(self, value: float, *, rank: int = 4, name: str = "") -> Tensor:
        """A new FLOAT number given by value at execute."""
        tensor = self.by_value(rank, DataType.FLOAT, name=name)
        self.values[tensor.uid] = np.full((1,) * rank, value)
        return tensor

    def compound(self, operation: HasPorts) -> None:
        """An operation that is expanded."""
        self._operations.append(operation)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Pattern:
    """See ``Sketch``. operations: expanded, in topological order."""

    name: str
    operations: tuple[Operation, ...]
    values: Mapping[int, Array]

    @property
    def unrounded(self) -> frozenset[int]:
        """Uids of virtual tensors that kernels may leave unrounded: the weights of attention from the softmax on, which
        kernels divide by their sum last."""
        found = {op.y.uid for op in self.operations if isinstance(op, Softmax)}
        if not any(isinstance(op, MatmulOperation) for op in self.operations):
            return frozenset()
        for op in self.operations:
            if isinstance(op, PointwiseOperation) and any(t.uid in found for t in op.operands.values()):
                found.add(op.output.uid)
        return frozenset(found)


@dataclass(frozen=True)
class Known:
    """A pattern by what draws it.  engines: the engines that take it, among others; ``composite`` where none takes it
    whole."""

    draw: Callable[[Sketch], None]
    engines: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.draw.__name__

    @property
    def pattern(self) -> Pattern:
        sketch = Sketch()
        self.draw(sketch)
        return Pattern(self.name, written_out(sketch.operations), sketch.values)


def taken_by(engines: str, *draws: Callable[[Sketch], None]) -> dict[str, Known]:
    """Patterns by name, all with these engines, whose names stand between blanks."""
    return {draw.__name__: Known(draw, tuple(engines.split())) for draw in draws}
