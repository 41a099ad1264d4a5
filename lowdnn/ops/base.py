"""Operations: ports, checks, references. One file of this package is one operation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lowdnn import schema
from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass

#: Values of an operation's ports in the reference: float64, int64 or bool arrays in the tensor's logical shape.
Values = Mapping[str, NDArray[Any]]


class HasPorts(Protocol):
    """A frozen dataclass that declares one operation; its checks run when it is made.

    Fields made with ``schema.tensor_input`` and ``schema.tensor_output`` are its ports, named by the field.
    """

    @property
    def descriptor_type(self) -> DescriptorType | None:
        """The backend's descriptor that stands for the operation; None where it has none."""


HasPortsT = TypeVar("HasPortsT", bound=HasPorts)


class Inner(Protocol):
    """Operations inside of another one, as fields made with ``schema.inner_operations`` hold them."""

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The tensors that they read from outside."""

    def with_tensors(self, tensors: Mapping[int, Tensor]) -> Inner:
        """See ``with_tensors``."""


@runtime_checkable
class Operation(HasPorts, Protocol):
    """An operation with a reference result in NumPy."""

    @property
    def tolerance_class(self) -> ToleranceClass:
        """How results may differ from the reference."""

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        """The outputs by port, from inputs by port, computed in float64 (integer types in int64).

        Arrays have the tensors' logical dims. The values are not yet rounded to the outputs' data types.
        """

    @property
    def flops(self) -> int:
        """Arithmetic operations, one fused multiply-add counting two."""


@runtime_checkable
class HasArithmetic(Protocol):
    """An operation that computes in a type of its own; every one whose tolerance class is not EXACT."""

    @property
    def compute_type(self) -> DataType: ...


@runtime_checkable
class RoundsInside(Protocol):
    """An operation inside which kernels round intermediates to the type of its operands."""

    def rounded_reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        """``reference`` with these intermediates rounded, each once."""


@runtime_checkable
class DropsOutputs(Protocol):
    """An operation some of whose outputs are optional."""

    def without(self, ports: Collection[str]) -> Operation:
        """The operation without those of the outputs at ``ports``, which nothing reads, that it can leave out.

        The other outputs stay as they are.
        """


@runtime_checkable
class NamesPlaces(Protocol):
    """An operation whose meaning depends on the strides of some tensors, also where these are virtual."""

    @property
    def placed(self) -> tuple[Tensor, ...]:
        """The tensors whose strides must stay as they are."""


def inputs_of(operation: HasPorts) -> dict[str, Tensor]:
    """The input tensors by port, in declaration order; optional ports that are unset are left out.

    A field that holds several tensors, such as ``inputs``, has the ports ``inputs[0]``, ``inputs[1]`` and so on. So
    have the tensors that operations inside of this one read from outside.
    """
    found = _ports(operation, "input")
    for name, inner in _inner(operation).items():
        found |= {f"{name}[{number}]": tensor for number, tensor in enumerate(inner.operands)}
    return found


def outputs_of(operation: HasPorts) -> dict[str, Tensor]:
    """The output tensors by port, in declaration order."""
    return _ports(operation, "output")


def with_tensors(operation: HasPortsT, tensors: Mapping[int, Tensor]) -> HasPortsT:
    """``operation`` with ``tensors``, by uid, in place of its own; itself where it has none of them."""
    own = (*inputs_of(operation).values(), *outputs_of(operation).values())
    if not _inner(operation) and all(tensors.get(tensor.uid, tensor) is tensor for tensor in own):
        return operation
    changes: dict[str, Any] = {}
    for name in (*_port_names(type(operation), "input"), *_port_names(type(operation), "output")):
        value = getattr(operation, name)
        if isinstance(value, tuple):
            changes[name] = tuple(tensors.get(tensor.uid, tensor) for tensor in value)
        elif isinstance(value, Tensor):
            changes[name] = tensors.get(value.uid, value)
    changes |= {name: inner.with_tensors(tensors) for name, inner in _inner(operation).items()}
    return replace(operation, **changes)  # type: ignore[type-var]


def _ports(operation: HasPorts, role: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name in _port_names(type(operation), role):
        value = getattr(operation, name)
        if isinstance(value, Tensor):
            found[name] = value
        elif isinstance(value, tuple):
            found |= {f"{name}[{number}]": tensor for number, tensor in enumerate(value)}
    return found


def _inner(operation: HasPorts) -> dict[str, Inner]:
    """The inner operations or sub-graphs that are set, by the name of their field."""
    names = _port_names(type(operation), "inner")
    if not names:
        return {}
    found = {name: getattr(operation, name) for name in names}
    return {name: inner for name, inner in found.items() if inner is not None}


@cache
def _port_names(cls: type, role: str) -> tuple[str, ...]:
    return tuple(item.field for item in schema.declared_in(cls) if item.role == role)


def broadcast_to(values: NDArray[Any], dims: tuple[int, ...]) -> NDArray[Any]:
    """``values`` repeated to ``dims``; a one-element array of any rank fits every shape."""
    if values.size == 1:
        values = values.reshape((1,) * len(dims))
    return np.broadcast_to(values, dims)
