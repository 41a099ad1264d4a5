"""Assembles kernels for real GPUs, without one, and keeps a table of what ptxas says of each.

    python tools/assemble.py            fail where the table is not what the kernels give, or a kernel is unfit
    python tools/assemble.py --write    renew the table

The kernels: every precompiled one, for its own target and for sm_90 (where drivers compile its PTX), and every one that
an engine takes for a text case of ``tests/cases``. ``tests/assembly/kernels.txt`` has one line for each, for a reviewer
to diff.

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
from collections.abc import Iterator
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
COLUMNS = ("registers", "shared", "stack", "spilled", "barriers")
HEADER = f"# kernel target {' '.join(COLUMNS)} (NVRTC {'.'.join(map(str, nvrtc.version()))}; sizes in bytes)"
_JOBS = 2
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
    arguments = parser.parse_args()
    figures = assemble_all(jobs())
    unfit = [f"{name}: {one.unfit}" for name, one in figures.items() if one.unfit]
    text = table_of(figures)
    if arguments.write:
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(text)
        print(f"{TABLE}: {len(figures)} kernels")
        return report(unfit)
    return report(unfit + differences(text))


def jobs() -> dict[str, Job]:
    """The kernels by name and target, each with the architecture that it is assembled for."""
    found: dict[str, Job] = {}
    for kernel, arch in (*_precompiled(), *_of_cases()):
        found[f"{kernel.name} {arch}"] = (kernel, arch)
    return dict(sorted(found.items()))


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


def differences(text: str) -> list[str]:
    """What a reviewer would see if the table were renewed."""
    name = str(TABLE.relative_to(ROOT))
    kept = TABLE.read_text(encoding="utf-8").splitlines() if TABLE.is_file() else []
    return list(difflib.unified_diff(kept, text.splitlines(), name, f"{name} renewed", lineterm="", n=0))


def report(found: list[str]) -> int:
    for line in found:
        print(line)
    print("the table is up to date" if not found else "look at the above, then: python tools/assemble.py --write")
    return 1 if found else 0


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
