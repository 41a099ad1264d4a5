"""Every check of the project in one command: ``python tools/check.py [STEP...]``.

Steps, in order: lint, format, types, layers, size, words, manifest, reference, assembly, tests. Without arguments all
run; the exit code is that of the first step that failed. Steps of one process run two at a time, the others after
them, unless one has failed. Run from anywhere; the working directory becomes the repository root.

The tests draw their data and shapes from a seed that follows from the kernels: the same kernels give the same run, so
that a failure is there for whoever looks at it. ``python -m pytest`` by itself draws afresh each time. They do not
compile again what ``assembly`` has compiled. pytest-xdist spreads them over two processes; no test needs it, so that
``layers`` runs without it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

ROOT = Path(__file__).resolve().parent.parent
_KERNELS = (ROOT / "ptx" / "MANIFEST.json", ROOT / "tests" / "assembly" / "kernels.txt")

STEPS: dict[str, Sequence[str]] = {
    "lint": (sys.executable, "-m", "ruff", "check", "."),
    "format": (sys.executable, "-m", "ruff", "format", "--check", "."),
    "types": (sys.executable, "-m", "mypy"),
    "layers": (sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "tests/test_layers.py"),
    "size": (sys.executable, "-m", "tools.checks.size"),
    "words": (sys.executable, "-m", "tools.checks.words"),
    "manifest": (sys.executable, "tools/build_ptx.py", "--check"),
    "reference": (sys.executable, "tools/reference.py", "--check"),
    "assembly": (sys.executable, "tools/assemble.py"),
    "tests": (sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal"),
}

#: Steps that keep two cores busy by themselves.
_OF_TWO_PROCESSES = ("assembly", "tests")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"any of: {', '.join(STEPS)}")
    chosen = parser.parse_args().steps or list(STEPS)
    unknown = [step for step in chosen if step not in STEPS]
    if unknown:
        parser.error(f"expected steps out of {', '.join(STEPS)}, got {', '.join(unknown)}")
    with TemporaryDirectory() as kernels:
        small = [step for step in chosen if step not in _OF_TWO_PROCESSES]
        with ThreadPoolExecutor(2) as pool:
            codes = [*pool.map(lambda step: run(step, kernels, is_alone=False), small)]
        for step in (step for step in chosen if step in _OF_TWO_PROCESSES):
            if not any(codes):
                codes.append(run(step, kernels, is_alone=True))
    return next(filter(None, codes), 0)


def run(step: str, kernels: str, *, is_alone: bool) -> int:
    """The step's exit code. ``kernels``: a folder for what the steps compile. The output of a step that is not alone is
    shown at its end."""
    if is_alone:
        print(f"== {step}", flush=True)
    start = time.monotonic()
    # Two test workers with a threaded BLAS each would fight for the same cores.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment["LOWDNN_TEST_KERNELS"] = kernels
    environment["LOWDNN_TEST_SEED"] = str(crc32(b"".join(path.read_bytes() for path in _KERNELS)))
    output = None if is_alone else subprocess.PIPE
    done = subprocess.run(
        STEPS[step],
        cwd=ROOT,
        env=environment,
        check=False,
        text=True,
        stdout=output,
        stderr=output and subprocess.STDOUT,
    )
    verdict = "ok" if done.returncode == 0 else f"FAILED ({done.returncode})"
    print(f"{done.stdout or ''}== {step}: {verdict} in {time.monotonic() - start:.1f} s", flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
