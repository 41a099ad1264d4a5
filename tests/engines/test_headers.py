"""Where headers of kernels lie: what several families share below ``engines/include``, the rest beside its kernels.

A family is a folder of ``engines``. The headers that generated text includes serve every kernel with a functor.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from os.path import commonpath
from pathlib import Path, PurePosixPath

import lowdnn
from lowdnn.codegen.expressions import expression
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.pointwise import Pointwise
from lowdnn.runtime.sources import GENERATED_HEADER

ENGINES = Path(lowdnn.__file__).parent / "engines"
GOLDEN = Path(__file__).parent.parent / "codegen" / "golden"
#: The user that stands for all kernels with generated text.
GENERATED = "every family/functor"
#: Folders of shared headers, lowest first: a header includes those of its own level and of lower ones. The types are
#: below everything else; ``include`` itself holds what kernels of all kinds are
#: written in, generated text among them.
LEVELS = (
    ("include/numeric.cuh",),
    ("include/ptx",),
    ("include",),
    ("include/math",),
    ("include/elements", "include/rows", "include/tile"),
    ("include/epilogue",),
)
LEVEL = {place: level for level, places in enumerate(LEVELS) for place in places}


@cache
def sources() -> dict[str, tuple[str, ...]]:
    """The includes of each kernel and header, by its path below ``engines``; the generated text by goldens and by
    expressions over integers."""
    files = {
        str(path.relative_to(ENGINES)): includes(path) for path in ENGINES.rglob("*") if path.suffix in {".cu", ".cuh"}
    }
    generated = {name for path in GOLDEN.glob("*.cuh") for name in includes(path)}
    rows = (expression(Pointwise(mode, DataType.FLOAT)) for mode in PointwiseMode)
    generated |= {f"include/{row.integer_header}.cuh" for row in rows if row.integer_header}
    return files | {GENERATED: tuple(sorted(generated))}


def includes(path: Path) -> tuple[str, ...]:
    found = re.findall(r'^#include "([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
    return tuple(name for name in found if name != GENERATED_HEADER)


def headers() -> list[str]:
    return sorted(name for name in sources() if name.endswith(".cuh"))


def resolved(include: str, folder: str) -> str:
    """The path of an include in a kernel of ``folder``."""
    beside = f"{folder}/{include}"
    return beside if beside in sources() else include


def reached(kernel: str) -> set[str]:
    """Every header that a kernel includes, by whichever way."""
    folder = str(PurePosixPath(kernel).parent)
    found: set[str] = set()
    pending = [kernel]
    while pending:
        new = {resolved(include, folder) for include in sources()[pending.pop()]} - found
        found |= new
        pending.extend(new)
    return found


@cache
def users() -> dict[str, set[str]]:
    """The kernels that reach each header."""
    found: dict[str, set[str]] = defaultdict(set)
    for kernel in sources():
        if not kernel.endswith(".cuh"):
            for header in reached(kernel):
                found[header].add(kernel)
    return found


def test_every_header_serves_a_kernel() -> None:
    assert not [header for header in headers() if not users()[header]]


def test_shared_headers_serve_two_families() -> None:
    """Shared headers that no functor includes serve two families; wrappers of instructions may serve one."""
    families = {header: {kernel.split("/")[0] for kernel in users()[header]} for header in headers()}
    shared = [header for header in headers() if header.startswith("include/") and "/ptx/" not in header]
    wrong = [header for header in shared if len(families[header]) == 1 and GENERATED not in users()[header]]
    assert not wrong, "\n".join(f"{header}: {families[header]}" for header in wrong)


def test_other_headers_lie_in_the_deepest_folder_of_all_their_users() -> None:
    for header in headers():
        folders = [str(PurePosixPath(kernel).parent) for kernel in users()[header]]
        if not header.startswith("include/"):
            assert commonpath(folders) == str(PurePosixPath(header).parent), header


def test_generated_text_includes_headers_of_the_root_alone() -> None:
    assert {str(PurePosixPath(header).parent) for header in sources()[GENERATED]} == {"include"}


def test_shared_headers_include_lower_ones() -> None:
    def level(header: str) -> int:
        return LEVEL[header] if header in LEVEL else LEVEL[str(PurePosixPath(header).parent)]

    shared = [header for header in headers() if header.startswith("include/")]
    wrong = [
        f"{header} includes {include}"
        for header in shared
        for include in sources()[header]
        if not include.startswith("include/")
        or level(include) > level(header)
        or (level(include) == level(header) and PurePosixPath(include).parent != PurePosixPath(header).parent)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_header_has_one_name_and_is_included_by_it() -> None:
    """A kernel that included one file by two names would define its contents twice."""
    names = [PurePosixPath(header).name for header in headers()]
    assert len(set(names)) == len(names)
    for file, included in sources().items():
        folder = str(PurePosixPath(file).parent)
        for include in included:
            own = not folder.startswith("include") and f"{folder}/{PurePosixPath(include).name}" in sources()
            assert own == ("/" not in include), f"{file} includes {include}"
