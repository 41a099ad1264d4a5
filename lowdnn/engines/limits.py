"""Limits of the graphs that an engine takes, which are quick to check while a graph grows operation by operation.

Every limit also holds for each part of a graph: if a graph exceeds one, so does every larger graph around it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lowdnn.one_line import listed
from lowdnn.ops.base import HasPorts
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.reduction import ReductionOperation

Classes = tuple[type[Any], ...]

#: Index spaces of the pointwise operations before and after an operation that is not pointwise.
_BEFORE_AND_AFTER = 2


@dataclass(frozen=True)
class Group:
    """A group of at most ``most`` operations of ``classes``; None means any number."""

    classes: Classes
    most: int | None = None


@dataclass(frozen=True)
class Limits:
    """The operations that a graph may have.

    groups: an operation counts in the first group that has its class; a graph with an operation of no group is refused.
    spaces: index spaces of pointwise operations that are not compatible, at most; None means any number.
    are_independent: whether the graph is a list of any number of independent graphs, each with one operation of the
    first group; the other limits hold for each of them.
    """

    groups: tuple[Group, ...]
    spaces: int | None = _BEFORE_AND_AFTER
    are_independent: bool = False

    def group_of(self, kind: type[HasPorts]) -> int | None:
        """The number of the group that operations of class ``kind`` belong to, or None."""
        return next((number for number, group in enumerate(self.groups) if issubclass(kind, group.classes)), None)


#: The limits of an engine that may take any graph.
UNLIMITED = Limits((Group((object,)),), spaces=None)


def alone(*classes: type[HasPorts]) -> Limits:
    """The limits of an engine that takes one operation by itself."""
    return Limits((Group(classes, 1),))


def fused(*classes: type[HasPorts]) -> Limits:
    """The limits of an engine that fuses pointwise operations with one operation of ``classes``."""
    return Limits((Group(classes, 1), Group((PointwiseOperation,))))


def reduced(*classes: type[HasPorts]) -> Limits:
    """The limits of an engine that fuses pointwise operations, and reductions of the result, with one operation."""
    return Limits((Group(classes, 1), Group((PointwiseOperation, ReductionOperation, GenStats))))


def are_compatible(dims: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether one index space can have both dims: extents of 1 repeat, and so does a tensor of one element."""
    if len(dims) != len(others):
        return max(dims) == 1 or max(others) == 1
    return all(a == b or a == 1 or b == 1 for a, b in zip(dims, others, strict=True))


def with_space(spaces: tuple[tuple[int, ...], ...], dims: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """``spaces``, and ``dims`` too if they are compatible with none of them."""
    return spaces if any(are_compatible(dims, known) for known in spaces) else (*spaces, dims)


def names_of(operations: Iterable[HasPorts]) -> str:
    """The classes of ``operations`` for a message."""
    return listed([type(op).__name__ for op in operations])
