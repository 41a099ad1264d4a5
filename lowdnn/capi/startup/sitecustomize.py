"""Connects the library that the loader has loaded to lowdnn, then runs the user's own sitecustomize."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


def connect() -> None:
    """Installs the library. An interpreter that cannot import lowdnn goes on; its calls return NOT_INITIALIZED."""
    if PathFinder.find_spec("lowdnn") is None:
        sys.path.append(str(_FOLDER.parents[2]))
    try:
        from lowdnn.capi import install
    except (ImportError, SyntaxError):  # a package is missing, or Python is older than lowdnn
        return
    install()


def run_users() -> None:
    """Runs the sitecustomize that the rest of ``sys.path`` leads to, under its own name, as Python would."""
    others = [entry for entry in sys.path if Path(entry).resolve() != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # as Python imports it at its start, and not as a part of lowdnn
    connect()
    run_users()
