"""Checks of what is installed: packages and their versions, settings, files as they were shipped."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path

from lowdnn.cli.doctor.facts import Facts
from lowdnn.cli.doctor.findings import Finding, Verdict
from lowdnn.cli.doctor.versions import VersionRange
from lowdnn.cli.info import installed_version
from lowdnn.config import unknown_variables
from lowdnn.one_line import listed
from lowdnn.runtime.module_store import ModuleStore
from lowdnn.status import LowdnnError

_PACKAGE = Path(__file__).resolve().parents[2]
#: ``torch>=2.9; extra == "torch"``
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?([^;()]*)\)?\s*(?:;(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([A-Za-z0-9._-]+)["']""")
#: Extras for those who work on lowdnn.
_OF_DEVELOPERS = ("dev", "test")
_REINSTALL = "pip install --force-reinstall --no-deps lowdnn, of the version that is to run"


def packages(facts: Facts) -> Iterator[Finding]:
    """The packages that lowdnn needs, and those of its extras that are installed, have versions that it takes."""
    found = _distribution()
    if found is None:
        yield Finding("packages", Verdict.UNKNOWN, f"{_PACKAGE} is no installed package, so its needs are not listed")
        return
    for check, is_needed in (("packages", True), ("extras", False)):
        wrong, right = _versions(found.requires or (), is_needed)
        if wrong:
            verdict = Verdict.FAILURE if is_needed else Verdict.WARNING
            yield Finding(check, verdict, listed(wrong), "pip install a version of the range")
        else:
            yield Finding(check, Verdict.OK, listed(right) if right else "none is installed")


def settings(facts: Facts) -> Iterator[Finding]:
    """Every variable of lowdnn's is known and understood."""
    strange = [f"{name} is none of lowdnn's variables" for name in unknown_variables()]
    wrong = [*facts.wrong_settings, *strange]
    if wrong:
        yield Finding("settings", Verdict.WARNING, "; ".join(wrong), "lowdnn guide configuration lists the variables")
    else:
        yield Finding("settings", Verdict.OK, "every LOWDNN_ variable that is set is understood")


def files(facts: Facts) -> Iterator[Finding]:
    """The package's files are those that its RECORD lists, byte by byte; scripts may lie elsewhere."""
    found = _distribution()
    if found is None:
        reason = f"{_PACKAGE} is no installed package: there is no RECORD to compare its files with"
        yield Finding("files", Verdict.UNKNOWN, reason)
        return
    recorded = [file for file in found.files or () if file.hash is not None and file.parts[0] == "lowdnn"]
    wrong = [problem for file in recorded if (problem := _problem(file))]
    known = {Path(str(file.locate())).resolve() for file in recorded}
    others = [str(path.relative_to(_PACKAGE)) for path in sorted(_PACKAGE.rglob("*.py")) if path not in known]
    if wrong:
        yield Finding("files", Verdict.FAILURE, listed(wrong), _REINSTALL)
    elif others:
        reason = f"modules that the package does not have: {listed(others)}"
        yield Finding("files", Verdict.WARNING, reason, "pip uninstall lowdnn, remove what is left, install it again")
    else:
        yield Finding("files", Verdict.OK, f"{len(recorded)} files are as RECORD has them")


def precompiled(facts: Facts) -> Iterator[Finding]:
    """The precompiled kernels are those of their MANIFEST, byte by byte."""
    try:
        store = ModuleStore.installed()
        for digest in store.kernels:
            store.get(digest)
    except (LowdnnError, OSError, ValueError, KeyError) as error:  # the manifest may be any text
        yield Finding("precompiled", Verdict.FAILURE, str(error), _REINSTALL)
        return
    if store.kernels:
        yield Finding("precompiled", Verdict.OK, f"{len(store.kernels)} kernels are as MANIFEST.json has them")
    else:
        yield Finding(
            "precompiled", Verdict.WARNING, "there are none: each kernel is compiled at first use", _REINSTALL
        )


def _distribution() -> Distribution | None:
    """The installed package that this code belongs to; None for a checkout."""
    try:
        found = distribution("lowdnn")
    except PackageNotFoundError:
        return None
    own = Path(str(found.locate_file("lowdnn/__init__.py"))).resolve()
    # The list of a checkout (egg-info) has no digests.
    is_recorded = any(str(file) == "lowdnn/__init__.py" and file.hash for file in found.files or ())
    return found if is_recorded and own == _PACKAGE / "__init__.py" else None


def _versions(requirements: list[str] | tuple[()], is_needed: bool) -> tuple[list[str], list[str]]:
    """The wrong and the right versions of the packages that are needed, or of those that extras name."""
    wrong, right = [], []
    for text in requirements:
        match = _REQUIREMENT.fullmatch(text.strip())
        if match is None:
            continue
        name, ranges, marker = match[1], match[2].strip(), match[3] or ""
        extras = _EXTRA.findall(marker)
        if bool(extras) is is_needed or any(extra in _OF_DEVELOPERS for extra in extras) or name == "lowdnn":
            continue
        version = installed_version(name)
        if version is None:
            wrong += [f"{name} is not installed, {ranges or 'any version'} is needed"] * is_needed
        elif ranges and not VersionRange.of(ranges, name).has(version):
            wrong.append(f"{name} {version} is not {ranges}")
        else:
            right.append(f"{name} {version}")
    return wrong, right


def _problem(file: PackagePath) -> str:
    """The difference of a file from its line in RECORD, or nothing."""
    assert file.hash is not None
    try:
        data = Path(str(file.locate())).read_bytes()
    except OSError as error:
        return f"{file}: {error.strerror or error}"
    digest = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, data).digest()).rstrip(b"=").decode()
    return "" if digest == file.hash.value else f"{file} differs"
