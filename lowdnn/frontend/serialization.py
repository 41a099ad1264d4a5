"""A planned pygraph as JSON: its name, its tensors, and the document of its plan, which is made again when it is read.

{"lowdnn_graph": 2, "name": ..., "tensors": [{"class": "StoredTensor", ...}], "plan": {"lowdnn_plan": 2, ...}}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from lowdnn.codec import Codec, encode
from lowdnn.documents import check_name, read_document, shown, write_document
from lowdnn.enums import DataType, TensorReordering
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.heuristics import stored_plans
from lowdnn.heuristics.ranking import Candidate
from lowdnn.heuristics.stored_plans import Reading
from lowdnn.ops import tensor as ops
from lowdnn.status import BadParamError, DuplicatedEntriesError, NotSupportedError

#: Version of the JSON form. A reader refuses other versions.
SCHEMA_VERSION = 2

_WHERE = "serialized graph"
_FIELDS: Mapping[str, type] = {"name": str, "tensors": list, "plan": dict}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the graph, and the number that execute takes for it where it is given none."""

    tensor: ops.Tensor
    value: int | float | None


@dataclass(frozen=True)
class RestoredGraph:
    """The contents of a document that ``dump`` wrote; the candidate's plan is made again here."""

    name: str
    candidate: Candidate
    tensors: tuple[Tensor, ...]


def dump(name: str, candidate: Candidate, tensors: Iterable[Tensor]) -> str:
    """The document of a graph and its plan. Raises BadParamError for names that no document may hold."""
    check_name(name, "pygraph.name")
    stored = tuple(StoredTensor(tensor.lowered(), tensor.get_pass_by_value()) for tensor in tensors)
    fields = {
        "name": name,
        "tensors": encode(stored),
        "plan": stored_plans.document(candidate),
    }
    return write_document("lowdnn_graph", SCHEMA_VERSION, fields)


def load(data: object, reading: Reading) -> RestoredGraph:
    """Reads a document of ``dump``, as text, UTF-8 bytes, or a list of the bytes' values.

    Raises what ``stored_plans.read_plan`` raises, and BadParamError for tensors that are not the graph's.
    """
    content = read_document(_joined(data), "lowdnn_graph", SCHEMA_VERSION, _FIELDS, _WHERE)
    check_name(content["name"], f"{_WHERE}.name")
    stored = _tensors(content["tensors"], f"{_WHERE}.tensors")
    candidate = stored_plans.restored(content["plan"], reading, f"{_WHERE}.plan")
    _check_tensors(stored, candidate)
    return RestoredGraph(content["name"], candidate, tuple(Tensor.of(item.tensor, item.value) for item in stored))


def _joined(data: object) -> object:
    if not isinstance(data, (list, tuple)):
        return data
    try:
        return bytes(data)
    except (TypeError, ValueError):
        raise BadParamError.at(_WHERE, expected="text, bytes, or values of bytes", got=shown(data)) from None


@cache
def _codec() -> Codec:
    return Codec((StoredTensor, ops.Tensor), (DataType, TensorReordering))


def _tensors(items: list[Any], where: str) -> tuple[StoredTensor, ...]:
    try:
        return tuple(_codec().decode(item, StoredTensor, f"{where}[{i}]") for i, item in enumerate(items))
    except NotSupportedError as error:
        raise BadParamError.at(where, expected="tensors that keep their rules", got=error) from None


def _check_tensors(stored: tuple[StoredTensor, ...], candidate: Candidate) -> None:
    """Raises BadParamError unless ``stored`` has each tensor of the graph that execute takes, as the graph has it."""
    by_uid = {item.tensor.uid: item.tensor for item in stored}
    if len(by_uid) < len(stored):
        raise DuplicatedEntriesError.at(f"{_WHERE}.tensors", expected="each uid once", got=shown(list(by_uid)))
    for tensor in candidate.graph.tensors.values():
        given = by_uid.get(tensor.uid)
        if given is None and not tensor.is_virtual and not tensor.is_scalar_value:
            raise BadParamError.at(f"{_WHERE}.tensors", expected=f"{tensor.label} of the graph", got="none")
        if given is not None and _as_in_graph(given, tensor) != tensor:
            raise BadParamError.at(f"{_WHERE}.tensors: uid {tensor.uid}", expected=tensor, got=given)
    for item in stored:
        if item.value is not None and not item.tensor.is_scalar_value:
            where, rule = f"{_WHERE}.tensors: {item.tensor.label}.value", "None of a tensor in device memory"
            raise BadParamError.at(where, expected=rule, got=item.value)


def _as_in_graph(given: ops.Tensor, tensor: ops.Tensor) -> ops.Tensor:
    """``given`` with the dims and strides of the graph's ``tensor`` where it is ragged, which a graph holds packed."""
    if given.ragged_offset is None:
        return given
    return replace(given, dims=tensor.dims, strides=tensor.strides, ragged_offset=None, ragged_offset_multiplier=1)
