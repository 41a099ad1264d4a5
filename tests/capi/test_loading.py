"""``load`` in processes of its own: what the loader binds, fork."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lowdnn.capi import write_library
from lowdnn.capi.library import LIBRARY_NAME


def python(code: str, tmp_path: Path, **environment: str) -> str:
    """The output of a Python process with this code; any output on standard error is a failure."""
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


def test_functions_of_atexit_on_both_sides_of_the_end(tmp_path: Path) -> None:
    """Functions registered after ``load`` run before the end of the library; the others find its handles closed."""
    code = """if True:
        import atexit, ctypes
        handle = ctypes.c_void_p()
        def tell(when):
            print(when, library.cudnnSetStream(handle, None), *(library.cudnnDestroy(handle) for _ in range(2)))
        atexit.register(tell, "after")
        from lowdnn import capi
        library = capi.load()
        atexit.register(tell, "before")
        assert library.cudnnCreate(ctypes.byref(handle)) == 0
        left_open = ctypes.c_void_p()
        assert library.cudnnCreate(ctypes.byref(left_open)) == 0
    """
    assert python(code, tmp_path) == "before 0 0 2000\nafter 1001 1001 1001\n"


def test_a_child_of_fork_gets_statuses(tmp_path: Path) -> None:
    """Another thread may have held the lock of the state, which nobody gives back in the child."""
    code = """if True:
        import ctypes, os, threading
        from lowdnn import capi
        from lowdnn.capi.loading import process_state
        library, status, pointer = capi.load(), ctypes.c_int(), ctypes.c_void_p()
        handle = ctypes.c_void_p()
        assert library.cudnnCreate(ctypes.byref(handle)) == 0
        with process_state()._lock:
            child = os.fork()
            if child == 0:
                message = ctypes.create_string_buffer(1000)
                print(library.cudnnQueryRuntimeError(handle, ctypes.byref(status), 2, None))
                print(library.cudnnCreate(ctypes.byref(pointer)))
                library.cudnnGetLastErrorString(message, ctypes.c_size_t(1000))
                print(message.value.decode())
                print(library.cudnnCreateTensorDescriptor(ctypes.byref(pointer)), flush=True)
                os._exit(7)
        assert library.cudnnQueryRuntimeError(handle, ctypes.byref(status), 2, None) == 0
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert python(code, tmp_path).splitlines() == [
        "1001",
        "1001",
        "cudnnCreate: NOT_INITIALIZED cuDeviceGetCount(): CUDA_ERROR_NOT_INITIALIZED (3): "
        "a driver does not survive fork; start workers by spawn or forkserver",
        "0",
        "7",
    ]
