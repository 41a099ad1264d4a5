"""The disk cache looked after from outside, while others use it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from lowdnn.plan import KernelRef
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.cache_upkeep import Removed, cached_entries, clear, trim, verify
from lowdnn.runtime.compile import compile_source
from lowdnn.runtime.sources import SourceTree
from lowdnn.status import BadParamError
from tests.support.errors import raises

KEYS = tuple(f"{number:064x}" for number in range(6))


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    """Six entries of 1000 bytes and more with text beside them, of which the first was used longest ago."""
    found = DiskCache(tmp_path / "cache")
    for number, key in enumerate(KEYS):
        found.put(key, bytes(1000), {".cuh": "text"})
        use(found, key, 1000 * number)
    return found


def use(cache: DiskCache, key: str, seconds: float) -> None:
    for path in folder(cache).glob(f"{key}.*"):
        os.utime(path, (seconds, seconds))


def folder(cache: DiskCache) -> Path:
    return cache.directory / "v1"


def keys(cache: DiskCache) -> list[str]:
    return [entry.key for entry in cached_entries(cache.directory)]


def test_a_kernel_is_listed_by_its_name_and_target(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text('extern "C" __global__ void KERNEL_NAME(float* x) { x[threadIdx.x] = 1; }')
    source = SourceTree(tmp_path).read(KernelRef("ones", "k.cu", "sm_80"))
    cache = DiskCache(tmp_path / "cache")
    cache.put(KEYS[0], compile_source(source))
    cache.put(KEYS[1], compile_source(source, "sm_90a"))
    cache.put(KEYS[2], b"something else")
    found = {entry.key: (entry.kind, entry.target, entry.kernel) for entry in cached_entries(cache.directory)}
    assert found == {
        KEYS[0]: ("PTX", "sm_80", "ones"),
        KEYS[1]: ("machine code", "sm_90", "ones"),
        KEYS[2]: ("other", "", ""),
    }


def test_to_look_is_no_use(cache: DiskCache) -> None:
    assert keys(cache) == list(reversed(KEYS)), "those used last come first"
    assert verify(cache.directory).sound == len(KEYS)
    assert keys(cache) == list(reversed(KEYS))
    assert cache.get(KEYS[0]) is not None
    assert keys(cache)[0] == KEYS[0]


def test_trim_takes_what_was_used_longest_ago(cache: DiskCache) -> None:
    each = cached_entries(cache.directory)[0].size_bytes
    assert trim(cache.directory, most_bytes=4 * each + 10) == Removed(4, 2 * each)
    assert keys(cache) == list(reversed(KEYS[2:]))
    use(cache, KEYS[2], time.time() - 90)
    assert trim(cache.directory, unused_s=100) == Removed(6, 3 * each)
    assert keys(cache) == [KEYS[2]]
    assert trim(cache.directory, most_bytes=0, unused_s=1e6).files == 2
    assert os.listdir(folder(cache)) == []


def test_clear_leaves_no_file(cache: DiskCache) -> None:
    (folder(cache) / ".new-1").write_bytes(b"half")
    assert clear(cache.directory).files == 2 * len(KEYS) + 1
    assert os.listdir(cache.directory) == []
    assert cache.put(KEYS[0], b"x")
    (folder(cache) / "notes").mkdir()
    assert clear(cache.directory).files == 1
    assert os.listdir(folder(cache)) == ["notes"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit": (flip, "header, length or digest is not that of its content"),
    "cut": (cut, "header, length or digest is not that of its content"),
    "empty": (lambda path: path.write_bytes(b""), "header, length or digest is not that of its content"),
    "another key": (lambda path: path.write_bytes(path.with_name(f"{KEYS[1]}.bin").read_bytes()), "header"),
    "mode": (lambda path: path.chmod(0o622), "mode 0622 lets others write"),
    "link": (link, "no regular file"),
    "second name": (lambda path: os.link(path, path.with_name("f" * 64 + ".cuh")), "a file with several names"),
    "gone": (Path.unlink, "its entry is not there"),
}


@pytest.mark.parametrize(("damage", "problem"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_told_and_repaired(cache: DiskCache, damage: Callable[[Path], object], problem: str) -> None:
    damage(folder(cache) / f"{KEYS[0]}.bin")
    use(cache, KEYS[0], 1) if damage is not link else None
    verdict = verify(cache.directory)
    assert verdict.sound == len(KEYS) - 1
    assert verdict.damaged
    assert problem in verdict.damaged[0].problem
    assert not verdict.damaged[0].is_removed
    assert verify(cache.directory) == verdict, "nothing was removed"
    assert all(one.is_removed for one in verify(cache.directory, repairs=True).damaged)
    verify(cache.directory, repairs=True)  # the text beside an entry that was removed just now
    assert not [one for one in verify(cache.directory).damaged if "its entry" not in one.problem]
    assert cache.put(KEYS[0], b"again")
    assert cache.get(KEYS[0]) == b"again"
    assert verify(cache.directory).sound == len(KEYS)


def test_what_is_no_entry_is_told(cache: DiskCache) -> None:
    (folder(cache) / "notes.txt").write_text("mine")
    (folder(cache) / ".new-fresh").write_bytes(b"")
    (folder(cache) / ".new-stale").write_bytes(b"")
    os.utime(folder(cache) / ".new-stale", (1, 1))
    (folder(cache) / "a").mkdir()
    found = {one.name: one.is_removed for one in verify(cache.directory, repairs=True).damaged}
    assert found == {"notes.txt": True, ".new-stale": True, "a": False}, "no folder is removed"


def test_no_cache_has_no_entries(tmp_path: Path) -> None:
    assert cached_entries(tmp_path / "none") == []
    assert trim(tmp_path / "none", 0) == clear(tmp_path / "none") == Removed(0, 0)
    assert verify(tmp_path / "none", repairs=True).sound == 0
    assert not (tmp_path / "none").exists()


def test_a_directory_that_others_may_write_is_not_touched(cache: DiskCache) -> None:
    cache.directory.chmod(0o777)
    for look in (cached_entries, clear, verify, lambda directory: trim(directory, 0)):
        with raises(BadParamError, "cache.directory", expected="no one else may write", got="mode 0777"):
            look(cache.directory)
    cache.directory.chmod(0o700)
    assert verify(cache.directory).sound == len(KEYS)


def test_others_write_meanwhile(cache: DiskCache) -> None:
    """Nothing that is being written or removed counts as damaged, and nobody fails on what is gone."""
    is_over = Event()

    def write() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            cache.put(KEYS[number % 3], os.urandom(5000), {".cuh": f"{number}"})
            cache.discard(KEYS[3 + number % 3])

    writers = [Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for number in range(60):
            assert verify(cache.directory, repairs=True).damaged == ()
            assert len(cached_entries(cache.directory)) <= len(KEYS)
            trim(cache.directory, 20_000 if number % 7 == 0 else 1 << 30)
    finally:
        is_over.set()
        for writer in writers:
            writer.join()
    assert verify(cache.directory).damaged == ()
