"""The library that starts Python by itself: with a libpython that keeps a record, and with the real one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lowdnn.capi import libpython, write_header, write_library
from lowdnn.capi.library import LIBRARY_NAME
from tests.support.c_programs import MACHINES, Toolchain

SOURCES = Path(__file__).parent
LIBPYTHON = Path(libpython())

RUN = "run\nimport sys\nsys.path.append({root!r})\nfrom lowdnn import capi\ncapi.load()\ninner call 1001\n"
#: Functions that are called in a libpython, by whether it is initialized already.
ASKED = {
    0: "is initialized: 0\nprogram {program}\ninitialize 0\n" + RUN + "save\n",
    1: "is initialized: 1\nensure\n" + RUN + "release 5\n",
}


def environment(folder: Path, **others: str) -> dict[str, str]:
    """This process's environment without Python's variables, where the loader looks in ``folder``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"LD_LIBRARY_PATH": str(folder)} | others


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("is_initialized", [0, 1])
def test_one_thread_starts_python_and_all_calls_arrive(machine: str, is_initialized: int, tmp_path: Path) -> None:
    """Eight threads make the first call; integers, a double and arguments on the stack arrive as they were given."""
    tools = Toolchain.of(machine)
    write_library(tmp_path / LIBRARY_NAME, machine, python=tmp_path / "python.so")
    source = str(SOURCES / "starting.c")
    tools.build(tmp_path, "-shared", "-fPIC", f"-DPYTHON={is_initialized}", source, "-o", "python.so")
    tools.build(tmp_path, source, "-o", "program", f"./{LIBRARY_NAME}")
    root = str(Path(__file__).resolve().parents[2])
    expected = ASKED[is_initialized].format(root=root, program=sys.executable)
    assert tools.output(tmp_path, environment(tmp_path)) == expected + "285 " * 8 + "285\n"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("content", [None, "int Py_IsInitialized(void) { return 1; }"])
def test_without_such_a_file_calls_are_answered_by_stubs(machine: str, content: str | None, tmp_path: Path) -> None:
    tools = Toolchain.of(machine)
    write_library(tmp_path / LIBRARY_NAME, machine, python=tmp_path / "python.so")
    tools.build(tmp_path, str(SOURCES / "starting.c"), "-o", "program", f"./{LIBRARY_NAME}")
    if content is not None:
        (tmp_path / "python.c").write_text(content)
        tools.build(tmp_path, "-shared", "-fPIC", "python.c", "-o", "python.so")
    assert tools.output(tmp_path, environment(tmp_path)) == "1001 " * 8 + "1001\n"


@pytest.mark.skipif(not LIBPYTHON.is_file(), reason="Python has no shared library")
def test_a_program_without_python_around_it(tmp_path: Path) -> None:
    tools = Toolchain.native()
    write_library(tmp_path / LIBRARY_NAME, python=LIBPYTHON)
    write_header(tmp_path / "cudnn.h")
    tools.build(tmp_path, "-I.", str(SOURCES / "alone.c"), "-o", "program", f"./{LIBRARY_NAME}")
    printed = tools.output(tmp_path, environment(tmp_path, LOWDNN_DEVICE="emulated"))
    calls = len(re.findall(r"\bCALL\(cudnn", (SOURCES / "calls.c").read_text()))
    assert printed == f"{calls} calls, right\n"


#: Opens and closes the library: unused, used, and used once more.
REOPENING = """
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
  for (int round = 0; round < 4; round++) {
    void *library = dlopen("libcudnn.so.9", RTLD_NOW), *handle = NULL;
    int (*create)(void **), (*destroy)(void *);
    *(void **)&create = dlsym(library, "cudnnCreate");
    *(void **)&destroy = dlsym(library, "cudnnDestroy");
    if (round % 2) {
      printf("%d ", create(&handle));
      printf("%d ", destroy(handle));
      printf("%d ", destroy(handle));
    }
    dlclose(library);
  }
  return 0;
}
"""


@pytest.mark.skipif(not LIBPYTHON.is_file(), reason="Python has no shared library")
def test_a_program_opens_and_closes_the_library_again(tmp_path: Path) -> None:
    tools = Toolchain.native()
    write_library(tmp_path / LIBRARY_NAME, python=LIBPYTHON)
    (tmp_path / "reopening.c").write_text(REOPENING)
    tools.build(tmp_path, "reopening.c", "-o", "program")
    assert tools.output(tmp_path, environment(tmp_path, LOWDNN_DEVICE="emulated")) == "0 0 2000 " * 2


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.skipif(shutil.which("readelf") is None, reason="binutils are not installed")
def test_readelf_finds_no_fault(machine: str, tmp_path: Path) -> None:
    write_library(tmp_path / LIBRARY_NAME, machine, python="libpython3.so")
    command = ["readelf", "-aW", "--lint", str(tmp_path / LIBRARY_NAME)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.count({"x86_64": "R_X86_64_GLOB_DAT", "aarch64": "R_AARCH64_GLOB_DAT"}[machine]) == 3
