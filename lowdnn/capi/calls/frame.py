"""The frame of a classic call that computes something: who called, and the graph as it grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowdnn.backend.handle import Handle
from lowdnn.capi.calls.shared import read_scale, was_set
from lowdnn.capi.descriptors import TensorDescriptor
from lowdnn.capi.graphs import Builder, Launched
from lowdnn.capi.memory import Address
from lowdnn.capi.state import State
from lowdnn.enums import DataType
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.status import ShapeMismatchError


@dataclass(frozen=True)
class Frame:
    """One call: the state, the handle behind its pointer, the C function's name, the graph as it grows."""

    state: State
    handle: Handle
    name: str
    builder: Builder

    @classmethod
    def of(cls, state: State, handle: Address, name: str) -> Frame:
        return cls.on(state, state.objects.get(handle, Handle, f"{name}.handle"), name)

    @classmethod
    def on(cls, state: State, handle: Handle, name: str) -> Frame:
        return cls(state, handle, name, Builder())

    def descriptor(self, address: Address, argument: str) -> TensorDescriptor:
        return was_set(self.state, address, TensorDescriptor, f"{self.name}.{argument}Desc")

    def tensor(self, descriptor: Address, address: Address, argument: str) -> Tensor:
        return self.builder.tensor(self.descriptor(descriptor, argument), address, f"{self.name}.{argument}")

    def scale(self, address: Address, data_type: DataType, argument: str) -> float:
        """alpha or beta: a double on the host for DOUBLE, otherwise a float."""
        return read_scale(address, data_type, f"{self.name}.{argument}")

    def scales(self, alpha: Address, beta: Address, of: TensorDescriptor) -> tuple[float, float]:
        """alpha and beta of a call whose result is ``of``."""
        return self.scale(alpha, of.data_type, "alpha"), self.scale(beta, of.data_type, "beta")

    def run(
        self, workspace: tuple[Address, int] | None = None, *, told_bytes: Callable[[], int] | None = None
    ) -> Launched:
        """See ``Graphs.run``."""
        return self.state.graphs.run(self.handle, self.builder, self.name, workspace, told_bytes=told_bytes)

    def run_all(self, builders: Sequence[Builder]) -> None:
        """Runs several graphs in order; if one of them has no plan, none runs."""
        for builder in builders:
            self.state.graphs.planned(self.handle, builder).candidate(0, self.name)
        for builder in builders:
            self.state.graphs.run(self.handle, builder, self.name)

    def workspace_bytes(self) -> int:
        """Bytes of workspace of the graph built so far."""
        candidate = self.state.graphs.planned(self.handle, self.builder).candidate(0, self.name)
        return size_anywhere(candidate.plan.workspace_bytes)

    def check_dims(self, one: TensorDescriptor, other: TensorDescriptor, argument: str) -> None:
        """Raises ShapeMismatchError where the extents differ."""
        if one.dims != other.dims:
            where = f"{self.name}.{argument}Desc.dims"
            raise ShapeMismatchError.at(where, expected=list(one.dims), got=list(other.dims))

    def check_repeats(self, of: TensorDescriptor, target: TensorDescriptor, argument: str) -> None:
        """Raises ShapeMismatchError where an extent is neither 1 nor the target's."""
        fits = len(of.dims) == len(target.dims) and all(
            extent in (1, wanted) for extent, wanted in zip(of.dims, target.dims, strict=True)
        )
        if not fits:
            expected = f"{list(target.dims)}, with 1 where it repeats"
            raise ShapeMismatchError.at(f"{self.name}.{argument}Desc.dims", expected=expected, got=list(of.dims))
