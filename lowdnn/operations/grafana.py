"""Dashboards as values, and the JSON that Grafana imports: version 39 of its schema, from Grafana 10 on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_SCHEMA_VERSION = 39
#: A dashboard is this many units wide.
_WIDTH = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """A PromQL expression, and the template of its legend, such as ``{{host}}``."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """A picture of a few queries.

    description: a sentence on the quantity, and on which value is good.  unit: Grafana's name of one.
    kind: ``timeseries``, ``stat``, ``table`` or ``bargauge``.
    warning: the value from which on it is red, if there is such a value.
    width, height: in Grafana's units, of which a row has 24.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    warning: float | None = None
    width: int = 8
    height: int = 8


@dataclass(frozen=True)
class Dashboard:
    """Panels in the order of reading. uid: by which Grafana knows the dashboard again."""

    uid: str
    title: str
    description: str
    panels: tuple[Panel, ...]


def document(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana's JSON has it; its data source and pools are chosen in variables."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["lowdnn"],
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "utc",
        "templating": {"list": [_datasource_variable(), _pool_variable()]},
        "annotations": {"list": []},
        "links": [{"type": "dashboards", "title": "lowdnn", "tags": ["lowdnn"], "asDropdown": False}],
        "panels": [
            _panel(panel, number, place)
            for number, (panel, place) in enumerate(zip(dashboard.panels, _places(dashboard.panels), strict=True), 1)
        ],
    }


def _places(panels: tuple[Panel, ...]) -> Iterator[dict[str, int]]:
    """Rows from left to right; a panel that does not fit begins the next one."""
    x = y = row_height = 0
    for panel in panels:
        if x + panel.width > _WIDTH:
            x, y, row_height = 0, y + row_height, 0
        yield {"x": x, "y": y, "w": panel.width, "h": panel.height}
        x, row_height = x + panel.width, max(row_height, panel.height)


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.warning is not None:
        steps.append({"color": "red", "value": panel.warning})
    defaults = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.warning is not None and panel.kind == "timeseries":
        defaults["custom"] = {"thresholdsStyle": {"mode": "line"}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.kind],
        "targets": [_target(query, chr(ord("A") + place), panel.kind) for place, query in enumerate(panel.queries)],
    }


def _target(query: Query, name: str, kind: str) -> dict[str, Any]:
    is_now = kind != "timeseries"
    return {
        "refId": name,
        "datasource": _SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": is_now,
        "range": not is_now,
        "format": "table" if kind == "table" else "time_series",
    }


def _datasource_variable() -> dict[str, Any]:
    return {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"}


def _pool_variable() -> dict[str, Any]:
    return {
        "type": "query",
        "name": "pool",
        "label": "node pool",
        "datasource": _SOURCE,
        "query": {"query": "label_values(up, pool)", "refId": "pool"},
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


_REDUCED = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": _REDUCED, "colorMode": "value", "graphMode": "none", "textMode": "auto"},
    "bargauge": {"reduceOptions": _REDUCED, "orientation": "horizontal", "displayMode": "basic"},
    "table": {"showHeader": True, "cellHeight": "sm"},
}
