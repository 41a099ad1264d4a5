"""Plants small faults in lowdnn, one at a time, and runs the nearest tests: do they see them?

    python -m tools.checks.mutants [--layer LAYER]... [--only TEXT]... [--jobs N] [--out FILE [--again] [--table]]

The faults are the tables in ``tools/checks/mutants/`` (``mutant_tables.py`` has their format). Each process works on a
copy of the checkout, which itself is not touched. A test counts that fails with the fault and passes without it. FILE
gets a line for each verdict. A run with the same FILE goes on behind it; with ``--again`` it judges those again that no
test has caught. ``--table`` shows FILE and runs nothing.

Verdicts: ``caught`` by a test; ``stopped`` by the time limit or a signal, which a run of the tests notices as well;
``survived``; ``invalid``: the mutant is no program, or its tests fail without it. The exit code is 1 where a mutant
without a reason survived, one that is equivalent was caught, or one is invalid.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

from tools.checks.mutant_tables import ROOT, Mutant, read_tables, select

#: Seconds for the nearest tests of one mutant; the slowest take a fifth of that without one.
_LIMIT_S = 240.0
#: Files that a copy needs. The precompiled kernels are read only.
COPIED = ("lowdnn", "tests", "tools", "pyproject.toml", "README.md", "CONTRIBUTING.md", "DIVERGENCES.md")
LINKED = ("ptx",)
#: Parts of the product that fill the folder of compiled kernels: their mutants get one of their own.
_KERNEL_MAKERS = ("lowdnn/runtime/", "lowdnn/driver/")
_UNCAUGHT = ("survived", "stopped", "invalid")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (?! )(.*?)(?: - .*)?$", re.MULTILINE)
_NO_PROGRAM = re.compile(r"^E +(\S+\.)?(SyntaxError|IndentationError|CompilationFailedError)\b", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a mutant.  detail: the test that failed, or another reason."""

    key: str
    outcome: str
    detail: str
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", action="append", default=[], help="only the mutants of this table")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="only where file or name holds it")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE", help="verdicts, one JSON object a line")
    parser.add_argument("--again", action="store_true", help="judge again what no test has caught")
    parser.add_argument("--table", action="store_true", help="show the verdicts that FILE has")
    arguments = parser.parse_args()
    chosen = runnable(select(read_tables(), arguments.layer, arguments.only))
    known = _read(arguments.out)
    if not arguments.table:
        settled = {key for key, verdict in known.items() if not (arguments.again and verdict.outcome in _UNCAUGHT)}
        pending = [mutant for mutant in chosen if mutant.key not in settled]
        with tempfile.TemporaryDirectory() as folder:
            known |= _run(pending, Path(folder), arguments.jobs, arguments.out)
    return _report(chosen, known)


def runnable(mutants: Sequence[Mutant]) -> list[Mutant]:
    """The mutants whose tests are not skipped here: those of ``lowdnn.torch`` need PyTorch."""
    if find_spec("torch") is not None:
        return [*mutants]
    kept = [mutant for mutant in mutants if not mutant.file.startswith("lowdnn/torch/")]
    if len(kept) < len(mutants):
        print(f"{len(mutants) - len(kept)} mutants of lowdnn.torch are left out: PyTorch is not installed")
    return kept


class Tree:
    """A copy of the checkout, in which one mutant at a time is planted."""

    def __init__(self, folder: Path, kernels: Path) -> None:
        self._root = folder
        self._kernels = kernels
        self._edits = 0
        folder.mkdir()
        for name in COPIED:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, target)
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)

    def verdict(self, mutant: Mutant, passes: Callable[[Tree, str], bool]) -> Verdict:
        """The verdict of the nearest tests. ``passes``: whether a test passes in a tree without a fault."""
        start = time.monotonic()
        path = self._root / mutant.file
        text = path.read_text()
        is_shared = not mutant.file.startswith(_KERNEL_MAKERS)
        try:
            self._write(path, mutant.applied(text))
            code, output = self.run_tests(mutant.tests, is_shared=is_shared)
        finally:
            self._write(path, text)
        failed = next(iter(_FAILED.findall(output)), "")
        if code is None or code < 0:
            outcome, detail = "stopped", f"after {_LIMIT_S:.0f} s" if code is None else f"by signal {-code}"
        elif code == 0:
            outcome, detail = "survived", ""
        elif code != 1 or _NO_PROGRAM.search(output) or not passes(self, failed):
            outcome, detail = "invalid", f"{failed or code}: {_told(output)}"
        else:
            outcome, detail = "caught", failed
        return Verdict(mutant.key, outcome, detail, round(time.monotonic() - start, 1))

    def run_tests(self, arguments: Sequence[str], *, is_shared: bool = True) -> tuple[int | None, str]:
        """(pytest's exit code, or None at the time limit; what it printed). ``is_shared``: with the compiled kernels
        of all copies."""
        kernels = self._kernels if is_shared else self._root / "kernels"
        environment = os.environ | {
            "PYTHONPATH": str(self._root),
            "LOWDNN_TEST_KERNELS": str(kernels),
            "LOWDNN_TEST_SEED": "7",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = (sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", "-p", "no:cacheprovider", *arguments)
        process = subprocess.Popen(
            command,
            cwd=self._root,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_LIMIT_S)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]
        finally:
            if not is_shared:
                shutil.rmtree(kernels, ignore_errors=True)

    def _write(self, path: Path, text: str) -> None:
        """Gives each text a time of its own, since Python tells stale byte code by the second."""
        self._edits += 1
        path.write_text(text)
        os.utime(path, (self._edits, self._edits))


class CleanTests:
    """Which tests pass without a fault, each asked once."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}
        self._lock = Lock()

    def passes(self, tree: Tree, test: str) -> bool:
        with self._lock:
            known = self._known.get(test)
        if known is None:
            known = tree.run_tests((test,))[0] == 0
            with self._lock:
                self._known[test] = known
        return known


def _run(mutants: Sequence[Mutant], folder: Path, jobs: int, out: Path | None) -> dict[str, Verdict]:
    """The verdicts on ``mutants``, each written to ``out`` at once."""
    clean, lock = CleanTests(), Lock()
    trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for number in range(min(jobs, len(mutants))):
        trees.put(Tree(folder / f"tree{number}", folder / "kernels"))
    found: dict[str, Verdict] = {}

    def judge(mutant: Mutant) -> None:
        tree = trees.get()
        try:
            verdict = tree.verdict(mutant, clean.passes)
        finally:
            trees.put(tree)
        with lock:
            found[mutant.key] = verdict
            print(f"[{len(found)}/{len(mutants)}] {_line(mutant, verdict)}", flush=True)
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(asdict(verdict)) + "\n")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(judge, mutants))
    return found


def _read(path: Path | None) -> dict[str, Verdict]:
    if path is None or not path.exists():
        return {}
    verdicts = (Verdict(**json.loads(line)) for line in path.read_text().splitlines())
    return {verdict.key: verdict for verdict in verdicts}


def _report(mutants: Sequence[Mutant], known: dict[str, Verdict]) -> int:
    """Prints the table by layer and every unexpected verdict; returns the exit code."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    wrong = []
    for mutant in mutants:
        verdict = known.get(mutant.key)
        outcome = "pending" if verdict is None else verdict.outcome
        if mutant.is_equivalent and outcome == "survived":
            outcome = "equivalent"
        counts[mutant.layer][outcome] += 1
        if verdict is not None and _is_wrong(mutant, outcome):
            wrong.append(_line(mutant, verdict))
    columns = ("caught", "stopped", "survived", "equivalent", "invalid", "pending")
    print(f"\n{'layer':12} {'mutants':>8} " + " ".join(f"{name:>10}" for name in columns))
    for layer, row in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        print(f"{layer:12} {row.total():8} " + " ".join(f"{row[name]:10}" for name in columns))
    for line in wrong:
        print(line)
    return int(bool(wrong))


def _is_wrong(mutant: Mutant, outcome: str) -> bool:
    if outcome == "survived":
        return not mutant.reason
    return outcome == "invalid" or (mutant.is_equivalent and outcome != "equivalent")


def _line(mutant: Mutant, verdict: Verdict) -> str:
    return f"{verdict.outcome:9} {verdict.seconds:6.1f} s  {mutant}  [{mutant.reason or verdict.detail}]"


def _told(output: str) -> str:
    """The first error that pytest shows."""
    errors = [line for line in output.splitlines() if line.startswith("E ")]
    return " ".join((errors or output.splitlines() or [""])[0].split())[:200]


if __name__ == "__main__":
    sys.exit(main())
