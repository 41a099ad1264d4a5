"""The written library: names, versions, stubs and fallbacks, on the loader, on tools, and on both processors."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from lowdnn.capi import write_library
from lowdnn.capi.library import LIBRARY_NAME, TABLE_NAME, library
from lowdnn.capi.signatures import UNDOCUMENTED, exported_names, functions
from lowdnn.status import BadParamError, Status
from tests.support.arm64 import Arm64
from tests.support.c_programs import MACHINES, Toolchain

PROGRAM = """
#include <stddef.h>
#include <stdio.h>
size_t cudnnGetVersion(void); size_t cudnnGetCudartVersion(void); size_t cudnnGetMaxDeviceVersion(void);
int cudnnCreate(void **handle); int cudnnGetProperty(int type, int *value);
const char *cudnnGetErrorString(int status); void cudnnGetLastErrorString(char *message, size_t size);
extern void *lowdnn_capi_table[]; void lowdnn_capi_table_empty(void);
static int many(long a, long b, long c, long d, long e, long f, long g, double h, long i) {
  return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * (int)h + 9 * i;
}
int cudnnActivationForward(long, long, long, long, long, long, long, double, long);
int main(void) {
  char text[200]; int value; void *handle;
  printf("%zu %zu %zu ", cudnnGetVersion(), cudnnGetCudartVersion(), cudnnGetMaxDeviceVersion());
  printf("%d\\n", cudnnCreate(&handle));
  printf("%.12s\\n", cudnnGetErrorString(2000));
  for (size_t size = 1; size < 200; size += 66) { cudnnGetLastErrorString(text, size); printf("[%.9s]", text); }
  cudnnGetLastErrorString(NULL, 9); text[0] = '!'; cudnnGetLastErrorString(text, 0);
  printf("%c\\n", text[0]);
  for (int type = -1; type < 4; type++) {
    value = -7;
    int status = cudnnGetProperty(type, &value);
    printf("%d %d ", status, value);
  }
  printf("%d\\n", cudnnGetProperty(0, NULL));
  lowdnn_capi_table[0] = (void *)many; /* cudnnActivationBackward is not called, its neighbour is still empty */
  printf("%d ", cudnnActivationForward(1, 2, 3, 4, 5, 6, 7, 8.0, 9));
  lowdnn_capi_table[1] = (void *)many;
  printf("%d ", cudnnActivationForward(1, 2, 3, 4, 5, 6, 7, 8.0, 9));
  lowdnn_capi_table[242] = (void *)many;
  lowdnn_capi_table_empty();
  printf("%d %d\\n", cudnnActivationForward(1, 2, 3, 4, 5, 6, 7, 8.0, 9), lowdnn_capi_table[242] == NULL);
  return 0;
}
"""
PRINTED = """92800 13000 1210 1001
CUDNN_STATUS
[][CUDNN_STA][CUDNN_STA][CUDNN_STA]!
2000 -7 0 9 0 28 0 0 2000 -7 2002
1001 285 1001 1
"""


@pytest.fixture(params=MACHINES)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / LIBRARY_NAME
    write_library(path, request.param)
    return path


def test_a_library_has_all_names() -> None:
    assert len(functions()) == 239
    assert len(exported_names()) == 243
    assert sorted(set(exported_names()) - set(functions())) == sorted(UNDOCUMENTED)


def test_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadParamError, match=r"write_library\.machine: expected x86_64 or aarch64, got 'riscv64'"):
        write_library(tmp_path / "x", "riscv64")
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="the library is for x86-64 and aarch64")
def test_the_loader_finds_every_name_with_its_version(tmp_path: Path) -> None:
    write_library(tmp_path / "any.so")
    loaded = ctypes.CDLL(str(tmp_path / "any.so"))
    find = ctypes.CDLL(None).dlvsym
    find.restype, find.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
    addresses = set()
    for name in exported_names():
        plain = ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value
        assert find(loaded._handle, name.encode(), LIBRARY_NAME.encode()) == plain
        assert find(loaded._handle, name.encode(), b"libcudnn.so.8") is None
        addresses.add(plain)
    assert len(addresses) == 243
    assert bytes((ctypes.c_char * (8 * 243)).in_dll(loaded, TABLE_NAME)) == bytes(8 * 243)


@pytest.mark.skipif(shutil.which("readelf") is None, reason="binutils are not installed")
def test_readelf_finds_no_fault(written: Path) -> None:
    done = subprocess.run(["readelf", "-aW", "--lint", str(written)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert f"Library soname: [{LIBRARY_NAME}]" in done.stdout
    assert "There are no relocations in this file" in done.stdout
    for name in exported_names():
        assert done.stdout.count(f" {name}@@{LIBRARY_NAME}\n") == 1
    # No segment may be written to and executed.
    loads = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["LOAD"]]
    assert ["".join(words[6:-1]) for words in loads] == ["R", "RE", "RW"]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_program_in_c(machine: str, tmp_path: Path) -> None:
    tools = Toolchain.of(machine)
    write_library(tmp_path / LIBRARY_NAME, machine)
    (tmp_path / "program.c").write_text(PROGRAM)
    tools.build(tmp_path, "program.c", f"./{LIBRARY_NAME}", "-fPIC", "-o", "program", f"-Wl,-rpath,{tmp_path}")
    assert tools.output(tmp_path, dict(os.environ)) == PRINTED


class Aarch64Library:
    """The library for aarch64, laid out in memory from its segments, with room for a caller's data behind it."""

    def __init__(self, python: str | None = None) -> None:
        image = library("aarch64", python)
        (headers,) = struct.unpack_from("<H", image, 56)
        self.memory = bytearray(1 << 20)
        for index in range(headers):
            kind, _, offset, address, _, size, _, _ = struct.unpack_from("<IIQQQQQQ", image, 64 + 56 * index)
            if kind == 1:
                self.memory[address : address + size] = image[offset : offset + size]
        self.symbols = dict(_symbols(image))
        self.data = 1 << 19

    def call(self, name: str, *arguments: int) -> tuple[int, int]:
        """(where a jump through the table led or -1, the first register)."""
        machine = Arm64(self.memory)
        machine.x[: len(arguments)] = arguments
        return machine.run(self.symbols[name]), machine.x[0]


def _section(image: bytes, kind: int) -> tuple[int, ...]:
    """The header of the first section of a type."""
    (headers_at,), (count,) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<H", image, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, headers_at + 64 * index) for index in range(count)]
    return next(header for header in headers if header[1] == kind)


def _entries(image: bytes, kind: int, form: str) -> list[tuple[int, ...]]:
    """The content of that section as records of a format."""
    header = _section(image, kind)
    return [*struct.iter_unpack(form, image[header[4] : header[4] + header[5]])]


def _symbols(image: bytes) -> list[tuple[str, int]]:
    symbols, names = _section(image, 11), _section(image, 3)
    found = []
    for at in range(symbols[4] + 24, symbols[4] + symbols[5], 24):
        name, _, _, _, address, _ = struct.unpack_from("<IBBHQQ", image, at)
        found.append((image[names[4] + name :].split(b"\0", 1)[0].decode(), address))
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_imports_of_a_library_that_starts_python(machine: str) -> None:
    """The loader writes the addresses of three functions into three places of their own behind the table."""
    image = library(machine, "libpython3.so")
    symbols = dict(_symbols(image))
    names, glob_dat = [*symbols], {"x86_64": 6, "aarch64": 1025}[machine]
    relocations = _entries(image, 4, "<QQq")
    assert [names[(info >> 32) - 1] for _, info, _ in relocations] == ["dlopen", "dlsym", "sched_yield"]
    assert all((info & 0xFFFFFFFF, addend) == (glob_dat, 0) for _, info, addend in relocations)
    behind, bss = symbols[TABLE_NAME] + 8 * 243, _section(image, 8)
    assert [place for place, _, _ in relocations] == [behind, behind + 8, behind + 16]
    assert behind + 24 < bss[3] + bss[5]
    texts_at = _section(image, 3)[4]
    needed = [value for tag, value in _entries(image, 6, "<QQ") if tag == 1]
    assert [image[texts_at + at :].split(b"\0", 1)[0] for at in needed] == [b"libdl.so.2", b"libc.so.6"]


@pytest.mark.parametrize("python", [None, "libpython3.so"])
def test_stubs_of_aarch64_jump_through_their_own_entries(python: str | None) -> None:
    arm = Aarch64Library(python)
    table = arm.symbols[TABLE_NAME]
    arm.memory[table : table + 8 * 243] = struct.pack("<243Q", *range(1000, 1243))
    assert [arm.call(name)[0] for name in exported_names()] == [*range(1000, 1243)]


def test_fallbacks_of_aarch64() -> None:
    arm = Aarch64Library()
    numbers = {"cudnnGetVersion": 92800, "cudnnGetCudartVersion": 13000, "cudnnGetMaxDeviceVersion": 1210}
    special = {"cudnnGetProperty", "cudnnGetErrorString", "cudnnGetLastErrorString"}
    for name in exported_names():
        if name not in special:
            assert arm.call(name, 7, 7, 7) == (-1, numbers.get(name, Status.NOT_INITIALIZED)), name
    _, text = arm.call("cudnnGetErrorString", 0)
    assert arm.memory[text : text + 28] == b"CUDNN_STATUS_NOT_INITIALIZED"
    for size in (0, 1, 2, 20, 1000):
        arm.memory[arm.data : arm.data + 1001] = b"#" * 1001
        arm.call("cudnnGetLastErrorString", arm.data, size)
        whole = arm.memory[text : text + 1000].split(b"\0", 1)[0]
        expected = whole[: size - 1] + b"\0" if size else b""
        assert arm.memory[arm.data : arm.data + len(expected) + 1] == expected + b"#"
    assert arm.call("cudnnGetLastErrorString", 0, 9)[0] == -1
    for kind, number in enumerate((9, 28, 0)):
        assert arm.call("cudnnGetProperty", kind, arm.data) == (-1, 0)
        assert struct.unpack_from("<i", arm.memory, arm.data) == (number,)
    for kind in (3, 2**32 - 1):
        assert arm.call("cudnnGetProperty", kind, arm.data)[1] == Status.BAD_PARAM
    assert arm.call("cudnnGetProperty", 0, 0)[1] == Status.BAD_PARAM_NULL_POINTER
