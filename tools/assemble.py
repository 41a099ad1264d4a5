"""Assembles kernels for real GPUs, without one, and keeps a table of what ptxas says of each.

    python tools/assemble.py            fail where the table is not what the kernels give, or a kernel is unfit
    python tools/assemble.py --write    renew the table
    python tools/assemble.py --all      the same of every kernel, whatever is known of it (also with --write)

The kernels: every precompiled one, for every architecture of ``lowdnn/arch`` that runs it; every one that an engine
takes for a text case of ``tests/cases``, for every architecture that plans it so; and those of the engines, knobs and
cases in ``tests/assembly/choices.txt``, of large tiles or of FFT and Winograd mostly. ``tests/assembly/kernels.txt``
has a line for each, for a reviewer to diff: its name, the digest of its whole source and options, and the figures, with
the architectures that share them in front:

    matmul_simt_fp32_..._sm80 5d1c0a... 80,86,87,89 72 0 0 0 1 | 90,100 70 0 0 0 1

A fit kernel whose digest is still that one is not assembled again, but for a fortieth of them, each for one of its
architectures, which would show a table that somebody has edited. A seed says which: ``--seed``, or LOWDNN_TEST_SEED, or
one drawn afresh.

Unfit: spilled registers on the architectures that kernels are written for (8.0, 8.9, 9.0), ``setmaxnreg`` that ptxas
ignores (C7508), and ``wgmma`` that it serialises or makes wait (C7510 to C7519). A stack frame is for a reviewer to
judge (float64 sine has one), and so are the registers that an older generation's kernel spills on a newer device.

Where LOWDNN_TEST_KERNELS names a folder, the PTX of fit kernels goes into it, as a cache that tests may start from.
"""

from __future__ import annotations

import argparse
import difflib
import os
import random
import re
import secrets
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path

from lowdnn.arch.specs import ArchSpec, all_specs, spec_named
from lowdnn.arch.targets import GENERATIONS
from lowdnn.cases import parse_case, parse_cases
from lowdnn.cases.base import Case
from lowdnn.driver import nvrtc
from lowdnn.engines.base import Choices
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode, KnobType, NumericalNote
from lowdnn.heuristics.ranking import rank
from lowdnn.plan import KernelRef, Plan
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.compile import cache_key, lowered, machine_arch_of
from lowdnn.runtime.sources import KernelSource, SourceTree

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "cases"
CHOICES = ROOT / "tests" / "assembly" / "choices.txt"
TABLE = ROOT / "tests" / "assembly" / "kernels.txt"
_TRANSFORMS = frozenset({NumericalNote.FFT, NumericalNote.WINOGRAD})
COLUMNS = ("registers", "shared", "stack", "spilled", "barriers")
HEADER = (
    f"# kernel digest architectures {' '.join(COLUMNS)} | architectures ... "
    f"(NVRTC {'.'.join(map(str, nvrtc.version()))}; sizes in bytes)"
)
_DIGEST_DIGITS = 16
#: One in so many of the kernels that are known is assembled again.
_CHECKED_AGAIN = 40
#: Assembled between two writes of the table: a run that is cut short keeps the rest.
_SAVED_TOGETHER = 400
_SERIALISED = re.compile(r"C75(?:08|1\d)")


@dataclass(frozen=True)
class Figures:
    """The figures of ptxas for one kernel; sizes in bytes, ``spilled`` counts stores and loads. ``serialised``: the
    warnings that it serialises ``wgmma``."""

    registers: int
    shared: int
    stack: int
    spilled: int
    barriers: int
    serialised: tuple[str, ...] = ()

    def unfit_on(self, arch: str) -> str:
        """Why the kernel must not be shipped for ``arch``; empty where it may."""
        is_own = arch in {generation.target for generation in GENERATIONS}
        spilled = (f"{self.spilled} bytes spilled",) if self.spilled and is_own else ()
        return ", ".join((*spilled, *self.serialised))


#: A kernel's name and the architecture that it is assembled for (``sm_80``, ``sm_90a``...).
Key = tuple[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="renew the table")
    parser.add_argument("--all", action="store_true", help="assemble also what has been, from the same source")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    parser.add_argument("--seed", type=int, help="of the choice of what is assembled again")
    arguments = parser.parse_args()
    wanted = jobs((*chosen(), *planned(text_cases())))
    digests = digests_of(wanted)
    figures = {} if arguments.all else known_figures(wanted, digests)
    missing = [key for key in wanted if key not in figures]
    seed = seed_of(arguments.seed)
    again = chosen_again(figures, seed)
    print(
        f"{len(missing)} kernels to assemble, {len(again)} of {len(figures)} known ones again (seed {seed})", flush=True
    )
    pending = missing + again
    for start in range(0, len(pending), _SAVED_TOGETHER):
        together = {key: wanted[key] for key in pending[start : start + _SAVED_TOGETHER]}
        figures |= assemble_all(together, arguments.jobs)
        if arguments.write:
            TABLE.write_text(table_of(figures, digests))
    unfit = [f"{' '.join(key)}: {why}" for key, one in sorted(figures.items()) if (why := one.unfit_on(key[1]))]
    return report(unfit if arguments.write else [*unfit, *differences(table_of(figures, digests))])


def text_cases() -> Iterator[Case]:
    for path in sorted(CASES.glob("*.txt")):
        yield from parse_cases(path.read_text(encoding="utf-8").splitlines())


def planned(cases: Iterable[Case]) -> Iterator[tuple[Plan, ArchSpec]]:
    """Every plan of every case, for each architecture, but for those by FFT and Winograd, which ``choices.txt`` has."""
    engines = [engine for engine in ENGINES if _TRANSFORMS.isdisjoint(engine.numerical_notes)]
    for case in cases:
        graph = case.graph()
        for arch in all_specs():
            yield from ((found.plan, arch) for found in rank(graph, arch, HeurMode.A, engines).candidates)


def chosen() -> Iterator[tuple[Plan, ArchSpec]]:
    """The plans of ``choices.txt``, each line of which names architectures, an engine, knobs and a case."""
    engines = {engine.name: engine for engine in ENGINES}
    for line in CHOICES.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            archs, engine, knobs, case = line.split(" ", 3)
            graph, choices = parse_case(case).graph(), _choices(knobs)
            for arch in map(spec_named, archs.split(",")):
                yield engines[engine].plan(graph, arch, choices), arch


def jobs(plans: Iterable[tuple[Plan, ArchSpec]]) -> dict[Key, KernelRef]:
    """The kernels of ``plans`` and the precompiled ones, by name and the architecture that each is assembled for,
    sorted."""
    kernels = ((kernel, arch) for plan, arch in plans for kernel in plan.kernels)
    found: dict[Key, KernelRef] = {}
    named: dict[str, KernelRef] = {}
    for kernel, arch in (*_precompiled(), *kernels):
        if named.setdefault(kernel.name, kernel) != kernel:
            raise ValueError(f"two kernels are named {kernel.name}")
        found[key_of(kernel, arch)] = kernel
    return dict(sorted(found.items()))


def key_of(kernel: KernelRef, arch: ArchSpec) -> Key:
    """The kernel as ``arch`` runs it: machine code of its own, or of the kernel's target where that has a suffix."""
    return kernel.name, machine_arch_of(kernel, arch.compute_capability)


def digests_of(wanted: Mapping[Key, KernelRef]) -> dict[str, str]:
    """The digest of each kernel, by name."""
    return {name: digest_of(kernel) for name, kernel in {key[0]: kernel for key, kernel in wanted.items()}.items()}


def digest_of(kernel: KernelRef) -> str:
    """The digest of the source, its headers and the options; the table's header has NVRTC's version."""
    return SourceTree().read(kernel).digest[:_DIGEST_DIGITS]


def known_figures(wanted: Collection[Key], digests: Mapping[str, str]) -> dict[Key, Figures]:
    """The figures in the table that are of the same sources and fit."""
    return {
        key: figures
        for key, digest, figures in recorded_figures()
        if digests.get(key[0]) == digest and key in wanted and not figures.unfit_on(key[1])
    }


def recorded_figures() -> Iterator[tuple[Key, str, Figures]]:
    """The lines of the table: a kernel, the digest of its source and its figures; none of another compiler."""
    lines = _lines()
    for line in lines[1:] if lines[:1] == [HEADER] else ():
        name, digest, groups = line.split(" ", 2)
        yield from (((name, arch), digest, figures) for arch, figures in _parsed(groups))


def seed_of(given: int | None) -> int:
    """The seed that was asked for, else that of the tests, else a new one."""
    fresh = os.environ.get("LOWDNN_TEST_SEED") or secrets.randbits(31)
    return int(fresh) if given is None else given


def chosen_again(known: Collection[Key], seed: int) -> list[Key]:
    """A fortieth of the known kernels, at random, each for one of its architectures."""
    architectures: dict[str, list[str]] = defaultdict(list)
    for name, arch in sorted(known):
        architectures[name].append(arch)
    draw = random.Random(seed)
    names = draw.sample(list(architectures), -(-len(architectures) // _CHECKED_AGAIN))
    return [(name, draw.choice(architectures[name])) for name in names]


def assemble(kernel: KernelRef, arch: str) -> Figures:
    """Compiles one kernel to machine code of ``arch`` (``sm_80``, ``sm_90a``...)."""
    source = SourceTree().read(kernel)
    ptx, figures = compile_and_assemble(source, arch)
    if (folder := os.environ.get("LOWDNN_TEST_KERNELS")) and arch == kernel.target and not figures.unfit_on(arch):
        DiskCache(Path(folder)).put(cache_key(source, "", nvrtc.build()), lowered(ptx))
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


def assemble_all(wanted: Mapping[Key, KernelRef], processes: int) -> dict[Key, Figures]:
    """Figures by the keys of ``wanted``; NVRTC compiles one program at a time in a process."""
    with ProcessPoolExecutor(processes) as pool:
        archs = (arch for _, arch in wanted)
        return dict(zip(wanted, pool.map(assemble, wanted.values(), archs, chunksize=4), strict=True))


def table_of(figures: Mapping[Key, Figures], digests: Mapping[str, str]) -> str:
    """The table: one line a kernel, with its architectures in groups of equal figures."""
    groups: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (name, arch), one in sorted(figures.items(), key=lambda item: (item[0][0], _number(item[0][1]))):
        groups[name][" ".join(map(str, astuple(one)[: len(COLUMNS)]))].append(arch.removeprefix("sm_"))
    lines = (
        f"{name} {digests[name]} " + " | ".join(f"{','.join(archs)} {text}" for text, archs in found.items())
        for name, found in groups.items()
    )
    return "\n".join((HEADER, *lines)) + "\n"


def differences(text: str) -> list[str]:
    """The changes that a reviewer would see if the table were renewed."""
    name = str(TABLE.relative_to(ROOT))
    return list(difflib.unified_diff(_lines(), text.splitlines(), name, f"{name} renewed", lineterm="", n=0))


def report(found: list[str]) -> int:
    for line in found:
        print(line)
    print("the table is up to date" if not found else "look at the above, then: python tools/assemble.py --write")
    return 1 if found else 0


def _lines() -> list[str]:
    return TABLE.read_text(encoding="utf-8").splitlines() if TABLE.is_file() else []


def _parsed(groups: str) -> Iterator[tuple[str, Figures]]:
    """(architecture, figures) pairs of a line, from its text after name and digest."""
    for group in groups.split(" | "):
        archs, *numbers = group.split(" ")
        figures = Figures(*map(int, numbers))
        yield from ((f"sm_{arch}", figures) for arch in archs.split(","))


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("af"))


def _precompiled() -> Iterator[tuple[KernelRef, ArchSpec]]:
    for engine in ENGINES:
        for kernel in engine.precompiled():
            yield from ((kernel, arch) for arch in all_specs() if arch.runs(kernel.target))


def _choices(knobs: str) -> Choices:
    """``TILE_M=64,STAGES=2`` or ``default``."""
    pairs = (knob.split("=") for knob in knobs.split(",") if knob != "default")
    return {KnobType[name]: int(value) for name, value in pairs}


def _sum(log: str, pattern: str) -> int:
    return sum(int(number) for number in re.findall(pattern, log))


if __name__ == "__main__":
    sys.exit(main())
