"""Pages for the people on call: their commands and programs run, their queries are of measures that there are.

In a block ``sh`` a line is a command, which runs on the emulated device in an empty folder, one behind the other, with
status 0, or the one of its remark ``# exit N``. The blocks ``python`` of a page are a program, which runs behind them.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import pytest

from lowdnn.cli.main import main
from lowdnn.guide.pages import page, topics
from lowdnn.telemetry.measures import MEASURES, Kind

_TOPICS = [topic for topic in topics() if topic.partition("/")[0] in ("failures", "production", "runbooks")]
_ROOT = Path(__file__).resolve().parents[2]
#: Names of measures that others export.
_OF_OTHERS = {"node_textfile_mtime_seconds"}
_NAME = re.compile(r"\b((?:lowdnn|DCGM|node)_\w+)(?:\{([^}]*)\})?")
_LABELS = re.compile(r"by \(([^)]*)\)")
#: Labels that Prometheus adds, those of a histogram, and those of the files of rules.
_ADDED = {"instance", "job", "le"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the emulated device, and ``lowdnn`` as a command of this Python."""
    command = tmp_path / "bin" / "lowdnn"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lowdnn "$@"\n')
    command.chmod(0o755)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(_ROOT))
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated")
    monkeypatch.setenv("LOWDNN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "work"


@pytest.mark.parametrize("topic", _TOPICS)
def test_commands_and_programs_run(topic: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for line in [line for block in _blocks(topic, "sh") for line in block.splitlines() if line]:
        command, _, remark = line.partition("  # exit ")
        assert _status(command) == int(remark or 0), f"{line}\n{capfd.readouterr()}"
    program = "\n".join(_blocks(topic, "python"))
    exec(compile(program, topic, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("topic", _TOPICS)
def test_queries_are_of_measures(topic: str) -> None:
    """Names are those of measures, and labels are theirs, or Prometheus' own."""
    known = {name: {*measure.labels} for measure in MEASURES for name in _series(measure.name, measure.kind)}
    known |= {name: {"file"} for name in _OF_OTHERS}
    queries = list(_blocks(topic, "promql"))
    assert queries or topic.startswith(("production/", "runbooks/"))
    for query in queries:
        found = _NAME.findall(query)
        assert found, query
        labels = {label for name, _ in found for label in known[name]} | _ADDED
        asked = [label.strip() for group in _LABELS.findall(query) for label in group.split(",")]
        chosen = [term.partition("=")[0].rstrip("!~ ") for _, terms in found for term in terms.split(",") if term]
        assert set(asked + chosen) <= labels, query
        assert all(query.count(opening) == query.count(closing) for opening, closing in ("()", "[]", "{}"))


@pytest.mark.parametrize("topic", _TOPICS)
def test_topics_and_measures_in_text_are_there(topic: str) -> None:
    text = page(topic).text
    for name in re.findall(r"`lowdnn guide\s([\w/]+)`", text):
        assert page(name), name
    known = {measure.name for measure in MEASURES}
    assert [name for name in re.findall(r"`((?:lowdnn|DCGM)_[A-Za-z_]+)`", text) if name not in known] == []


def test_every_failure_mode_and_runbook_is_there() -> None:
    modes = [topic for topic in _TOPICS if topic.startswith("failures/")]
    assert [topic.partition("/f")[2][0] for topic in modes] == list("1234567")
    for topic in modes:
        assert all(word in page(topic).text for word in ("**Symptom.**", "**Measures.**", "**See", "emed")), topic
    assert [topic for topic in _TOPICS if topic.startswith("runbooks/")] == [
        f"runbooks/{name}" for name in ("driver_mismatch", "hang", "out_of_memory")
    ]


def _blocks(topic: str, language: str) -> Iterator[str]:
    return (match[1] for match in re.finditer(rf"```{language}\n(.*?)```", page(topic).text, re.DOTALL))


def _status(command: str) -> int:
    """The status of a command; lowdnn's, with or without a file for its output, runs in this process."""
    words, _, file = command.partition(" > ")
    if words.startswith("lowdnn "):
        with open(file, "w", encoding="utf-8") if file else nullcontext(sys.stdout) as output, redirect_stdout(output):
            return main(shlex.split(words)[1:])
    return subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=False).returncode


def _series(name: str, kind: Kind) -> tuple[str, ...]:
    if kind is not Kind.HISTOGRAM:
        return (name,)
    return tuple(f"{name}_{part}" for part in ("bucket", "sum", "count"))
