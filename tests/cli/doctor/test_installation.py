"""Files that differ from their lists, and packages out of range, are found in an installation made for the test."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from lowdnn.cli.doctor import installation
from lowdnn.cli.doctor.findings import Finding, Verdict, worst
from lowdnn.runtime.module_store import ModuleStore
from tests.cli.doctor.support import facts_of

FACTS = facts_of()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages with a lowdnn of three modules."""
    for name in ("__init__.py", "cli/__init__.py", "cli/main.py"):
        (tmp_path / "lowdnn" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lowdnn" / name).write_text(f"# {name}\n")
    record(tmp_path)
    monkeypatch.setattr(installation, "_PACKAGE", tmp_path / "lowdnn")
    monkeypatch.setattr(installation, "distribution", lambda _: PathDistribution(tmp_path / "lowdnn-1.dist-info"))
    return tmp_path


def record(site: Path, *requires: str) -> None:
    """Writes the lists of an installed package: its files, and what it needs."""
    folder = site / "lowdnn-1.dist-info"
    folder.mkdir(exist_ok=True)
    lines = [f"{path.relative_to(site)},sha256={_digest(path)}," for path in sorted((site / "lowdnn").rglob("*.py"))]
    (folder / "RECORD").write_text("\n".join([*lines, "../../bin/lowdnn,sha256=0,", "lowdnn-1.dist-info/RECORD,,", ""]))
    needs = [f"Requires-Dist: {text}" for text in requires]
    (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", "Name: lowdnn", "Version: 1", *needs, ""]))


def test_files_as_they_were_shipped(site: Path) -> None:
    (found,) = installation.files(FACTS)
    assert (found.verdict, found.reason) == (Verdict.OK, "3 files are as RECORD has them")


def test_changed_and_missing_files_are_named(site: Path) -> None:
    (site / "lowdnn/cli/main.py").write_text("# another\n")
    (site / "lowdnn/cli/__init__.py").unlink()
    (found,) = installation.files(FACTS)
    assert found.verdict is Verdict.FAILURE
    assert "lowdnn/cli/main.py differs" in found.reason
    assert "lowdnn/cli/__init__.py: No such file" in found.reason
    assert "lowdnn/__init__.py" not in found.reason


def test_files_of_another_version_are_named(site: Path) -> None:
    (site / "lowdnn/cli/old.py").write_text("")
    (found,) = installation.files(FACTS)
    assert found.verdict is Verdict.WARNING
    assert "cli/old.py" in found.reason


def test_a_checkout_has_nothing_to_compare_with(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where another lowdnn is installed, which is not the one that runs."""
    monkeypatch.setattr(installation, "_PACKAGE", site / "elsewhere")
    checks = (installation.files, installation.packages)
    assert [found.verdict for check in checks for found in check(FACTS)] == [Verdict.UNKNOWN, Verdict.UNKNOWN]


def test_the_list_of_a_checkout_has_no_digests(site: Path) -> None:
    lines = (site / "lowdnn-1.dist-info" / "RECORD").read_text().splitlines()
    (site / "lowdnn-1.dist-info" / "RECORD").write_text("".join(f"{line.partition(',')[0]},,\n" for line in lines))
    assert [found.verdict for found in installation.files(FACTS)] == [Verdict.UNKNOWN]


def test_versions_of_packages(site: Path) -> None:
    record(site, "numpy>=2.1", "pytest<1000; extra == 'telemetry'", "nothing-of-the-kind; extra == 'torch'")
    assert [(found.check, found.verdict) for found in installation.packages(FACTS)] == [
        ("packages", Verdict.OK),
        ("extras", Verdict.OK),
    ]
    record(site, "numpy<2", "nothing-of-the-kind>=3", 'pytest>=1000; extra == "telemetry"', 'ruff<0; extra == "dev"')
    needed, extras = installation.packages(FACTS)
    assert needed.verdict is Verdict.FAILURE
    assert "is not <2, nothing-of-the-kind is not installed, >=3 is needed" in needed.reason
    assert extras.verdict is Verdict.WARNING
    assert "ruff" not in extras.reason


def test_own_variables_are_spelt_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LOWDNN_TEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LOWDNN_CACHE_DIRECTORY", "/tmp")
    (found,) = installation.settings(FACTS)
    assert found.verdict is Verdict.WARNING
    assert "LOWDNN_CACHE_DIRECTORY is none of lowdnn's variables" in found.reason
    monkeypatch.delenv("LOWDNN_CACHE_DIRECTORY")
    monkeypatch.setenv("LOWDNN_CACHE_DIR", "/tmp")
    assert worst(installation.settings(FACTS)) is Verdict.OK


@pytest.mark.parametrize("damage", ["changed", "missing", "manifest", "none"])
def test_precompiled_kernels(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel, of which a byte is changed, or the file, or its list."""
    installed = ModuleStore.installed()
    digest, kernel = next(iter(installed.kernels.items()))
    file = tmp_path / kernel.file
    file.parent.mkdir()
    file.write_bytes(installed.get(digest) or b"")
    entry = {name: getattr(kernel, name) for name in ("name", "target", "file", "sha256", "nvrtc")}
    (tmp_path / "MANIFEST.json").write_text(json.dumps({"lowdnn_ptx": 1, "kernels": {digest: entry}}))
    if damage == "changed":
        file.write_bytes(file.read_bytes() + b" ")
    elif damage == "missing":
        shutil.rmtree(file.parent)
    elif damage == "manifest":
        (tmp_path / "MANIFEST.json").write_text("[]")
    monkeypatch.setattr(ModuleStore, "installed", classmethod(lambda cls: cls(tmp_path)))
    found: list[Finding] = list(installation.precompiled(FACTS))
    assert [each.verdict for each in found] == [Verdict.OK if damage == "none" else Verdict.FAILURE]


def _digest(path: Path) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
