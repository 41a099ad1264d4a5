"""Cases: a graph with its input data, made from one line of text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from lowdnn.cases import text
from lowdnn.cases.data import exact_values, real_values
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError

Inputs = dict[int, NDArray[Any]]


class Case(ABC):
    """One graph with data. ``str(case)`` is its text; ``parse_case`` reads it back to an equal case."""

    family: ClassVar[str]

    @abstractmethod
    def graph(self) -> OperationGraph:
        """The graph; raises the operations' errors where the values do not fit together."""

    @property
    @abstractmethod
    def is_exact(self) -> bool:
        """True where exact inputs must give the reference's result bit for bit."""

    @property
    def length(self) -> int:
        """Number of terms in the sum of one output element, from which the tolerance follows."""
        return 1

    @property
    def exact_length(self) -> int:
        """Number of terms of the longest sum that must be exact; it may be longer than the sum of one output
        element."""
        return self.length

    @property
    def sum_type(self) -> DataType:
        """The arithmetic in which sums of exact inputs must be exact."""
        return DataType.FLOAT

    def inputs(self, seed: int, exact: bool) -> Inputs:
        """Storage arrays in logical dims for every tensor that execute must be given values of.

        exact: small integers for which every order of summation gives the same bits; otherwise normal numbers.
        """
        rng = np.random.default_rng(seed)
        graph = self.graph()
        needed = [t for t in graph.inputs if t.constant_value is None] + self._accumulated(graph)
        return {tensor.uid: self._values(rng, tensor, exact) for tensor in needed}

    @classmethod
    def guesses(cls, graph: OperationGraph) -> Iterable[Self]:
        """Cases whose graph may be ``graph``; the caller (``naming``) builds and compares them."""
        return ()

    def __str__(self) -> str:
        return text.format_fields(self, self.family)

    def _accumulated(self, graph: OperationGraph) -> list[Tensor]:
        """The outputs that the graph accumulates into, so that their old values are read."""
        return []

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        if exact:
            return exact_values(rng, tensor.dims, tensor.data_type, self.exact_length, self.sum_type)
        return real_values(rng, tensor.dims, tensor.data_type)


def check_axes(axes: tuple[int, ...], rank: int, where: str) -> None:
    """Raises BadParamError unless all are axes of a tensor of ``rank`` dimensions."""
    if any(axis >= rank for axis in axes):
        raise BadParamError.at(where, expected=f"axes under the rank {rank}", got=list(axes))
