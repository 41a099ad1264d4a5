"""Operations inside of another one, which were written beside it: those between what its subgraph is given and what it
makes (``ops.subgraph``).

The gradient of what modifies attention's scores is derived, where the gradient that is given goes on unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from lowdnn.graph.uids import free_uid
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.derivative import gradient_through
from lowdnn.ops.rng import RngOperation
from lowdnn.ops.sdpa import LOWEST
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.subgraph import InnerOperation, Subgraph
from lowdnn.status import BadParamError

_SUBGRAPH = "sdpa_backward.subgraph"


def gathered(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """``operations`` with those that belong inside of others there. Producers come before their readers.

    Raises BadParamError where one that belongs inside is not pointwise or stored, or nothing makes what is wanted.
    """
    found = tuple(operations)
    for op in operations:
        if isinstance(op, SdpaBackward) and op.inner is not None and not op.inner.operations:
            inside = _inside(found, op.inner)
            others = [other for other in found if other not in inside]
            inner = _with_gradient(_filled(op.inner, inside), operations)
            found = tuple(replace(op, inner=inner) if other is op else other for other in others)
    return found


def _with_gradient(inner: Subgraph, operations: Sequence[Operation]) -> Subgraph:
    """``inner`` with the derivative of its operations on scores, unless it has one.  operations: the whole graph."""
    (scores, gradient, _), (modified, made, dropped) = inner.given, inner.made
    if made.uid != gradient.uid or modified.uid == scores.uid:
        return inner
    tensors = [*inner.given, *(t for op in operations for t in (inputs_of(op) | outputs_of(op)).values())]
    uids = count(free_uid(tensor.uid for tensor in tensors))
    chain = inner.operations_to(modified)
    added, made = gradient_through(_SUBGRAPH, chain, scores, modified, gradient, uids.__next__, LOWEST)
    return replace(inner, made=(modified, made, dropped), operations=(*inner.operations, *added))


def _inside(operations: Sequence[Operation], inner: Subgraph) -> list[Operation]:
    """Operations that depend on the given tensors, and the random numbers that these read."""
    dependent = {tensor.uid for tensor in inner.given}
    inside: list[Operation] = []
    for op in operations:
        if any(tensor.uid in dependent for tensor in inputs_of(op).values()):
            inside.append(op)
            dependent |= {tensor.uid for tensor in outputs_of(op).values()}
    read = {tensor.uid for op in inside for tensor in inputs_of(op).values()}
    randoms = [op for op in operations if isinstance(op, RngOperation) and op.y.is_virtual and op.y.uid in read]
    return [*randoms, *inside]


def _filled(inner: Subgraph, inside: Sequence[Operation]) -> Subgraph:
    pointwise = tuple(op for op in inside if isinstance(op, InnerOperation))
    if len(pointwise) < len(inside):
        got = sorted({type(op).__name__ for op in inside} - {type(op).__name__ for op in pointwise})
        raise BadParamError.at("subgraph.operations", expected="pointwise operations and random numbers", got=got)
    known = {tensor.uid for tensor in (*inner.given, *(op.output for op in pointwise))}
    for tensor in inner.made:
        if tensor.uid not in known:
            expected = "a tensor that depends on what the subgraph is given"
            raise BadParamError.at(f"subgraph.{tensor.label}", expected=expected, got="another one")
    return replace(inner, operations=pointwise)
