from __future__ import annotations

import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest

from lowdnn.config import Config, ConfigWarning
from lowdnn.events import Counters, emit, event_line, event_logger, log_to, range_annotator, stop_logging


def test_line_quotes_what_would_be_ambiguous() -> None:
    fields = {"kernel": "conv", "count": 3, "text": 'a "b"\nc', "empty": "", "equal": "a=b"}
    expected = 'load kernel=conv count=3 text="a \\"b\\"\\nc" empty="" equal="a=b"'
    assert event_line("load", fields) == expected


def test_nothing_is_printed_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    emit(event_logger("test"), logging.ERROR, "boom", {})
    assert capfd.readouterr() == ("", "")


def test_file_gets_events_from_its_level_up(tmp_path: Path) -> None:
    handler = log_to(Config(log_level="info", log_file=str(tmp_path / "log.%p")))
    assert handler is not None
    try:
        emit(event_logger("test"), logging.DEBUG, "hidden", {})
        emit(event_logger("test"), logging.INFO, "shown", {"a": 1})
    finally:
        stop_logging(handler)
    emit(event_logger("test"), logging.INFO, "after", {})
    text = (tmp_path / f"log.{os.getpid()}").read_text()
    assert text.endswith("INFO lowdnn.test shown a=1\n")
    assert text.count("\n") == 1
    assert log_to(Config()) is None


def test_counters_are_exact_between_threads() -> None:
    counters = Counters()

    def count() -> None:
        for _ in range(1000):
            counters.add("hits")

    threads = [Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counters.add("bytes", 5)
    assert counters.snapshot() == {"bytes": 5, "hits": 4000}


def test_ranges_go_to_nvtx_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[dict[str, str]] = []
    fake = ModuleType("nvtx")
    fake.annotate = lambda **options: opened.append(options) or nullcontext()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    annotate = range_annotator(Config(nvtx=True))
    assert annotate is not None
    with annotate("eng1_matmul"):
        assert opened == [{"message": "eng1_matmul", "domain": "lowdnn"}]


def test_a_missing_nvtx_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with caplog.at_level(logging.WARNING, logger="lowdnn"):
        assert range_annotator(Config(nvtx=True)) is None
    assert "nvtx_missing" in caplog.text


def test_ranges_are_off_by_default() -> None:
    assert range_annotator(Config()) is None


def test_a_log_file_that_cannot_be_opened_warns_and_logs_to_standard_error(tmp_path: Path) -> None:
    config = Config(log_level="info", log_file=str(tmp_path / "missing" / "log"))
    with pytest.warns(ConfigWarning, match="LOWDNN_LOG_FILE: .*taking standard error"):
        handler = log_to(config)
    assert handler is not None
    stop_logging(handler)
    assert not isinstance(handler, logging.FileHandler)


def test_a_log_file_without_room_warns_once(capsys: pytest.CaptureFixture[str]) -> None:
    handler = log_to(Config(log_level="info", log_file="/dev/full"))
    assert handler is not None
    with pytest.warns(ConfigWarning, match="/dev/full: .*No space left on device; events are lost"):
        emit(event_logger("test"), logging.INFO, "event", {})
    emit(event_logger("test"), logging.INFO, "event", {})  # warnings are errors here
    stop_logging(handler)
    assert capsys.readouterr().err == ""
