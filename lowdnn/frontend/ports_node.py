"""Nodes of a pygraph that have their tensors by the names of the operation's ports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.nodes import Lowered
from lowdnn.ops import tensor as ops


@dataclass(frozen=True)
class PortsNode:
    """given: the inputs by port.  made: the ports of the outputs.  suffixes: the ends of tensors' default names by
    port; those of other ports are the ports' names in upper case."""

    suffixes: ClassVar[Mapping[str, str]] = {}

    given: Mapping[str, Tensor]
    made: tuple[str, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(self.given.values())

    @property
    def input_ports(self) -> tuple[str, ...]:
        return tuple(self.given)

    @property
    def output_ports(self) -> tuple[str, ...]:
        return self.made

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(map(self._suffix, self.given))

    @property
    def output_suffixes(self) -> tuple[str, ...]:
        return tuple(map(self._suffix, self.made))

    def _lowered_ports(self, outputs: tuple[Tensor, ...], lowered: Lowered) -> dict[str, ops.Tensor]:
        """The operation graph's tensors by port."""
        ports = {**self.given, **dict(zip(self.made, outputs, strict=True))}
        return {port: lowered(tensor) for port, tensor in ports.items()}

    def _suffix(self, port: str) -> str:
        return self.suffixes.get(port, port.upper())
