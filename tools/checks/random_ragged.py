"""Random ragged attention, and gradients of it, in tensors that end with their last sequence, on the emulated device.

    python -m tools.checks.random_ragged COUNT [--seed N]

Prints a line for each case and engine; stops at the first that touches other memory or is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from lowdnn.driver import open_driver
from tests.support.runtime import open_runtime
from tests.sweeps.random_ragged import check, draw, draw_backward, engines_of

_MOST_ROWS = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(arguments.count):
            for drawn in (draw, draw_backward):
                _run(drawn(rng, rng, _MOST_ROWS), int(rng.integers(2**32)), Path(cache))
    return 0


def _run(line: str, seed: int, cache: Path) -> None:
    for engine in engines_of(line):
        print(f"{engine.name}, seed {seed}, {line}", flush=True)
        with open_runtime(open_driver("emulated"), cache) as runtime:
            check(runtime, engine, line, seed)


if __name__ == "__main__":
    sys.exit(main())
