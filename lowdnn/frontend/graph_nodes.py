"""cudnn.Node: one operation of a graph, for programs that inspect graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lowdnn.frontend.builder import Entry
from lowdnn.frontend.calls import Call
from lowdnn.frontend.data_types import data_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.node_types import NodeType
from lowdnn.frontend.nodes import PointwiseNode

#: Ports of outputs, by the ends of default names that they differ from.
_PORTS = {
    "DWeight": "dweight",
    "Amax_dQ": "amax_dQ",
    "Amax_dK": "amax_dK",
    "Amax_dV": "amax_dV",
    "Amax_dP": "amax_dP",
    "MEAN": "mean",
    "INV_VARIANCE": "inv_var",
    "NEXT_RUNNING_MEAN": "next_running_mean",
    "NEXT_RUNNING_VAR": "next_running_var",
    "DSCALE": "DScale",
    "Dscale": "DScale",
    "DBIAS": "DBias",
    "Dbias": "DBias",
    "sum_output": "SUM",
    "sq_sum_output": "SQ_SUM",
}
#: Methods whose output has the port OUT_0, whatever its default name ends in.
_WITH_OUT_0 = (
    *("reduction", "reshape", "slice", "transpose", "concatenate", "rope", "rope_backward", "moe_grouped_matmul"),
    "block_scale_dequantize",
)


@dataclass(frozen=True)
class Node:
    """An operation of a graph: one call of a method.

    inputs, outputs: tensors by the names of the method's parameters (``IN_0``, ``IN_1`` of pointwise methods; tensors
    of a sequence as ``inputs_0``) and of the outputs.  params: its other arguments.
    """

    name: str
    node_type: NodeType
    compute_data_type: data_type
    method: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    params: Mapping[str, Any]

    @classmethod
    def of(cls, call: Call, entries: list[Entry], compute_data_type: data_type) -> Node:
        """The node of ``call``, which added the operations ``entries``.  compute_data_type: the graph's."""
        written = {id(tensor) for entry in entries for tensor in entry.outputs}
        given = {name.replace("[", "_").removesuffix("]"): tensor for name, tensor in call.tensors.items()}
        params = dict(call.others)
        chosen = params.pop("compute_data_type", None) or compute_data_type
        node_type = _type_of(call, entries)
        inputs = {name: tensor for name, tensor in given.items() if id(tensor) not in written}
        if node_type is NodeType.POINTWISE:
            inputs = {f"IN_{place}": tensor for place, tensor in enumerate(entries[0].node.inputs)}
            params["mode"] = call.method
        outputs = {output_port(call.method, end): tensor for end, tensor in call.outputs.items()}
        also_written = {name: tensor for name, tensor in given.items() if id(tensor) in written}
        return cls(call.name, node_type, chosen, call.method, inputs, outputs | also_written, params)

    def validate(self) -> None:
        """Raises BadParamError for a tensor that no graph takes as it is; outputs may lack what is inferred."""
        for tensor in self.inputs.values():
            tensor.validate()

    def __repr__(self) -> str:
        return f"Node({self.name!r}, {self.node_type.name})"


def output_port(method: str, end: str) -> str:
    """The port of an output of ``method`` whose default name ends so."""
    return "OUT_0" if method in _WITH_OUT_0 else _PORTS.get(end, end)


def _type_of(call: Call, entries: list[Entry]) -> NodeType:
    name = call.method.upper().replace("_BACKWARD", "_BWD")
    if name in NodeType.__members__:
        return NodeType[name]
    is_pointwise = len(entries) == 1 and isinstance(entries[0].node, PointwiseNode)
    return NodeType.POINTWISE if is_pointwise else NodeType.COMPOSITE
