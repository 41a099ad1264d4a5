"""``load`` in processes of its own: what the loader binds, threads of C, the end of the interpreter, fork."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lowdnn.capi import write_library
from lowdnn.capi.library import LIBRARY_NAME

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

#: ``worker`` makes handles in threads that Python does not know; the destructor runs after the interpreter's end.
SOURCE = """
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
int cudnnCreate(void **); int cudnnDestroy(void *); int cudnnGraphVersionCheck(void); size_t cudnnGetVersion(void);
void cudnnGetLastErrorString(char *, size_t); int cudnnSetStream(void *, void *);
static void *work(void *result) {
  int *failures = result;
  char before[100] = "#", after[100];
  void *handle;
  cudnnGetLastErrorString(before, sizeof before);
  *failures += before[0] != 0;
  for (int i = 0; i < 5; i++) {
    *failures += cudnnCreate(&handle) != 0;
    *failures += cudnnSetStream(handle, NULL) != 0;
    *failures += cudnnDestroy(handle) != 0;
    *failures += cudnnDestroy(handle) != 2000;
    cudnnGetLastErrorString(after, sizeof after);
    *failures += after[0] != 'c';
  }
  return NULL;
}
int in_threads(void) {
  pthread_t threads[8];
  int failures[8] = {0}, sum = 0;
  for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, work, &failures[i]);
  for (int i = 0; i < 8; i++) { pthread_join(threads[i], NULL); sum += failures[i]; }
  return sum;
}
__attribute__((destructor)) static void at_end(void) {
  void *handle;
  printf("at the end %d %d %zu\\n", cudnnGraphVersionCheck(), cudnnCreate(&handle), cudnnGetVersion());
}
"""


def python(code: str, tmp_path: Path, **environment: str) -> str:
    """What a Python process with this code prints; any output on standard error is a failure."""
    known = os.environ | {"LOWDNN_DEVICE": "emulated", "PYTHONPATH": os.getcwd()} | environment
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env=known,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_process_gets_this_library(tmp_path: Path) -> None:
    code = """if True:
        import ctypes
        from lowdnn import capi
        library = capi.load()
        assert capi.load() is library
        handle = ctypes.c_void_p()
        assert ctypes.CDLL("libcudnn.so.9").cudnnCreate(ctypes.byref(handle)) == 0
        assert library.cudnnDestroy(handle) == 0 and library.cudnnDestroy(handle) == 2000
        assert library.cudnnCreate(ctypes.byref(handle)) == 0
        capi.reset()
        assert library.cudnnDestroy(handle) == 2000
        again = ctypes.c_void_p()
        assert library.cudnnCreate(ctypes.byref(again)) == 0 and again.value != handle.value
        print("done", ctypes.CDLL("libcudnn.so.9").cudnnGetVersion())
    """
    assert python(code, tmp_path) == "done 92800\n"


def test_a_library_that_is_loaded_already_is_filled(tmp_path: Path) -> None:
    write_library(tmp_path / LIBRARY_NAME)
    code = """if True:
        import ctypes
        early = ctypes.CDLL("libcudnn.so.9")
        assert early.cudnnGraphVersionCheck() == 1001
        from lowdnn import capi
        assert capi.load().cudnnGraphVersionCheck() == early.cudnnGraphVersionCheck() == 0
        print("done")
    """
    assert python(code, tmp_path, LD_PRELOAD=str(tmp_path / LIBRARY_NAME)) == "done\n"


def test_a_foreign_library_is_not_touched(tmp_path: Path) -> None:
    """Another library of the SONAME that is loaded first stays as it is."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    (tmp_path / "other.c").write_text("int cudnnGraphVersionCheck(void) { return 77; }\n")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "other.c", "-o", "other.so", f"-Wl,-soname,{LIBRARY_NAME}"],
        cwd=tmp_path,
        check=True,
    )
    code = """if True:
        import ctypes
        other = ctypes.CDLL("./other.so")
        from lowdnn import capi
        assert capi.load().cudnnGraphVersionCheck() == 0 and other.cudnnGraphVersionCheck() == 77
        try:
            capi.load("./other.so")
        except ValueError as error:
            print(error)
    """
    assert python(code, tmp_path) == (
        "BAD_PARAM load.path: expected a library of write_library, got './other.so' without lowdnn_capi_table\n"
    )


@needs_gcc
def test_threads_of_c_and_the_end_of_the_interpreter(tmp_path: Path) -> None:
    write_library(tmp_path / LIBRARY_NAME)
    (tmp_path / "user.c").write_text(SOURCE)
    build = ["gcc", "-shared", "-fPIC", "user.c", "-o", "user.so", f"./{LIBRARY_NAME}", "-pthread"]
    subprocess.run(build, cwd=tmp_path, check=True)
    code = """if True:
        import ctypes
        from lowdnn import capi
        library = capi.load()
        user = ctypes.CDLL("./user.so")
        print("failures", user.in_threads())
        handle = ctypes.c_void_p()
        assert library.cudnnCreate(ctypes.byref(handle)) == 0
    """
    printed = sorted(python(code, tmp_path).splitlines())
    assert printed == ["at the end 1001 1001 92800", "failures 0"]


def test_a_child_of_fork_gets_statuses(tmp_path: Path) -> None:
    code = """if True:
        import ctypes, os
        from lowdnn import capi
        library = capi.load()
        handle = ctypes.c_void_p()
        assert library.cudnnCreate(ctypes.byref(handle)) == 0
        child = os.fork()
        status = library.cudnnQueryRuntimeError(handle, ctypes.byref(ctypes.c_int()), 2, None)
        if child == 0:
            os._exit(7 if status == 1001 else 1)
        assert status == 0
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert python(code, tmp_path) == "7\n"
