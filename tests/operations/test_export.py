"""``lowdnn operations export``: what it writes, scales and refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lowdnn.cli.main import main
from lowdnn.operations.export import export, scaled, texts
from lowdnn.status import AttributeTypeError, BadParamError, OutOfBoundError


def test_command_writes_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "monitoring"
    assert main(["operations", "export", str(folder)]) == 0
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == set(texts())
    assert [str(folder / name) for name in texts()] == capsys.readouterr().out.splitlines()
    assert main(["operations", "export", str(tmp_path / "other"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == len(names)


def test_what_somebody_has_changed_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "targets.rules.yml").write_text("groups: []\n")
    assert main(["operations", "export", str(tmp_path)]) == 2
    assert "expected no targets.rules.yml in it" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["targets.rules.yml"]
    assert (tmp_path / "targets.rules.yml").read_text() == "groups: []\n"
    assert main(["operations", "export", str(tmp_path), "--replace"]) == 0
    assert "lowdnn:target:" in (tmp_path / "targets.rules.yml").read_text()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadParamError, match=r"operations\.export\.directory: expected a place that can be written"):
        export(tmp_path / "file" / "below")


@pytest.mark.parametrize("scale", [0, -1, 3601])
def test_scale_has_bounds(tmp_path: Path, scale: int) -> None:
    with pytest.raises(OutOfBoundError, match="1 to 3600"):
        export(tmp_path, scale=scale)
    assert list(tmp_path.iterdir()) == []


def test_arguments_have_types(tmp_path: Path) -> None:
    with pytest.raises(AttributeTypeError, match=r"operations\.export\.scale"):
        export(tmp_path, scale=1.5)  # type: ignore[arg-type]
    with pytest.raises(AttributeTypeError, match=r"operations\.export\.replace"):
        export(tmp_path, replace=1)  # type: ignore[arg-type]


def test_durations_are_divided() -> None:
    text = "a:rate5m rate(x[5m]) offset 1h\n for: 15m\n keep_firing_for: 90s\n repeat_interval: 1d\n group_wait: 10s\n"
    expected = (
        "a:rate5m rate(x[5000ms]) offset 60000ms\n"
        " for: 15000ms\n keep_firing_for: 1500ms\n repeat_interval: 1440000ms\n group_wait: 250ms\n"
    )
    assert scaled(text, 60) == expected
    assert scaled(text, 1) == text


def test_scaling_changes_nothing_but_durations() -> None:
    plain, trial = texts(), texts(60)
    duration = re.compile(r"\d+(?:ms|s|m|h|d)\b")
    for name, text in plain.items():
        assert duration.sub("T", trial[name]) == duration.sub("T", text)
    assert trial["alerts.rules.yml"] != plain["alerts.rules.yml"]
    # Names of series have their windows of production, and times of day are no durations.
    assert "ratio_rate30m" in trial["alerts.rules.yml"]
    assert "start_time: '02:00'" in trial["alertmanager.yml"]
