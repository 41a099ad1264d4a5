"""Children of fork, whatever the threads of the parent were doing."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lowdnn
from lowdnn.backend.handle import Handle
from lowdnn.events import Counters
from lowdnn.forking import _listeners
from lowdnn.runtime.context import Liveness
from lowdnn.status import NotInitializedError
from tests.runtime.fork_under_load import CHILDREN

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("activity", ["execute", "build", "load", "reserve", "write", "allocate", "reopen"])
def test_a_child_is_told_at_once(activity: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.runtime.fork_under_load", activity, str(tmp_path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (found.returncode, found.stdout.strip()) == (0, str(CHILDREN)), found.stderr[-3000:]


def test_what_listens_is_not_kept_alive() -> None:
    gc.collect()
    before = len(_listeners())
    objects: list[Liveness | Counters] = [Liveness(), Counters()]
    watched = [weakref.ref(one) for one in objects]
    assert len(_listeners()) == before + 2
    objects.clear()
    gc.collect()
    assert [one() for one in watched] == [None, None]
    assert len(_listeners()) == before


@pytest.fixture
def opened() -> Iterator[Handle]:
    with Handle.open("emulated") as handle:
        yield handle


def worker_with_its_own_handle(value: float) -> float:
    with Handle.open("emulated") as handle:
        return float(lowdnn.from_numpy(np.full(3, value, np.float32), handle).numpy().sum())


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_open_handles_of_their_own(start: str, opened: Handle) -> None:
    with multiprocessing.get_context(start).Pool(2) as pool:
        assert pool.map(worker_with_its_own_handle, [1.0, 2.0, 3.0]) == [3.0, 6.0, 9.0]


class Inherited:
    """A handle that the workers of fork find in the parent's memory."""

    handle: Handle


def use_the_parents(_: int) -> None:
    lowdnn.from_numpy(np.zeros(3, np.float32), Inherited.handle)


def test_the_error_of_an_inherited_handle_reaches_the_parent(opened: Handle) -> None:
    Inherited.handle = opened
    with (
        multiprocessing.get_context("fork").Pool(1) as pool,
        pytest.raises(NotInitializedError, match="start workers by spawn or forkserver"),
    ):
        pool.map(use_the_parents, [0])
