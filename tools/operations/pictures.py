"""Draws the dashboards from a Prometheus, for whoever has no Grafana at hand. Needs matplotlib."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lowdnn.operations.dashboards import DASHBOARDS
from lowdnn.operations.export import scaled
from lowdnn.operations.grafana import Dashboard, Panel, document
from tools.operations.monitoring import Monitoring, Series

_COLUMN_INCHES = 0.72
_ROW_INCHES = 0.42
_MOST_LINES = 12


def draw(watched: Monitoring, start: float, end: float, folder: Path, scale: int = 240) -> None:
    """Writes a picture of each dashboard to ``folder``: its panels between two times in seconds since the epoch."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, dashboard in DASHBOARDS.items():
        _figure(watched, dashboard, start, end, scale).savefig(folder / f"{name}.png", dpi=80)


def _figure(watched: Monitoring, dashboard: Dashboard, start: float, end: float, scale: int) -> Figure:
    places = [panel["gridPos"] for panel in document(dashboard)["panels"]]
    rows = max(place["y"] + place["h"] for place in places)
    figure = Figure(figsize=(24 * _COLUMN_INCHES, rows * _ROW_INCHES), layout="constrained")
    figure.suptitle(dashboard.title)
    grid = figure.add_gridspec(rows, 24)
    for panel, place in zip(dashboard.panels, places, strict=True):
        axes = figure.add_subplot(grid[place["y"] : place["y"] + place["h"], place["x"] : place["x"] + place["w"]])
        axes.set_title(panel.title, fontsize=9)
        found = [
            (query.legend, series)
            for query in panel.queries
            for series in watched.between(scaled(query.expr, scale).replace("$pool", ".*"), start, end)
        ]
        _PANELS[panel.kind](axes, panel, found, start)
    return figure


def _lines(axes: Any, panel: Panel, found: Sequence[tuple[str, Series]], start: float) -> None:
    for legend, series in found[:_MOST_LINES]:
        times = [time - start for time, _ in series.samples]
        axes.plot(times, [value for _, value in series.samples], label=_name(legend, series), linewidth=1)
    if panel.warning is not None:
        axes.axhline(panel.warning, color="red", linewidth=0.5)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.set_ylabel(panel.unit, fontsize=7)
    axes.legend(fontsize=5, loc="upper right")


def _number(axes: Any, panel: Panel, found: Sequence[tuple[str, Series]], _: float) -> None:
    axes.axis("off")
    text = "\n".join(f"{series.samples[-1][1]:.3g}" for _, series in found) or "no data"
    axes.text(0.5, 0.4, f"{text} {panel.unit}", ha="center", va="center", fontsize=13)


def _bars(axes: Any, panel: Panel, found: Sequence[tuple[str, Series]], _: float) -> None:
    names = [_name(legend, series) for legend, series in found]
    axes.barh(names, [series.samples[-1][1] for _, series in found])
    axes.tick_params(labelsize=7)
    axes.set_xlabel(panel.unit, fontsize=7)


def _table(axes: Any, _: Panel, found: Sequence[tuple[str, Series]], start: float) -> None:
    """A bar for each row, over the time that it was there."""
    for place, (_, series) in enumerate(found):
        times = [time - start for time, _ in series.samples]
        axes.plot(times, [place] * len(times), ".", markersize=2)
    names = [" ".join(series.labels.get(label, "") for label in ("alertname", "pool")) for _, series in found]
    axes.set_yticks(range(len(found)), names, fontsize=5)
    axes.tick_params(axis="x", labelsize=7)


_PANELS = {"timeseries": _lines, "stat": _number, "bargauge": _bars, "table": _table}


def _name(legend: str, series: Series) -> str:
    """The legend with the labels put in, or all labels."""
    filled = re.sub(r"\{\{(\w+)\}\}", lambda found: series.labels.get(found[1], ""), legend)
    return filled or " ".join(series.labels.values())
