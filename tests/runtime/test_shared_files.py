from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lowdnn.runtime.shared_files import change_file, check_changeable


def _append(path: Path, name: str) -> None:
    for number in range(20):
        change_file(path, lambda text, line=f"{name} {number}\n": text + line)


def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    processes = [multiprocessing.get_context("spawn").Process(target=_append, args=(path, name)) for name in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(path.read_text().splitlines()) == sorted(f"{name} {number}" for name in "abc" for number in range(20))
    assert sorted(os.listdir(tmp_path)) == ["lines"]


def test_a_change_that_raises_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    change_file(path, lambda text: text + "first\n")

    def fail(text: str) -> str:
        raise ValueError(text)

    with pytest.raises(ValueError, match="first"):
        change_file(path, fail)
    assert path.read_text() == "first\n"
    assert sorted(os.listdir(tmp_path)) == ["lines"]


@pytest.mark.parametrize("act", [check_changeable, lambda path: change_file(path, lambda text: text)])
def test_a_place_that_has_no_such_file_stays_as_it_is(act: Callable[[Path], None], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "open").touch()
    (tmp_path / "open").chmod(0o666)
    reasons = {
        tmp_path / "pipe": "no regular file",
        tmp_path / "open": "no regular file",
        tmp_path / "pipe" / "file": "File exists",
        Path("/proc/file"): "No such file|Permission denied",
        Path(): "names no file",
    }
    for path, reason in reasons.items():
        with pytest.raises(OSError, match=reason):
            act(path)
    assert sorted(os.listdir(tmp_path)) == ["open", "pipe"]
    assert not Path("..lock").exists()


def test_a_check_leaves_nothing_but_the_folder(tmp_path: Path) -> None:
    check_changeable(tmp_path / "new" / "file")
    assert list(tmp_path.rglob("*")) == [tmp_path / "new"]


def test_bytes_that_are_no_text_stay(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"\xff\n")
    change_file(path, lambda text: text + "\u00fc")
    assert path.read_bytes() == b"\xff\n\xc3\xbc"
