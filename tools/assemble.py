"""Assembles kernels for real GPUs, without one, and keeps a table of what ptxas says of each.

    python tools/assemble.py            fail where the table is not what the kernels give, or a kernel is unfit
    python tools/assemble.py --all      the same, and assemble every kernel again
    python tools/assemble.py --write    renew the table

The kernels: every precompiled one, for its own target and for sm_90 (where drivers compile its PTX), and every one that
an engine takes for a text case of ``tests/cases``. ``tests/assembly/kernels.txt`` has one line for each, for a reviewer
to diff; ``digests.txt`` beside it names the sources that the lines belong to. Without ``--all`` only kernels whose
source has changed are assembled, and a tenth of the others, drawn anew each time, so that the table stays honest.

Unfit: spilled registers, and ``wgmma`` that ptxas serialises (warnings C7508 and C7510). A stack frame is for a
reviewer to judge (float64 sine has one).
"""

from __future__ import annotations

import argparse
import difflib
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.driver import nvrtc
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.graph.cases import parse_cases
from lowdnn.heuristics.ranking import rank
from lowdnn.plan import KernelRef
from lowdnn.runtime.sources import SourceTree

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "cases"
TABLE = ROOT / "tests" / "assembly" / "kernels.txt"
DIGESTS = TABLE.with_name("digests.txt")
COLUMNS = ("registers", "shared", "stack", "spilled", "barriers")
HEADER = f"# kernel target {' '.join(COLUMNS)} (NVRTC {'.'.join(map(str, nvrtc.version()))}; sizes in bytes)"
_JOBS = 2
#: One in so many unchanged kernels is assembled again.
_SAMPLE = 10
_SERIALISED = re.compile(r"C75(?:08|10)")


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
    parser.add_argument("--all", action="store_true", help="assemble every kernel, not only changed ones and a sample")
    parser.add_argument("--write", action="store_true", help="renew the table")
    arguments = parser.parse_args()
    wanted = jobs()
    known = {} if arguments.all else unchanged(wanted, secrets.randbits(32))
    figures = assemble_all([job for name, job in wanted.items() if name not in known])
    unfit = [f"{name}: {one.unfit}" for name, one in figures.items() if one.unfit]
    lines = known | {name: line_of(name, one) for name, one in figures.items()}
    files = {TABLE: text_of(HEADER, lines.values()), DIGESTS: text_of("# kernel target digest", digests(wanted))}
    if arguments.write:
        for path, text in files.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        print(f"{TABLE}: {len(lines)} kernels, {len(figures)} of them assembled now")
        return report(unfit)
    return report(unfit + differences(files))


def jobs() -> dict[str, Job]:
    """The kernels by name and target, each with the architecture that it is assembled for."""
    found: dict[str, Job] = {}
    for kernel, arch in (*_precompiled(), *_of_cases()):
        found[f"{kernel.name} {arch}"] = (kernel, arch)
    return dict(sorted(found.items()))


def assemble(kernel: KernelRef, arch: str) -> Figures:
    """Compiles one kernel to machine code of ``arch`` (``sm_80``, ``sm_90a``...)."""
    source = SourceTree().read(kernel)
    compiled = nvrtc.compile_program(
        source.text,
        name=kernel.name,
        headers=dict(source.headers),
        options=(*source.options_for(arch), "--ptxas-options=-v"),
        output=nvrtc.Output.CUBIN,
    )
    return figures_of(compiled.log)


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


def assemble_all(chosen: Iterable[Job]) -> dict[str, Figures]:
    chosen = list(chosen)
    with ThreadPoolExecutor(_JOBS) as pool:
        figures = list(pool.map(lambda job: assemble(*job), chosen))
    return {f"{kernel.name} {arch}": one for (kernel, arch), one in zip(chosen, figures, strict=True)}


def unchanged(wanted: Mapping[str, Job], seed: int) -> dict[str, str]:
    """Lines of the table whose kernels have the sources of then, less a sample; none where NVRTC is another one."""
    header, *table = _lines(TABLE)
    if header != HEADER:
        return {}
    lines = {" ".join(line.split()[:2]): line for line in table}
    then, now = set(_lines(DIGESTS)[1:]), digests(wanted)
    draw = Random(seed)
    kept = [name for name, digest in zip(wanted, now, strict=True) if digest in then and name in lines]
    return {name: lines[name] for name in kept if draw.randrange(_SAMPLE)}


def digests(wanted: Mapping[str, Job]) -> list[str]:
    """``kernel target digest of its whole source``, in the order of ``wanted``."""
    tree = SourceTree()
    return [f"{name} {tree.read(kernel).digest[:16]}" for name, (kernel, _) in wanted.items()]


def line_of(name: str, figures: Figures) -> str:
    return " ".join((name, *(str(getattr(figures, column)) for column in COLUMNS)))


def text_of(header: str, lines: Iterable[str]) -> str:
    return "\n".join((header, *sorted(lines))) + "\n"


def differences(files: Mapping[Path, str]) -> list[str]:
    """What a reviewer would see if the files were renewed."""
    found: list[str] = []
    for path, text in files.items():
        name = str(path.relative_to(ROOT))
        diff = difflib.unified_diff(_lines(path), text.splitlines(), name, f"{name} renewed", lineterm="", n=0)
        found += diff
    return found


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


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else [""]


def _sum(log: str, pattern: str) -> int:
    return sum(int(number) for number in re.findall(pattern, log))


if __name__ == "__main__":
    sys.exit(main())
