"""The library that starts Python by itself: with a libpython that keeps a record, and with the real one."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lowdnn.capi import libpython, write_header, write_library
from lowdnn.capi.library import LIBRARY_NAME
from lowdnn.status import BadParamError

SOURCES = Path(__file__).parent
LIBPYTHON = Path(libpython())

only_x86_64 = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("gcc") is None, reason="for x86-64, with gcc"
)
RUN = "run\nimport sys\nsys.path.append({root!r})\nfrom lowdnn import capi\ncapi.load()\ninner call 1001\n"
#: What is asked of a libpython, by whether it is initialized already.
ASKED = {
    0: "is initialized: 0\nprogram {program}\ninitialize 0\n" + RUN + "save\n",
    1: "is initialized: 1\nensure\n" + RUN + "release 5\n",
}


def build(folder: Path, *arguments: str) -> None:
    compiler = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"]
    subprocess.run([*compiler, *arguments, "-ldl", "-pthread"], cwd=folder, check=True)


def output(folder: Path, **environment: str) -> str:
    """What ./program prints, in an environment without Python's variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept["LD_LIBRARY_PATH"] = str(folder)
    done = subprocess.run(
        ["./program"], cwd=folder, env=kept | environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


@only_x86_64
@pytest.mark.parametrize("is_initialized", [0, 1])
def test_one_thread_starts_python_and_all_calls_arrive(is_initialized: int, tmp_path: Path) -> None:
    """Eight threads make the first call; integers, a double and arguments on the stack arrive as they were given."""
    write_library(tmp_path / LIBRARY_NAME, python=tmp_path / "python.so")
    source = str(SOURCES / "starting.c")
    build(tmp_path, "-shared", "-fPIC", f"-DPYTHON={is_initialized}", source, "-o", "python.so")
    build(tmp_path, source, "-o", "program", f"./{LIBRARY_NAME}")
    root = str(Path(__file__).resolve().parents[2])
    expected = ASKED[is_initialized].format(root=root, program=sys.executable)
    assert output(tmp_path) == expected + "285 " * 8 + "285\n"


@only_x86_64
@pytest.mark.parametrize("content", [None, "int Py_IsInitialized(void) { return 1; }"])
def test_without_such_a_file_calls_are_answered_by_stubs(content: str | None, tmp_path: Path) -> None:
    write_library(tmp_path / LIBRARY_NAME, python=tmp_path / "python.so")
    build(tmp_path, str(SOURCES / "starting.c"), "-o", "program", f"./{LIBRARY_NAME}")
    if content is not None:
        (tmp_path / "python.c").write_text(content)
        build(tmp_path, "-shared", "-fPIC", "python.c", "-o", "python.so")
    assert output(tmp_path) == "1001 " * 8 + "1001\n"


@only_x86_64
@pytest.mark.skipif(not LIBPYTHON.is_file(), reason="Python has no shared library")
def test_a_convolution_without_python_around_it(tmp_path: Path) -> None:
    write_library(tmp_path / LIBRARY_NAME, python=LIBPYTHON)
    write_header(tmp_path / "cudnn.h")
    build(tmp_path, "-I.", str(SOURCES / "alone.c"), "-o", "program", f"./{LIBRARY_NAME}")
    printed = output(tmp_path, LOWDNN_DEVICE="emulated")
    x, w = np.pad(np.arange(25.0).reshape(5, 5), 1), np.arange(9.0).reshape(3, 3) - 3
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3))
    np.testing.assert_array_equal([float(word) for word in printed.split()], (windows * w).sum((2, 3)).ravel())


@only_x86_64
@pytest.mark.skipif(shutil.which("readelf") is None, reason="binutils are not installed")
def test_readelf_finds_no_fault(tmp_path: Path) -> None:
    write_library(tmp_path / LIBRARY_NAME, python="libpython3.so")
    command = ["readelf", "-aW", "--lint", str(tmp_path / LIBRARY_NAME)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.count("R_X86_64_GLOB_DAT") == 3


def test_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadParamError, match=r"write_library\.machine: expected x86_64, got 'aarch64'"):
        write_library(tmp_path / "x", "aarch64", python="libpython3.so")
