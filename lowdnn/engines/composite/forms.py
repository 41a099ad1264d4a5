"""Sub-graphs of a graph that differ only by the uids and names of their tensors have one form, so that one plan serves
all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowdnn.graph.graph import OperationGraph, form_of
from lowdnn.ops.base import Operation
from lowdnn.ops.tensor import Tensor

#: The number in a key for the first use of a tensor with its layout in the graph; later uses have numbers from 0 on.
_AS_IN_THE_GRAPH = -1
#: The number for the first use of a virtual tensor that the sub-graph stores, with strides other than the graph's.
_STORED = -2
#: The number for the first use of a virtual tensor that the sub-graph stores, with the graph's strides.
_STORED_IN_PLACE = -3


@dataclass(frozen=True)
class Form:
    """key: equal for two sub-graphs of one form. uids: the sub-graph's tensors in order of first use.

    border: by uid, the graph's virtual tensors that lie in memory when the sub-graph runs alone.
    """

    key: tuple[int, ...]
    uids: tuple[int, ...]
    border: Mapping[int, Tensor]


class Forms:
    """Finds the forms of sub-graphs of one graph."""

    def __init__(self, graph: OperationGraph) -> None:
        self._graph = graph
        self._kinds: dict[str, int] = {}
        self._operations = {id(op): self._numbered(op) for op in graph.operations}

    def of(self, operations: Sequence[Operation]) -> Form:
        """The form of ``operations`` of the graph, in an order in which they can run."""
        border = self._graph.border(operations)
        numbers: dict[int, int] = {}
        key: list[int] = []
        for operation in operations:
            kind, uids = self._operations[id(operation)]
            key.append(kind)
            for uid in uids:
                key.append(numbers[uid] if uid in numbers else self._place(border.get(uid)))
                numbers.setdefault(uid, len(numbers))
        return Form(tuple(key), tuple(numbers), border)

    def _place(self, stored: Tensor | None) -> int:
        if stored is None:
            return _AS_IN_THE_GRAPH
        is_in_place = stored.strides == self._graph.tensors[stored.uid].strides
        return _STORED_IN_PLACE if is_in_place else _STORED

    def _numbered(self, operation: Operation) -> tuple[int, tuple[int, ...]]:
        """(number of the operation's form, uids of its tensors)."""
        form, uids = form_of(operation)
        return self._kinds.setdefault(form, len(self._kinds)), uids
