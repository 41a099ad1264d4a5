"""Writes the files to a directory, with durations as they are or divided for a trial."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from lowdnn.checks import instance, integer
from lowdnn.operations.dashboards import DASHBOARDS
from lowdnn.operations.grafana import document
from lowdnn.status import BadParamError

#: Divisors of durations: at most that of an hour by a second.
MOST_SCALE = 3600
#: Prometheus needs some samples within each window, and they come no faster than this.
_LEAST_MS = 250

_FILES = ("prometheus.yml", "targets.rules.yml", "recording.rules.yml", "alerts.rules.yml", "alertmanager.yml")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
#: A window or an offset of PromQL, or the value of a key that is a duration.
_DURATION = re.compile(
    r"(?P<before>\[|\boffset |\b(?:for|keep_firing_for|group_wait|[a-z]+_interval): )"
    r"(?P<number>\d+)(?P<unit>ms|s|m|h|d)\b"
)


def export(directory: Path | str, *, scale: int = 1, replace: bool = False) -> tuple[Path, ...]:
    """Writes all files to ``directory``, which is made where it is missing; returns their paths.

    scale: windows, intervals and waits are divided by it, so that seconds stand for minutes at 60; none falls below a
    quarter of a second. Names of series stay as they are. For trials, not for production.
    replace: whether files that are there already, such as targets that somebody has set, may be replaced.

    Raises BadParamError where one is there and is not to be replaced, or cannot be written; then no file is changed.
    """
    divisor = integer(scale, "operations.export.scale", 1, MOST_SCALE)
    folder = Path(directory)
    contents = texts(divisor)
    if not instance(replace, bool, "operations.export.replace"):
        _check_free(folder, contents)
    written = []
    try:
        for name, text in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.append(path)
    except OSError as error:
        where = "operations.export.directory"
        raise BadParamError.at(where, expected="a place that can be written", got=error) from None
    return tuple(written)


def texts(scale: int = 1) -> dict[str, str]:
    """The text of each file by its name in the directory."""
    found = {name: (files("lowdnn.operations") / "files" / name).read_text(encoding="utf-8") for name in _FILES}
    found |= {
        f"dashboards/{name}.json": json.dumps(document(dashboard), indent=2) + "\n"
        for name, dashboard in DASHBOARDS.items()
    }
    return {name: scaled(text, scale) for name, text in found.items()}


def scaled(text: str, scale: int) -> str:
    """``text`` with each duration divided by ``scale``, in whole milliseconds."""
    if scale == 1:
        return text

    def shorter(found: re.Match[str]) -> str:
        duration_ms = int(found["number"]) * _UNITS_MS[found["unit"]]
        return f"{found['before']}{max(duration_ms // scale, _LEAST_MS)}ms"

    return _DURATION.sub(shorter, text)


def _check_free(folder: Path, contents: Mapping[str, str]) -> None:
    for name in contents:
        if (folder / name).exists():
            raise BadParamError.at(
                "operations.export.directory",
                expected=f"no {name} in it",
                got=f"one in {str(folder)!r}",
                hint="name another directory, or say --replace",
            )
