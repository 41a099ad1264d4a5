"""The structure of a pygraph, for programs that inspect graphs."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from lowdnn.checks import shown
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.graph_nodes import Node
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.listing import listing
from lowdnn.one_line import one_line
from lowdnn.ops.base import outputs_of
from lowdnn.status import AttributeTypeError, BadParamError


class InspectionMethods(GraphBuilder):
    """Methods of pygraph that tell its structure. A graph that was read by ``deserialize`` has no ``nodes``."""

    @property
    def nodes(self) -> list[Node]:
        """The calls that added operations, in their order."""
        return [
            Node.of(call, self._entries[call.entries.start : call.entries.stop], self.context.compute_data_type)
            for call in self._calls
        ]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, but those without a name of their own."""
        counts = Counter(tensor.get_name() for tensor in self._tensors)
        return {name: tensor for tensor in self._tensors if (name := tensor.get_name()) and counts[name] == 1}

    def get_node(self, name: str) -> Node | None:
        """The first operation of this name."""
        return next((node for node in self.nodes if node.name == name), None)

    def find_tensor(self, name_or_uid: str | int) -> Tensor | None:
        """The tensor with this name or uid; raises BadParamError for a name that several tensors have, and for a value
        that is neither."""
        if not isinstance(name_or_uid, (str, int)):
            where = "find_tensor.name_or_uid"
            raise AttributeTypeError.at(where, expected="a name or uid", got=shown(name_or_uid))
        key = Tensor.get_uid if isinstance(name_or_uid, int) else Tensor.get_name
        found = [tensor for tensor in self._tensors if key(tensor) == name_or_uid]
        if len(found) > 1:
            raise BadParamError.at("find_tensor.name_or_uid", expected="what one tensor has", got=repr(name_or_uid))
        return found[0] if found else None

    def get_inputs(self) -> list[Tensor]:
        """The tensors in memory, or passed by value, that no operation writes."""
        written = self._written_tensors()
        return [t for t in self._tensors if id(t) not in written and not t.get_is_virtual() and not t.is_constant]

    def get_outputs(self) -> list[Tensor]:
        """The tensors in memory that an operation writes."""
        written = self._written_tensors()
        return [tensor for tensor in self._tensors if id(tensor) in written and not tensor.get_is_virtual()]

    def inspect(self) -> dict[str, Any]:
        """Default types, operations and tensors as plain values."""
        return {
            "context": {
                "io_data_type": str(self.context.io_data_type),
                "intermediate_data_type": str(self.context.intermediate_data_type),
                "compute_data_type": str(self.context.compute_data_type),
            },
            "nodes": [
                {
                    "name": node.name,
                    "type": node.node_type.name,
                    "inputs": {port: tensor.get_name() for port, tensor in node.inputs.items()},
                    "outputs": {port: tensor.get_name() for port, tensor in node.outputs.items()},
                    "params": {name: _plain(value) for name, value in node.params.items()},
                }
                for node in self.nodes
            ],
            "tensors": {name: _facts(tensor) for name, tensor in self.tensors.items()},
        }

    def __str__(self) -> str:
        """A list of inputs, operations and outputs."""
        types = {
            "io": self.context.io_data_type,
            "intermediate": self.context.intermediate_data_type,
            "compute": self.context.compute_data_type,
        }
        title = f"pygraph {self.name!r}: {', '.join(f'{use} {kind.name}' for use, kind in types.items())}"
        operations = [type(operation).__name__ for operation in self._graph.operations] if self._graph else []
        return listing(title, self.get_inputs(), self.nodes, self.get_outputs(), operations, types["io"])

    def __repr__(self) -> str:
        """``inspect()`` as JSON, with the graph's name."""
        return json.dumps({"name": self.name, **self.inspect()})

    def _written_tensors(self) -> set[int]:
        """``id`` of the tensors that operations write."""
        if self._graph is None or self._entries:
            return {id(tensor) for entry in self._entries for tensor in entry.outputs}
        uids = {tensor.uid for op in self._graph.operations for tensor in outputs_of(op).values()}
        return {id(tensor) for tensor in self._tensors if tensor.get_uid() in uids}


def _plain(value: Any) -> Any:
    """Numbers, truth values and text as they are, sequences of them as lists, anything else as text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else one_line(str(value))


def _facts(tensor: Tensor) -> dict[str, Any]:
    return {
        "dim": tensor.get_dim(),
        "stride": tensor.get_stride(),
        "dtype": str(tensor.get_data_type()),
        "is_virtual": tensor.get_is_virtual(),
        "uid": tensor.get_uid(),
    }
