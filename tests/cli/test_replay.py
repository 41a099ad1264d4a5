"""``lowdnn replay`` runs kept calls again, with every check."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cli.execution import Outcome, run_graph
from lowdnn.cli.main import main
from lowdnn.cli.replay_memory import ReplayMemory
from lowdnn.config import Config
from lowdnn.enums import HeurMode
from lowdnn.heuristics.ranking import Candidate
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.status import LowdnnError
from tests.support.data import fresh_seed

CASES = (
    "matmul m=5 n=6 k=7 dtype=fp16",
    "pointwise dims=2x3x4 ops=add+scalar dtype=fp32",
    "norm dims=4x64 mode=layer dtype=bf16",
)


def keep_call(directory: Path, line: str, faults: str = "launch:1=OUT_OF_MEMORY") -> tuple[Path, Candidate]:
    """A dump of a case whose execute raises."""
    config = replace(Config.from_environment(), dump_dir=directory)
    with Handle.open("emulated", arch="sm_80", faults=faults, config=config) as handle:
        case = parse_case(line)
        candidate = handle.rank(case.graph(), HeurMode.A).best
        assert candidate is not None
        handle.load_candidate(candidate)
        inputs = case.inputs(fresh_seed(), exact=False)
        with pytest.raises(LowdnnError):
            run_graph(handle, candidate.graph, candidate.plan, inputs, repeats=0)
    (path,) = directory.iterdir()
    return path, candidate


@pytest.mark.parametrize("line", CASES)
def test_a_kept_call_is_clean_under_every_schedule(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, candidate = keep_call(tmp_path / "dumps", line)
    assert main(["replay", str(path), "--device", "emulated", "--schedules", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "injected into launch 1" in lines[0]
    verdicts = [text for text in lines if text.startswith("clean")]
    assert len(verdicts) == 6
    assert all(text.endswith(candidate.plan.name) for text in verdicts)


def test_a_check_that_failed_is_kept_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(*arguments: object) -> Outcome:
        outcome = run_graph(*arguments)  # type: ignore[arg-type]
        (uid,) = outcome.outputs
        outcome.outputs[uid].flat[2] += 1
        return outcome

    monkeypatch.setenv("LOWDNN_DUMP", str(tmp_path / "dumps"))
    monkeypatch.setattr("lowdnn.cli.case_results.run_graph", wrong)
    assert main(["run", "--check", "--device", "emulated", "matmul m=5 n=6 k=7"]) == 1
    (path,) = (tmp_path / "dumps").iterdir()
    capsys.readouterr()
    assert main(["replay", str(path), "--device", "emulated", "--policy", "cta-reverse", "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["status"], verdict["policy"]) == ("ok", "cta-reverse")
    assert verdict["compared"][0].endswith("1 of 30 elements differ from the dump")


def test_a_kernel_at_fault_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = keep_call(tmp_path / "dumps", CASES[1])
    allocate = DeviceBuffer.allocate

    def short(context: object, size_bytes: int, **options: object) -> DeviceBuffer:
        less = 4 if options.get("label") == "y" else 0
        return allocate(context, size_bytes - less, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("lowdnn.cli.replay_memory.DeviceBuffer.allocate", short)
    assert main(["replay", str(path), "--device", "emulated", "--policy", "lockstep"]) == 1
    found = capsys.readouterr().out
    assert "FAULT" in found
    assert "out-of-bounds" in found


def test_data_that_the_dump_lacks_are_drawn_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = "launch:1-=ILLEGAL_ADDRESS,memcpy_dtoh_async:*=ILLEGAL_ADDRESS"
    path, _ = keep_call(tmp_path / "dumps", CASES[0], faults)
    assert main(["replay", str(path), "--device", "emulated", "--policy", "lockstep"]) == 0
    found = capsys.readouterr().out
    assert "no data, EXECUTION_FAILED_CUDA_DRIVER" in found
    assert "drawn in their place: uids" in found


def test_wrong_numbers_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = keep_call(tmp_path / "dumps", CASES[0])
    monkeypatch.setattr(
        "lowdnn.cli.replay_memory.ReplayMemory.bytes_of", lambda self, uid: bytes(np.float16(3).tobytes() * 30)
    )
    assert main(["replay", str(path), "--device", "emulated", "--policy", "lockstep"]) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith("FAILED   lockstep")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--policy", "lockstep", "--schedules", "3"], "replay.schedules: expected none beside --policy"),
        (["--schedules", "-1"], "replay.schedules: expected 0 to 10000"),
        (["--arch", "sm_90a"], "dump.plan.arch: expected sm_90a"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    path, _ = keep_call(tmp_path / "dumps", CASES[1])
    assert main(["replay", str(path), "--device", "emulated", *options]) == 2
    assert reason in capsys.readouterr().err
    assert main(["replay", str(tmp_path)]) == 2
    assert "dump: expected the folder of a dump" in capsys.readouterr().err


def test_another_architecture_takes_a_plan_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = keep_call(tmp_path / "dumps", CASES[0])
    arguments = ["replay", str(path), "--device", "emulated", "--arch", "sm_90a", "--rebuild", "--policy", "lockstep"]
    assert main(arguments) == 0
    assert "clean" in capsys.readouterr().out


def test_a_damaged_dump_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = keep_call(tmp_path / "dumps", CASES[0])
    file = next(path.glob("*.before.raw"))
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["replay", str(path), "--device", "emulated"]) == 2
    found = capsys.readouterr()
    assert "which is damaged" in found.err
    assert found.out == ""


def test_overlapping_tensors_overlap_again() -> None:
    with Handle.open("emulated", arch="sm_80") as handle:
        plan = handle.rank(parse_case(CASES[1]).graph(), HeurMode.A).candidates[0].plan
        placed = [tensor for tensor in plan.tensors if not tensor.is_by_value]
        first, last = placed[0], placed[-1]
        addresses = {first.uid: 0x1010, last.uid: 0x1010 + 16}
        contents = {tensor.uid: bytes(tensor.size_bytes) for tensor in plan.tensors if not tensor.is_output}
        with ReplayMemory(handle.runtime.context, plan, addresses, contents) as memory:
            where = dict(zip([tensor.uid for tensor in plan.tensors], memory.pointers, strict=True))
            assert where[last.uid] - where[first.uid] == 16
            assert where[first.uid] % 256 == 0x10
