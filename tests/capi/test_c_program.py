"""A program in C that calls the library inside of a Python process: its results against NumPy."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import numpy as np

from lowdnn.capi import write_header
from lowdnn.capi.loading import Binding
from lowdnn.runtime.runtime import Runtime
from tests.support.c_programs import Toolchain
from tests.support.capi import Memory

SOURCE = Path(__file__).parent / "calls.c"


def test_many_functions_from_c(binding: Binding, global_library: Path, device: Runtime, tmp_path: Path) -> None:
    called = set(re.findall(r"\b(cudnn[A-Z]\w+)\(", SOURCE.read_text()))
    assert len(called) >= 50
    write_header(tmp_path / "cudnn.h")
    Toolchain.native().build(tmp_path, "-shared", "-fPIC", "-I.", str(SOURCE), "-o", "user.so")
    binding.library(global_library)
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
    assert user.is_right((ctypes.c_void_p * len(results))(*(array.ctypes.data for array in results)))
    np.testing.assert_array_equal(results[2], expected)
    np.testing.assert_array_equal(results[4], bias * bias)
    for found in results[5:7]:
        np.testing.assert_array_equal(found, expected.sum((0, 2, 3), keepdims=True))
    np.testing.assert_array_equal(results[7], np.full_like(bias, 2))
