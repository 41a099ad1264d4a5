"""One operation over rows (a norm, a softmax) with pointwise operations before one of its inputs and after its output,
as an engine can fuse them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag, dag_of, refuse_index_space
from lowdnn.graph.reduction_pattern import descendants
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.tensor import Tensor

OperationT = TypeVar("OperationT", bound=Operation)


@dataclass(frozen=True)
class FusedRows(Generic[OperationT]):
    """An operation and what is fused with it.

    before: over the source's dims; its result is the source, and it may store tensors on the way.
    after: the operations that depend on the output, over the same dims.
    """

    operation: OperationT
    before: PointwiseDag
    after: tuple[PointwiseOperation, ...]


def match_rows(
    graph: OperationGraph, operation_type: type[OperationT], source_port: str, output_port: str
) -> FusedRows[OperationT] | str:
    """The graph as one ``operation_type`` with pointwise operations around it, or why it is not one.

    source_port, output_port: the operations that they may be before and behind. The other inputs are inputs of the
    graph, the other outputs are stored and not read.
    """
    found = [op for op in graph.operations if isinstance(op, operation_type)]
    if len(found) != 1:
        return f"operations: expected exactly one {operation_type.__name__}, got {len(found)}"
    operation = found[0]
    source, output = inputs_of(operation)[source_port], outputs_of(operation)[output_port]
    refused = _refuse_ports(graph, operation, source_port, output)
    around = surroundings(graph, (operation,), source, output)
    return refused or (around if isinstance(around, str) else FusedRows(operation, *around))


def surroundings(
    graph: OperationGraph, core: tuple[Operation, ...], source: Tensor, output: Tensor
) -> tuple[PointwiseDag, tuple[PointwiseOperation, ...]] | str:
    """(the pointwise operations before ``source``, which is their result, those that depend on ``core``), or why the
    graph is more than that around ``core``."""
    inside, dependent = {id(op) for op in core}, descendants(graph, core)
    behind: list[PointwiseOperation] = []
    before: list[PointwiseOperation] = []
    for op in graph.operations:
        if id(op) in inside:
            continue
        if not isinstance(op, PointwiseOperation):
            return f"operations: expected pointwise operations around {type(core[0]).__name__}, got {type(op).__name__}"
        (behind if id(op) in dependent else before).append(op)
    refused = (
        refuse_index_space(tuple(before), source.dims)
        or refuse_index_space(tuple(behind), output.dims)
        or _refuse_crossing(tuple(before), tuple(behind))
    )
    if refused:
        return refused
    dag = dag_of(source.dims, tuple(before), result=source)
    if graph.producer(source) is None and all(t.uid != source.uid for t in dag.loads):
        dag = replace(dag, loads=(*dag.loads, source))
    return dag, tuple(behind)


def _refuse_ports(graph: OperationGraph, operation: Operation, source_port: str, output: Tensor) -> str:
    """Why the ports other than source and output cannot be read and stored by the same kernel, or an empty string."""
    name, inputs = type(operation).__name__, inputs_of(operation)
    for port, tensor in inputs.items():
        if port != source_port and graph.producer(tensor) is not None:
            return f"{name}.{port}: expected an input of the graph, got {tensor.label}"
    if inputs[source_port].is_scalar_value:
        return f"{name}: expected a tensor in device memory, got {inputs[source_port].label}"
    for port, tensor in outputs_of(operation).items():
        if tensor.uid != output.uid and (tensor.is_virtual or graph.consumers(tensor)):
            return f"{name}.{port}: expected an output that is stored and not read, got {tensor.label}"
    return ""


def _refuse_crossing(before: tuple[PointwiseOperation, ...], behind: tuple[PointwiseOperation, ...]) -> str:
    """Values of single elements are gone, or not yet in memory, when the output is there."""
    written = {op.output.uid for op in before}
    for op in behind:
        for port, tensor in op.operands.items():
            if tensor.uid in written:
                return f"pointwise.{port}: expected a tensor that is not computed before the rows, got {tensor.label}"
    return ""
