"""Graphs of a single operation: those of the text cases, and what becomes of them with other types and strides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lowdnn import dtypes
from lowdnn.cases import parse_cases
from lowdnn.enums import BnFinalizeStatsMode, DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of, outputs_of, with_tensors
from lowdnn.ops.bn_backward_weights import BnBackwardWeights
from lowdnn.ops.bn_finalize import BnFinalize
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import LowdnnError

_CASES = Path(__file__).parents[1] / "cases"
#: The most operations of each class, with different meanings.
_OF_A_CLASS = 3


@cache
def operations_of_cases() -> dict[type, tuple[Operation, ...]]:
    """Operations whose outputs are all stored, by class."""
    found: dict[type, dict[str, Operation]] = {}
    for path in sorted(_CASES.glob("*.txt")):
        for case in parse_cases(path.read_text().splitlines()):
            graph = case.graph()
            for operation in graph.operations:
                kinds = found.setdefault(type(operation), {})
                if len(kinds) < _OF_A_CLASS:
                    (alone,) = graph.subgraph((operation,)).operations
                    kinds.setdefault(_meaning(alone), alone)
    return {kind: tuple(operations.values()) for kind, operations in found.items()} | _parts_of_batch_norm()


def with_other_types(operation: Operation) -> Iterator[OperationGraph]:
    """Graphs of the operation with other types, as far as its own check accepts them.

    Each tensor, all tensors of one type, and the compute type, alone or with all floats, take each data type in turn.
    """
    tensors = list(_tensors(operation).values())
    kinds = {tensor.data_type for tensor in tensors}
    groups = [[tensor] for tensor in tensors] + [[one for one in tensors if one.data_type is kind] for kind in kinds]
    floats = [tensor for tensor in tensors if dtypes.info(tensor.data_type).kind is dtypes.Kind.FLOAT]
    for data_type in dtypes.supported():
        for group in (*groups, floats):
            yield from _made(_retyped, operation, group, data_type)
        yield from _made(_with_compute_type, operation, data_type)
        yield from _made(_retyped_with_compute_type, operation, floats, data_type)


def with_other_strides(operation: Operation, rng: np.random.Generator) -> Iterator[OperationGraph]:
    """At most one graph, with axes in any order, gaps between rows and elements, and inputs that repeat."""
    outputs = {tensor.uid for tensor in outputs_of(operation).values()}
    changed = {
        tensor.uid: replace(
            tensor,
            strides=_strides(tensor, rng, may_repeat=tensor.uid not in outputs),
            alignment_bytes=tensor.element_bytes,
        )
        for tensor in _tensors(operation).values()
    }
    yield from _made(with_tensors, operation, changed)


def _parts_of_batch_norm() -> dict[type, tuple[Operation, ...]]:
    """The operations of batch norms in parts, which no text case has."""

    def tensor(uid: int, dims: tuple[int, ...] = (1, 5, 1, 1)) -> Tensor:
        return Tensor(uid, DataType.FLOAT, dims, packed_strides(dims), 16)

    def number(uid: int, value: float) -> Tensor:
        return Tensor(uid, DataType.FLOAT, (1, 1, 1, 1), (1, 1, 1, 1), 4, constant_value=value)

    names = ("sum", "sum_of_squares", "scale", "bias", "mean", "inv_std", "eq_scale", "eq_bias")
    ports = {name: tensor(uid) for uid, name in enumerate(names, 1)}
    ports |= {"accum_count": number(20, 12), "epsilon": number(21, 1e-5)}
    final = BnFinalize(BnFinalizeStatsMode.TRAINING, DataType.FLOAT, **ports)
    names = ("mean", "inv_std", "scale", "dscale", "dbias", "eq_dy_scale", "eq_x_scale", "eq_bias")
    ports = {name: tensor(uid) for uid, name in enumerate(names, 1)}
    x, dy = (tensor(uid, (2, 5, 3, 2)) for uid in (20, 21))
    return {BnFinalize: (final,), BnBackwardWeights: (BnBackwardWeights(DataType.FLOAT, x=x, dy=dy, **ports),)}


def _made(make: Callable[..., Operation], *arguments: Any) -> Iterator[OperationGraph]:
    try:
        yield OperationGraph([make(*arguments)])
    except LowdnnError:
        return


def _retyped(operation: Operation, tensors: list[Tensor], data_type: DataType) -> Operation:
    alignment = dtypes.info(data_type).size_bytes
    changed = (
        replace(one, data_type=data_type, alignment_bytes=max(alignment, one.alignment_bytes)) for one in tensors
    )
    return with_tensors(operation, {one.uid: one for one in changed})


def _retyped_with_compute_type(operation: Operation, tensors: list[Tensor], data_type: DataType) -> Operation:
    return _retyped(_with_compute_type(operation, data_type), tensors, data_type)


def _tensors(operation: Operation) -> dict[str, Tensor]:
    """The tensors in device memory, by port."""
    ports = inputs_of(operation) | outputs_of(operation)
    return {port: tensor for port, tensor in ports.items() if not tensor.is_scalar_value}


def _meaning(operation: Operation) -> str:
    """The operation's fields other than tensors, and the ports that are set."""
    plain = [value for item in fields(operation) if not isinstance(value := getattr(operation, item.name), Tensor)]
    return f"{sorted(inputs_of(operation) | outputs_of(operation))} {[value for value in plain if _is_mode(value)]}"


def _is_mode(value: object) -> bool:
    return is_dataclass(value) or not isinstance(value, tuple | float | int)


def _with_compute_type(operation: Any, data_type: DataType) -> Any:
    """``operation`` with that compute type, in itself or in the descriptor that says what it is."""
    changes: dict[str, Any] = {}
    for item in fields(operation):
        value = getattr(operation, item.name)
        if isinstance(value, DataType):
            changes[item.name] = data_type
        elif is_dataclass(value) and hasattr(value, "compute_type") and not isinstance(value, Tensor):
            changes[item.name] = replace(value, compute_type=data_type)
    return replace(operation, **changes)


def _strides(tensor: Tensor, rng: np.random.Generator, may_repeat: bool) -> tuple[int, ...]:
    order = tuple(int(axis) for axis in rng.permutation(tensor.rank))
    room = tuple(extent + int(rng.choice([0, 0, 1, 3])) for extent in tensor.dims)
    step = int(rng.choice([1, 1, 2]))
    strides = [step * stride for stride in packed_strides(room, order)]
    if may_repeat and rng.random() < 0.3:
        strides[int(rng.integers(tensor.rank))] = 0
    return tuple(strides)
