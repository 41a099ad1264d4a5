"""Kernel sources: the text that a ``KernelRef`` stands for, with every header it reaches.

Headers are looked up in the kernel's own folder, then from the root (``include/numeric.cuh``); ``generated.cuh`` is the
text inside the ref. Nothing outside the engines' folder is read, no link in it is followed, and no other folder
is searched. Most kernels share most headers, so a tree reads each file once.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from operator import itemgetter
from pathlib import Path

from lowdnn.plan import KernelRef
from lowdnn.runtime.kernel_rules import check_kernel
from lowdnn.status import BadParamError, CompilationFailedError

#: Name of the in-memory header that holds ``KernelRef.generated``.
GENERATED_HEADER = "generated.cuh"

#: An include wherever it stands: a pattern that begins with the line would be tried at each character.
_INCLUDE = re.compile(r'#[ \t]*include[ \t]*[<"]([^">]+)[">]')


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

    def options_for(self, machine_arch: str) -> tuple[str, ...]:
        """These options for machine code of ``machine_arch`` (``sm_90``) instead of PTX."""
        return (f"--gpu-architecture={machine_arch}", *self.options[1:])


@dataclass(frozen=True)
class _File:
    """Text of a file, the names of its includes, and the part that it has in a digest."""

    text: str
    includes: tuple[str, ...]
    digested: bytes

    @classmethod
    def of(cls, text: str) -> _File:
        includes = (found for found in _INCLUDE.finditer(text) if _begins_line(text, found.start()))
        return cls(text, tuple(found[1] for found in includes), _digested(text))


@dataclass(frozen=True)
class _Folder:
    """A folder, with the names of its files and folders. Links are not among them."""

    place: Traversable
    files: frozenset[str]
    folders: frozenset[str]

    @classmethod
    def of(cls, place: Traversable) -> _Folder:
        if isinstance(place, Path):
            with os.scandir(place) as found:
                entries = list(found)
            files = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
            folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        else:
            items = list(place.iterdir())
            files = [item.name for item in items if item.is_file()]
            folders = [item.name for item in items if item.is_dir()]
        return cls(place, frozenset(files), frozenset(folders))


class SourceTree:
    """The ``.cu`` and ``.cuh`` files below one folder (``lowdnn/engines`` unless a test says otherwise).

    A folder and a file are read at their first use; what becomes of them later, a new tree sees. Safe to share between
    threads.
    """

    def __init__(self, root: Traversable | None = None) -> None:
        self._root = files("lowdnn") / "engines" if root is None else root
        self._files: dict[str, _File | None] = {}
        self._folders: dict[str, _Folder | None] = {}

    def read(self, kernel: KernelRef) -> KernelSource:
        """The whole program of ``kernel``.

        Raises BadParamError for a reference that breaks ``kernel_rules`` or a source that is not there;
        CompilationFailedError for a header that is not found.
        """
        check_kernel(kernel)
        file = self._file(kernel.source)
        if file is None:
            raise BadParamError.at("KernelRef.source", expected="a file below lowdnn/engines", got=kernel.source)
        headers = self._headers(file, kernel)
        options = compile_options(kernel)
        return KernelSource(
            kernel.name,
            file.text,
            tuple((include, header.text) for include, header in headers),
            options,
            _digest(kernel.name, file, headers, options),
        )

    def _headers(self, file: _File, kernel: KernelRef) -> list[tuple[str, _File]]:
        """Every header that the kernel reaches, by the name in its include."""
        folder = kernel.source.rpartition("/")[0]
        found: dict[str, _File] = {}
        pending = [(file, kernel.source)]
        while pending:
            including, includer = pending.pop()
            for include in including.includes:
                if include in found:
                    continue
                header = _File.of(kernel.generated) if include == GENERATED_HEADER else self._header(include, folder)
                if header is None:
                    raise CompilationFailedError.at(
                        f"{includer}.include", expected=f"a header in {folder} or below lowdnn/engines", got=include
                    )
                found[include] = header
                pending.append((header, include))
        return sorted(found.items(), key=itemgetter(0))

    def _header(self, include: str, folder: str) -> _File | None:
        local = self._file(f"{folder}/{include}" if folder else include)
        return self._file(include) if local is None else local

    def _file(self, path: str) -> _File | None:
        """A file below the engines' folder; None where there is no such file or a link leads to it."""
        if path not in self._files:
            text = self._text(path)
            self._files[path] = None if text is None else _File.of(text)
        return self._files[path]

    def _text(self, path: str) -> str | None:
        outer, _, name = path.rpartition("/")
        folder = self._folder(outer)
        if folder is None or name not in folder.files:
            return None
        return (folder.place / name).read_text(encoding="utf-8")

    def _folder(self, path: str) -> _Folder | None:
        """A folder below the engines' one, by the names of folders; so no path leads out of it."""
        if path not in self._folders:
            self._folders[path] = self._listed(path)
        return self._folders[path]

    def _listed(self, path: str) -> _Folder | None:
        if not path:
            return _Folder.of(self._root)
        above, _, name = path.rpartition("/")
        outer = self._folder(above)
        return None if outer is None or name not in outer.folders else _Folder.of(outer.place / name)


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


def _begins_line(text: str, place: int) -> bool:
    """Whether nothing but blanks precedes the place in its line."""
    return not text[text.rfind("\n", 0, place) + 1 : place].strip(" \t")


def _digest(name: str, file: _File, headers: Iterable[tuple[str, _File]], options: tuple[str, ...]) -> str:
    hasher = hashlib.sha256(_digested(name))
    hasher.update(file.digested)
    for include, header in headers:
        hasher.update(_digested(include))
        hasher.update(header.digested)
    for option in options:
        hasher.update(_digested(option))
    return hasher.hexdigest()


def _digested(text: str) -> bytes:
    """The bytes that a digest takes for ``text``: its length and its text, so that no two lists of texts give the
    same."""
    encoded = text.encode()
    return len(encoded).to_bytes(8, "little") + encoded
