"""The guide's table has the measures as they are defined, and its options are those that are read."""

from __future__ import annotations

import re

from lowdnn.guide.pages import page
from lowdnn.telemetry import MEASURES
from lowdnn.telemetry.starting import _OPTIONS


def test_the_table_has_every_measure() -> None:
    rows = re.findall(r"^\| `((?:lowdnn|DCGM)_\w+)` \| (.*) \|$", page("telemetry").text, re.MULTILINE)
    expected = [
        (measure.name, f"{measure.kind} | {', '.join(measure.labels)} | {measure.unit} | {measure.help}")
        for measure in MEASURES
    ]
    assert rows == expected


def test_the_table_of_options_is_complete() -> None:
    options = page("telemetry").text.partition("## By the environment")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)[=`]", options, re.MULTILINE) == list(_OPTIONS)
