"""Random graphs over all operations are planned for every generation, and some are run and compared with the oracle.

``tools/random_graphs.py`` does so with any number of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.driver import open_driver
from tests.support.data import fresh_seed
from tests.support.random_graphs.checking import planned, problem_of
from tests.support.random_graphs.steps import random_graph
from tests.support.runtime import open_runtime

_PARTS = 10
_PLANNED, _RUN = 30, 3


@pytest.mark.parametrize("part", range(_PARTS))
def test_random_graphs(kernel_cache_dir: Path, part: int) -> None:
    first = fresh_seed()
    for seed in range(first, first + _PLANNED):
        grown = random_graph(seed)
        plans = [planned(grown, arch) for arch in (SM_90A, SM_80)]
        if seed < first + _RUN:
            with open_runtime(open_driver("emulated"), kernel_cache_dir) as runtime:
                for plan in plans:
                    assert not problem_of(runtime, grown, plan), (
                        f"python tools/random_graphs.py --first {seed} --count 1"
                    )
