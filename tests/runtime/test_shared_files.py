from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from lowdnn.runtime.shared_files import change_file


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
    assert sorted(os.listdir(tmp_path)) == [".lines.lock", "lines"]


def test_a_change_that_raises_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    change_file(path, lambda text: text + "first\n")

    def fail(text: str) -> str:
        raise ValueError(text)

    with pytest.raises(ValueError, match="first"):
        change_file(path, fail)
    assert path.read_text() == "first\n"
    assert sorted(os.listdir(tmp_path)) == [".lines.lock", "lines"]


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="no regular file"):
        change_file(path, lambda text: text)
