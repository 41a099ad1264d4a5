"""What the wheel carries: every package of the source tree, and the files that are not Python."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_folder_with_python_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "lowdnn").rglob("*.py")}
    packages = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert packages | {"lowdnn.ptx"} == set(SETTINGS["packages"])
    assert all((folder / "__init__.py").is_file() for folder in folders)


def test_every_other_file_is_package_data() -> None:
    carried = {
        path
        for package, patterns in SETTINGS["package-data"].items()
        for pattern in patterns
        for path in (ROOT / SETTINGS["package-dir"].get(package, package.replace(".", "/"))).glob(pattern)
    }
    other = {
        path
        for path in (*(ROOT / "lowdnn").rglob("*"), *(ROOT / "ptx").rglob("*"))
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    assert other == carried
