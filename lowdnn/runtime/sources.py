"""Kernel sources: the text that a ``KernelRef`` stands for, with every header it reaches.

Headers are looked up in the kernel's own folder, then from the root (``include/numeric.cuh``); ``generated.cuh`` is the
text inside the ref.
Nothing outside the engines' folder is ever read, and no other search path exists.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from lowdnn.plan import KernelRef
from lowdnn.status import BadParamError, CompilationFailedError

#: Name of the in-memory header that holds ``KernelRef.generated``.
GENERATED_HEADER = "generated.cuh"

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^">]+)[">]', re.MULTILINE)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TARGET = re.compile(r"sm_(\d{2,3}[af]?)")
_MACRO_VALUE = re.compile(r"[A-Za-z0-9_.:<>,+\- ]+")


@dataclass(frozen=True)
class KernelSource:
    """The program of one kernel: its text, its headers (include text, header text) and NVRTC's options for PTX.

    The first option is the architecture.
    ``digest`` names all of it (SHA-256 in hex): equal digests compile to equal code under one compiler.
    """

    name: str
    text: str
    headers: tuple[tuple[str, str], ...]
    options: tuple[str, ...]
    digest: str

    def options_for(self, binary_arch: str) -> tuple[str, ...]:
        """The same options, for machine code of ``binary_arch`` (``sm_90``) instead of PTX."""
        return (f"--gpu-architecture={binary_arch}", *self.options[1:])


class SourceTree:
    """The ``.cu`` and ``.cuh`` files below one folder (``lowdnn/engines`` unless a test says otherwise)."""

    def __init__(self, root: Traversable | None = None) -> None:
        self._root = files("lowdnn") / "engines" if root is None else root

    def read(self, kernel: KernelRef) -> KernelSource:
        """The whole program of ``kernel``.

        Raises BadParamError for a name, path, target or parameter that is malformed or a source that is not there;
        CompilationFailedError for a header that is not found.
        """
        path = _checked_path(kernel)
        text = self._text(path)
        if text is None:
            raise BadParamError.at("KernelRef.source", expected="a file below lowdnn/engines", got=kernel.source)
        headers = self._headers(text, path.parent, kernel)
        options = compile_options(kernel)
        return KernelSource(kernel.name, text, headers, options, _digest(kernel.name, text, headers, options))

    def _headers(self, text: str, folder: PurePosixPath, kernel: KernelRef) -> tuple[tuple[str, str], ...]:
        found: dict[str, str] = {}
        pending = [(text, kernel.source)]
        while pending:
            body, includer = pending.pop()
            for include in _INCLUDE.findall(body):
                if include in found:
                    continue
                header = kernel.generated if include == GENERATED_HEADER else self._header(include, folder)
                if header is None:
                    raise CompilationFailedError.at(
                        f"{includer}.include", expected=f"a header in {folder} or below lowdnn/engines", got=include
                    )
                found[include] = header
                pending.append((header, include))
        return tuple(sorted(found.items()))

    def _header(self, include: str, folder: PurePosixPath) -> str | None:
        local = self._text(folder / include)
        return self._text(PurePosixPath(include)) if local is None else local

    def _text(self, path: PurePosixPath) -> str | None:
        if path.is_absolute() or ".." in path.parts:
            return None
        file = self._root.joinpath(*path.parts)
        return file.read_text(encoding="utf-8") if file.is_file() else None


def compile_options(kernel: KernelRef) -> tuple[str, ...]:
    """NVRTC's options for PTX of ``kernel``: architecture, language, one macro per parameter, and KERNEL_NAME."""
    target = _TARGET.fullmatch(kernel.target)
    if target is None:
        raise BadParamError.at("KernelRef.target", expected="sm_<capability>", got=kernel.target)
    macros = (("KERNEL_NAME", kernel.name), *kernel.parameters)
    return (
        f"--gpu-architecture=compute_{target[1]}",
        "-std=c++17",
        "-default-device",
        *(f"-D{_checked_macro(name, value)}" for name, value in macros),
    )


def _checked_path(kernel: KernelRef) -> PurePosixPath:
    if not _IDENTIFIER.fullmatch(kernel.name):
        raise BadParamError.at("KernelRef.name", expected="a C identifier", got=repr(kernel.name))
    path = PurePosixPath(kernel.source)
    if path.is_absolute() or ".." in path.parts or path.suffix != ".cu":
        raise BadParamError.at("KernelRef.source", expected="a relative path of a .cu file", got=repr(kernel.source))
    return path


def _checked_macro(name: str, value: int | str) -> str:
    text = str(int(value)) if isinstance(value, int) else value
    if not _IDENTIFIER.fullmatch(name) or not _MACRO_VALUE.fullmatch(text):
        raise BadParamError.at(
            f"KernelRef.parameters[{name!r}]", expected="an integer or an identifier", got=repr(value)
        )
    return f"{name}={text}"


def _digest(name: str, text: str, headers: tuple[tuple[str, str], ...], options: tuple[str, ...]) -> str:
    hasher = hashlib.sha256()
    for part in (name, text, *(part for header in headers for part in header), *options):
        encoded = part.encode()
        hasher.update(len(encoded).to_bytes(8, "little"))
        hasher.update(encoded)
    return hasher.hexdigest()
