"""The pattern of engines with fusion on the input side: pointwise operations before one input of an anchor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from lowdnn.enums import PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import (
    AnchoredWithReductions,
    OperationT,
    PointwiseDag,
    dag_of,
    match_anchored_with_reductions,
)
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.pointwise import PointwiseOperation


@dataclass(frozen=True)
class Prologued(Generic[OperationT]):
    """One anchor operation, everything after it, and the pointwise operations before one of its inputs.

    prologue: its ``result`` is the anchor's input ``port``, and it stores nothing.
    matched: the rest of the graph, in which that input is a tensor in memory.
    """

    prologue: PointwiseDag
    port: str
    matched: AnchoredWithReductions[OperationT]


def match_prologued(graph: OperationGraph, anchor_type: type[OperationT]) -> Prologued[OperationT] | str:
    """The graph as ``anchor_type`` with a pointwise prologue on one input and an epilogue, or why it is not one."""
    found = match_prologued_with_reductions(graph, anchor_type)
    if isinstance(found, Prologued) and found.matched.reductions:
        got = type(found.matched.reductions[0]).__name__
        return f"operations: expected {anchor_type.__name__} and pointwise operations, got {got}"
    return found


def match_prologued_with_reductions(
    graph: OperationGraph, anchor_type: type[OperationT]
) -> Prologued[OperationT] | str:
    """The pattern with reductions after the epilogue."""
    return graph.derive(_match_prologued, anchor_type)


def _match_prologued(graph: OperationGraph, anchor_type: type[OperationT]) -> Prologued[OperationT] | str:
    anchors = [op for op in graph.operations if isinstance(op, anchor_type)]
    if len(anchors) != 1:
        return f"operations: expected exactly one {anchor_type.__name__}, got {len(anchors)}"
    ports = [port for port, tensor in inputs_of(anchors[0]).items() if graph.producer(tensor) is not None]
    if len(ports) != 1:
        return f"{anchor_type.__name__}: expected one input with operations before it, got {len(ports)}"
    operand = inputs_of(anchors[0])[ports[0]]
    needed = {operand.uid}
    before: list[PointwiseOperation] = []
    for op in reversed(graph.operations):
        if needed.isdisjoint(output.uid for output in outputs_of(op).values()):
            continue
        if not isinstance(op, PointwiseOperation) or op.mode is PointwiseMode.GEN_INDEX:
            return f"{operand.label}: expected pointwise operations before it, none GEN_INDEX, got {_name(op)}"
        needed.update(tensor.uid for tensor in inputs_of(op).values())
        before.insert(0, op)
    inside = {id(op) for op in (*before, anchors[0])}
    for op in before:
        readers = graph.consumers(op.output)
        if not op.output.is_virtual or any(id(reader) not in inside for reader in readers):
            return f"{op.output.label}: expected a virtual tensor that only {operand.label} depends on, got others"
    rest = graph.subgraph(op for op in graph.operations if id(op) not in inside or op is anchors[0])
    matched = match_anchored_with_reductions(rest, anchor_type)
    if isinstance(matched, str):
        return matched
    return Prologued(dag_of(operand.dims, tuple(before), result=operand), ports[0], matched)


def _name(operation: Operation) -> str:
    return operation.mode.name if isinstance(operation, PointwiseOperation) else type(operation).__name__
