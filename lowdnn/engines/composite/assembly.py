"""Chains the plans of sub-graphs into one: launches in order, kernels once each, intermediates in the workspace.

An intermediate is a tensor that is virtual in the whole graph and in memory in a part: it crosses from one part to
another, or nothing reads it. It is packed (``graph.observable``) and lives from the part that writes it to the last
part that reads it; so does each part's own workspace, for that part alone. Ranges whose lives overlap do not overlap in
the workspace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine, plan_tensors
from lowdnn.engines.composite.partition import Part
from lowdnn.engines.launch import aligned_bytes
from lowdnn.enums import BehaviorNote, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import outputs_of
from lowdnn.plan import (
    Argument,
    KernelRef,
    Launch,
    Plan,
    Pointer,
    Scalar,
    Struct,
    TensorMap,
    TensorPointer,
    WorkspacePointer,
)

NoteT = TypeVar("NoteT", bound=NumericalNote | BehaviorNote)


@dataclass(frozen=True)
class Assembly:
    """Kernels, launches and workspace of a chain of parts."""

    kernels: tuple[KernelRef, ...]
    launches: tuple[Launch, ...]
    workspace_bytes: int


def assemble(graph: OperationGraph, parts: Sequence[Part]) -> Assembly:
    """The chain of ``parts``, which together are ``graph``."""
    ranges = _ranges(graph, parts)
    offsets, workspace_bytes = _place(ranges)
    intermediates = {item.uid: offset for item, offset in zip(ranges, offsets, strict=True) if item.uid is not None}
    own = {item.first: offset for item, offset in zip(ranges, offsets, strict=True) if item.uid is None}
    numbers: dict[KernelRef, int] = {}
    launches: list[Launch] = []
    for position, part in enumerate(parts):
        for launch in part.plan.launches:
            kernel = numbers.setdefault(part.plan.kernels[launch.kernel], len(numbers))
            arguments = tuple(moved(item, intermediates, own.get(position, 0)) for item in launch.arguments)
            launches.append(replace(launch, kernel=kernel, arguments=arguments))
    return Assembly(tuple(numbers), tuple(launches), workspace_bytes)


def chain_of(
    engine: Engine, graph: OperationGraph, arch: ArchSpec, runs: OperationGraph, parts: Sequence[Part]
) -> Plan:
    """The plan of ``engine`` for ``graph`` that chains ``parts``; ``Plan.parts`` names them in launch order.

    runs: the graph that the parts make up; its tensors in memory are those of ``graph``.
    """
    assembly = assemble(runs, parts)
    return Plan(
        engine=engine.name,
        engine_index=engine.index,
        graph_key=graph.key,
        target_arch=arch.name,
        choices=(),
        kernels=assembly.kernels,
        launches=assembly.launches,
        tensors=graph.derive(plan_tensors),
        workspace_bytes=assembly.workspace_bytes,
        numerical_notes=_union(part.plan.numerical_notes for part in parts),
        behavior_notes=_union(part.plan.behavior_notes for part in parts),
        parts=tuple(part.plan.name for part in parts),
    )


def _union(notes: Iterable[tuple[NoteT, ...]]) -> tuple[NoteT, ...]:
    """Every note once, in order of first appearance."""
    return tuple(dict.fromkeys(note for group in notes for note in group))


@dataclass(frozen=True)
class _Range:
    """Workspace that lives from part ``first`` to part ``last``: of an intermediate, or (uid None) a part's own."""

    uid: int | None
    first: int
    last: int
    size_bytes: int


def _ranges(graph: OperationGraph, parts: Sequence[Part]) -> list[_Range]:
    """All ranges, by the part that first needs them."""
    ranges: list[_Range] = []
    for position, part in enumerate(parts):
        written = [tensor for op in part.graph.operations for tensor in outputs_of(op).values()]
        for tensor in written:
            if graph.tensors[tensor.uid].is_virtual and not tensor.is_virtual:
                readers = [place for place, reader in enumerate(parts) if tensor.uid in reader.graph.tensors]
                ranges.append(_Range(tensor.uid, position, max(readers), tensor.span_bytes))
        if part.plan.workspace_bytes:
            ranges.append(_Range(None, position, position, part.plan.workspace_bytes))
    return ranges


def _place(ranges: Sequence[_Range]) -> tuple[list[int], int]:
    """(offset of each range, bytes in all): each range at the lowest offset that is free during its life."""
    placed: list[tuple[_Range, int, int]] = []
    for item in ranges:
        size = aligned_bytes(item.size_bytes)
        offset = 0
        for other, start, end in sorted(placed, key=lambda entry: entry[1]):
            alive_together = item.first <= other.last and other.first <= item.last
            if alive_together and offset < end and start < offset + size:
                offset = end
        placed.append((item, offset, offset + size))
    return [start for _, start, _ in placed], max((end for _, _, end in placed), default=0)


def moved(argument: Argument, intermediates: Mapping[int, int], own_bytes: int) -> Argument:
    """``argument`` with pointers to intermediates and to the part's workspace as offsets into the whole workspace."""
    if isinstance(argument, Struct):
        fields = [f if isinstance(f, Scalar) else moved(f, intermediates, own_bytes) for f in argument.fields]
        return Struct(tuple(fields))
    if isinstance(argument, TensorMap):
        return replace(argument, target=_moved_pointer(argument.target, intermediates, own_bytes))
    if isinstance(argument, TensorPointer | WorkspacePointer):
        return _moved_pointer(argument, intermediates, own_bytes)
    return argument


def _moved_pointer(pointer: Pointer, intermediates: Mapping[int, int], own_bytes: int) -> Pointer:
    if isinstance(pointer, WorkspacePointer):
        return WorkspacePointer(own_bytes + pointer.offset_bytes)
    if pointer.uid in intermediates:
        return WorkspacePointer(intermediates[pointer.uid] + pointer.offset_bytes)
    return pointer
