"""``lowdnn cache`` as a user runs it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from lowdnn.cli.main import main
from lowdnn.runtime.cache import DiskCache

KEYS = ("a" * 64, "b" * 64)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    """Two entries: the first was used two hours ago."""
    monkeypatch.setenv("LOWDNN_CACHE_DIR", str(tmp_path / "cache"))
    found = DiskCache(tmp_path / "cache")
    for key in KEYS:
        found.put(key, bytes(1000))
    os.utime(path(found), (time.time() - 7200,) * 2)
    return found


def path(cache: DiskCache, key: str = KEYS[0]) -> Path:
    return cache.directory / "v1" / f"{key}.bin"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["cache", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_and_size(cache: DiskCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "list"]) == 0
    heading, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert heading == ["entry", "kind", "target", "bytes", "used", "kernel"]
    assert [row[0] for row in rows] == [KEYS[1][:12], KEYS[0][:12]]
    assert rows[1][-1] == "2h"
    assert [entry["key"] for entry in answer(capsys, "list")["entries"]] == [KEYS[1], KEYS[0]]
    found = answer(capsys, "size")
    assert (found["files"], found["limit_bytes"]) == (2, 1 << 30)
    assert main(["cache", "size"]) == 0
    assert f"2 files, {found['size_bytes']} bytes of at most" in capsys.readouterr().out


def test_trim_and_clear(cache: DiskCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "trim", "--age", "3h", "--bytes", "1M") == {"files": 0, "size_bytes": 0}
    assert answer(capsys, "trim", "--age", "90m")["files"] == 1
    assert not path(cache).exists()
    assert answer(capsys, "trim", "--bytes", "1K")["files"] == 1
    cache.put(KEYS[0], b"x")
    assert main(["cache", "clear"]) == 0
    assert "removed 1 files" in capsys.readouterr().out


def test_verify(cache: DiskCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "verify") == {"sound": 2, "damaged": []}
    path(cache).write_bytes(b"x")
    assert main(["cache", "verify"]) == 1
    assert f"damaged  {KEYS[0]}.bin: header" in capsys.readouterr().out
    assert answer(capsys, "verify", "--repair")["damaged"][0]["is_removed"]
    assert answer(capsys, "verify") == {"sound": 1, "damaged": []}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trim"], "BAD_PARAM cache.trim: expected --bytes, --age, or both, got neither"),
        (["trim", "--bytes", "-1"], "BAD_PARAM cache.bytes: expected a number with a unit, such as 2G"),
        (["trim", "--age", "5"], "got '5'"),
        (["trim", "--age", "1y"], "got '1y'"),
    ],
)
def test_what_is_wrong_is_said(
    cache: DiskCache, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    if arguments[-1] == "-1":
        arguments = [*arguments[:-2], "--bytes=-1"]
    assert main(["cache", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert path(cache).exists()


def test_a_directory_that_others_may_write_is_refused(cache: DiskCache, capsys: pytest.CaptureFixture[str]) -> None:
    cache.directory.chmod(0o777)
    for action in ("list", "size", "clear", "verify"):
        assert main(["cache", action]) == 2
        assert "BAD_PARAM cache.directory: expected" in capsys.readouterr().err


def test_a_cache_that_is_switched_off(
    cache: DiskCache, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWDNN_DISK_CACHE", "off")
    assert main(["cache", "list"]) == 2
    assert "LOWDNN_DISK_CACHE is off" in capsys.readouterr().err
