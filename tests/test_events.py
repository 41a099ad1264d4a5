from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from threading import Thread
from types import ModuleType

import pytest

from lowdnn.config import Config
from lowdnn.events import Counters, add_fields, emit, event_line, event_logger, range_annotator, remove_fields


def test_line_quotes_what_would_be_ambiguous() -> None:
    fields = {"kernel": "conv", "count": 3, "text": 'a "b"\nc', "empty": "", "equal": "a=b"}
    expected = 'load kernel=conv count=3 text="a \\"b\\"\\nc" empty="" equal="a=b"'
    assert event_line("load", fields) == expected


def test_nothing_is_printed_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    emit(event_logger("test"), logging.ERROR, "boom", {})
    assert capfd.readouterr() == ("", "")


def test_added_fields_stand_behind_an_events_own(caplog: pytest.LogCaptureFixture) -> None:
    def trace() -> dict[str, object]:
        return {"trace_id": "4bf9", "text": "two words"}

    def broken() -> dict[str, object]:
        raise RuntimeError("no tracer")

    logger = event_logger("events")
    with caplog.at_level(logging.INFO, logger="lowdnn"):
        add_fields(trace)
        emit(logger, logging.INFO, "first", {"a": 1})
        add_fields(broken)
        emit(logger, logging.INFO, "second", {})
        remove_fields(broken)
        remove_fields(trace)
        remove_fields(trace)
        emit(logger, logging.INFO, "third", {"a": 1})
    assert caplog.messages == [
        'first a=1 trace_id=4bf9 text="two words"',
        'second trace_id=4bf9 text="two words" fields_failed="RuntimeError(\'no tracer\')"',
        "third a=1",
    ]


def test_records_keep_the_texts_of_errors(caplog: pytest.LogCaptureFixture) -> None:
    """Not their frames, and so no object of a program whose handler keeps its records."""
    with caplog.at_level(logging.INFO, logger="lowdnn"):
        emit(event_logger("events"), logging.INFO, "failed", {"reason": ValueError("no room")})
    (record,) = caplog.records
    assert record.msg.fields["reason"] == "no room"
    assert caplog.messages == ['failed reason="no room"']


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
    opened: list[dict[str, object]] = []
    fake = ModuleType("nvtx")
    fake.annotate = lambda **options: opened.append(options) or nullcontext()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    annotate = range_annotator(Config(nvtx=True))
    assert annotate is not None
    with annotate("eng1_matmul", "lowdnn run 'matmul m=1'"), annotate("eng2_matmul", ""):
        named = {"message": "eng1_matmul", "domain": "lowdnn", "payload": b"lowdnn run 'matmul m=1'"}
        assert opened == [named, {"message": "eng2_matmul", "domain": "lowdnn", "payload": None}]


def test_the_package_nvtx_takes_the_payload() -> None:
    pytest.importorskip("nvtx", reason="the package itself is under test")
    annotate = range_annotator(Config(nvtx=True))
    assert annotate is not None
    with annotate("eng1_matmul", "lowdnn run 'matmul m=1'"):
        pass


def test_a_missing_nvtx_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with caplog.at_level(logging.WARNING, logger="lowdnn"):
        assert range_annotator(Config(nvtx=True)) is None
    assert "nvtx_missing" in caplog.text


def test_ranges_are_off_by_default() -> None:
    assert range_annotator(Config()) is None
