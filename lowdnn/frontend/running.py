"""``pygraph.run``: one call from arrays to results, with all memory made for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from lowdnn.backend.handle import Handle
from lowdnn.checks import shown
from lowdnn.enums import DataType
from lowdnn.frontend.device_tensor import DeviceTensor, from_numpy
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.output_arrays import output_array, torch_among
from lowdnn.status import AttributeTypeError, BadParamError, DuplicatedEntriesError, ShapeMismatchError


class Executable(Protocol):
    """A pygraph that is built."""

    def find_tensor(self, name_or_uid: str | int) -> Tensor | None: ...

    def get_inputs(self) -> list[Tensor]: ...

    def get_outputs(self) -> list[Tensor]: ...

    def get_workspace_size(self) -> int: ...

    def execute(self, tensor_dict: Mapping[Any, object], workspace: object, handle: Handle) -> None: ...


def run(graph: Executable, values: Mapping[Any, object], handle: Handle) -> dict[str, Any]:
    """See ``pygraph.run``; ``values`` by tensor, name or uid."""
    inputs, outputs = graph.get_inputs(), graph.get_outputs()
    pack = _by_tensor(graph, values, (*inputs, *outputs))
    like = torch_among(pack.values())
    results = {tensor: pack.pop(tensor) if tensor in pack else output_array(tensor, like, handle) for tensor in outputs}
    arrays = {tensor: _executable(tensor, value, handle) for tensor, value in pack.items()}
    size_bytes = graph.get_workspace_size()
    workspace = DeviceTensor(handle, (size_bytes,), (1,), DataType.UINT8) if size_bytes else None
    graph.execute({**arrays, **results}, workspace, handle)
    handle.synchronize()
    return {tensor.get_name(): array for tensor, array in results.items()}


def _by_tensor(graph: Executable, values: Mapping[Any, object], tensors: tuple[Tensor, ...]) -> dict[Tensor, object]:
    """The values by tensor.

    Raises BadParamError for a key that is none of ``tensors``, DuplicatedEntriesError for two keys of one tensor.
    """
    pack: dict[Tensor, object] = {}
    for key, value in values.items():
        tensor = key if isinstance(key, Tensor) else graph.find_tensor(key)
        if tensor is None or tensor not in tensors:
            known = ", ".join(repr(each.get_name()) for each in tensors)
            raise BadParamError.at("run", expected=f"one of {known}", got=shown(key))
        if tensor in pack:
            raise DuplicatedEntriesError.at("run", expected="each tensor once", got=tensor.label)
        pack[tensor] = value
    return pack


def _executable(tensor: Tensor, value: object, handle: Handle) -> object:
    """The value in a form that ``execute`` takes.

    A NumPy array becomes a device tensor with the graph's data type and strides. A number for a tensor that is passed
    by value becomes an array of one element, since ``execute`` takes an integer for an address.
    Raises AttributeTypeError for a list, ShapeMismatchError for an array of another shape.
    """
    where = f"run.{tensor.get_name()}"
    if isinstance(value, list | tuple):
        expected = "a NumPy array, or what execute takes"
        raise AttributeTypeError.at(where, expected=expected, got=shown(value), hint="numpy.array makes one of it")
    if tensor.get_is_pass_by_value():
        return np.asarray(value) if isinstance(value, int) else value
    if not isinstance(value, np.ndarray):
        return value
    if list(value.shape) != tensor.get_dim():
        raise ShapeMismatchError.at(where, expected=tensor.get_dim(), got=list(value.shape))
    return from_numpy(value, handle, tensor.get_data_type(), tensor.get_stride())
