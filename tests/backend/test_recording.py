"""LOWDNN_RECORD_CASES: the graphs that a program runs, with the number of executes of each."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowdnn import create_handle, from_numpy
from lowdnn.backend.handle import Handle
from lowdnn.backend.recording import CaseRecorder, RecordingWarning
from lowdnn.cases import parse_case, parse_counted_cases
from lowdnn.cases.counted import HEADER
from lowdnn.config import Config
from lowdnn.enums import HeurMode
from lowdnn.frontend import data_type, pygraph
from lowdnn.heuristics.ranking import rank
from lowdnn.runtime.plan_cache import PlanCache

ROOT = Path(__file__).parents[2]
MATMUL = "matmul m=4 n=8 k=16 b=1"


def opened(path: Path) -> Handle:
    return Handle.open("emulated", config=Config(record_cases=path, disk_cache=False))


def product(handle: Handle, relu: bool = False) -> Callable[[], object]:
    """An execute of a built graph."""
    kind = data_type.FLOAT
    graph = pygraph("product", kind, kind, kind, handle)
    a, b = graph.tensor([1, 4, 16]), graph.tensor([1, 16, 8])
    c = graph.matmul(a, b)
    c = graph.relu(c) if relu else c
    c.set_output(True)
    graph.build()
    tensors = {t: from_numpy(np.ones(t.get_dim(), np.float32), handle) for t in (a, b, c)}
    workspace = from_numpy(np.zeros(max(graph.get_workspace_size(), 1), np.uint8), handle)
    return lambda: graph.execute(tensors, workspace)


def counts(path: Path) -> dict[str, int]:
    return {str(case): count for count, case in parse_counted_cases(path.read_text().splitlines())}


def test_executes_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "cases"
    with opened(path) as handle:
        first, same, other = product(handle), product(handle), product(handle, relu=True)
        for execute in (first, first, same, other):
            execute()
        threads = [threading.Thread(target=lambda: [first() for _ in range(5)]) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        product(handle)
    assert counts(path) == {MATMUL: 13, f"{MATMUL} epilogue=relu": 1}
    with opened(path) as handle:
        product(handle)()
    assert counts(path)[MATMUL] == 14


def test_handles_that_share_plans_count_each_execute_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = tmp_path / "cases", PlanCache()
    monkeypatch.setenv("LOWDNN_RECORD_CASES", str(path))
    with (
        create_handle("emulated") as other,
        create_handle(same_device_as=other, plan_cache=cache) as first,
        create_handle(same_device_as=other, plan_cache=cache) as second,
    ):
        for handle in (first, second):
            execute = product(handle)
            execute()
            execute()
        assert cache.statistics().plans == 1
        first.close()
        execute()
    assert counts(path) == {MATMUL: 5}


def test_a_logged_launch_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cases"
    with caplog.at_level(logging.DEBUG, "lowdnn.launch"), opened(path) as handle:
        product(handle)()
    assert counts(path) == {MATMUL: 1}
    assert sum(record.name == "lowdnn.launch" for record in caplog.records) == 1


def test_nothing_is_recorded_unasked(tmp_path: Path) -> None:
    with Handle.open("emulated", config=Config(disk_cache=False)) as handle:
        product(handle)()
    assert not os.listdir(tmp_path)


#: The parent executes once and forks. The child executes three times with a handle of its own, and stays.
PARENT_AND_CHILD = """
import os, time
from lowdnn import create_handle
from tests.backend.test_recording import product
handle = create_handle()
execute = product(handle)
execute()
if os.fork():
    execute()
    os.wait()
handle.close()
mine = create_handle()
execute = product(mine, relu=True)
for _ in range(3):
    execute()
print(os.getpid(), flush=True)
time.sleep(300)
"""


def test_killed_processes_and_children_of_fork_have_written(tmp_path: Path) -> None:
    path = tmp_path / "cases"
    environment = os.environ | {"LOWDNN_RECORD_CASES": str(path), "LOWDNN_DEVICE": "emulated", "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-W", "ignore", "-c", PARENT_AND_CHILD)
    parents = [
        subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    children = [int(parent.stdout.readline()) for parent in parents if parent.stdout]
    try:
        wanted = {MATMUL: 4, f"{MATMUL} epilogue=relu": 6}
        deadline_s = time.monotonic() + 60
        while not path.exists() or counts(path) != wanted:
            assert time.monotonic() < deadline_s, counts(path)
            time.sleep(0.1)
    finally:
        for number in (*children, *(parent.pid for parent in parents)):
            os.kill(number, signal.SIGKILL)
        for parent in parents:
            parent.communicate()
    assert counts(path) == wanted, "each execute once"


def test_counts_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.write_text("no folder")
    recorder = CaseRecorder(folder / "cases")
    with opened(tmp_path / "unused") as handle:
        handle._recorder = recorder
        execute = product(handle)
        execute()
        assert "Not a directory" in recorder.write() or "File exists" in recorder.write()
        folder.unlink()
        execute()
        recorder.close()
    assert counts(folder / "cases") == {MATMUL: 2}


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text("#!/bin/sh\n")
    handle = opened(path)
    product(handle)()
    with pytest.warns(RecordingWarning, match="LOWDNN_RECORD_CASES: .*begins with"):
        handle.close()
    assert path.read_text() == "#!/bin/sh\n"


def test_a_recorder_keeps_so_many_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowdnn.backend.recording.MAX_CASES", 1)
    path = tmp_path / "cases"
    with opened(path) as handle:
        product(handle)()
        product(handle, relu=True)()
    lines = path.read_text().splitlines()
    assert lines == [HEADER, "# left out: more than 1 graphs of one handle", f"1\t{MATMUL}"]


def test_a_graph_that_no_case_holds_is_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cases"
    graph = parse_case("norm dims=4x8 mode=layer").graph()
    with opened(path) as handle:
        best = rank(graph, handle.arch, HeurMode.A, handle.engines).best
        assert best is not None
        monkeypatch.setattr("lowdnn.documents.MAX_BYTES", 100)
        handle.load_candidate(best)
    _, remark = path.read_text().splitlines()
    assert remark.startswith("# left out: BAD_PARAM lowdnn_graph: expected at most 100 bytes")
