"""Patterns that engines look for: an anchor operation with a DAG of pointwise operations after it, and reductions of
the DAG's tensors.

A tensor's value is always the value rounded to its data type, whether it is stored or virtual. So an engine that
keeps a virtual tensor in registers gives the same numbers as one that writes it to memory and reads it back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of, outputs_of, with_tensors
from lowdnn.ops.compute import accumulator_type
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.rng import RngOperation
from lowdnn.ops.tensor import Tensor

#: uid of the accumulator in a DAG whose anchor scales or accumulates; graphs cannot have negative uids.
ACCUMULATOR_UID = -1

OperationT = TypeVar("OperationT", bound=Operation)


@dataclass(frozen=True)
class PointwiseDag:
    """Pointwise operations over one index space: the input of the code generator.

    dims: extents of the index space; a tensor of the DAG has these dims, 1 where it repeats, or one element.
    operations: in topological order.
    anchor: the tensor whose value the kernel hands in (the accumulator), or None.
    result: the tensor whose value the DAG hands back to the kernel (to be reduced), or None.
    loads: tensors read from device memory.  scalars: by-value and constant tensors.  stores: tensors written.
    randoms: random numbers that the operations read or that are stored, one for each element.
    """

    dims: tuple[int, ...]
    operations: tuple[PointwiseOperation, ...]
    anchor: Tensor | None
    result: Tensor | None
    loads: tuple[Tensor, ...]
    scalars: tuple[Tensor, ...]
    stores: tuple[Tensor, ...]
    randoms: tuple[RngOperation, ...] = ()


@dataclass(frozen=True)
class Anchored(Generic[OperationT]):
    """One anchor operation and everything after it."""

    anchor: OperationT
    epilogue: PointwiseDag


@dataclass(frozen=True)
class AnchoredWithReductions(Generic[OperationT]):
    """One anchor operation, the pointwise operations after it, and reductions of one value of theirs.

    epilogue: its ``result`` is the value that is reduced, which may be stored as well; None without reductions.
    reductions: at least one axis each; their outputs are stored, and nothing in the graph reads them.
    """

    anchor: OperationT
    epilogue: PointwiseDag
    reductions: tuple[ReductionOperation | GenStats, ...]


def match_anchored(graph: OperationGraph, anchor_type: type[OperationT]) -> Anchored[OperationT] | str:
    """The graph as ``anchor_type`` with a pointwise epilogue, or why it is not one.

    A convolution of an empty tensor is none: see ``match_over_nothing``.
    """
    return graph.derive(_match_anchored, anchor_type)


def match_anchored_with_reductions(
    graph: OperationGraph, anchor_type: type[OperationT]
) -> AnchoredWithReductions[OperationT] | str:
    """The pattern with reductions after the epilogue (statistics of channels, sums of columns, the largest
    magnitude)."""
    return graph.derive(_match_anchored_with_reductions, anchor_type)


def match_over_nothing(graph: OperationGraph) -> PointwiseDag | str:
    """The graph as pointwise operations after a convolution of an empty tensor, whose sums are 0, or why it is not.

    alpha and beta count among the operations.
    """
    found = _anchored_with_reductions(graph, ConvolutionOperation)
    if isinstance(found, str):
        return found
    if found.reductions:
        return _refuse_operation(ConvolutionOperation, "and pointwise operations", found.reductions[0])
    anchor = found.anchor
    if not anchor.is_over_nothing:
        return f"{anchor.label}: expected an empty tensor, got elements in each"
    accumulator, blend = _alpha_beta(anchor, anchor.output)
    ones = (1,) * accumulator.rank
    zero = replace(accumulator, dims=ones, strides=ones, is_virtual=False, constant_value=0.0)
    behind = tuple(op for op in graph.operations if isinstance(op, PointwiseOperation))
    return dag_of(anchor.output.dims, (with_tensors(blend, {zero.uid: zero}), *behind))


def _match_anchored(graph: OperationGraph, anchor_type: type[OperationT]) -> Anchored[OperationT] | str:
    found = _match_anchored_with_reductions(graph, anchor_type)
    if isinstance(found, str):
        return found
    if found.reductions:
        return _refuse_operation(anchor_type, "and pointwise operations", found.reductions[0])
    return Anchored(found.anchor, found.epilogue)


def _match_anchored_with_reductions(
    graph: OperationGraph, anchor_type: type[OperationT]
) -> AnchoredWithReductions[OperationT] | str:
    found = _anchored_with_reductions(graph, anchor_type)
    if isinstance(found, str):
        return found
    if isinstance(found.anchor, ConvolutionOperation) and found.anchor.is_over_nothing:
        return f"{found.anchor.label}: expected elements in every tensor, got none"
    return found


def _anchored_with_reductions(
    graph: OperationGraph, anchor_type: type[OperationT]
) -> AnchoredWithReductions[OperationT] | str:
    anchors = [op for op in graph.operations if isinstance(op, anchor_type)]
    if len(anchors) != 1:
        return f"operations: expected exactly one {anchor_type.__name__}, got {len(anchors)}"
    anchor = anchors[0]
    others = [op for op in graph.operations if op is not anchor]
    pointwise = tuple(op for op in others if isinstance(op, PointwiseOperation))
    reductions = tuple(op for op in others if isinstance(op, ReductionOperation | GenStats))
    for op in others:
        if not isinstance(op, PointwiseOperation | ReductionOperation | GenStats):
            return _refuse_operation(anchor_type, "with pointwise operations and reductions", op)
    for port, tensor in inputs_of(anchor).items():
        if graph.producer(tensor) is not None or tensor.is_scalar_value:
            return f"{anchor_type.__name__}.{port}: expected a graph input in device memory, got {tensor.label}"
    output = next(iter(outputs_of(anchor).values()))
    refused = refuse_index_space(pointwise, output.dims) or _refuse_reductions(graph, reductions, output.dims)
    if refused:
        return refused
    epilogue = epilogue_of(anchor, output, pointwise)
    return AnchoredWithReductions(anchor, replace(epilogue, result=reductions[0].x if reductions else None), reductions)


def _refuse_operation(anchor_type: type[Operation], partners: str, found: Operation) -> str:
    return f"operations: expected {anchor_type.__name__} {partners}, got {type(found).__name__}"


def _refuse_reductions(
    graph: OperationGraph, reductions: tuple[ReductionOperation | GenStats, ...], dims: tuple[int, ...]
) -> str:
    """Why the reductions are no reductions of an epilogue over ``dims``, or an empty string."""
    for op in reductions:
        where = f"{type(op).__name__}.x"
        if op.x.uid != reductions[0].x.uid:
            return f"{where}: expected the tensor that the others reduce, {reductions[0].x.label}, got {op.x.label}"
        if graph.producer(op.x) is None or op.x.dims != dims:
            return f"{where}: expected a tensor of dims {list(dims)} from the epilogue, got {op.x.label}"
        for output in outputs_of(op).values():
            if graph.consumers(output) or output.is_virtual:
                return f"{type(op).__name__}: expected outputs that are stored and not read, got {output.label}"
    return ""


def refuse_index_space(operations: Iterable[PointwiseOperation | RngOperation], dims: tuple[int, ...]) -> str:
    """Why the operations cannot be evaluated element by element over ``dims``, or an empty string."""
    for op in operations:
        tensor = op.output
        if tensor.dims == dims:
            continue
        if not tensor.is_virtual:
            return f"{tensor.label}.dims: expected {list(dims)} for a stored tensor, got {list(tensor.dims)}"
        repeats = tensor.rank == len(dims) and all(e in (1, d) for e, d in zip(tensor.dims, dims, strict=True))
        if tensor.element_count != 1 and not repeats:
            return f"{tensor.label}.dims: expected {list(dims)}, with 1 where it repeats, got {list(tensor.dims)}"
    return ""


def epilogue_of(anchor: Operation, output: Tensor, operations: tuple[PointwiseOperation, ...]) -> PointwiseDag:
    """The DAG behind ``anchor``; a convolution's alpha and beta become its first operation."""
    accumulator = output
    if isinstance(anchor, ConvolutionOperation) and (anchor.alpha, anchor.beta) != (1.0, 0.0):
        accumulator, blend = _alpha_beta(anchor, output)
        operations = (blend, *operations)
    return dag_of(output.dims, operations, anchor=accumulator)


def dag_of(
    dims: tuple[int, ...],
    operations: tuple[PointwiseOperation, ...],
    anchor: Tensor | None = None,
    result: Tensor | None = None,
    randoms: tuple[RngOperation, ...] = (),
) -> PointwiseDag:
    """Sorts the operations' tensors into loads, scalars and stores. GEN_INDEX reads no value of its operand."""
    outputs = [op.output for op in randoms] + [op.output for op in operations]
    written = {tensor.uid for tensor in outputs}
    read = {t.uid: t for op in randoms for t in inputs_of(op).values()}
    of_values = (op for op in operations if op.mode is not PointwiseMode.GEN_INDEX)
    read |= {t.uid: t for op in of_values for t in op.operands.values()}
    if anchor is not None:
        read.pop(anchor.uid, None)
    accumulated = {op.output.uid for op in operations if any(t.uid == op.output.uid for t in op.operands.values())}
    given = [t for uid, t in read.items() if uid not in written or uid in accumulated]
    stores = {tensor.uid: tensor for tensor in outputs if not tensor.is_virtual}
    if anchor is not None and not anchor.is_virtual:
        stores = {anchor.uid: anchor} | stores
    return PointwiseDag(
        dims=dims,
        operations=operations,
        anchor=anchor,
        result=result,
        loads=tuple(t for t in given if not t.is_scalar_value),
        scalars=tuple(t for t in given if t.is_scalar_value),
        stores=tuple(stores.values()),
        randoms=randoms,
    )


def _alpha_beta(anchor: ConvolutionOperation, output: Tensor) -> tuple[Tensor, PointwiseOperation]:
    """(accumulator, operation): y = alpha * accumulator [+ beta * y], computed in the accumulator's type."""
    compute = accumulator_type(anchor.convolution.compute_type)
    accumulator = replace(
        output, uid=ACCUMULATOR_UID, data_type=compute, alignment_bytes=16, is_virtual=True, name="accumulator"
    )
    arithmetic = DataType.DOUBLE if compute is DataType.DOUBLE else DataType.FLOAT
    if anchor.beta == 0.0:
        mode = Pointwise(PointwiseMode.IDENTITY, arithmetic)
        return accumulator, PointwiseOperation(mode, x=accumulator, y=output, alpha1=anchor.alpha)
    mode = Pointwise(PointwiseMode.ADD, arithmetic)
    blend = PointwiseOperation(mode, x=accumulator, b=output, y=output, alpha1=anchor.alpha, alpha2=anchor.beta)
    return accumulator, blend
