"""NVRTC: CUDA C++ text in, PTX or a cubin out. Needs no GPU and no driver.

One program per call, with its headers in memory: no file is read, no include path is searched. NVRTC itself would look
into the working directory, and open any absolute path that a directive names. NVRTC is thread-safe and
``cuda.bindings`` releases the GIL, so several programs may compile in parallel threads.
Source: NVRTC User Guide 13.0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from threading import Lock
from types import ModuleType
from typing import Any

from lowdnn.status import BadParamError, CompilationFailedError, HostAllocationFailedError, SublibraryLoadingFailedError

#: Options that a program may be compiled with; anything else is refused, so that no option can name a file.
ALLOWED_OPTIONS = re.compile(
    r"--gpu-architecture=(compute|sm)_\d{2,3}[af]?"
    r"|-std=c\+\+(14|17|20)"
    r"|-default-device"
    r"|-lineinfo"
    r"|-w"
    r"|--fmad=(true|false)"
    r"|--use_fast_math"
    r"|--maxrregcount=\d+"
    r"|--ptxas-options=(-v|--warn-on-spills)"
    r"|-D[A-Za-z_][A-Za-z0-9_]*(=[A-Za-z0-9_.:<>,+\- ]+)?"
)

#: Keeps NVRTC from searching the working directory, which it takes for the source's folder.
NO_FOLDERS = "--no-source-include"

#: A directive or an operator that may open a file, as far as its name, whatever stands for ``#`` or between. Lines that
#: go on are joined before.
_READING = re.compile(
    r"(?:#|%:|\?\?=)(?:\s|/\*.*?\*/)*(?:include|import|embed|\\)\w*|__has_(?:include|embed)\w*", re.DOTALL
)
_INCLUDE = re.compile(r'#[ \t]*include[ \t]*[<"]([^<>"\n]+)[>"]')
#: Held while a thread loads the library: other threads might see it before ``cuda.pathfinder`` has loaded its
#: dependencies.
_LOADING = Lock()
#: Seconds to wait for that thread, which a child of ``fork`` does not have.
_LOADING_S = 5.0
_CONTINUATION = re.compile(r"(?:\\|\?\?/)[ \t]*\r?\n")


class Output(Enum):
    """The result of a compilation: PTX text, or the machine code of one architecture."""

    PTX = "ptx"
    CUBIN = "cubin"


@dataclass(frozen=True)
class Compiled:
    """``image`` is PTX text (no trailing NUL) or a cubin; ``log`` holds the compiler's warnings, or is empty."""

    image: bytes
    log: str


def version() -> tuple[int, int]:
    """(major, minor) of the NVRTC library that is loaded."""
    nvrtc = _library()
    result, major, minor = nvrtc.nvrtcVersion()
    _check(nvrtc, "nvrtcVersion", result)
    return int(major), int(minor)


def library_file() -> str:
    """Path, size and time of the library that compiles here; an empty string where no file is known.

    Loads the library but not ``cuda.bindings``, which takes several times as long.
    """
    path = _library_path()
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{path} {status.st_size} {status.st_mtime_ns}"


@cache
def build() -> str:
    """The build of the loaded NVRTC, patch level included, from the head of the PTX that it writes.

    Compiles an empty program, which takes some 10 ms, once in a process.
    """
    empty = compile_program("", name="build", headers={}, options=("--gpu-architecture=compute_80",))
    head = empty.image.partition(b".version")[0].decode(errors="replace")
    return " ".join(line.removeprefix("//").strip() for line in head.splitlines() if line.strip("/ "))


def assembles_for(arch: str) -> bool:
    """Whether the loaded NVRTC knows the architecture ``arch`` (``sm_90a``); devices newer than it load PTX."""
    nvrtc = _library()
    result, known = nvrtc.nvrtcGetSupportedArchs()
    _check(nvrtc, "nvrtcGetSupportedArchs", result)
    return int(arch.removeprefix("sm_").rstrip("af")) in known


def compile_program(
    source: str, *, name: str, headers: Mapping[str, str], options: Sequence[str], output: Output = Output.PTX
) -> Compiled:
    """Compiles ``source``. ``headers`` maps the name in an ``#include`` to its text; ``name`` is for messages.

    Raises BadParamError for an option that is not allowed and a directive that would read anything but ``headers``,
    CompilationFailedError (with the log) where NVRTC rejects the program, SublibraryLoadingFailedError where there is
    no NVRTC.
    """
    for option in options:
        if not ALLOWED_OPTIONS.fullmatch(option):
            raise BadParamError.at("compile_program.options", expected="options of the allow-list", got=repr(option))
    for label, text in ((name, source), *headers.items()):
        _check_includes(label, text, headers)
    options = (*options, NO_FOLDERS)
    nvrtc = _library()
    result, program = nvrtc.nvrtcCreateProgram(
        source.encode(),
        name.encode(),
        len(headers),
        [text.encode() for text in headers.values()],
        [header.encode() for header in headers],
    )
    _check(nvrtc, "nvrtcCreateProgram", result)
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _text(nvrtc, program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode(errors="replace")
        if result == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            raise CompilationFailedError(f"{name}: NVRTC rejected the program (options {' '.join(options)})\n{log}")
        _check(nvrtc, f"nvrtcCompileProgram({name})", result, log)
        if output is Output.PTX:
            image = _text(nvrtc, program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        else:
            image = _bytes(nvrtc, program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        return Compiled(image, log.strip())
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _check_includes(name: str, text: str, headers: Mapping[str, str]) -> None:
    joined = _CONTINUATION.sub("", text)
    for found in _READING.finditer(joined):
        include = _INCLUDE.match(joined, found.start())
        if include is None or include[1] not in headers:
            line = joined[found.start() :].split("\n", 1)[0]
            raise BadParamError.at(
                f"compile_program.{name}", expected="plain includes of headers that were given", got=repr(line[:80])
            )


@cache
def _library_path() -> str:
    """Where ``cuda.bindings`` loads the library from, now loaded; empty where that is not known."""
    is_alone = _LOADING.acquire(timeout=_LOADING_S)
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return load_nvidia_dynamic_lib("nvrtc").abs_path or ""
    except (ImportError, RuntimeError, OSError):
        return ""
    finally:
        if is_alone:
            _LOADING.release()


def _library() -> ModuleType:
    """``cuda.bindings.nvrtc`` with its shared library found; imported here because the import alone costs 0.1 s."""
    _library_path()
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise SublibraryLoadingFailedError.at(
            "nvrtc",
            expected="NVRTC 13 beside cuda-python",
            got=str(error),
            hint="pip install 'nvidia-cuda-nvrtc==13.0.*'",
        ) from error
    return nvrtc  # type: ignore[no-any-return]


def _check(nvrtc: ModuleType, call: str, result: Any, log: str = "") -> None:
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        is_memory = result == nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY
        error = HostAllocationFailedError if is_memory else CompilationFailedError
        raise error(f"{call}: {result.name} ({int(result)})" + (f"\n{log}" if log else ""))


def _text(nvrtc: ModuleType, program: Any, size_of: Callable[..., Any], get: Callable[..., Any]) -> bytes:
    return _bytes(nvrtc, program, size_of, get).rstrip(b"\0")


def _bytes(nvrtc: ModuleType, program: Any, size_of: Callable[..., Any], get: Callable[..., Any]) -> bytes:
    result, size = size_of(program)
    _check(nvrtc, size_of.__name__, result)
    data = bytearray(size)
    if size:
        (result,) = get(program, data)
        _check(nvrtc, get.__name__, result)
    return bytes(data)
