"""Kernel sources: the text that a ``KernelRef`` stands for, with every header it reaches.

Headers are looked up in the kernel's own folder, then from the root (``include/numeric.cuh``); ``generated.cuh`` is the
text inside the ref. Nothing outside the engines' folder is read, no link in it is followed, and no other folder
is searched.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from lowdnn.plan import KernelRef
from lowdnn.runtime.kernel_rules import check_kernel
from lowdnn.status import BadParamError, CompilationFailedError

#: Name of the in-memory header that holds ``KernelRef.generated``.
GENERATED_HEADER = "generated.cuh"

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^">]+)[">]', re.MULTILINE)


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

        Raises BadParamError for a reference that breaks ``kernel_rules`` or a source that is not there;
        CompilationFailedError for a header that is not found.
        """
        check_kernel(kernel)
        path = PurePosixPath(kernel.source)
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
        """The text of a file below the engines' folder; None where there is no such file or a link leads to it."""
        if path.is_absolute() or ".." in path.parts:
            return None
        file = self._root
        for part in path.parts:
            file = file / part
            if isinstance(file, Path) and file.is_symlink():
                return None
        return file.read_text(encoding="utf-8") if file.is_file() else None


def compile_options(kernel: KernelRef) -> tuple[str, ...]:
    """NVRTC's options for PTX of ``kernel``, which keeps ``kernel_rules``: architecture, language, one macro for each
    parameter, and KERNEL_NAME."""
    macros = (("KERNEL_NAME", kernel.name), *kernel.parameters)
    return (
        f"--gpu-architecture={kernel.target.replace('sm', 'compute')}",
        "-std=c++17",
        "-default-device",
        *(f"-D{name}={int(value) if isinstance(value, int) else value}" for name, value in macros),
    )


def _digest(name: str, text: str, headers: tuple[tuple[str, str], ...], options: tuple[str, ...]) -> str:
    hasher = hashlib.sha256()
    for part in (name, text, *(part for header in headers for part in header), *options):
        encoded = part.encode()
        hasher.update(len(encoded).to_bytes(8, "little"))
        hasher.update(encoded)
    return hasher.hexdigest()
