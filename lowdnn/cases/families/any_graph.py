"""Graphs of any operations, as JSON: those that no other family has words for.

graph ops=[{"class":"MatmulOperation",...},...]
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from lowdnn.cases import text
from lowdnn.cases.base import Case, Inputs
from lowdnn.cases.roles import values_by_role
from lowdnn.cases.text import key
from lowdnn.codec import encode
from lowdnn.documents import write_document
from lowdnn.graph.graph import SCHEMA_VERSION, OperationGraph
from lowdnn.ops.base import Operation
from lowdnn.ops.causal_conv1d_forward import CausalConv1dForward
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.tensor import Tensor


@dataclass(frozen=True)
class GraphCase(Case):
    """ops: the operations as ``OperationGraph.to_json`` has them; tensors have numbers and no names."""

    family: ClassVar[str] = "graph"

    ops: str = key(text.words())

    @classmethod
    def of(cls, graph: OperationGraph) -> Self:
        """The case of ``graph``, the same for all graphs that differ in names and uids alone.

        Raises BadParamError for a graph that is too large for a document.
        """
        operations = _nameless(encode(graph.operations), {})
        write_document("lowdnn_graph", SCHEMA_VERSION, {"operations": operations})  # within the limits
        return cls(json.dumps(operations, separators=(",", ":")))

    def graph(self) -> OperationGraph:
        return self._graph

    @cached_property
    def _graph(self) -> OperationGraph:
        return OperationGraph.from_json(f'{{"lowdnn_graph":{SCHEMA_VERSION},"operations":{self.ops}}}')

    @property
    def is_exact(self) -> bool:
        return False

    @property
    def length(self) -> int:
        """The terms of all sums of an output, if one sum stood behind the other."""
        return max(1, sum(map(_terms, self._graph.operations)))

    def inputs(self, seed: int, exact: bool) -> Inputs:
        """Numbers as for other cases; tensors with offsets, lengths, indices and variances have values that fit."""
        return super().inputs(seed, exact) | values_by_role(self._graph, seed)

    def _accumulated(self, graph: OperationGraph) -> list[Tensor]:
        convolutions = [op.output for op in graph.operations if isinstance(op, ConvolutionOperation) and op.beta]
        gradients = [op.dw for op in graph.operations if isinstance(op, RnnBackwardWeights) and op.is_added]
        pools = [
            op.final_states
            for op in graph.operations
            if isinstance(op, CausalConv1dForward) and op.state_indices is not None and op.final_states is not None
        ]
        return convolutions + gradients + pools


def _nameless(value: Any, numbers: dict[int, int]) -> Any:
    """Encoded operations whose tensors have no names, and are numbered from 1 on in the order of first use."""
    if isinstance(value, list):
        return [_nameless(item, numbers) for item in value]
    if not isinstance(value, dict):
        return value
    found = {name: _nameless(item, numbers) for name, item in value.items()}
    if found.get("class") == Tensor.__name__:
        found |= {"uid": numbers.setdefault(found["uid"], len(numbers) + 1), "name": ""}
    return found


def _terms(operation: Operation) -> int:
    """The terms of one sum of an operation."""
    if isinstance(operation, MatmulOperation):
        return operation.a.dims[-1]
    if isinstance(operation, ReductionOperation):
        return operation.x.element_count // max(operation.y.element_count, 1)
    if isinstance(operation, ConvolutionOperation):
        return int(operation.flops // (2 * max(operation.output.element_count, 1)))
    return 1
