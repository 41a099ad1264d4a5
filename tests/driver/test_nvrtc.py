from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace

import pytest

from lowdnn.driver import nvrtc
from lowdnn.driver.nvrtc import Output
from lowdnn.status import BadParamError, CompilationFailedError
from tests.support.directives import READING

SOURCE = '#include "two.cuh"\nextern "C" __global__ void KERNEL_NAME(float* x) { x[threadIdx.x] = two(); }'
HEADERS = {"two.cuh": "__device__ float two() { return 2.0f; }"}


def test_ptx_of_a_program_with_a_header_in_memory() -> None:
    options = ("--gpu-architecture=compute_80", "-DKERNEL_NAME=fill_two")
    compiled = nvrtc.compile_program(SOURCE, name="two.cu", headers=HEADERS, options=options)
    text = compiled.image.decode()
    assert ".target sm_80" in text
    assert ".entry fill_two(" in text
    assert not text.endswith("\0")
    assert compiled.log == ""


def test_cubin_and_the_assemblers_log() -> None:
    options = ("--gpu-architecture=sm_90a", "-DKERNEL_NAME=fill_two", "--ptxas-options=-v")
    compiled = nvrtc.compile_program(SOURCE, name="two.cu", headers=HEADERS, options=options, output=Output.CUBIN)
    assert compiled.image.startswith(b"\x7fELF")
    assert "fill_two" in compiled.log


def test_rejected_program_carries_the_log_with_file_and_line() -> None:
    with pytest.raises(CompilationFailedError, match=r"broken\.cu\(2\): error"):
        nvrtc.compile_program(
            "\n__device__ int f() { return nothing; }",
            name="broken.cu",
            headers={},
            options=("--gpu-architecture=compute_80",),
        )


@pytest.mark.parametrize(
    "option",
    [
        "-I/tmp",
        "--include-path=/tmp",
        "--pre-include=/etc/passwd",
        "-DX=$(id)",
        "--gpu-architecture=sm_90a;",
        "-DX=a\nb",
    ],
)
def test_options_that_name_files_are_refused(option: str) -> None:
    with pytest.raises(BadParamError, match="allow-list"):
        nvrtc.compile_program("", name="x.cu", headers={}, options=(option,))


@pytest.mark.parametrize("where", ["source", "header"])
@pytest.mark.parametrize("line", [*READING, '#include "secret.cuh"', '#include "two.cuh"\\\n#include "secret.cuh"'])
def test_no_file_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, where: str) -> None:
    (tmp_path / "secret.cuh").write_text("__device__ int secret;\n")
    monkeypatch.chdir(tmp_path)
    headers = HEADERS | ({"one.cuh": line} if where == "header" else {})
    source = '#include "one.cuh"\n' if where == "header" else f"{line}\n"
    with pytest.raises(BadParamError, match="plain includes of headers that were given"):
        nvrtc.compile_program(source, name="x.cu", headers=headers, options=("--gpu-architecture=compute_80",))


def test_nvrtc_itself_looks_into_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.cuh").write_text("__device__ int secret;\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nvrtc, "_check_includes", lambda *_: None)
    with pytest.raises(CompilationFailedError, match="no directories in search list"):
        nvrtc.compile_program(
            '#include "secret.cuh"\n', name="x.cu", headers={}, options=("--gpu-architecture=compute_80",)
        )


def test_version_is_that_of_the_wheel() -> None:
    assert nvrtc.version() == (13, 0)


def test_the_build_has_the_patch_level() -> None:
    assert re.search(r"\bV13\.0\.\d+\b", nvrtc.build())


def test_one_thread_at_a_time_loads_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling needs a second library, which is there a moment after others see the first one."""
    inside, seen = set(), []

    def load(name: str) -> SimpleNamespace:
        inside.add(get_ident())
        seen.append(len(inside))
        time.sleep(0.01)
        inside.discard(get_ident())
        return SimpleNamespace(abs_path=__file__)

    monkeypatch.setattr("cuda.pathfinder.load_nvidia_dynamic_lib", load)
    nvrtc._library_path.cache_clear()
    with ThreadPoolExecutor(4) as pool:
        files = [pool.submit(call) for call in (nvrtc.library_file, nvrtc.version) * 2]
        assert {__file__ in str(file.result()) for file in files[::2]} == {True}
    nvrtc._library_path.cache_clear()
    assert len(seen) > 1, "no thread has waited"
    assert set(seen) == {1}


def test_a_lock_that_fork_left_behind_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_LOADING_S", 0.01)
    nvrtc._library_path.cache_clear()
    with nvrtc._LOADING:
        assert "libnvrtc" in nvrtc.library_file()
