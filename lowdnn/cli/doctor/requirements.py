"""The file of ``lowdnn doctor --require``: which versions a program was tested with.

A line is a name and a range of versions; what follows ``#`` is a remark:

    driver   >=580.65        # of the kernel's module
    cuda     >=13.0
    gpus     >=8
    torch    >=2.9,<2.14

A name is one of ``facts.NAMES`` or that of an installed package, and stands once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lowdnn.cli.doctor.facts import NAMES, Facts
from lowdnn.cli.doctor.findings import Finding, Verdict
from lowdnn.cli.doctor.versions import RANGE_RULE, VersionRange
from lowdnn.documents import shown
from lowdnn.one_line import one_line
from lowdnn.status import BadParamError
from lowdnn.text_files import read_text

_MAX_FILE_BYTES = 1 << 20
_LINE = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?)\s+(\S.*)")


@dataclass(frozen=True)
class Requirement:
    """The range that a version must lie in.  where: ``FILE:LINE``."""

    name: str
    range: VersionRange
    where: str


def read_requirements(path: str) -> tuple[Requirement, ...]:
    """The requirements of a file. Raises BadParamError, with the line, for what is none, and for an empty file."""
    text = read_text(path, "doctor.require", "a readable file of requirements", _MAX_FILE_BYTES)
    found: dict[str, Requirement] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.split("#")[0].strip()
        if not content:
            continue
        read = _requirement(content, f"{one_line(path)}:{number}")
        if read.name in found:
            first = found[read.name].where
            raise BadParamError.at(read.where, expected="each name once", got=f"{read.name}, which {first} has")
        found[read.name] = read
    if not found:
        raise BadParamError.at("doctor.require", expected="a file with requirements", got=f"{path!r}, which has none")
    return tuple(found.values())


def unmet(facts: Facts, requirements: tuple[Requirement, ...]) -> Iterator[Finding]:
    """A finding for each requirement: OK where the version is there and in the range, otherwise FAILURE."""
    for need in requirements:
        version, check = facts.version_of(need.name), f"require {need.name}"
        if version and need.range.has(version):
            yield Finding(check, Verdict.OK, f"{version} is {need.range.text}")
        else:
            reason = f"{version or 'none'} is not {need.range.text} ({need.where})"
            remedy = f"install a version of the range, or test with {version or 'none'} and change the file"
            yield Finding(check, Verdict.FAILURE, reason, remedy)


def _requirement(content: str, where: str) -> Requirement:
    match = _LINE.fullmatch(content)
    if match is None:
        names = f"one of {', '.join(NAMES)}, or a package"
        raise BadParamError.at(where, expected=f"a name ({names}) and {RANGE_RULE}", got=shown(content))
    return Requirement(match[1], VersionRange.of(match[2], where), where)
