"""The wheel's contents, and the version: every package and other file of the source tree, every page of the guide."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path

import lowdnn
from lowdnn.guide import pages

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
#: Packages that lie elsewhere than their name says (``setup.py``).
OUTSIDE = {"lowdnn.ptx": "ptx"}


def test_every_folder_with_python_is_a_package() -> None:
    """``setup.py`` finds the packages: a folder is one where it and those above it have an ``__init__.py``."""
    folders = {path.parent for path in (ROOT / "lowdnn").rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


def test_every_other_file_is_package_data() -> None:
    other = {
        path
        for path in (*(ROOT / "lowdnn").rglob("*"), *(ROOT / "ptx").rglob("*"))
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    assert other == _package_data()


def test_every_page_of_the_guide_is_in_the_wheel() -> None:
    guide = ROOT / "lowdnn" / "guide"
    carried = {*_package_data(), *guide.rglob("*.py")}  # all folders with Python are packages, see above
    found = {path.relative_to(guide).with_suffix("").as_posix() for path in carried if path.is_relative_to(guide)}
    assert set(pages.topics()) <= found


def test_version_is_that_of_the_newest_dated_section() -> None:
    """The changelog begins with what is not released; versions and dates fall from there on."""
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads[0] == "Unreleased"
    sections = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) \((\d{4}-\d\d-\d\d)\)", head) for head in heads[1:]]
    assert all(sections), heads
    released = [
        ([int(number) for number in found.groups()[:3]], date.fromisoformat(found[4])) for found in sections if found
    ]
    assert released == sorted(released, reverse=True)
    assert lowdnn.__version__ == ".".join(map(str, released[0][0]))


def test_source_distribution_has_what_its_readers_need() -> None:
    words = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").split()
    assert {path.name for path in ROOT.glob("*.md")} <= {*words, "README.md"}, "setuptools adds README.md itself"
    assert all((ROOT / word).exists() for word in words if word.endswith(".md") or word in ("tests", "tools"))


def _package_data() -> set[Path]:
    return {
        path
        for package, patterns in SETTINGS["package-data"].items()
        for pattern in patterns
        for path in (ROOT / OUTSIDE.get(package, package.replace(".", "/"))).glob(pattern)
    }
