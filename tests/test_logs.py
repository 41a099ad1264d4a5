from __future__ import annotations

import io
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lowdnn.config import AREAS, Config, ConfigWarning
from lowdnn.events import emit, event_logger
from lowdnn.logs import JsonFormatter, TextFormatter, log_to, stop_logging
from lowdnn.status import BadParamError

HOSTILE = 'a\nINFO lowdnn.runtime forged\r\x1b[31m"quoted"\u2028\u202e=\\end\x00'


@contextmanager
def logged(config: Config) -> Iterator[logging.Handler]:
    handler = log_to(config)
    assert handler is not None
    try:
        yield handler
    finally:
        stop_logging(handler)


def test_file_gets_events_from_its_level_up(tmp_path: Path) -> None:
    with logged(Config(log_level="info", log_file=str(tmp_path / "log.%p"))):
        emit(event_logger("events"), logging.DEBUG, "hidden", {})
        emit(event_logger("events"), logging.INFO, "shown", {"a": 1})
    emit(event_logger("events"), logging.INFO, "after", {})
    text = (tmp_path / f"log.{os.getpid()}").read_text()
    time, rest = text.split(" ", 1)
    assert abs(datetime.fromisoformat(time) - datetime.now(UTC)) < timedelta(minutes=1)
    assert rest == f"INFO lowdnn.events shown a=1 process={os.getpid()} thread={threading.get_ident()}\n"
    assert log_to(Config()) is None


@pytest.mark.parametrize(
    ("levels", "written"),
    [
        ("info", {"runtime-info", "launch-info"}),
        ("info,runtime=debug", {"runtime-debug", "runtime-info", "launch-info"}),
        ("warning,runtime=debug", {"runtime-debug", "runtime-info"}),
        ("off,launch=debug", {"launch-debug", "launch-info"}),
        ("launch=info", {"launch-info"}),
        ("debug,launch=off,runtime=info", {"runtime-info"}),
    ],
)
def test_levels_of_areas(tmp_path: Path, levels: str, written: set[str]) -> None:
    before = logging.getLogger("lowdnn").level, event_logger("launch").level
    with logged(Config(log_level=levels, log_file=str(tmp_path / "log"))):
        for area in ("runtime", "launch"):
            for level in ("debug", "info"):
                emit(event_logger(area), getattr(logging, level.upper()), f"{area}-{level}", {})
        assert event_logger("backend").isEnabledFor(logging.DEBUG) == levels.startswith("debug")
    found = re.findall(r"lowdnn\.\w+ (\S+)", (tmp_path / "log").read_text())
    assert (set(found), len(found)) == (written, len(written))
    assert (logging.getLogger("lowdnn").level, event_logger("launch").level) == before


def test_equal_configurations_share_a_handler(tmp_path: Path) -> None:
    config = Config(log_level="info", log_file=str(tmp_path / "log"))
    with logged(config) as first:
        with logged(config) as second:
            assert second is first
            emit(event_logger("events"), logging.INFO, "once", {})
        emit(event_logger("events"), logging.INFO, "twice", {})
    emit(event_logger("events"), logging.INFO, "never", {})
    assert re.findall("once|twice|never", (tmp_path / "log").read_text()) == ["once", "twice"]


def test_handles_of_many_threads_end_with_no_handler_left(tmp_path: Path) -> None:
    config = Config(log_level="info", log_file=str(tmp_path / "log"))
    before = list(logging.getLogger("lowdnn").handlers)

    def use() -> None:
        for _ in range(200):
            with logged(config):
                pass

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert logging.getLogger("lowdnn").handlers == before


def test_json_has_fixed_fields_and_keeps_numbers(tmp_path: Path) -> None:
    fields = {"count": 3, "share": 0.5, "is_new": True, "nothing": None, "bad": float("nan"), "level": "own", "x": (1,)}
    with logged(Config(log_level="info", log_file=str(tmp_path / "log"), log_format="json")):
        emit(event_logger("events"), logging.WARNING, "told", fields)
    [line] = (tmp_path / "log").read_text().splitlines()
    found = json.loads(line)
    assert list(found)[:6] == ["time", "level", "area", "event", "process", "thread"]
    assert (found["level"], found["area"], found["event"]) == ("WARNING", "events", "told")
    own = {key: found[key] for key in list(found)[6:]}
    assert own == {
        "count": 3,
        "share": 0.5,
        "is_new": True,
        "nothing": None,
        "bad": "nan",
        "event_level": "own",
        "x": "(1,)",
    }


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_whatever_a_name_holds_an_event_is_one_line(formatter: logging.Formatter) -> None:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(formatter)
    logger = event_logger("events")
    logger.addHandler(handler)
    try:
        emit(logger, logging.WARNING, "named", {"graph": HOSTILE})
        logger.warning("by other code: %s", HOSTILE)
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logger.exception("failed")
    finally:
        logger.removeHandler(handler)
    lines = output.getvalue().split("\n")
    assert (len(lines), lines[-1]) == (4, "")
    assert all(line.isprintable() for line in lines)
    if isinstance(formatter, JsonFormatter):
        assert json.loads(lines[0])["graph"] == HOSTILE
        assert json.loads(lines[1])["text"] == f"by other code: {HOSTILE}"
        assert json.loads(lines[2])["exception"] == repr(ValueError(HOSTILE))


def test_a_log_file_that_cannot_be_opened_warns_and_logs_to_standard_error(tmp_path: Path) -> None:
    config = Config(log_level="info", log_file=str(tmp_path / "missing" / "log"))
    with pytest.warns(ConfigWarning, match="LOWDNN_LOG_FILE: .*taking standard error"):
        handler = log_to(config)
    assert handler is not None
    stop_logging(handler)
    assert not isinstance(handler, logging.FileHandler)


def test_a_log_file_without_room_warns_once(capsys: pytest.CaptureFixture[str]) -> None:
    with logged(Config(log_level="info", log_file="/dev/full")):
        with pytest.warns(ConfigWarning, match="/dev/full: .*No space left on device; events are lost"):
            emit(event_logger("events"), logging.INFO, "event", {})
        emit(event_logger("events"), logging.INFO, "event", {})  # warnings are errors here
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_standard_streams_have_names(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with logged(Config(log_level="info", log_file=name)):
        emit(event_logger("events"), logging.INFO, "shown", {})
    found = capsys.readouterr()
    assert "shown" in getattr(found, name.removeprefix("std"))
    assert found.out == "" or found.err == ""


@pytest.mark.parametrize("wrong", [{"log_level": "loud"}, {"log_level": "info,runtme=debug"}, {"log_format": "xml"}])
def test_levels_and_formats_that_do_not_exist_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(BadParamError, match=f"Config.{next(iter(wrong))}: expected"):
        log_to(Config(**{"log_level": "info", **wrong}))  # type: ignore[arg-type]


def test_every_area_of_the_library_is_known() -> None:
    package = Path(__file__).parents[1] / "lowdnn"
    used = {
        area
        for file in package.rglob("*.py")
        for area in re.findall(r'event_logger\("(\w+)"\)', file.read_text(encoding="utf-8"))
    }
    assert used <= set(AREAS)
