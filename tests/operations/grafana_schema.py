"""The form of a dashboard, as far as ours go: Grafana's kinds ``Dashboard``, ``Panel`` and ``Target`` of schema 39."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A schema is a type; a tuple of allowed values; a list of one schema, for a list with at least one element; or a dict
#: of schemas, all of whose keys have to be there, and no others.
Schema = Any

_SOURCE = {"type": ("prometheus",), "uid": ("${datasource}",)}
_TARGET = {
    "refId": tuple("ABCDEFGH"),
    "datasource": _SOURCE,
    "expr": str,
    "legendFormat": str,
    "instant": bool,
    "range": bool,
    "format": ("time_series", "table"),
}
_PANEL = {
    "id": int,
    "type": ("timeseries", "stat", "table", "bargauge"),
    "title": str,
    "description": str,
    "datasource": _SOURCE,
    "gridPos": {"x": int, "y": int, "w": int, "h": int},
    "fieldConfig": {"defaults": dict, "overrides": list},
    "options": dict,
    "targets": [_TARGET],
}
DASHBOARD: Schema = {
    "uid": str,
    "title": str,
    "description": str,
    "tags": [str],
    "schemaVersion": int,
    "version": int,
    "editable": bool,
    "graphTooltip": (0, 1, 2),
    "refresh": str,
    "time": {"from": str, "to": str},
    "timezone": ("utc", "browser"),
    "templating": {"list": [dict]},
    "annotations": {"list": list},
    "links": [dict],
    "panels": [_PANEL],
}


def faults(value: object, schema: Schema, where: str = "dashboard") -> list[str]:
    """A line for each place where ``value`` is not of ``schema``."""
    if isinstance(schema, Mapping):
        if not isinstance(value, dict):
            return [f"{where}: expected an object, got {value!r}"]
        wrong = [f"{where}.{key}: missing" for key in schema.keys() - value.keys()]
        wrong += [f"{where}.{key}: unknown" for key in value.keys() - schema.keys()]
        return wrong + [
            fault for key in schema.keys() & value.keys() for fault in faults(value[key], schema[key], f"{where}.{key}")
        ]
    if isinstance(schema, list):
        if not isinstance(value, list) or not value:
            return [f"{where}: expected a list with elements, got {value!r}"]
        return [fault for place, each in enumerate(value) for fault in faults(each, schema[0], f"{where}[{place}]")]
    if isinstance(schema, tuple):
        return [] if value in schema else [f"{where}: expected one of {schema}, got {value!r}"]
    return [] if type(value) is schema and value != "" else [f"{where}: expected {schema.__name__}, got {value!r}"]
