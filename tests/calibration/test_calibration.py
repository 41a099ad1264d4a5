"""The emulated device gives what an H200 gave, family by family."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowdnn.driver import emulated
from lowdnn.guide.pages import page
from tests.calibration.comparison import compare
from tests.calibration.families import FAMILIES
from tests.calibration.running import opened
from tests.calibration.store import load, path_of


@pytest.mark.parametrize("family", FAMILIES)
def test_the_emulated_device_gives_what_the_gpu_gave(family: str) -> None:
    recording = load(path_of(family))
    assert recording.skipped == {}
    with opened("emulated") as driver:
        verdicts = [verdict for case in FAMILIES[family]() for verdict in compare(case, recording, driver)]
    wrong = [f"{v.case} {v.label}: {v.wrong} wrong; {v.detail}" for v in verdicts if v.wrong]
    assert not wrong, "\n".join(wrong)
    assert {v.case for v in verdicts} == set(recording.digests)
    assert _quoted(family) == (len(recording.digests), sum(v.exact + v.within for v in verdicts))


def test_the_number_of_cases_is_quoted_right() -> None:
    total = sum(len(load(path_of(family)).digests) for family in FAMILIES)
    table = (Path(__file__).parent / "README.md").read_text()
    for text in (table, page("emulated_device").text, str(emulated.__doc__)):
        assert f"{total} micro-kernels" in text


def _quoted(family: str) -> tuple[int, int]:
    """(cases, values) of the family in the table of the README."""
    lines = (Path(__file__).parent / "README.md").read_text().splitlines()
    (fields,) = (line.split() for line in lines if line.startswith(f"    {family} "))
    return int(fields[1]), int(fields[2])


@pytest.mark.parametrize("family", FAMILIES)
def test_names_tell_cases_and_outputs_apart(family: str) -> None:
    names = [case.name for case in FAMILIES[family]()]
    assert len(set(names)) == len(names)
    for case in FAMILIES[family]():
        labels = [output.label for output in case.outputs]
        assert len(set(labels)) == len(labels)
