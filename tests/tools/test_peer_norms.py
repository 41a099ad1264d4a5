"""The tool that compares norms over several GPUs with float64, on emulated devices."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lowdnn.backend import Handle
from lowdnn.distributed import InProcessCommunicator, MeetingPoint, run_in_threads
from lowdnn.driver import open_driver
from lowdnn.enums import DataType
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError
from tools.scaling import peer_norms
from tools.scaling.ranks import Crew, Rank


def on_ranks(crew: Crew, work: Callable[[Rank], None]) -> None:
    driver = open_driver("emulated", devices=2, policy="lockstep,timeout=60")

    def run(number: int, point: MeetingPoint) -> None:
        with Handle(Runtime(driver, device=number)) as handle:
            rank = Rank(handle, InProcessCommunicator(point, number, handle.runtime.context), crew)
            try:
                with rank.scope():
                    work(rank)
            except BaseException:
                crew.gate.abort()
                raise

    run_in_threads(2, run)


def test_norms_over_two_ranks_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = replace(peer_norms._EMULATED, runs=2, launches=0)

    def work(rank: Rank) -> None:
        peer_norms.check_batch_norm(rank, sizes)
        peer_norms.AllReduce(rank, sizes).run(None)

    on_ranks(Crew(2), work)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all(line.endswith("2 runs, 1 result") for line in lines)


def test_an_error_of_one_rank_is_raised_for_all() -> None:
    def work(rank: Rank) -> None:
        norm = peer_norms.BatchNorm(rank, (2, 16, 3, 3), DataType.FLOAT, None).forward()
        norm.launch()
        rank.wait()
        assert norm.error() < 1e-5
        norm.bias = norm.bias + 1
        peer_norms._judge(rank, "norm", norm.error() if rank.rank else 0.0, DataType.FLOAT, {"a"}, 1)

    with pytest.raises(peer_norms.Wrong, match=r"norm: expected an error of at most 1\.0e-05"):
        on_ranks(Crew(2), work)


@pytest.mark.parametrize(("error", "seen"), [(float("nan"), {"a"}), (0.0, {"a", "b"})])
def test_nan_and_differing_bits_are_wrong(error: float, seen: set[str]) -> None:
    class Alone:
        largest = staticmethod(float)
        say = staticmethod(lambda text: None)

    with pytest.raises(peer_norms.Wrong):
        peer_norms._judge(Alone(), "norm", error, DataType.BFLOAT16, seen, 2)


def test_a_part_that_fails_is_named_and_the_next_one_runs() -> None:
    driver = open_driver("emulated", devices=2, policy="lockstep,timeout=60")

    def one_rank_fails(rank: Rank) -> None:
        if rank.rank == 1:
            raise BadParamError("of one rank")
        rank.meet()

    lines: list[str] = []
    parts = {"first": one_rank_fails, "second": lambda rank: rank.say("the second")}
    assert peer_norms.run_parts(driver, [0, 1], parts, lines.append) == 1
    assert lines[0] == "FAILED first: BadParamError: BAD_PARAM of one rank"
    assert lines[1:] == ["the second"]


def test_the_lines_are_in_the_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines"
    monkeypatch.setattr("sys.argv", ["peer_norms", "2", "--emulated", "--out", str(path)])
    monkeypatch.setattr(peer_norms, "parts_of", lambda sizes, meeting: {"part": lambda rank: rank.say("said")})
    assert peer_norms.main() == 0
    assert path.read_text(encoding="utf-8") == capsys.readouterr().out
    assert path.read_text(encoding="utf-8").endswith("2 devices, 2 ranks\nsaid\n")
