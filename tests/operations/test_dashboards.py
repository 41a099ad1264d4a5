"""The dashboards: the form that Grafana imports, and queries of series that there are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from lowdnn.operations.dashboards import DASHBOARDS
from lowdnn.operations.export import texts
from lowdnn.operations.grafana import Dashboard
from lowdnn.telemetry.measures import MEASURES
from tests.operations.grafana_schema import DASHBOARD, faults
from tests.operations.names import TARGET_LABELS, exported, labels, names, recorded

_TEXTS = texts()
_RULES = "\n".join(text for name, text in _TEXTS.items() if name.endswith(".rules.yml"))
_KNOWN_LABELS = {label for measure in MEASURES for label in measure.labels} | TARGET_LABELS
_DOCUMENTS: dict[str, Any] = {name: json.loads(text) for name, text in _TEXTS.items() if name.startswith("dashboards/")}


def _queries(dashboard: Dashboard) -> list[str]:
    return [query.expr for panel in dashboard.panels for query in panel.queries]


_QUERIES = [expr for dashboard in DASHBOARDS.values() for expr in _queries(dashboard)]


@pytest.mark.parametrize("name", _DOCUMENTS)
def test_form_is_that_of_grafana(name: str) -> None:
    assert faults(_DOCUMENTS[name], DASHBOARD) == []


def test_the_schema_finds_faults() -> None:
    document = json.loads(_TEXTS["dashboards/debug.json"])
    del document["panels"][0]["gridPos"]["w"]
    document["panels"][1]["type"] = "picture"
    document["panels"][2]["targets"] = []
    document["schemaVersion"] = "39"
    document["colour"] = "red"
    found = faults(document, DASHBOARD)
    assert len(found) == 5, found


@pytest.mark.parametrize("name", _DOCUMENTS)
def test_panels_have_places_and_numbers_of_their_own(name: str) -> None:
    panels = _DOCUMENTS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        taken |= cells


def test_dashboards_are_told_apart() -> None:
    assert len({dashboard.uid for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS)
    for dashboard in DASHBOARDS.values():
        titles = [panel.title for panel in dashboard.panels]
        assert len(set(titles)) == len(titles)


def test_queries_and_rules_read_known_series() -> None:
    known = exported() | recorded(_RULES)
    assert {name for expr in _QUERIES for name in names(expr)} - known == set()
    assert {name for expr in _expressions(_RULES) for name in names(expr)} - known == set()


def test_queries_and_rules_use_known_labels() -> None:
    found = {label for expr in (*_QUERIES, *_expressions(_RULES)) for label in labels(expr)}
    assert found - _KNOWN_LABELS == set()


def test_every_measure_is_shown() -> None:
    """Each measure is on a dashboard, by itself or through what is recorded of it."""
    shown = {name for expr in _QUERIES for name in names(expr)}
    shown |= {name for record, expr in _records() if record in shown for name in names(expr)}
    hidden = [measure.name for measure in MEASURES if not any(name.startswith(measure.name) for name in shown)]
    assert hidden == []


def test_every_recorded_series_is_read() -> None:
    read = {name for expr in (*_QUERIES, *_expressions(_RULES)) for name in names(expr)}
    assert recorded(_RULES) - read == set()


def test_names_of_an_expression() -> None:
    assert names('sum by (x) (rate(lowdnn_a_total{code=~"5.."}[5m])) > on () lowdnn:b:c{job="lowdnn_no"}') == {
        "lowdnn_a_total",
        "lowdnn:b:c",
    }
    assert labels('sum by (x, y) (z{code=~"5..",pool="p"})') == {"x", "y", "code", "pool"}


def _expressions(rules: str) -> list[str]:
    """The expressions of a file of rules: one line, or the more indented lines behind ``>-``."""
    found = re.findall(r"^ +expr: (?!>-)(.+)$|^( +)expr: >-\n((?:\2 +.+\n)+)", rules, re.MULTILINE)
    assert len(found) == len(re.findall(r"^ +expr:", rules, re.MULTILINE))
    return [line or block for line, _, block in found]


def _records() -> list[tuple[str, str]]:
    """(name, expression) of the recording rules."""
    parts = re.split(r"- record: ", _RULES)[1:]
    return [(part.split()[0], "".join(_expressions(part.split("- alert:")[0])[:1])) for part in parts]
