"""C programs that measure calls: compiled against a written header, on a library of their own. Needs gcc."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

from lowdnn.capi import write_header, write_library
from lowdnn.capi.loading import Binding


def compiled(binding: Binding, source: Path) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """The program of a source file, and a new library that leads to the binding's state."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_header(folder / "cudnn.h")
        write_library(folder / "own.so")
        command = ["gcc", "-O2", "-shared", "-fPIC", f"-I{folder}", str(source), "-o", "user.so"]
        subprocess.run(command, cwd=folder, check=True)
        return ctypes.CDLL(str(folder / "user.so")), binding.library(folder / "own.so")
