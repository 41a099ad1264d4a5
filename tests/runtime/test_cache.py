"""The entries of the disk cache: damage, bounds, and files that are no entries."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

import lowdnn.runtime.cache as cache_module
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.cache_upkeep import clear

KEY = "a" * 64


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


def folder(cache: DiskCache) -> Path:
    return cache.directory / "v1"


def entry(cache: DiskCache, key: str = KEY) -> Path:
    return folder(cache) / f"{key}.bin"


def test_keeps_bytes_for_the_next_process(cache: DiskCache, tmp_path: Path) -> None:
    assert cache.get(KEY) is None
    assert cache.put(KEY, b"\0payload\n", {".cuh": "// text"})
    assert DiskCache(tmp_path / "cache").get(KEY) == b"\0payload\n"
    assert (folder(cache) / f"{KEY}.cuh").read_text() == "// text"
    facts = cache.facts()
    assert (facts.directory, facts.files, facts.is_writable, facts.refusal) == (str(folder(cache)), 2, True, "")
    assert facts.size_bytes > len(b"\0payload\n// text")
    assert clear(cache.directory).files == 2
    assert cache.get(KEY) is None
    assert cache.facts().size_bytes == 0


def test_asking_makes_no_directory(cache: DiskCache) -> None:
    assert cache.facts().files == 0
    assert cache.get(KEY) is None
    assert not cache.discard(KEY)
    assert not cache.directory.exists()


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


def link_to_a_copy(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def second_name(path: Path) -> None:
    os.link(path, path.with_name("second"))


def in_place_of(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


STRANGE: dict[str, Callable[[Path], None]] = {
    "fifo": in_place_of(os.mkfifo),
    "directory": in_place_of(Path.mkdir),
    "link to an entry": link_to_a_copy,
    "link to a device": in_place_of(lambda path: path.symlink_to("/dev/zero")),
    "link to nothing": in_place_of(lambda path: path.symlink_to("/nowhere")),
    "link to itself": in_place_of(lambda path: path.symlink_to(path)),
    "second name": second_name,
    "others may write": lambda path: path.chmod(0o602),
    "their group may write": lambda path: path.chmod(0o620),
    "not readable": lambda path: path.chmod(0),
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE)
def test_what_is_no_regular_file_of_the_user_is_a_miss(cache: DiskCache, change: Callable[[Path], None]) -> None:
    cache.put(KEY, b"payload")
    change(entry(cache))
    if os.access(entry(cache), os.R_OK) and stat.S_IMODE(entry(cache).lstat().st_mode) == 0:
        pytest.skip("root reads everything")
    assert cache.get(KEY) is None
    is_replaced = cache.put(KEY, b"payload")
    assert is_replaced == (not entry(cache).is_dir())
    assert (cache.get(KEY) == b"payload") == is_replaced


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes devices")
def test_a_device_is_a_miss(cache: DiskCache) -> None:
    cache.put(KEY, b"payload")
    entry(cache).unlink()
    try:
        os.mknod(entry(cache), stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except OSError:
        pytest.skip("no devices in this container")
    assert cache.get(KEY) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_an_entry_of_another_user_is_a_miss(cache: DiskCache) -> None:
    cache.put(KEY, b"x")
    os.chown(entry(cache), 12345, 12345)
    assert cache.get(KEY) is None


def test_a_file_beyond_any_kernel_is_not_read(cache: DiskCache) -> None:
    cache.put(KEY, b"payload")
    with entry(cache).open("ab") as file:
        file.truncate(1 << 40)
    assert cache.get(KEY) is None


def test_the_bound_takes_what_was_used_longest_ago(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", limit_bytes=3500)
    for number in range(3):
        cache.put(f"{number:064x}", bytes(1000), {".cuh": "text"})
        os.utime(entry(cache, f"{number:064x}"), (number, number))
        os.utime(folder(cache) / f"{number:064x}.cuh", (number, number))
    assert cache.get(f"{0:064x}") is not None, "now the second one is the oldest"
    cache.put(f"{3:064x}", bytes(1000))
    found = {number for number in range(4) if cache.get(f"{number:064x}") is not None}
    assert found == {0, 2, 3}
    assert not (folder(cache) / f"{1:064x}.cuh").exists()
    assert cache.facts().size_bytes <= 3500


def test_what_exceeds_the_bound_alone_is_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", limit_bytes=2000)
    cache.put(KEY, bytes(1000))
    assert not cache.put("b" * 64, bytes(3000))
    assert cache.get(KEY) is not None
    assert not DiskCache(tmp_path / "none", limit_bytes=0).put(KEY, b"")


def test_an_entry_that_is_written_again_counts_once(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", limit_bytes=2500)
    cache.put("b" * 64, bytes(1000))
    for _ in range(3):
        cache.put(KEY, bytes(1000))
    assert cache.get("b" * 64) is not None


def test_rests_of_dead_processes_are_removed(cache: DiskCache) -> None:
    cache.put(KEY, b"x")
    stale, fresh = folder(cache) / ".new-stale", folder(cache) / ".new-fresh"
    for path in (stale, fresh):
        path.write_bytes(b"half")
    os.utime(stale, (time.time() - 7200,) * 2)
    DiskCache(cache.directory).put("b" * 64, b"y")
    assert (stale.exists(), fresh.exists()) == (False, True)


def test_files_are_counted_again_after_some_writes_and_for_want_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    files = cache_module.files_in
    monkeypatch.setattr(cache_module, "files_in", lambda folder: counted.append(1) or files(folder))
    cache, writes = DiskCache(tmp_path / "many"), cache_module._WRITES
    for number in range(2 * writes + 2):
        cache.put(f"{number:064x}", b"x")
    assert len(counted) == 2
    counted.clear()
    cache = DiskCache(tmp_path / "few", limit_bytes=20_000)
    for number in range(30):
        cache.put(f"{number:064x}", bytes(1000))
        assert cache.facts().size_bytes <= 20_000
    assert len(counted) > 30 + 5, "one for each of the facts"


def fill(directory: Path, first: int) -> None:
    cache = DiskCache(directory, limit_bytes=20_000)
    for number in range(60):
        key = f"{(first + number) % 37:064x}"
        if cache.get(key) not in (None, key.encode() * 15):
            raise AssertionError(key)
        cache.put(key, key.encode() * 15)


def test_several_processes_keep_the_bound_together(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", limit_bytes=20_000)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=fill, args=(cache.directory, 11 * place)) for place in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    cache.put(KEY, b"x")
    assert cache.facts().size_bytes <= 20_000
    assert not [name for name in os.listdir(folder(cache)) if name.startswith(".new-")]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_told_once_and_leaves_nothing(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="lowdnn"):
        patch.setattr(f"lowdnn.runtime.cache_files.os.{call}", fails)
        assert [cache.put(f"{number:064x}", b"x") for number in range(5)] == [False] * 5
    assert [record.getMessage().split()[0] for record in caplog.records] == ["cache_write_failed"]
    assert "No space left" in caplog.text
    assert os.listdir(folder(cache)) == []
    assert cache.put(KEY, b"x"), "there may be room again"


def test_a_discarded_entry_is_gone_with_its_text(cache: DiskCache) -> None:
    cache.put(KEY, b"x", {".cuh": "text"})
    cache.put("b" * 64, b"y")
    assert cache.discard(KEY)
    assert not cache.discard(KEY)
    assert os.listdir(folder(cache)) == ["b" * 64 + ".bin"]


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
    assert os.listdir(folder(cache)) == [f"{KEY}.bin"]
