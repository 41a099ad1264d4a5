"""The work that the emulated device is given, and graphs of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

from lowdnn.driver.base import LaunchConfig
from lowdnn.driver.emulated.machine import Function


@dataclass(frozen=True)
class KernelWork:
    """One kernel launch with its parameter values copied."""

    function: Function
    config: LaunchConfig
    parameters: tuple[bytes, ...]


@dataclass(frozen=True)
class OtherWork:
    """A copy or a fill of ``size_bytes``: anything that is not a kernel."""

    run: Callable[[], None]
    size_bytes: int


Work = KernelWork | OtherWork


@dataclass
class Graph:
    """Work by node handle, in an order that respects every dependency (a node depends only on earlier ones).

    ``dependencies`` holds those of nodes that were added one by one; captured ones depend on all before them.
    """

    nodes: dict[int, Work] = field(default_factory=dict)
    dependencies: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def copied(self) -> Graph:
        return Graph(dict(self.nodes), dict(self.dependencies))

    def take_over(self, other: Graph) -> None:
        """Replaces each node's work by that of ``other``'s node in its place; see ``difference``."""
        self.nodes = dict(zip(self.nodes, other.nodes.values(), strict=True))

    def difference(self, other: Graph) -> str:
        """Why an executable made of this graph cannot be updated from ``other``; empty where it can."""
        if len(self.nodes) != len(other.nodes):
            return f"expected {len(self.nodes)} nodes, got {len(other.nodes)}"
        for place, (mine, its) in enumerate(zip(self.nodes.values(), other.nodes.values(), strict=True)):
            if type(mine) is not type(its):
                return f"node {place}: another kind of work"
        if self._edges() != other._edges():
            return "the nodes depend on others than before"
        return ""

    def _edges(self) -> dict[int, set[int]]:
        """Dependencies by the nodes' places."""
        place = {node: number for number, node in enumerate(self.nodes)}
        return {place[node]: {place[one] for one in needed} for node, needed in self.dependencies.items()}


def kernel_work(function: Function, config: LaunchConfig, parameters: int) -> KernelWork:
    """The launch with its parameter values read from the ``void*[]`` at ``parameters``."""
    wanted = function.kernel.parameters
    pointers = (ctypes.c_void_p * len(wanted)).from_address(parameters) if wanted else ()
    values = tuple(
        ctypes.string_at(pointer or 0, parameter.size) for pointer, parameter in zip(pointers, wanted, strict=True)
    )
    return KernelWork(function, config, values)
