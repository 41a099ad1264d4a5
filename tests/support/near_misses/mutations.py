"""Mutations of a graph: each breaks one of the conditions that something which recognises a pattern may ask for.

Every kind gives all of its mutations of a list of operations, each as a label and a function that makes the changed
operations. That raises LowdnnError where the change has no meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from itertools import combinations
from math import isfinite
from typing import Any

from lowdnn import dtypes
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.uids import free_uid
from lowdnn.ops.base import Operation, inputs_of, outputs_of, with_tensors
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation, compute_types
from lowdnn.ops.tensor import Tensor, packed_strides

Operations = tuple[Operation, ...]
Mutation = tuple[str, Callable[[], Operations]]
Kind = Callable[[Operations], Iterator[Mutation]]

_MODES = PointwiseMode
#: Parameters that few modes have.
_PARAMETERS = {
    "relu_lower_clip": (_MODES.RELU_FWD, _MODES.RELU_BWD),
    "relu_upper_clip": (_MODES.RELU_FWD, _MODES.RELU_BWD),
    "relu_lower_clip_slope": (_MODES.RELU_FWD, _MODES.RELU_BWD),
    "elu_alpha": (_MODES.ELU_FWD, _MODES.ELU_BWD),
    "softplus_beta": (_MODES.SOFTPLUS_FWD, _MODES.SOFTPLUS_BWD),
    "swish_beta": (_MODES.SWISH_FWD, _MODES.SWISH_BWD),
    "axis": (_MODES.GEN_INDEX,),
}
#: Modes that a careless eye takes for one another.
_SIBLINGS = (
    (_MODES.ADD, _MODES.SUB, _MODES.MUL, _MODES.DIV, _MODES.MAX, _MODES.MIN, _MODES.ADD_SQUARE),
    (_MODES.CMP_GE, _MODES.CMP_GT, _MODES.CMP_LE, _MODES.CMP_LT, _MODES.CMP_EQ, _MODES.CMP_NEQ),
    (_MODES.LOGICAL_AND, _MODES.LOGICAL_OR),
    (_MODES.EXP, _MODES.IDENTITY, _MODES.NEG, _MODES.ABS, _MODES.SIGMOID_FWD, _MODES.RELU_FWD),
    (_MODES.SQRT, _MODES.RSQRT, _MODES.RECIPROCAL, _MODES.ABS),
)
_NARROWER = {
    DataType.DOUBLE: (DataType.FLOAT,),
    DataType.FLOAT: (DataType.HALF, DataType.BFLOAT16, DataType.DOUBLE),
    DataType.HALF: (DataType.BFLOAT16, DataType.FLOAT),
    DataType.BFLOAT16: (DataType.HALF, DataType.FLOAT),
    DataType.FP8_E4M3: (DataType.FP8_E5M2, DataType.HALF),
    DataType.INT32: (DataType.INT64, DataType.INT8, DataType.HALF, DataType.FLOAT),
    DataType.BOOLEAN: (DataType.UINT8, DataType.FLOAT),
    DataType.UINT8: (DataType.INT8, DataType.INT32),
}


def swapped_operands(operations: Operations) -> Iterator[Mutation]:
    """Two operands of one operation change places."""
    for place, op in enumerate(operations):
        ports = inputs_of(op)
        for one, other in combinations(ports, 2):
            if ports[one].uid != ports[other].uid:
                changes = {one: ports[other], other: ports[one]}
                yield _at(operations, place, f"{one} and {other} swapped", changes)


def other_operands(operations: Operations) -> Iterator[Mutation]:
    """An operand is another tensor of the graph."""
    tensors = _tensors(operations)
    for place, op in enumerate(operations):
        for port, own in inputs_of(op).items():
            for tensor in tensors.values():
                if tensor.uid != own.uid:
                    yield _at(operations, place, f"{port} is {tensor.label}", {port: tensor})


def absent_operands(operations: Operations) -> Iterator[Mutation]:
    """An optional operand or output is left out."""
    for place, op in enumerate(operations):
        optional = {field.name for field in fields(op) if field.default is None}  # type: ignore[arg-type]
        for port in (*inputs_of(op), *outputs_of(op)):
            if port in optional:
                yield _at(operations, place, f"no {port}", {port: None})


def other_attributes(operations: Operations) -> Iterator[Mutation]:
    """A mode, an axis, a factor, a clip, a compute type or any other attribute has another value."""
    for place, op in enumerate(operations):
        for label, changed in _attributes(op):
            yield f"{_name(op, place)}: {label}", _replaced(operations, place, changed)


def second_readers(operations: Operations) -> Iterator[Mutation]:
    """An inner tensor is read once more, by an operation whose result is stored; beside or behind the outputs."""
    written = {tensor.uid: tensor for op in operations for tensor in outputs_of(op).values()}
    uid = free_uid(_tensors(operations))
    for tensor in _tensors(operations).values():
        beside = _output(uid, tensor.dims, DataType.FLOAT)
        yield f"{tensor.label} read again", _added(operations, _MODES.IDENTITY, beside, x=tensor, alpha1=3.0)
        for output in written.values():
            if output.uid != tensor.uid and not output.is_virtual:
                behind = _output(uid, output.dims, DataType.FLOAT)
                label = f"{tensor.label} read again with {output.label}"
                yield label, _added(operations, _MODES.MUL, behind, x=output, b=tensor)


def stored_inner(operations: Operations) -> Iterator[Mutation]:
    """An inner tensor is an output, or an output is none."""
    written = {tensor.uid: tensor for op in operations for tensor in outputs_of(op).values()}
    for tensor in written.values():
        label = f"{tensor.label} {'stored' if tensor.is_virtual else 'virtual'}"
        yield label, _with_tensor(operations, tensor.uid, is_virtual=not tensor.is_virtual)


def other_types(operations: Operations) -> Iterator[Mutation]:
    """A tensor has another data type."""
    for tensor in _tensors(operations).values():
        for kind in _NARROWER.get(tensor.data_type, ()):
            alignment = max(tensor.alignment_bytes, dtypes.info(kind).size_bytes)
            change = _with_tensor(operations, tensor.uid, data_type=kind, alignment_bytes=alignment)
            yield f"{tensor.label} in {kind.name}", change


def other_dims(operations: Operations) -> Iterator[Mutation]:
    """A tensor repeats along an axis along which it has elements, or the other way round."""
    tensors = _tensors(operations)
    extents = {tensor.dims[axis] for tensor in tensors.values() for axis in range(tensor.rank)}
    for tensor in tensors.values():
        for axis, extent in enumerate(tensor.dims):
            for other in {1, *extents} - {extent} if extent == 1 else {1}:
                dims = (*tensor.dims[:axis], other, *tensor.dims[axis + 1 :])
                change = _with_tensor(operations, tensor.uid, dims=dims, strides=packed_strides(dims))
                yield f"{tensor.label} with dims {list(dims)}", change
        ones = (1,) * tensor.rank
        yield f"{tensor.label} of one element", _with_tensor(operations, tensor.uid, dims=ones, strides=ones)


def other_strides(operations: Operations) -> Iterator[Mutation]:
    """A tensor lies in memory in another way."""
    for tensor in _tensors(operations).values():
        if tensor.element_count > 1 and not tensor.is_virtual:
            for label, strides in _strides(tensor).items():
                yield f"{tensor.label} {label}", _with_tensor(operations, tensor.uid, strides=strides)
            yield (
                f"{tensor.label} aligned to an element",
                _with_tensor(operations, tensor.uid, alignment_bytes=tensor.element_bytes),
            )


def other_numbers(operations: Operations) -> Iterator[Mutation]:
    """A number of the graph is another one, or comes at execute, by value or in device memory, or is of the graph."""
    for tensor in _tensors(operations).values():
        value = tensor.constant_value
        if value is not None:
            others = (-value, 2 * value + 1, value + 0.5, 2**31 - 1) if isfinite(value) else (-1e4,)
            for other in (0, 1, *others):
                if other != value:
                    yield f"{tensor.label} is {other}", _with_tensor(operations, tensor.uid, constant_value=other)
        for label, changes in _forms(tensor).items():
            yield f"{tensor.label} {label}", _with_tensor(operations, tensor.uid, **changes)


def operations_between(operations: Operations) -> Iterator[Mutation]:
    """An operation stands between a tensor and one or all of its readers."""
    uid = free_uid(_tensors(operations))
    for tensor in _tensors(operations).values():
        if tensor.data_type is DataType.BOOLEAN or tensor.is_scalar_value:
            continue
        readers = [place for place, op in enumerate(operations) if _reads(op, tensor)]
        for label, arithmetic, alpha in (
            ("itself", Pointwise(_MODES.IDENTITY, DataType.FLOAT), 1.0),
            ("doubled", Pointwise(_MODES.IDENTITY, DataType.FLOAT), 2.0),
            ("clipped", Pointwise(_MODES.RELU_FWD, DataType.FLOAT), 1.0),
        ):
            between = replace(tensor, uid=uid, is_virtual=True, strides=packed_strides(tensor.dims), name="between")
            step = (arithmetic, tensor, between, alpha)
            for place in readers:
                yield (
                    f"{tensor.label} {label} for {_name(operations[place], place)}",
                    _before(operations, [place], *step),
                )
            if len(readers) > 1:
                yield f"{tensor.label} {label} for all", _before(operations, readers, *step)


def repeated_stages(operations: Operations) -> Iterator[Mutation]:
    """A pointwise operation is applied twice."""
    uid = free_uid(_tensors(operations))
    for place, op in enumerate(operations):
        if isinstance(op, PointwiseOperation):
            for port, tensor in op.operands.items():
                if tensor.dims == op.output.dims:
                    yield f"{_name(op, place)} twice, over {port}", _repeated(operations, place, port, uid)


def exchanged_stages(operations: Operations) -> Iterator[Mutation]:
    """Two pointwise operations, one behind the other, change places."""
    for place, op in enumerate(operations):
        for later in range(len(operations)):
            following = operations[later]
            if not isinstance(op, PointwiseOperation) or not isinstance(following, PointwiseOperation):
                continue
            for port, tensor in following.operands.items():
                if tensor.uid == op.output.uid:
                    for own in op.operands:
                        label = f"{_name(op, place)} and {_name(following, later)} exchanged"
                        yield label, _exchanged(operations, (place, own), (later, port))


#: Every kind of mutation, by name.
KINDS: Mapping[str, Kind] = {
    kind.__name__: kind
    for kind in (
        swapped_operands,
        other_operands,
        absent_operands,
        other_attributes,
        second_readers,
        stored_inner,
        other_types,
        other_dims,
        other_strides,
        other_numbers,
        operations_between,
        repeated_stages,
        exchanged_stages,
    )
}


def _tensors(operations: Sequence[Operation]) -> dict[int, Tensor]:
    """By uid."""
    return {t.uid: t for op in operations for t in (*inputs_of(op).values(), *outputs_of(op).values())}


def _name(operation: Operation, place: int) -> str:
    name = operation.mode.name if isinstance(operation, PointwiseOperation) else type(operation).__name__
    return f"{name} at {place}"


def _reads(operation: Operation, tensor: Tensor) -> bool:
    return any(read.uid == tensor.uid for read in inputs_of(operation).values())


def _output(uid: int, dims: tuple[int, ...], data_type: DataType) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16, name="beside")


def _with_ports(operation: Operation, changes: Mapping[str, Tensor | None]) -> Operation:
    """``operation`` with other tensors at these ports."""
    found: dict[str, Any] = {}
    for port, tensor in changes.items():
        name, _, number = port.partition("[")
        if number:
            several = list(found.get(name, getattr(operation, name)))
            several[int(number[:-1])] = tensor
            found[name] = tuple(several)
        else:
            found[name] = tensor
    return replace(operation, **found)  # type: ignore[type-var]


def _at(operations: Operations, place: int, label: str, changes: Mapping[str, Tensor | None]) -> Mutation:
    operation = operations[place]
    return f"{_name(operation, place)}: {label}", _replaced(operations, place, lambda: _with_ports(operation, changes))


def _replaced(operations: Operations, place: int, make: Callable[[], Operation]) -> Callable[[], Operations]:
    return lambda: (*operations[:place], make(), *operations[place + 1 :])


def _with_tensor(operations: Operations, uid: int, **changes: Any) -> Callable[[], Operations]:
    def make() -> Operations:
        changed = {uid: replace(_tensors(operations)[uid], **changes)}
        return tuple(with_tensors(op, changed) for op in operations)

    return make


def _added(
    operations: Operations, mode: PointwiseMode, y: Tensor, alpha1: float = 1.0, **operands: Tensor
) -> Callable[[], Operations]:
    arithmetic = Pointwise(mode, DataType.FLOAT)
    return lambda: (*operations, PointwiseOperation(arithmetic, **operands, y=y, alpha1=alpha1))


def _before(
    operations: Operations, places: Sequence[int], arithmetic: Pointwise, x: Tensor, y: Tensor, alpha1: float
) -> Callable[[], Operations]:
    def make() -> Operations:
        step = PointwiseOperation(arithmetic, x=x, y=y, alpha1=alpha1)
        others = [
            _with_ports(op, {port: y for port, t in inputs_of(op).items() if t.uid == x.uid}) if place in places else op
            for place, op in enumerate(operations)
        ]
        return (step, *others)

    return make


def _repeated(operations: Operations, place: int, port: str, uid: int) -> Callable[[], Operations]:
    """The second time, ``port`` is what the first has made."""

    def make() -> Operations:
        op = operations[place]
        ((name, output),) = outputs_of(op).items()
        first = replace(output, uid=uid, is_virtual=True, name="once")
        steps = (_with_ports(op, {name: first}), _with_ports(op, {port: first}))
        return (*operations[:place], *steps, *operations[place + 1 :])

    return make


def _exchanged(operations: Operations, one: tuple[int, str], other: tuple[int, str]) -> Callable[[], Operations]:
    """Places and ports of the operands that go through both."""

    def make() -> Operations:
        (place, own), (later, port) = one, other
        op, following = operations[place], operations[later]
        ((name, middle),) = outputs_of(op).items()
        ((last_name, last),) = outputs_of(following).items()
        changed = list(operations)
        changed[place] = _with_ports(following, {port: inputs_of(op)[own], last_name: middle})
        changed[later] = _with_ports(op, {own: middle, name: last})
        return tuple(changed)

    return make


def _attributes(described: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Changed forms of an operation or of a descriptor in it."""
    for field in fields(described):
        value = getattr(described, field.name)
        if is_dataclass(value) and not isinstance(value, Tensor | type):
            for label, make in _attributes(value):
                yield label, lambda name=field.name, make=make: replace(described, **{name: make()})
            continue
        if field.name == "is_deterministic" or not _has(described, field.name):
            continue
        for other in _other_values(described, value):
            yield (
                f"{field.name} = {_shown(other)}",
                lambda name=field.name, other=other: replace(described, **{name: other}),
            )


def _has(described: Any, name: str) -> bool:
    """Whether the attribute of this name means anything."""
    return not isinstance(described, Pointwise) or described.mode in _PARAMETERS.get(name, (described.mode,))


def _other_values(described: Any, value: Any) -> list[Any]:
    """Values that an attribute may have in the place of ``value``."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, PointwiseMode):
        own = [group for group in _SIBLINGS if value in group]
        return [mode for group in own for mode in group if mode is not value]
    if isinstance(value, DataType):
        allowed = compute_types(described.mode) if isinstance(described, Pointwise) else tuple(DataType)
        return [kind for kind in _NARROWER.get(value, ()) if kind in allowed]
    if isinstance(value, Enum):
        return [other for other in type(value) if other is not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, float):
        return [2 * value + 1, -value] if value not in (0.0, float("inf")) else [0.5]
    if isinstance(value, tuple) and value and all(isinstance(item, int) for item in value):
        moved = [(*value[:at], item + by, *value[at + 1 :]) for at, item in enumerate(value) for by in (1, -1)]
        return [*moved, value[::-1]] if value[::-1] != value else moved
    return []


def _shown(value: Any) -> str:
    return value.name if isinstance(value, Enum) else str(value)


def _strides(tensor: Tensor) -> dict[str, tuple[int, ...]]:
    """Other strides of ``tensor``, by what they are."""
    rank, dims = tensor.rank, tensor.dims
    found = {"with a gap behind each row": packed_strides((*dims[:-1], dims[-1] + 3))}
    if rank > 1:
        found["with its last two axes exchanged"] = packed_strides(dims, (*range(rank - 2), rank - 1, rank - 2))
        found["with its axes reversed"] = packed_strides(dims, tuple(reversed(range(rank))))
    for axis in range(rank):
        if dims[axis] > 1:
            repeated = (0 if one == axis else stride for one, stride in enumerate(tensor.strides))
            found[f"repeated along axis {axis}"] = tuple(repeated)
    return {label: strides for label, strides in found.items() if strides != tensor.strides}


def _forms(tensor: Tensor) -> dict[str, dict[str, Any]]:
    """Ways in which one number reaches the graph, but for its own."""
    if tensor.element_count != 1 or tensor.is_virtual:
        return {}
    forms: dict[str, dict[str, Any]] = {
        "by value": {"is_by_value": True, "constant_value": None},
        "in device memory": {"is_by_value": False, "constant_value": None},
        "of the graph": {"is_by_value": False, "constant_value": 2},
    }
    own = {"is_by_value": tensor.is_by_value, "constant_value": tensor.constant_value}
    if tensor.constant_value is not None:
        del forms["of the graph"]
    return {label: changes for label, changes in forms.items() if changes != own}
