"""Assembles kernels for real GPUs, without one, and keeps a table of what ptxas says of each.

    python tools/assemble.py            fail where the table is not what the kernels give, or a kernel is unfit
    python tools/assemble.py --write    renew the table
    python tools/assemble.py --all      the same of every kernel, whatever is known of it (also with --write)

The kernels: every precompiled one, for its own target and for sm_90 (where drivers compile its PTX), and every one that
an engine takes for a text case of ``tests/cases``. ``tests/assembly/kernels.txt`` has one line for each, for a reviewer
to diff. ``tests/assembly/sources.txt`` has the digest of the source that its figures are of: a fit kernel whose source
is still that one is not assembled again, but for one in 16, which would show a table that somebody has edited.

Unfit: spilled registers, ``setmaxnreg`` that ptxas ignores (C7508), and ``wgmma`` that it serialises or makes wait
(C7510 to C7519). A stack frame is for a reviewer to judge (float64 sine has one).

Where LOWDNN_TEST_KERNELS names a folder, the PTX of fit kernels goes into it, as a cache that tests may start from.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.driver import nvrtc
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.graph.cases import parse_cases
from lowdnn.heuristics.ranking import rank
from lowdnn.plan import KernelRef
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.compile import cache_key, lowered
from lowdnn.runtime.sources import KernelSource, SourceTree

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "cases"
TABLE = ROOT / "tests" / "assembly" / "kernels.txt"
SOURCES = ROOT / "tests" / "assembly" / "sources.txt"
COLUMNS = ("registers", "shared", "stack", "spilled", "barriers")
HEADER = f"# kernel target {' '.join(COLUMNS)} (NVRTC {'.'.join(map(str, nvrtc.version()))}; sizes in bytes)"
SOURCES_HEADER = "# kernel target digest (of the whole source, the options and NVRTC's version)"
_JOBS = 2
_DIGEST_DIGITS = 16
#: Digests that begin so are not relied on: one in 16.
_CHECKED_AGAIN = "0"
_SERIALISED = re.compile(r"C75(?:08|1\d)")


@dataclass(frozen=True)
class Figures:
    """What ptxas says of one kernel; sizes in bytes, ``spilled`` counts stores and loads. ``serialised``: the warnings
    that it serialises ``wgmma``."""

    registers: int
    shared: int
    stack: int
    spilled: int
    barriers: int
    serialised: tuple[str, ...] = ()

    @property
    def unfit(self) -> str:
        """Why the kernel must not be shipped; empty where it may."""
        spilled = (f"{self.spilled} bytes spilled",) if self.spilled else ()
        return ", ".join((*spilled, *self.serialised))


Job = tuple[KernelRef, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="renew the table")
    parser.add_argument("--all", action="store_true", help="assemble also what has been, from the same source")
    arguments = parser.parse_args()
    wanted = jobs()
    digests = {name: digest_of(*job) for name, job in wanted.items()}
    known = {} if arguments.all else known_figures(digests)
    assembled = assemble_all({name: job for name, job in wanted.items() if name not in known})
    figures = {name: known[name] if name in known else assembled[name] for name in wanted}
    print(f"{len(assembled)} kernels assembled, {len(known)} known by their source")
    unfit = [f"{name}: {one.unfit}" for name, one in figures.items() if one.unfit]
    texts = {TABLE: table_of(figures), SOURCES: sources_of(digests, figures)}
    if arguments.write:
        TABLE.parent.mkdir(exist_ok=True)
        for path, text in texts.items():
            path.write_text(text)
        print(f"{TABLE}: {len(figures)} kernels")
        return report(unfit)
    return report(unfit + [line for path, text in texts.items() for line in differences(path, text)])


def jobs() -> dict[str, Job]:
    """The kernels by name and target, each with the architecture that it is assembled for."""
    found: dict[str, Job] = {}
    for kernel, arch in (*_precompiled(), *_of_cases()):
        found[f"{kernel.name} {arch}"] = (kernel, arch)
    return dict(sorted(found.items()))


def digest_of(kernel: KernelRef, arch: str) -> str:
    """Of all that the figures follow from."""
    return cache_key(SourceTree().read(kernel), arch, nvrtc.version())[:_DIGEST_DIGITS]


def known_figures(digests: Mapping[str, str]) -> dict[str, Figures]:
    """Those in the table that are of the same sources."""
    sources = dict(_rows(SOURCES))
    found = {name: line for name, line in _rows(TABLE) if name in digests and sources.get(name) == digests[name]}
    return {
        name: Figures(*map(int, line.split()))
        for name, line in found.items()
        if not digests[name].startswith(_CHECKED_AGAIN)
    }


def assemble(kernel: KernelRef, arch: str) -> Figures:
    """Compiles one kernel to machine code of ``arch`` (``sm_80``, ``sm_90a``...)."""
    source = SourceTree().read(kernel)
    ptx, figures = compile_and_assemble(source, arch)
    if (folder := os.environ.get("LOWDNN_TEST_KERNELS")) and arch == kernel.target and not figures.unfit:
        DiskCache(Path(folder)).put(cache_key(source, "", nvrtc.version()), lowered(ptx))
    return figures


def compile_and_assemble(source: KernelSource, arch: str) -> tuple[bytes, Figures]:
    """The PTX that one run of the compiler makes machine code of, and the figures of that."""
    compiled = nvrtc.compile_program(
        source.text,
        name=source.name,
        headers=dict(source.headers),
        options=(*source.options_for(arch), "--ptxas-options=-v"),
        output=nvrtc.Output.PTX,
    )
    return compiled.image, figures_of(compiled.log)


def figures_of(log: str) -> Figures:
    """Reads ptxas's ``-v`` lines about one kernel."""
    return Figures(
        _sum(log, r"Used (\d+) registers"),
        _sum(log, r"(\d+) bytes smem"),
        _sum(log, r"(\d+) bytes stack frame"),
        _sum(log, r"(\d+) bytes spill (?:stores|loads)"),
        _sum(log, r"used (\d+) barriers"),
        tuple(line for line in log.splitlines() if _SERIALISED.search(line)),
    )


def assemble_all(wanted: dict[str, Job]) -> dict[str, Figures]:
    """Figures by the names of ``wanted``; NVRTC compiles one program at a time in a process."""
    with ProcessPoolExecutor(_JOBS) as pool:
        return dict(zip(wanted, pool.map(_assemble_job, wanted.values(), chunksize=4), strict=True))


def table_of(figures: dict[str, Figures]) -> str:
    lines = (" ".join((name, *(str(getattr(one, column)) for column in COLUMNS))) for name, one in figures.items())
    return "\n".join((HEADER, *sorted(lines))) + "\n"


def sources_of(digests: Mapping[str, str], figures: Mapping[str, Figures]) -> str:
    """Of fit kernels: others are assembled until they are."""
    lines = sorted(f"{name} {digest}" for name, digest in digests.items() if not figures[name].unfit)
    return "\n".join((SOURCES_HEADER, *lines)) + "\n"


def differences(path: Path, text: str) -> list[str]:
    """What a reviewer would see if the file were renewed."""
    name = str(path.relative_to(ROOT))
    kept = _lines(path)
    return list(difflib.unified_diff(kept, text.splitlines(), name, f"{name} renewed", lineterm="", n=0))


def report(found: list[str]) -> int:
    for line in found:
        print(line)
    print("the table is up to date" if not found else "look at the above, then: python tools/assemble.py --write")
    return 1 if found else 0


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    """(kernel and target, the rest) of each line."""
    for line in _lines(path):
        if not line.startswith("#"):
            kernel, target, rest = line.split(" ", 2)
            yield f"{kernel} {target}", rest


def _precompiled() -> Iterator[Job]:
    for engine in ENGINES:
        for kernel in engine.precompiled():
            yield kernel, kernel.target
            yield kernel, "sm_90" if kernel.target == "sm_80" else kernel.target


def _of_cases() -> Iterator[Job]:
    for path in sorted(CASES.glob("*.txt")):
        for case in parse_cases(path.read_text(encoding="utf-8").splitlines()):
            graph = case.graph()
            for arch in (SM_80, SM_90A):
                for candidate in rank(graph, arch, HeurMode.A, ENGINES).candidates:
                    for kernel in candidate.plan.kernels:
                        yield kernel, kernel.target


def _assemble_job(job: Job) -> Figures:
    return assemble(*job)


def _sum(log: str, pattern: str) -> int:
    return sum(int(number) for number in re.findall(pattern, log))


if __name__ == "__main__":
    sys.exit(main())
