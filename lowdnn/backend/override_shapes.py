"""Shapes that a variant pack has in the place of the graph's: how they are given, and the plan that runs them."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from lowdnn.backend.values import HostAddress, check_host_address
from lowdnn.engines.base import Choices, Engine
from lowdnn.enums import DIM_MAX, HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.other_shapes import with_shapes
from lowdnn.heuristics.ranking import Candidate, candidate_for, rank
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.status import BadParamError, NotSupportedError, SizeInsufficientError

#: (uid, dims, strides) of each tensor with another shape.
Shapes = tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]

#: Most other shapes for which one plan caches a result; the least recently used are dropped first.
MAX_SHAPES = 64

#: Bytes of a std::vector: three addresses, of its first element, of the end of its elements, and of the end of its
#: memory.
_VECTOR_BYTES = 24

T = TypeVar("T")


class KeptShapes(Generic[T]):
    """One result for each of the last ``MAX_SHAPES`` other shapes of a plan."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Shapes, T] = OrderedDict()

    def find(self, shapes: Shapes, make: Callable[[], T]) -> T:
        """The result for ``shapes``, which ``make`` makes where none is kept."""
        if shapes not in self._kept:
            self._kept[shapes] = make()
            if len(self._kept) > MAX_SHAPES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(shapes)
        return self._kept[shapes]


def per_tensor(where: str, values: tuple[int, ...], ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The extents of each tensor, from all of them in a row, or from the address of that many std::vector<int64_t>.

    Raises BadParamError where their count does not fit the tensors' ranks.
    """
    if len(values) == 1 and isinstance(values[0], HostAddress):
        found = tuple(_vector(where, values[0], number) for number in range(len(ranks)))
    else:
        if len(values) != sum(ranks):
            raise BadParamError.at(where, expected=f"{sum(ranks)} numbers, one for each dimension", got=len(values))
        ends = [sum(ranks[: number + 1]) for number in range(len(ranks))]
        found = tuple(values[end - rank : end] for end, rank in zip(ends, ranks, strict=True))
    for number, (extents, rank_) in enumerate(zip(found, ranks, strict=True)):
        if len(extents) != rank_:
            raise BadParamError.at(f"{where}[{number}]", expected=f"{rank_} numbers", got=list(extents))
    return found


def candidate_with(candidate: Candidate, shapes: Shapes, engines: Sequence[Engine]) -> Candidate:
    """The candidate for its graph with other shapes, within the workspace of its own plan.

    Its engine makes it, with the same knobs where it takes them, otherwise with its own; where it refuses the shapes or
    needs more workspace, the first of ``engines`` by rank that does not.
    Raises SizeInsufficientError where all need more, and what ``with_shapes`` raises.
    """
    graph = with_shapes(candidate.graph, {uid: (dims, strides) for uid, dims, strides in shapes})
    limit_bytes = size_anywhere(candidate.plan.workspace_bytes)
    needed: list[int] = []
    for found in _candidates(candidate, graph, engines):
        own_bytes = size_anywhere(found.plan.workspace_bytes)
        if own_bytes <= limit_bytes:
            return found
        needed.append(own_bytes)
    if not needed:
        raise NotSupportedError.at("override shapes", expected="shapes that an engine takes", got=_listed(shapes))
    raise SizeInsufficientError.at(
        "override shapes",
        expected=f"shapes that need at most {limit_bytes} bytes of workspace, as the plan has",
        got=f"{_listed(shapes)}, which need {min(needed)}",
        hint="make the plan with the largest shapes",
    )


def _candidates(candidate: Candidate, graph: OperationGraph, engines: Sequence[Engine]) -> Iterator[Candidate]:
    choices: Choices
    for choices in (candidate.choices, {}):
        try:
            yield candidate_for(candidate.engine, graph, candidate.arch, choices)
        except (NotSupportedError, BadParamError):  # the knobs, or the engine, do not take these shapes
            continue
    yield from rank(graph, candidate.arch, HeurMode.A, engines).candidates


def _vector(where: str, address: int, number: int) -> tuple[int, ...]:
    check_host_address(where, address)
    first, end, _ = (ctypes.c_uint64 * 3).from_address(address + number * _VECTOR_BYTES)
    count, rest = divmod(end - first, 8)
    if rest or not 0 <= count <= DIM_MAX:
        raise BadParamError.at(
            f"{where}[{number}]", expected=f"a vector of at most {DIM_MAX} numbers", got=f"{end - first} bytes"
        )
    return tuple((ctypes.c_int64 * count).from_address(first)) if count else ()


def _listed(shapes: Shapes) -> str:
    return ", ".join(f"uid {uid}: {list(dims)}" for uid, dims, _ in shapes)
