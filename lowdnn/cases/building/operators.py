"""Operators of custom reductions, by name; each is associative.

add        left + right
last       right
argmax     (the larger value, its index), of equal ones those on the left
affine     (a, b) stands for v -> a v + b, left before right: (a_l a_r, a_r b_l + b_r)
logsumexp  (m, s) stands for s exp(m): (m, s_l exp(m_l - m) + s_r exp(m_r - m)) with m the larger of m_l and m_r
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.node_writer import NodeWriter
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import Tensor

_M = PointwiseMode
Numbers = tuple[Tensor, ...]


@dataclass(frozen=True)
class NamedOperator:
    """initial: the initial value of each number of a state.  join: the function that makes a state of two."""

    initial: tuple[float, ...]
    join: Callable[[Joining, Numbers, Numbers], Numbers]


class Joining:
    """Writes the operations of an operator on single numbers; the first of a state are in ``compute_type``."""

    def __init__(self, compute_type: DataType, first_uid: int) -> None:
        self.compute_type = compute_type
        self.writer = NodeWriter(first_uid=first_uid)

    def number(self, data_type: DataType) -> Tensor:
        return self.writer.tensor((1,), data_type, is_virtual=True)

    def apply(self, mode: PointwiseMode, *operands: Tensor, virtual: DataType | None = None) -> Tensor:
        return self.writer.pointwise(mode, *operands, compute_type=self.compute_type, virtual=virtual)


def operator_of(name: str, types: tuple[DataType, ...], first_uid: int) -> Subgraph:
    """The operator ``name`` on states whose numbers have the data types ``types``; its tensors get uids from
    ``first_uid`` on."""
    joining = Joining(types[0], first_uid)
    left, right = (tuple(joining.number(kind) for kind in types) for _ in range(2))
    made = OPERATORS[name].join(joining, left, right)
    operations = tuple(op for op in joining.writer.operations if isinstance(op, PointwiseOperation))
    return Subgraph((*left, *right), made, operations)


def _add(joining: Joining, left: Numbers, right: Numbers) -> Numbers:
    return (joining.apply(_M.ADD, left[0], right[0]),)


def _last(joining: Joining, left: Numbers, right: Numbers) -> Numbers:
    return right


def _argmax(joining: Joining, left: Numbers, right: Numbers) -> Numbers:
    is_left = joining.apply(_M.CMP_GE, left[0], right[0], virtual=DataType.BOOLEAN)
    value = joining.apply(_M.BINARY_SELECT, left[0], right[0], is_left)
    index = joining.writer.pointwise(_M.BINARY_SELECT, left[1], right[1], is_left, compute_type=left[1].data_type)
    return value, index


def _affine(joining: Joining, left: Numbers, right: Numbers) -> Numbers:
    moved = joining.apply(_M.ADD, joining.apply(_M.MUL, right[0], left[1]), right[1])
    return joining.apply(_M.MUL, left[0], right[0]), moved


def _logsumexp(joining: Joining, left: Numbers, right: Numbers) -> Numbers:
    largest = joining.apply(_M.MAX, left[0], right[0])
    terms = [
        joining.apply(_M.MUL, sums, joining.apply(_M.EXP, joining.apply(_M.SUB, exponent, largest)))
        for exponent, sums in (left, right)
    ]
    return largest, joining.apply(_M.ADD, *terms)


OPERATORS: Mapping[str, NamedOperator] = {
    "add": NamedOperator((0.0,), _add),
    "last": NamedOperator((0.0,), _last),
    "argmax": NamedOperator((-inf, -1.0), _argmax),
    "affine": NamedOperator((1.0, 0.0), _affine),
    "logsumexp": NamedOperator((-inf, 0.0), _logsumexp),
}
