"""The model of a data-parallel step: by hand, what it must not do, and that calibration finds what it was given."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowdnn.backend import Handle
from lowdnn.cases import parse_case
from lowdnn.distributed import InProcessCommunicator
from tests.support.data import fresh_seed
from tests.support.ranks import on_handles
from tools.scaling import __main__ as command
from tools.scaling import measure
from tools.scaling.measure import measured
from tools.scaling.model import Layer, Links, Model, Workload, links_of, read

#: Two layers; the last one's gradients are made first.
WORKLOAD = Workload(100.0, (Layer(60.0, 3000), Layer(40.0, 1000)), 10.0)
LINKS = Links(start_us=2.0, hop_us=1.0, bytes_per_us=100.0)


def drawn(rng: np.random.Generator) -> Model:
    layers = tuple(Layer(float(rng.uniform(10, 500)), int(rng.integers(1 << 10, 1 << 24))) for _ in range(20))
    links = Links(float(rng.uniform(1, 20)), float(rng.uniform(0.1, 5)), float(rng.uniform(1e4, 4e5)))
    return Model(Workload(float(rng.uniform(1e3, 1e4)), layers, 50.0), links, float(rng.uniform(0, 0.5)))


def test_all_reduces_by_hand() -> None:
    assert LINKS.all_reduce_us(1, 1000) == 0
    assert LINKS.all_reduce_us(2, 1000) == 2 + 2 * 1 + 10
    assert LINKS.all_reduce_us(4, 1000) == 2 + 6 * 1 + 15
    two_nodes = replace(LINKS, node=2, network_hop_us=7.0, network_bytes_per_us=10.0)
    assert two_nodes.all_reduce_us(4, 1000) == LINKS.all_reduce_us(2, 1000) + 2 * 7 + 50
    with pytest.raises(ValueError, match="whole nodes of 2 GPUs, got 3"):
        two_nodes.all_reduce_us(3, 1000)


def test_steps_by_hand() -> None:
    """The first bucket is done 14 us after its gradients, at 54; the second begins with the end of the pass, at 100."""
    model = Model(WORKLOAD, LINKS)
    assert model.step_us(1, 1000) == WORKLOAD.alone_us == 210
    assert model.step_us(2, 1000) == 100 + (100 + 34) + 10
    assert model.step_us(2, 10**9) == 100 + (100 + 44) + 10
    assert model.step_us(2, 1000, overlaps=False) == 100 + (100 + 14 + 34) + 10
    # The pass runs at half its speed for the 14 us of the first exchange.
    assert replace(model, contention=0.5).step_us(2, 1000) == 100 + (40 + 14 + (60 - 7) + 34) + 10
    # An exchange of 1004 us is longer than the rest of the pass, which then runs slowly to its end.
    slow = replace(model, links=replace(LINKS, bytes_per_us=1.0), contention=0.5)
    assert slow.step_us(2, 1000) == 100 + (40 + 1004 + 3004) + 10
    assert model.efficiency(2, 1000) == 210 / 244


def test_what_no_step_may_do() -> None:
    """Overlap never costs without contention; more links, fewer ranks and less contention never cost either."""
    rng = np.random.default_rng(fresh_seed())
    for _ in range(100):
        model, bucket = drawn(rng), int(rng.integers(1 << 16, 1 << 25))
        calm = replace(model, contention=0.0)
        assert calm.step_us(4, bucket) <= calm.step_us(4, bucket, overlaps=False)
        assert calm.step_us(4, bucket) <= model.step_us(4, bucket)
        assert model.step_us(2, bucket) <= model.step_us(4, bucket) <= model.step_us(8, bucket)
        wider = replace(model, links=replace(model.links, bytes_per_us=2 * model.links.bytes_per_us))
        assert wider.step_us(4, bucket, overlaps=False) < model.step_us(4, bucket, overlaps=False)
        assert model.step_us(4, bucket) >= model.workload.alone_us


def figures_of(model: Model) -> dict[str, Any]:
    """A file as ``measure`` writes it, of a machine that is the model."""
    sizes = [1 << exponent for exponent in range(12, 29, 2)]
    pairs = [{"ranks": 2, "bytes": size, "us": model.links.all_reduce_us(2, size)} for size in sizes]
    alone = [{"ranks": 1, "bytes": size, "us": model.links.start_us} for size in sizes]
    steps = [
        {"ranks": ranks, "bucket_bytes": size, "overlaps": overlaps, "step_us": step_us}
        for ranks, size, overlaps in ((1, 25 << 20, True), (2, 25 << 20, True), (2, 4 << 20, False))
        for step_us in [model.step_us(ranks, size, overlaps=overlaps)]
    ]
    layers = [vars(layer) for layer in model.workload.layers]
    facts = {"card": "a card", "network": "a network", "batch": 64, "forward_us": model.workload.forward_us}
    return facts | {"update_us": 50.0, "layers": layers, "all_reduce": alone + pairs, "steps": steps}


def test_calibration_finds_the_machine(tmp_path: Path) -> None:
    """From 1 and 2 GPUs; 4 to 64 are then those of the machine."""
    rng = np.random.default_rng(fresh_seed())
    path = tmp_path / "figures.json"
    for _ in range(20):
        machine = drawn(rng)
        path.write_text(json.dumps(figures_of(machine)))
        found, _ = read(path)
        assert found.links.hop_us == pytest.approx(machine.links.hop_us, rel=1e-6)
        assert found.links.bytes_per_us == pytest.approx(machine.links.bytes_per_us, rel=1e-6)
        for ranks in (4, 8, 64):
            assert found.step_us(ranks, 25 << 20) == pytest.approx(machine.step_us(ranks, 25 << 20), rel=1e-3)


def test_figures_that_do_not_suffice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="all-reduces on 1 GPU"):
        links_of([{"ranks": 2, "bytes": 1, "us": 1}, {"ranks": 2, "bytes": 2, "us": 2}])
    with pytest.raises(ValueError, match="grow with their bytes"):
        links_of([{"ranks": one, "bytes": size, "us": us} for one, size, us in ((1, 1, 5), (2, 10, 6), (2, 1000, 5))])
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(figures_of(drawn(np.random.default_rng(0))) | {"steps": []}))
    with pytest.raises(ValueError, match="a step on 2 GPUs"):
        read(path)


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(figures_of(drawn(np.random.default_rng(fresh_seed())))))
    monkeypatch.setattr("sys.argv", ["scaling", str(path), "--ranks", "1", "4", "64"])
    assert command.main() == 0
    output = capsys.readouterr().out
    rows = [line.split() for line in output.splitlines() if line.split()[:1] in (["1"], ["4"], ["64"])]
    assert [row[0] for row in rows[:3]] == ["1", "4", "64"]
    assert all(len(row) == 11 for row in rows[:3])
    assert rows[0][2] == "1.000"
    assert "+0.0%" in output


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ("[1]", "a list in place of an object"),
        ('{"card": "a", "network": "b"}', "no batch"),
        ("[" * 100_000, "recursion"),
        (None, "No such file"),
        ({"layers": [{"backward_us": 1.0}]}, r"layers\[0\].gradient_bytes None"),
        ({"update_us": 0}, "the file.update_us 0"),
        ({"forward_us": float("nan")}, "forward_us nan"),
        ({"steps": 3}, "no list of objects steps"),
        ({"all_reduce": []}, "too few"),
    ],
)
def test_damaged_files_give_one_line(
    content: str | dict[str, Any] | None,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "figures.json"
    if isinstance(content, dict):
        content = json.dumps(figures_of(drawn(np.random.default_rng(0))) | content)
    if content is not None:
        path.write_text(content)
    monkeypatch.setattr("sys.argv", ["scaling", str(path)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1
    assert len(lines) == 1
    assert re.search(f"^tools.scaling: .*{reason}", lines[0])


def test_nothing_is_timed_without_the_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["measure", "--devices", "1", "1000", "--out", str(tmp_path / "figures.json")])
    with pytest.raises(SystemExit) as ended:
        measure.main()
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1
    assert len(lines) == 1
    assert lines[0].startswith("tools.scaling.measure: ")


def test_a_network_is_measured_on_two_ranks() -> None:
    """A small layer on emulated devices."""
    cases: list[Any] = [parse_case("conv n=1 c=8 hw=4x4 k=8 rs=3x3 pad=1 stride=2 dtype=bf16")]

    def work(handle: Handle, communicator: InProcessCommunicator) -> dict[str, Any]:
        return measured(handle, communicator, cases, 1, sizes=(1024,))

    for figures in on_handles(2, work):
        assert [layer["gradient_bytes"] for layer in figures["layers"]] == [4 * (8 * 8 * 9 + 16)]
        assert all(layer["backward_us"] > 0 for layer in figures["layers"])
        assert [(one["ranks"], one["overlaps"]) for one in figures["steps"]] == [(2, True), (2, True), (2, False)]
        assert min(one["step_us"] for one in figures["steps"]) > 0
        assert figures["all_reduce"][0]["bytes"] == 1024
