"""pygraph's plans as kernel nodes of a CUDA graph, added without a capture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowdnn.backend.handle import Handle
from lowdnn.frontend.arguments import integer
from lowdnn.frontend.execution import PreparedExecution
from lowdnn.status import AttributeTypeError


class CudaGraphMethods:
    """Methods of pygraph for CUDA graphs. ``cuda_graph`` is a CUgraph as an integer."""

    def populate_cuda_graph(
        self, handle: Handle, variant_pack: Mapping[Any, object], workspace: object, cuda_graph: int
    ) -> None:
        """Adds the selected plan's launches to ``cuda_graph``, one after the other; builds the graph at first use.

        variant_pack, workspace: tensor_dict and workspace of ``execute``; by-value tensors are read now.
        """
        prepared, graph = self._for_cuda_graph("populate_cuda_graph", handle, cuda_graph)
        prepared.add_to_graph(self._complete(variant_pack), workspace, handle, graph)

    def update_cuda_graph(
        self, handle: Handle, variant_pack: Mapping[Any, object], workspace: object, cuda_graph: int
    ) -> None:
        """Gives the nodes that ``populate_cuda_graph`` added to ``cuda_graph`` new addresses and by-value tensors.

        Graphs that were instantiated before keep the old ones. Raises CudaGraphMismatchError for a graph to which the
        selected plan was not added.
        """
        prepared, graph = self._for_cuda_graph("update_cuda_graph", handle, cuda_graph)
        prepared.update_graph(self._complete(variant_pack), workspace, handle, graph)

    def _for_cuda_graph(self, method: str, handle: Handle, cuda_graph: int) -> tuple[PreparedExecution, int]:
        if not isinstance(handle, Handle):
            raise AttributeTypeError.at(f"{method}.handle", expected="a Handle", got=repr(handle))
        graph = integer(cuda_graph, f"{method}.cuda_graph", 1)
        return self._ready(handle), graph

    def _complete(self, values: Mapping[Any, object]) -> Mapping[Any, object]:
        """``values`` with the arrays that stood for tensors when the graph was written."""
        raise NotImplementedError

    def _ready(self, handle: Handle | None) -> PreparedExecution:
        """The selected plan, loaded; builds the graph at first use."""
        raise NotImplementedError
