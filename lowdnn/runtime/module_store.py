"""Module store: the precompiled PTX that ships with lowdnn.

``MANIFEST.json`` lists what is there, by the digest of the kernel's whole source (``KernelSource.digest``), so a kernel
whose source was edited is never served stale:

    {"lowdnn_ptx": 1, "kernels": {"<source digest>": {"name": ..., "target": ..., "file": ..., "sha256": ...,
                                                      "nvrtc": "13.0"}}}
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from lowdnn.status import SublibraryVersionMismatchError

MANIFEST_VERSION = 1
_FILE = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_.]+)?\.ptx")


@dataclass(frozen=True)
class StoredKernel:
    """One line of the manifest. ``file`` is relative to the manifest; ``sha256`` is the file's."""

    name: str
    target: str
    file: str
    sha256: str
    nvrtc: str


class ModuleStore:
    """The kernels of one ``ptx`` folder; empty where there is no folder."""

    def __init__(self, root: Traversable | None) -> None:
        self._root = root
        self.kernels: Mapping[str, StoredKernel] = {} if root is None else _read_manifest(root)

    @classmethod
    def installed(cls) -> ModuleStore:
        """The store inside the package or, in a source checkout, beside it."""
        package = files("lowdnn")
        candidates: list[Traversable] = [package / "ptx"]
        if isinstance(package, Path):
            candidates.append(package.parent / "ptx")
        return cls(next((root for root in candidates if (root / "MANIFEST.json").is_file()), None))

    def get(self, source_digest: str) -> bytes | None:
        """The PTX text of the kernel whose source has this digest, or None.

        Raises SublibraryVersionMismatchError where the file is not the one that the manifest describes.
        """
        kernel = self.kernels.get(source_digest)
        if kernel is None or self._root is None:
            return None
        file = self._root.joinpath(*kernel.file.split("/"))
        data = file.read_bytes() if file.is_file() else b""
        found = hashlib.sha256(data).hexdigest()
        if found != kernel.sha256:
            raise SublibraryVersionMismatchError.at(
                f"ptx/{kernel.file}", expected=f"sha256 {kernel.sha256}", got=found, hint="reinstall lowdnn"
            )
        return data


def _read_manifest(root: Traversable) -> dict[str, StoredKernel]:
    document = json.loads((root / "MANIFEST.json").read_text(encoding="utf-8"))
    version = document.get("lowdnn_ptx") if isinstance(document, dict) else None
    if version != MANIFEST_VERSION:
        raise SublibraryVersionMismatchError.at(
            "ptx/MANIFEST.json.lowdnn_ptx", expected=str(MANIFEST_VERSION), got=version, hint="reinstall lowdnn"
        )
    return {digest: _stored_kernel(digest, entry) for digest, entry in document["kernels"].items()}


def _stored_kernel(digest: str, entry: Mapping[str, Any]) -> StoredKernel:
    names = ("name", "target", "file", "sha256", "nvrtc")
    if set(entry) != set(names) or not all(isinstance(entry[name], str) for name in names):
        raise SublibraryVersionMismatchError.at(
            f"ptx/MANIFEST.json.kernels[{digest}]", expected=f"the strings {', '.join(names)}", got=sorted(entry)
        )
    if not _FILE.fullmatch(entry["file"]):
        raise SublibraryVersionMismatchError.at(
            f"ptx/MANIFEST.json.kernels[{digest}].file", expected="<folder>/<name>.ptx", got=entry["file"]
        )
    return StoredKernel(**{name: entry[name] for name in names})
