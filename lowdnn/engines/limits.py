"""What no graph goes beyond that an engine takes, quick to tell while a graph grows operation by operation.

Every limit holds for each part of a graph as well: where a graph is beyond one, so is every larger graph around it.
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

#: Index spaces of the operations before and behind what is not pointwise itself.
_BEFORE_AND_BEHIND = 2


@dataclass(frozen=True)
class Group:
    """A group: at most ``most`` operations of ``classes``; None for any number."""

    classes: Classes
    most: int | None = None


@dataclass(frozen=True)
class Limits:
    """The operations of a graph that an engine takes.

    groups: an operation counts in the first group that has its class; a graph with an operation of no group is refused.
    spaces: the most index spaces of pointwise operations that do not fit into each other; None for any number.
    are_independent: whether the graph is a list of independent graphs, any number of them, each with one operation of
    the first group; the other limits hold for each graph.
    """

    groups: tuple[Group, ...]
    spaces: int | None = _BEFORE_AND_BEHIND
    are_independent: bool = False

    def group_of(self, kind: type[HasPorts]) -> int | None:
        """The number of the group of operations of class ``kind``."""
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
    """The limits of ``fused``, with reductions behind."""
    return Limits((Group(classes, 1), Group((PointwiseOperation, ReductionOperation, GenStats))))


def are_compatible(dims: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether an index space may have both: extents of 1 repeat, and so does a tensor of one element."""
    if len(dims) != len(others):
        return max(dims) == 1 or max(others) == 1
    return all(a == b or a == 1 or b == 1 for a, b in zip(dims, others, strict=True))


def with_space(spaces: tuple[tuple[int, ...], ...], dims: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """``spaces``, of which none fits into another one, with ``dims`` if those fit into none."""
    return spaces if any(are_compatible(dims, known) for known in spaces) else (*spaces, dims)


def names_of(operations: Iterable[HasPorts]) -> str:
    """The classes of ``operations`` for a message."""
    return listed([type(op).__name__ for op in operations])
