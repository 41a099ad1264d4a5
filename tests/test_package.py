"""The wheel's contents: every package of the source tree, and the files that are not Python."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
#: Packages that lie elsewhere than their name says (``setup.py``).
OUTSIDE = {"lowdnn.ptx": "ptx"}


def test_every_folder_with_python_is_a_package() -> None:
    """``setup.py`` finds the packages: a folder is one where it and those above it have an ``__init__.py``."""
    folders = {path.parent for path in (ROOT / "lowdnn").rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


def test_every_other_file_is_package_data() -> None:
    carried = {
        path
        for package, patterns in SETTINGS["package-data"].items()
        for pattern in patterns
        for path in (ROOT / OUTSIDE.get(package, package.replace(".", "/"))).glob(pattern)
    }
    other = {
        path
        for path in (*(ROOT / "lowdnn").rglob("*"), *(ROOT / "ptx").rglob("*"))
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    assert other == carried
