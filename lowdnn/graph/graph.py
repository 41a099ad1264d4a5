"""Operation graphs: an immutable, validated DAG of operations over tensors."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import cache, cached_property
from heapq import heappop, heappush
from operator import attrgetter, is_
from typing import Any, TypeVar, TypeVarTuple, cast

from lowdnn import schema
from lowdnn.codec import Codec, encode
from lowdnn.documents import read_document, write_document
from lowdnn.enums import AttributeType, TensorReordering
from lowdnn.graph.observable import in_memory, observable
from lowdnn.one_line import listed
from lowdnn.ops import catalog
from lowdnn.ops.base import NamesPlaces, Operation, inputs_of, outputs_of, with_tensors
from lowdnn.ops.tensor import Tensor, has_overlap
from lowdnn.status import BadParamError, DuplicatedEntriesError, NotSupportedError

FoundT = TypeVar("FoundT")
ArgumentsT = TypeVarTuple("ArgumentsT")

#: Marks a fact that has not been derived yet.
_UNKNOWN: Any = object()

#: Values without a form in JSON, such as fractions and frozen records, become text.
_DESCRIPTION = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=str)

#: Version of the JSON form. A reader refuses other versions.
SCHEMA_VERSION = 1

#: Uids are signed 64-bit integers; negative ones are for tensors that the library adds.
MAX_UID = 2**63 - 1


class OperationGraph:
    """Operations in topological order, and the tensors between them.

    Only what can be observed is kept: operations and optional outputs that no stored tensor depends on are left out, so
    that the graph is the same one, with the same key, as without them (``observable``).

    The graph is checked when it is made: one meaning for each uid, one producer for each tensor, no cycle, no virtual
    tensor without a producer, no negative uid; no output that is by value or overlaps itself, and at least one output.
    Raises DuplicatedEntriesError and BadParamError, naming tensor and operation.
    """

    def __init__(self, operations: Iterable[Operation]) -> None:
        given = tuple(operations)
        if not given:
            raise BadParamError.at("operation_graph.operations", expected="at least one operation", got="none")
        self.tensors: dict[int, Tensor] = _tensors_by_uid(given)
        self._producers: dict[int, Operation] = _producers(given)
        self._check_tensors()
        self._check_reordering(given)
        self.operations: tuple[Operation, ...] = observable(_sorted(given))
        if not self.operations:
            raise BadParamError.at(
                "operation_graph.operations",
                expected="at least one output",
                got="virtual ones only",
                hint="call set_output(True) on what is to be kept, or leave IS_VIRTUAL false",
            )
        if len(self.operations) < len(given) or not all(map(is_, self.operations, given)):
            # A graph from JSON has its tensors in this order, too: plans of both are the same.
            self.tensors, self._producers = _tensors_by_uid(self.operations), _producers(self.operations)
        self._derived: dict[object, Any] = {}

    def producer(self, tensor: Tensor) -> Operation | None:
        """The operation that writes ``tensor``, or None for a graph input."""
        return self._producers.get(tensor.uid)

    def consumers(self, tensor: Tensor) -> tuple[Operation, ...]:
        """The operations that read ``tensor``, in topological order."""
        return self._consumers.get(tensor.uid, ())

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors that no operation writes, by-value ones and constants included, in order of first use."""
        return tuple(t for t in self.tensors.values() if t.uid not in self._producers)

    @cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        """Non-virtual tensors that an operation writes, in order of first use."""
        return tuple(t for t in self.tensors.values() if t.uid in self._producers and not t.is_virtual)

    @cached_property
    def operation(self) -> str:
        """The graph in one word: its operation with the most arithmetic, such as ``convolution_forward``; the first one
        of several."""
        name = type(max(self.operations, key=attrgetter("flops"))).__name__.removesuffix("Operation")
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()

    @cached_property
    def key(self) -> str:
        """A digest of the graph's meaning, the same in every process: uids and names do not count.

        Independent operations count in the order in which they were given.
        """
        text = _DESCRIPTION.encode(_describe(self.operations))
        return hashlib.sha256(text.encode()).hexdigest()

    def derive(self, find: Callable[[OperationGraph, *ArgumentsT], FoundT], *arguments: *ArgumentsT) -> FoundT:
        """``find(self, *arguments)``, worked out once: a graph never changes, so what a pure function finds stays true.

        Keeps the engines, which are asked several times about the same graph, from analysing it each time.
        """
        question = (find, arguments)
        found: FoundT = self._derived.get(question, _UNKNOWN)
        if found is _UNKNOWN:
            found = self._derived[question] = find(self, *arguments)
        return found

    def subgraph(self, operations: Iterable[Operation]) -> OperationGraph:
        """The graph of some of the operations; a virtual tensor that crosses its border becomes non-virtual."""
        chosen = tuple(operations)
        border = self.border(chosen)
        return OperationGraph(with_tensors(op, border) if border else op for op in chosen)

    def border(self, operations: Iterable[Operation]) -> dict[int, Tensor]:
        """The virtual tensors between some of the operations and the others, by uid, as tensors in memory."""
        if not self._materialised:
            return {}
        chosen = tuple(operations)
        inside = {id(op) for op in chosen}
        crossing: dict[int, Tensor] = {}
        for op in chosen:
            read = (t for t in inputs_of(op).values() if t.is_virtual and id(self._producers[t.uid]) not in inside)
            written = (t for t in outputs_of(op).values() if t.is_virtual)
            given = (t for t in written if any(id(reader) not in inside for reader in self.consumers(t)))
            crossing.update((tensor.uid, self._materialised[tensor.uid]) for tensor in (*read, *given))
        return crossing

    def to_json(self) -> str:
        """The operations in topological order, with all that ``from_json`` needs to make an equal graph."""
        return write_document("lowdnn_graph", SCHEMA_VERSION, {"operations": encode(self.operations)})

    @staticmethod
    def from_json(text: str) -> OperationGraph:
        """Reads ``to_json``'s form.

        Raises SerializationVersionMismatchError for another schema version, BadParamError for anything malformed, and
        the errors of operations and graphs that break their rules.
        """
        content = read_document(text, "lowdnn_graph", SCHEMA_VERSION, {"operations": list}, "OperationGraph.json")
        return graph_from(content["operations"], "OperationGraph.json.operations")

    def __eq__(self, other: object) -> bool:
        """Whether both have the same operations, with the same tensors under the same uids and names; graphs that
        differ in these alone have equal keys."""
        return self is other or (isinstance(other, OperationGraph) and self.operations == other.operations)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[OperationGraph], tuple[tuple[Operation, ...]]]:
        return OperationGraph, (self.operations,)

    def __repr__(self) -> str:
        names = listed([type(op).__name__ for op in self.operations])
        return f"OperationGraph([{names}], key={self.key[:12]})"

    @cached_property
    def _hash(self) -> int:
        return hash(self.operations)

    @cached_property
    def _consumers(self) -> dict[int, tuple[Operation, ...]]:
        """The operations that read each tensor, by its uid."""
        found: dict[int, list[Operation]] = {}
        for op in self.operations:
            for uid in {t.uid for t in inputs_of(op).values()}:
                found.setdefault(uid, []).append(op)
        return {uid: tuple(operations) for uid, operations in found.items()}

    @cached_property
    def _materialised(self) -> dict[int, Tensor]:
        """The virtual tensors by uid, each as the tensor in memory that a subgraph has instead."""
        placed = {tensor.uid for op in self.operations if isinstance(op, NamesPlaces) for tensor in op.placed}
        return {
            uid: replace(tensor, is_virtual=False) if uid in placed else in_memory(tensor)
            for uid, tensor in self.tensors.items()
            if tensor.is_virtual
        }

    def _check_tensors(self) -> None:
        for tensor in self.tensors.values():
            where = f"operation_graph: {tensor.label}"
            is_written = tensor.uid in self._producers
            if not 0 <= tensor.uid <= MAX_UID:
                raise BadParamError.at(f"{where}.uid", expected=f"0 to {MAX_UID}", got=tensor.uid)
            if tensor.is_virtual and not is_written:
                raise BadParamError.at(where, expected="an operation that writes a virtual tensor", got="none")
            if tensor.ragged_offset is not None:
                raise NotSupportedError.at(
                    f"{where}.ragged_offset", expected="None where nothing loads or stores it", got="a tensor"
                )
            if is_written and tensor.is_scalar_value:
                raise BadParamError.at(where, expected="a by-value tensor to be an input only", got="an output")
            if is_written and not tensor.is_virtual and has_overlap(tensor.dims, tensor.strides):
                raise BadParamError.at(
                    f"{where}.strides",
                    expected="elements of an output that do not overlap",
                    got=f"{list(tensor.strides)} for dims {list(tensor.dims)}",
                )

    def _check_reordering(self, operations: tuple[Operation, ...]) -> None:
        for op in operations:
            taken = getattr(op, "reordered_ports", ())
            for port, tensor in (inputs_of(op) | outputs_of(op)).items():
                if tensor.reordering is not TensorReordering.NONE and (port not in taken or tensor.is_virtual):
                    raise NotSupportedError.at(
                        f"operation_graph: {tensor.label}.reordering",
                        expected=f"NONE for a virtual tensor, and for {port} of {type(op).__name__}",
                        got=tensor.reordering.name,
                    )


def _sorted(given: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Kahn's algorithm, stable in the given order."""
    makers = {tensor.uid: index for index, op in enumerate(given) for tensor in outputs_of(op).values()}
    missing = [{makers[t.uid] for t in inputs_of(op).values() if t.uid in makers} for op in given]
    readers: list[list[int]] = [[] for _ in given]
    for reader, needed in enumerate(missing):
        for maker in needed:
            readers[maker].append(reader)
    ready = [index for index, needed in enumerate(missing) if not needed]
    order: list[Operation] = []
    while ready:
        made = heappop(ready)
        order.append(given[made])
        for reader in readers[made]:
            missing[reader].discard(made)
            if not missing[reader]:
                heappush(ready, reader)
    if len(order) < len(given):
        names = listed([type(op).__name__ for op, needed in zip(given, missing, strict=True) if needed])
        raise BadParamError.at("operation_graph.operations", expected="no cycle", got=f"a cycle through {names}")
    return tuple(order)


def graph_from(operations: list[Any], where: str) -> OperationGraph:
    """The graph of the operations that ``codec.encode`` gave ``operations`` for; raises as ``from_json``."""
    return OperationGraph(_decode_operation(item, f"{where}[{i}]") for i, item in enumerate(operations))


def _tensors_by_uid(operations: tuple[Operation, ...]) -> dict[int, Tensor]:
    tensors: dict[int, Tensor] = {}
    for op in operations:
        for tensor in (*inputs_of(op).values(), *outputs_of(op).values()):
            known = tensors.setdefault(tensor.uid, tensor)
            if known is not tensor and known != tensor:
                raise DuplicatedEntriesError.at(
                    f"operation_graph.{tensor.label}", expected="one tensor for each uid", got=f"{known} and {tensor}"
                )
    return tensors


def _producers(operations: tuple[Operation, ...]) -> dict[int, Operation]:
    producers: dict[int, Operation] = {}
    for op in operations:
        for tensor in outputs_of(op).values():
            if tensor.uid in producers:
                raise DuplicatedEntriesError.at(
                    f"operation_graph.{tensor.label}",
                    expected="one operation that writes it",
                    got=f"{type(producers[tensor.uid]).__name__} and {type(op).__name__}",
                )
            producers[tensor.uid] = op
    return producers


@cache
def _codec() -> Codec:
    return Codec((cls for cls in catalog.declared() if cls not in catalog.compounds()), catalog.enums())


def _decode_operation(value: Any, where: str) -> Operation:
    operation: object = _codec().decode(value, object, where)
    if not isinstance(operation, catalog.operations()):
        raise BadParamError.at(where, expected="an operation", got=type(operation).__name__)
    return cast(Operation, operation)


def _describe(operations: tuple[Operation, ...]) -> list[Any]:
    """A JSON form without names and uids: tensors are numbered by first use and described there, enums are numbers."""
    numbers: dict[int, int] = {}
    return [_facts(operation, numbers) for operation in operations]


def _facts(described: Any, numbers: dict[int, int]) -> list[Any]:
    """Class, plain fields, then the descriptors and tensors in the others, as far as there are any."""
    cls: type = type(described)
    plain, others = _getters(cls)
    nested = (_nested_facts(value, numbers) for value in others(described) if value != ())
    return [cls.__name__, plain(described), *nested]


def _nested_facts(value: Any, numbers: dict[int, int]) -> Any:
    """A descriptor, a tensor, several of them, none, or the number in a tensor's place."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return [_nested_facts(item, numbers) for item in value]
    if isinstance(value, int):
        return ["number", value]
    if not isinstance(value, Tensor):
        return _facts(value, numbers)
    if value.uid in numbers:
        return numbers[value.uid]
    numbers[value.uid] = len(numbers)
    return _tensor_facts(value)


def form_of(operation: Operation) -> tuple[str, tuple[int, ...]]:
    """(what the operation is but for names and uids, the uids of its tensors in order of first use).

    Operations of one form differ in the tensors that they name alone.
    """
    numbers: dict[int, int] = {}
    return _DESCRIPTION.encode(_facts(operation, numbers)), tuple(numbers)


_tensor_facts = attrgetter(*(f.name for f in fields(Tensor) if f.name not in ("uid", "name")))


@cache
def _getters(cls: type) -> tuple[Callable[[object], Any], Callable[[object], tuple[Any, ...]]]:
    """Getters of the fields of ``cls`` that hold plain values, and of those that hold descriptors."""
    nested = [item.field for item in schema.declared_in(cls) if AttributeType.BACKEND_DESCRIPTOR in item.types]
    plain = [item.name for item in fields(cls) if item.name not in nested]
    return _getter(plain), _getter(nested)


def _getter(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """The values of the attributes of these names, as a tuple."""
    if not names:
        return lambda described: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda described: (get(described),)
