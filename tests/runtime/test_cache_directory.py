"""Directories that the disk cache uses, and the report about one that it does not use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowdnn.runtime.cache import CacheWarning, DiskCache
from lowdnn.runtime.cache_upkeep import clear
from lowdnn.status import BadParamError

KEY = "a" * 64


def check_refused(directory: Path, reason: str) -> None:
    cache = DiskCache(directory)
    with pytest.warns(CacheWarning, match=reason):
        assert not cache.put(KEY, b"x")
    assert cache.get(KEY) is None, "told once"
    assert not cache.put(KEY, b"x")
    assert reason in cache.facts().refusal
    with pytest.raises(BadParamError, match=reason):
        clear(directory)


def test_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    check_refused(tmp_path / "link", "symlinks are refused")
    assert list((tmp_path / "real").iterdir()) == []


def test_a_link_in_place_of_the_folder_of_entries_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "v1").symlink_to(tmp_path / "real")
    check_refused(tmp_path / "cache", "symlinks are refused")
    assert list((tmp_path / "real").iterdir()) == []


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_refused(tmp_path / "file", "not a directory")
    check_refused(tmp_path / "file" / "below", "not a directory")


@pytest.mark.parametrize("mode", [0o777, 0o722, 0o1777])
def test_a_directory_that_everyone_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    check_refused(tmp_path / "open", "lets others write")


@pytest.mark.parametrize("mode", [0o775, 0o770, 0o2775])
def test_a_directory_of_a_group_has_a_folder_for_each_user(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    cache = DiskCache(shared)
    assert cache.put(KEY, b"x")
    own = shared / f"v1-{os.getuid()}"
    assert own.stat().st_mode & 0o777 == 0o700
    assert DiskCache(shared).get(KEY) == b"x"
    assert cache.facts().directory == str(own)
    own.chmod(0o770)
    check_refused(shared, "lets others write")


def test_modes_are_looked_at_with_each_use(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    cache.put(KEY, b"x")
    cache.directory.chmod(0o777)
    with pytest.warns(CacheWarning, match="mode 0777"):
        assert cache.get(KEY) is None
    cache.directory.chmod(0o700)
    assert cache.get(KEY) == b"x"


def test_a_directory_that_vanishes_is_made_again(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    cache.put(KEY, b"x")
    cache.directory.rename(tmp_path / "away")
    assert cache.get(KEY) is None
    assert cache.put(KEY, b"y")
    assert cache.get(KEY) == b"y"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    check_refused(tmp_path / "theirs", "owned by user 12345")


@pytest.mark.parametrize(
    ("gid", "mode", "is_used"),
    [(20000, 0o2770, True), (20000, 0o2750, False), (20001, 0o2770, False), (20001, 0o2772, False)],
)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_directory_of_another_user_of_the_group(gid: int, mode: int, is_used: bool) -> None:
    """A process of user 12345 in group 20000 keeps its entries in a directory of user 11111's group 20000 alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shared = Path(folder) / "team"
        shared.mkdir()
        os.chown(shared, 11111, gid)
        shared.chmod(mode)
        command = [sys.executable, "-c", WRITE_AS_ANOTHER, str(shared), KEY]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == ([True, "x"] if is_used else [False, None])
        if is_used:
            status = (shared / "v1-12345").stat()
            assert (status.st_uid, status.st_mode & 0o777) == (12345, 0o700)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_folder_of_entries_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2775)
    (tmp_path / "shared" / "v1-0").mkdir(mode=0o700)
    os.chown(tmp_path / "shared" / "v1-0", 12345, 12345)
    check_refused(tmp_path / "shared", "owned by user 12345")


#: As a container whose user is in the group of its volume, and whose own group is another one.
WRITE_AS_ANOTHER = """
import json, os, sys, warnings
from pathlib import Path
from lowdnn.runtime.cache import DiskCache
os.setgroups([20000])
os.setgid(12345)
os.setuid(12345)
warnings.simplefilter("ignore")
cache = DiskCache(Path(sys.argv[1]))
written, read = cache.put(sys.argv[2], b"x"), cache.get(sys.argv[2])
print(json.dumps([written, None if read is None else read.decode()]))
"""


def test_a_new_folder_in_a_directory_that_everyone_may_write(tmp_path: Path) -> None:
    """The empty volume of a container: mode 2777."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume").chmod(0o2777)
    cache = DiskCache(tmp_path / "volume" / "lowdnn")
    assert cache.put(KEY, b"x")
    assert cache.get(KEY) == b"x"
    check_refused(tmp_path / "volume", "mode 2777 lets others write; a folder in it may be used")


@pytest.fixture
def of_root() -> Iterator[Path]:
    """A cache that root has filled and that everyone may read."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as folder:
        cache = DiskCache(Path(folder) / "cache")
        cache.put(KEY, b"payload")
        for path in (Path(folder), cache.directory, cache.directory / "v1"):
            path.chmod(0o755)
        (cache.directory / "v1" / f"{KEY}.bin").chmod(0o644)
        yield cache.directory


READ_AS_ANOTHER = """
import json, os, sys, warnings
from pathlib import Path
from lowdnn.runtime.cache import DiskCache
os.setgid(12345)
os.setuid(12345)
warnings.simplefilter("error")
cache = DiskCache(Path(sys.argv[1]))
read = cache.get(sys.argv[2])
writes = [cache.put("b" * 64, b"x") for _ in range(3)]
print(json.dumps([None if read is None else read.decode(), writes, cache.facts().is_writable]))
"""


def test_a_directory_of_root_is_read_by_others(of_root: Path) -> None:
    command = [sys.executable, "-c", READ_AS_ANOTHER, str(of_root), KEY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["payload", [False] * 3, False]
    assert os.listdir(of_root / "v1") == [f"{KEY}.bin"]


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_directory_without_write_permission_is_read(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    cache.put(KEY, b"x")
    (cache.directory / "v1").chmod(0o500)
    reader = DiskCache(cache.directory)
    assert reader.get(KEY) == b"x"
    assert not reader.put("b" * 64, b"y")
    assert not reader.facts().is_writable


@pytest.mark.parametrize(
    ("directory", "is_writable"), [("new/cache", True), ("file/cache", False), ("/proc/new/cache", False)]
)
def test_facts_try_whether_a_missing_directory_could_be_made(directory: str, is_writable: bool, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    facts = DiskCache(tmp_path / directory).facts()
    assert facts.is_writable is is_writable
    assert os.listdir(tmp_path) == ["file"]


def test_a_swapped_directory_changes_nothing_elsewhere(tmp_path: Path) -> None:
    """The folder is replaced by a link while it is in use; later accesses refuse the link."""
    (tmp_path / "victim").mkdir(mode=0o700)
    cache = DiskCache(tmp_path / "cache")
    cache.put(KEY, b"x")
    (cache.directory / "v1").rename(tmp_path / "moved")
    (cache.directory / "v1").symlink_to(tmp_path / "victim")
    with pytest.warns(CacheWarning, match="symlinks"):
        assert not cache.put(KEY, b"y")
    assert os.listdir(tmp_path / "victim") == []
