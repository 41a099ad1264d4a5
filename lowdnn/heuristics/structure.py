"""The structure of a graph: its operations, data types and layouts, without extents.

Graphs of one structure, such as one layer at many batch sizes, are likely to run well with the same kernels.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from enum import Enum
from typing import Any

from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.tensor import Tensor


def structure_of(graph: OperationGraph) -> str:
    """A digest of the graph's structure, the same in every process. Names, uids, extents and constants do not count."""
    return graph.derive(_structure)


def _structure(graph: OperationGraph) -> str:
    numbers: dict[int, int] = {}
    text = json.dumps([_facts(operation, numbers) for operation in graph.operations], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _facts(value: Any, numbers: dict[int, int]) -> Any:
    """The facts of an operation or one of its fields that count; a tensor that stood before is its number."""
    if isinstance(value, Tensor):
        known = value.uid in numbers
        number = numbers.setdefault(value.uid, len(numbers))
        return number if known else _tensor_facts(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (tuple, list)):
        return [_facts(item, numbers) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return [type(value).__name__, *(_facts(getattr(value, item.name), numbers) for item in fields(value))]
    return value if value is None or isinstance(value, (bool, int, str)) else type(value).__name__


def _tensor_facts(tensor: Tensor) -> list[Any]:
    """Its type, rank and innermost axis: one of stride 1 with more than one element, which few layouts share.

    A number is the same one whether the graph or the caller of an execute gives it.
    """
    if tensor.is_scalar_value:
        return []
    extents = zip(tensor.dims, tensor.strides, strict=True)
    innermost = next((axis for axis, (extent, stride) in enumerate(extents) if stride == 1 < extent), None)
    return [tensor.data_type.name, tensor.rank, innermost, tensor.is_virtual]
