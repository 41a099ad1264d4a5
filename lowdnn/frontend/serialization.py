"""A built pygraph as JSON: its plan and its tensors.

{"lowdnn_graph": 1, "name": ..., "plan": <Plan.to_json()>, "tensors": [{"uid": ..., "name": ..., ...}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lowdnn.frontend.data_types import data_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.plan import Plan
from lowdnn.status import BadParamError, SerializationVersionMismatchError

#: Version of the JSON form. A reader refuses other versions.
SCHEMA_VERSION = 1

_FIELDS = {
    "uid": int,
    "name": str,
    "dim": list,
    "stride": list,
    "data_type": str,
    "is_virtual": bool,
    "is_pass_by_value": bool,
    "alignment_bytes": int,
    "value": (int, float, type(None)),
    "is_constant": bool,
}


@dataclass(frozen=True)
class RestoredGraph:
    """What ``dump`` was given."""

    name: str
    plan: Plan
    tensors: tuple[Tensor, ...]


def dump(name: str, plan: Plan, tensors: Iterable[Tensor]) -> str:
    """The JSON form."""
    document = {
        "lowdnn_graph": SCHEMA_VERSION,
        "name": name,
        "plan": plan.to_json(),
        "tensors": [_describe(tensor) for tensor in tensors],
    }
    return json.dumps(document, separators=(",", ":"))


def load(data: object) -> RestoredGraph:
    """Reads ``dump``'s form, as text or bytes.

    Raises SerializationVersionMismatchError for another version, BadParamError for anything malformed.
    """
    document = _parse(data)
    if document.get("lowdnn_graph") != SCHEMA_VERSION:
        raise SerializationVersionMismatchError.at(
            "serialized graph.lowdnn_graph", expected=SCHEMA_VERSION, got=document.get("lowdnn_graph")
        )
    name, plan, tensors = document.get("name"), document.get("plan"), document.get("tensors")
    if not isinstance(name, str) or not isinstance(plan, str) or not isinstance(tensors, list):
        raise BadParamError.at("serialized graph", expected="name, plan and tensors", got=sorted(document))
    return RestoredGraph(name, Plan.from_json(plan), tuple(_tensor(item) for item in tensors))


def _parse(data: object) -> dict[str, Any]:
    if not isinstance(data, (str, bytes)):
        raise BadParamError.at("serialized graph", expected="text or bytes", got=type(data).__name__)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadParamError.at("serialized graph", expected="a JSON document", got=str(error)) from None
    if not isinstance(document, dict):
        raise BadParamError.at("serialized graph", expected="a JSON object", got=type(document).__name__)
    return document


def _describe(tensor: Tensor) -> dict[str, object]:
    return {
        "uid": tensor.get_uid(),
        "name": tensor.get_name(),
        "dim": tensor.get_dim(),
        "stride": tensor.get_stride(),
        "data_type": tensor.get_data_type().name,
        "is_virtual": tensor.get_is_virtual(),
        "is_pass_by_value": tensor.get_is_pass_by_value(),
        "alignment_bytes": tensor.get_alignment(),
        "value": tensor.value,
        "is_constant": tensor.is_constant,
    }


def _tensor(item: object) -> Tensor:
    where = "serialized graph.tensors"
    if not isinstance(item, dict) or set(item) != set(_FIELDS):
        raise BadParamError.at(where, expected=f"objects with {sorted(_FIELDS)}", got=item)
    for name, kind in _FIELDS.items():
        if not isinstance(item[name], kind):  # type: ignore[arg-type]
            raise BadParamError.at(f"{where}.{name}", expected=kind, got=item[name])
    if item["data_type"] not in data_type.__members__:
        raise BadParamError.at(f"{where}.data_type", expected="the name of a data type", got=item["data_type"])
    return Tensor(**(item | {"data_type": data_type[item["data_type"]]}))
