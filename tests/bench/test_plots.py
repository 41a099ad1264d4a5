"""Pictures of runs: what is in them, and that the same run gives the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lowdnn.bench import plots
from lowdnn.bench.floor import H200
from lowdnn.bench.runs import CaseTimes
from lowdnn.bench.verdicts import Verdict, Word
from lowdnn.status import SublibraryUnavailableError
from tests.bench.test_runs import RUN

pytest.importorskip("matplotlib")

#: Twelve classes, two cases each; one case without a time.
TIMES = tuple(
    CaseTimes(
        f"class {number // 2}",
        f"case {number}",
        us=10.0 + number,
        floor_us=9.0,
        flops=1e6 * 4**number,
        bytes=1e6,
    )
    for number in range(24)
)
WHOLE = replace(RUN, times=(*TIMES, CaseTimes("class 0", "broken", error="reason")))


def test_a_roofline_has_a_point_for_each_case() -> None:
    axes = plots.roofline(WHOLE, H200).axes[0]
    points = [point for group in axes.collections for point in group.get_offsets()]
    assert len(points) == 24
    assert tuple(points[1]) == pytest.approx((4.0, 4e6 / 11.0 * 1e-6))
    labels = axes.get_legend_handles_labels()[1]
    assert labels == [*(f"class {number}" for number in range(9)), "others"]
    limits = [line.get_ydata().max() for line in axes.lines]
    assert limits == pytest.approx([1500.0, 790.0])


def test_shares_and_changes_have_a_row_for_each_class() -> None:
    axes = plots.shares(WHOLE).axes[0]
    means, worst = (axes.collections[number] for number in (1, 0))
    assert means.get_offsets()[0][0] == pytest.approx((9 / 10 * 9 / 11) ** 0.5)
    assert len(worst.get_segments()) == 12
    verdicts = [Verdict("case 0", Word.SLOWER, 100.0, 125.0), Verdict("case 2", Word.CANNOT_TELL, why="reason")]
    axes = plots.changes(WHOLE, verdicts).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["class 0"]
    assert axes.collections[1].get_offsets()[0][0] == pytest.approx(0.8)


def test_a_trend_has_what_all_runs_on_the_device_have() -> None:
    later = replace(WHOLE, times=tuple(replace(each, us=2 * each.us) for each in WHOLE.times[2:]))
    axes = plots.trend([WHOLE, replace(WHOLE, device="other"), later]).axes[0]
    lines = [line for line in axes.lines if line.get_label().startswith("class")]
    assert [line.get_label() for line in lines] == [f"class {number}" for number in range(1, 10)]
    assert list(lines[0].get_ydata()) == pytest.approx([1.0, 2.0])


def test_names_of_a_run_are_drawn_as_they_are(tmp_path: Path) -> None:
    odd = replace(WHOLE, commit="$\\frac$", device="a $\\bad{$ \0\n<device>")
    for number, figure in enumerate((plots.roofline(odd, H200), plots.trend([odd, odd]))):
        plots.write(figure, tmp_path / f"{number}.svg")
        text = "".join(ElementTree.parse(tmp_path / f"{number}.svg").getroot().itertext())
        assert r"a $\bad{$ \x00\n<device>" in text


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        plots.write(plots.roofline(WHOLE, H200), tmp_path / "new" / f"{name}.svg")
    first, second = ((tmp_path / "new" / f"{name}.svg").read_bytes() for name in ("a", "b"))
    assert first == second
    assert ElementTree.fromstring(first).tag.endswith("svg")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(SublibraryUnavailableError, match=r"pip install 'lowdnn\[plot\]'"):
        plots.check_installed()
