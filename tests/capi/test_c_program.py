"""A program in C that calls the library inside of a Python process: its results against NumPy."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lowdnn.capi import write_header, write_library
from lowdnn.capi.library import LIBRARY_NAME
from lowdnn.capi.loading import Binding
from lowdnn.runtime.runtime import Runtime
from tests.support.capi import Memory

SOURCE = Path(__file__).parent / "calls.c"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_many_functions_from_c(binding: Binding, device: Runtime, tmp_path: Path) -> None:
    called = set(re.findall(r"\b(cudnn[A-Z]\w+)\(", SOURCE.read_text()))
    assert len(called) >= 50
    write_header(tmp_path / "cudnn.h")
    write_library(tmp_path / LIBRARY_NAME)
    # The library has a name of its own here, so that no other one of its SONAME in the process stands in for it.
    (tmp_path / LIBRARY_NAME).rename(tmp_path / "own.so")
    build = ["gcc", "-shared", "-fPIC", "-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}", str(SOURCE)]
    subprocess.run([*build, "-o", "user.so"], cwd=tmp_path, check=True)
    binding.library(tmp_path / "own.so")
    ctypes.CDLL(str(tmp_path / "own.so"), mode=ctypes.RTLD_GLOBAL)
    user = ctypes.CDLL(str(tmp_path / "user.so"))
    memory, draw = Memory(device), np.random.default_rng().integers
    x, w, bias = (draw(-3, 4, shape).astype(np.float32) for shape in ((1, 2, 5, 5), (3, 2, 3, 3), (1, 3, 1, 1)))
    row, y = np.zeros_like(bias), np.zeros((1, 3, 5, 5), np.float32)
    addresses = [memory.put(array) for array in (x, w, y, bias, row, row, row, row)]
    failed = ctypes.create_string_buffer(500)
    user.run((ctypes.c_void_p * len(addresses))(*addresses), failed)
    assert failed.value.decode() == ""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    expected = 2 * np.maximum(np.einsum("nchwij,kcij->nkhw", windows, w) + bias, 0)
    results = [memory.get(address) for address in addresses]
    np.testing.assert_array_equal(results[2], expected)
    np.testing.assert_array_equal(results[4], bias * bias)
    for found in results[5:7]:
        np.testing.assert_array_equal(found, expected.sum((0, 2, 3), keepdims=True))
    np.testing.assert_array_equal(results[7], np.full_like(bias, 2))
