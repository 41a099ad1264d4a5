from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from lowdnn.runtime.cache import DiskCache

KEY = "a" * 64


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


def entry(cache: DiskCache) -> Path:
    return cache.directory / f"{KEY}.bin"


def test_keeps_bytes_for_the_next_process(cache: DiskCache, tmp_path: Path) -> None:
    assert cache.get(KEY) is None
    assert cache.put(KEY, b"\0payload\n", {".cuh": "// text"})
    assert DiskCache(tmp_path / "cache").get(KEY) == b"\0payload\n"
    assert (cache.directory / f"{KEY}.cuh").read_text() == "// text"
    assert cache.size_bytes() > len(b"\0payload\n// text")
    cache.clear()
    assert cache.get(KEY) is None
    assert cache.size_bytes() == 0


def test_directory_is_private(cache: DiskCache) -> None:
    cache.put(KEY, b"x")
    assert cache.directory.stat().st_mode & 0o777 == 0o700
    assert entry(cache).stat().st_mode & 0o077 == 0


def flip_last_byte(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    "damage",
    [
        flip_last_byte,
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"",
        lambda data: data.replace(b"a" * 64, b"b" * 64),
        lambda data: data.replace(b"lowdnn-cache 1", b"lowdnn-cache 0"),
    ],
)
def test_a_damaged_entry_is_a_miss_and_can_be_replaced(cache: DiskCache, damage: Callable[[bytes], bytes]) -> None:
    cache.put(KEY, b"payload")
    entry(cache).write_bytes(damage(entry(cache).read_bytes()))
    assert cache.get(KEY) is None
    cache.put(KEY, b"payload")
    assert cache.get(KEY) == b"payload"


def test_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    cache = DiskCache(tmp_path / "link")
    assert "symlinks" in cache.refusal
    assert not cache.put(KEY, b"x")
    assert cache.get(KEY) is None


def test_a_linked_entry_is_a_miss(cache: DiskCache, tmp_path: Path) -> None:
    cache.put(KEY, b"x")
    entry(cache).rename(tmp_path / "elsewhere")
    entry(cache).symlink_to(tmp_path / "elsewhere")
    assert cache.get(KEY) is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_a_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    assert "lets others write" in DiskCache(tmp_path / "open").refusal


def test_an_entry_that_others_may_write_is_a_miss(cache: DiskCache) -> None:
    cache.put(KEY, b"x")
    entry(cache).chmod(0o622)
    assert cache.get(KEY) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_belongs_to_others_is_refused(cache: DiskCache, tmp_path: Path) -> None:
    cache.put(KEY, b"x")
    os.chown(entry(cache), 12345, 12345)
    assert cache.get(KEY) is None
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    assert "owned by user 12345" in DiskCache(tmp_path / "theirs").refusal


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file")
    assert cache.refusal
    assert cache.size_bytes() == 0
    cache.clear()


def test_a_reader_never_sees_half_an_entry(cache: DiskCache) -> None:
    payload = os.urandom(1 << 20)
    cache.put(KEY, payload)

    def write() -> None:
        for _ in range(20):
            cache.put(KEY, payload)

    writers = [Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert cache.get(KEY) == payload
    assert [path.name for path in cache.directory.iterdir()] == [f"{KEY}.bin"]
