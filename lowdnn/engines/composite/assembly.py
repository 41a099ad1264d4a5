"""Chains the plans of sub-graphs into one: launches in order, kernels once each, intermediates in the workspace.

An intermediate is a tensor that is virtual in the whole graph and in memory in a part: it crosses from one part to
another, or nothing reads it. It is packed (``graph.observable``) and lives from the part that writes it to the last
part that reads it; so does each part's own workspace, for that part alone. Ranges whose lives overlap do not overlap in
the workspace.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TypeVar

from lowdnn.engines.composite.parts import Part
from lowdnn.engines.launch import aligned_bytes
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.relocation import moved
from lowdnn.enums import BehaviorNote, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of, outputs_of

NoteT = TypeVar("NoteT", bound=NumericalNote | BehaviorNote)


def assemble(graph: OperationGraph, parts: Sequence[Part]) -> PlanParts:
    """The chain of ``parts``, which together are ``graph``; ``PlanParts.names`` has them in launch order."""
    ranges = _ranges(graph, parts)
    offsets, workspace_bytes = _place(ranges)
    intermediates = {item.uid: offset for item, offset in zip(ranges, offsets, strict=True) if item.uid is not None}
    own = {item.first: offset for item, offset in zip(ranges, offsets, strict=True) if item.uid is None}
    chain = PlanParts(workspace_bytes=workspace_bytes)
    chain.numerical_notes = _union(part.plan.numerical_notes for part in parts)
    chain.behavior_notes = _union(part.plan.behavior_notes for part in parts)
    chain.names = tuple(part.plan.name for part in parts)
    for position, part in enumerate(parts):
        for launch in part.plan.launches:
            arguments = tuple(moved(a, intermediates, own.get(position, 0), part.uids) for a in launch.arguments)
            chain.add(part.plan.kernels[launch.kernel], replace(launch, arguments=arguments))
    return chain


def _union(notes: Iterable[tuple[NoteT, ...]]) -> tuple[NoteT, ...]:
    """The union of the plans' notes, in order of first appearance."""
    return tuple(dict.fromkeys(note for group in notes for note in group))


@dataclass(frozen=True)
class _Range:
    """A range of the workspace that is in use from part ``first`` to part ``last``: an intermediate, or a part's own
    workspace (uid None)."""

    uid: int | None
    first: int
    last: int
    size_bytes: int


def _ranges(graph: OperationGraph, parts: Sequence[Part]) -> list[_Range]:
    """All ranges, in the order of the part that first needs them."""
    last = {uid: position for position, part in enumerate(parts) for op in part.operations for uid in _uids(op)}
    ranges: list[_Range] = []
    for position, part in enumerate(parts):
        for tensor in part.stored:
            if graph.tensors[tensor.uid].is_virtual:
                ranges.append(_Range(tensor.uid, position, last[tensor.uid], tensor.span_bytes))
        if part.plan.workspace_bytes:
            ranges.append(_Range(None, position, position, part.plan.workspace_bytes))
    return ranges


def _uids(operation: Operation) -> Iterator[int]:
    return (tensor.uid for tensor in (*inputs_of(operation).values(), *outputs_of(operation).values()))


def _place(ranges: Sequence[_Range]) -> tuple[list[int], int]:
    """(offset of each range, bytes in all): each range at the lowest offset that is free during its life."""
    gaps, ends, offsets = _Gaps(), list[tuple[int, int, int]](), list[int]()
    for item in ranges:
        while ends and ends[0][0] < item.first:
            _, offset, size = heappop(ends)
            gaps.give_back(offset, size)
        size = aligned_bytes(item.size_bytes)
        offsets.append(gaps.take(size) if size else 0)
        if size:
            heappush(ends, (item.last, offsets[-1], size))
    return offsets, gaps.most_bytes


class _Gaps:
    """The free gaps of the workspace. most_bytes: the greatest end of any range that was taken."""

    def __init__(self) -> None:
        self._gaps: list[tuple[int, int]] = [(0, sys.maxsize)]
        self.most_bytes = 0

    def take(self, size: int) -> int:
        """The lowest offset of ``size`` free bytes."""
        number = next(number for number, (start, end) in enumerate(self._gaps) if end - start >= size)
        start, end = self._gaps[number]
        self._gaps[number : number + 1] = [(start + size, end)] if end - start > size else []
        self.most_bytes = max(self.most_bytes, start + size)
        return start

    def give_back(self, offset: int, size: int) -> None:
        """Joins the bytes with the gaps on both sides."""
        number, end = bisect_left(self._gaps, (offset, 0)), offset + size
        if number < len(self._gaps) and self._gaps[number][0] == end:
            end = self._gaps.pop(number)[1]
        if number and self._gaps[number - 1][1] == offset:
            number -= 1
            offset = self._gaps.pop(number)[0]
        self._gaps.insert(number, (offset, end))
