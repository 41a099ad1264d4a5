"""The oracle: what an operation graph should give, from the operations' float64 references.

It serves tests, ``lowdnn run --check`` and tools; it never stands in for a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, RoundsInside, inputs_of, outputs_of
from lowdnn.ops.memory import check_storage
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError

#: A tensor that an operation writes, its values before they are rounded to its type, and its storage array.
Step = tuple[Tensor, NDArray[Any], NDArray[Any]]


def evaluate(
    graph: OperationGraph, inputs: Mapping[int, NDArray[Any]], *, rounds_virtual: bool = True
) -> dict[int, NDArray[Any]]:
    """The graph's outputs by uid, from its inputs by uid; arrays have storage type and logical dims.

    Every tensor's value is rounded to its data type, virtual ones and those inside of operations too unless told
    otherwise. Constants need no input; an output that an operation accumulates into (beta) needs its old value. Raises
    BadParamError for a missing uid, a wrong storage type or shape.
    """
    return {tensor.uid: stored for tensor, stored in trace(graph, inputs, rounds_virtual) if not tensor.is_virtual}


def trace(
    graph: OperationGraph, inputs: Mapping[int, NDArray[Any]], rounds_virtual: bool = True
) -> list[tuple[Tensor, NDArray[Any]]]:
    """Every tensor that an operation writes, virtual ones too, with its storage array, in the order of execution."""
    return [(tensor, stored) for tensor, _, stored in steps(graph, inputs, rounds_virtual)]


def steps(graph: OperationGraph, inputs: Mapping[int, NDArray[Any]], rounds_virtual: bool = True) -> list[Step]:
    """As ``trace``, with the values before they are rounded, too."""
    values = {tensor.uid: _input_value(tensor, inputs) for tensor in graph.inputs}
    written: list[Step] = []
    for operation in graph.operations:
        reference = operation.reference
        if rounds_virtual and isinstance(operation, RoundsInside):
            reference = operation.rounded_reference
        results = reference(_operands(operation, values, inputs))
        for port, tensor in outputs_of(operation).items():
            stored = dtypes.from_float64(results[port], tensor.data_type)
            is_rounded = rounds_virtual or not tensor.is_virtual
            is_float = dtypes.info(tensor.data_type).kind is dtypes.Kind.FLOAT
            exact = results[port].astype(np.float64) if is_float else results[port]
            values[tensor.uid] = dtypes.to_values(stored, tensor.data_type) if is_rounded else exact
            written.append((tensor, exact, stored))
    return written


def _operands(
    operation: Operation, values: Mapping[int, NDArray[Any]], inputs: Mapping[int, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Values by port: the inputs, and the old values of outputs that the caller gave."""
    operands = {port: values[tensor.uid] for port, tensor in inputs_of(operation).items()}
    for port, tensor in outputs_of(operation).items():
        if tensor.uid in inputs:
            operands[port] = _input_value(tensor, inputs)
    return operands


def _input_value(tensor: Tensor, inputs: Mapping[int, NDArray[Any]]) -> NDArray[Any]:
    if tensor.constant_value is not None:
        return dtypes.rounded(np.full(tensor.dims, tensor.constant_value), tensor.data_type)
    if tensor.uid not in inputs:
        raise BadParamError.at(f"inputs[{tensor.uid}]", expected=f"the value of {tensor.label}", got="none")
    check_storage(inputs[tensor.uid], tensor)
    return dtypes.to_values(inputs[tensor.uid], tensor.data_type)
