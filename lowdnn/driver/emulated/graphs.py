"""The work that the emulated device is given, and graphs of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from lowdnn.driver.base import HostWait, LaunchConfig
from lowdnn.driver.emulated.checking.records import Records
from lowdnn.driver.emulated.checking.task_order import TaskOrder
from lowdnn.driver.emulated.execution import Execution
from lowdnn.driver.emulated.machine import Function, Machine


@dataclass(frozen=True)
class KernelWork:
    """One kernel launch on a device's ``machine``, with its parameter values copied."""

    machine: Machine
    function: Function
    config: LaunchConfig
    parameters: tuple[bytes, ...]

    def begin(self, queue: object, records: Records | None, order: TaskOrder | None) -> Execution:
        """The launch, about to run in a queue; as ``Machine.begin``."""
        facts = (self.function, self.config, self.parameters)
        return self.machine.begin(*facts, queue=queue, records=records, order=order)


@dataclass(frozen=True)
class OtherWork:
    """A copy or a fill of ``size_bytes``: anything that is not a kernel. ``reads``, ``writes``: the address on a device
    where it does, or None."""

    run: Callable[[], None]
    size_bytes: int
    reads: int | None = None
    writes: int | None = None


@dataclass(frozen=True)
class HostWork:
    """A host function, which is called once what it waits for is there; None where it waits for the stream alone."""

    run: Callable[[], None]
    wait: HostWait | None = None

    def __post_init__(self) -> None:
        if not callable(self.run) or not isinstance(self.wait, HostWait | None):
            raise ValueError("expected a function, and a HostWait or None")

    @property
    def is_ready(self) -> bool:
        return self.wait is None or self.wait.is_over()


Work: TypeAlias = KernelWork | OtherWork | HostWork


@dataclass(frozen=True)
class Child:
    """A node that does the work of a whole graph; ``handle`` stands for the graph inside of the node."""

    graph: Graph
    handle: int


Node: TypeAlias = Work | Child


@dataclass
class Graph:
    """The work of each node by its handle, in an order in which a node depends only on earlier ones.

    ``dependencies`` holds those of nodes that were added one by one; captured ones depend on all before them.
    ``retained`` holds what lives as long as the graph, its copies and what is instantiated of them.
    """

    nodes: dict[int, Node] = field(default_factory=dict)
    dependencies: dict[int, tuple[int, ...]] = field(default_factory=dict)
    retained: list[object] = field(default_factory=list)

    def needed_by(self, node: int) -> tuple[int, ...]:
        """The nodes that a node depends on; a captured node depends on the last node before it."""
        if node in self.dependencies:
            return self.dependencies[node]
        before = [*self.nodes]
        return tuple(before[: before.index(node)][-1:])

    def copied(self) -> Graph:
        """A graph of the same nodes, with copies of the graphs inside of them."""
        nodes = {
            node: Child(work.graph.copied(), work.handle) if isinstance(work, Child) else work
            for node, work in self.nodes.items()
        }
        return Graph(nodes, dict(self.dependencies), [*self.retained])

    def embedded(self, handles: Iterator[int]) -> Graph:
        """A copy with nodes of its own, as a node of another graph takes it."""
        new = {node: next(handles) for node in self.nodes}
        copy = self.copied()
        return Graph(
            {new[node]: work for node, work in copy.nodes.items()},
            {new[node]: tuple(new[one] for one in needed) for node, needed in copy.dependencies.items()},
            copy.retained,
        )

    def flat(self) -> Iterator[Work]:
        """The work of all nodes in order, including the graphs inside nodes."""
        for work in self.nodes.values():
            if isinstance(work, Child):
                yield from work.graph.flat()
            else:
                yield work

    def take_over(self, other: Graph) -> None:
        """Replaces each node's work by that of ``other``'s node in its place; see ``difference``."""
        copy = other.copied()
        self.nodes, self.retained = dict(zip(self.nodes, copy.nodes.values(), strict=True)), copy.retained

    def difference(self, other: Graph) -> str:
        """Why an executable made of this graph cannot be updated from ``other``; empty where it can."""
        if len(self.nodes) != len(other.nodes):
            return f"expected {len(self.nodes)} nodes, got {len(other.nodes)}"
        for place, (mine, its) in enumerate(zip(self.nodes.values(), other.nodes.values(), strict=True)):
            if type(mine) is not type(its):
                return f"node {place}: another kind of work"
            if isinstance(mine, Child) and isinstance(its, Child):
                inside = mine.graph.difference(its.graph)
                if inside:
                    return f"the graph of node {place}: {inside}"
        if self._edges() != other._edges():
            return "the nodes depend on others than before"
        return ""

    def _edges(self) -> dict[int, set[int]]:
        """Dependencies by the nodes' places."""
        place = {node: number for number, node in enumerate(self.nodes)}
        return {place[node]: {place[one] for one in needed} for node, needed in self.dependencies.items()}


def kernel_work(machine: Machine, function: Function, config: LaunchConfig, parameters: int) -> KernelWork:
    """The launch with its parameter values read from the ``void*[]`` at ``parameters``."""
    wanted = function.kernel.parameters
    pointers = (ctypes.c_void_p * len(wanted)).from_address(parameters) if wanted else ()
    values = tuple(
        ctypes.string_at(pointer or 0, parameter.size) for pointer, parameter in zip(pointers, wanted, strict=True)
    )
    return KernelWork(machine, function, config, values)
