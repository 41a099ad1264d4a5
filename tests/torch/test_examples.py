"""The examples of PyTorch train on lowdnn as they do natively."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
SMALL = ["--steps", "1", "--batch", "2", "--size", "8"]


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Nothing that an example sets, and nothing of lowdnn, is left."""
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.backends.cudnn.benchmark = benchmark
    import lowdnn.torch

    lowdnn.torch.reset()


def trained(name: str, path: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert import_module(f"tools.examples.pytorch.{name}").main(["--only", path, *SMALL]) == 0
    steps: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return steps


@pytest.mark.parametrize("name", ["cnn", "mixed_precision"])
def test_losses_are_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    native, own = (trained(name, path, capsys) for path in ("native", "lowdnn"))
    assert own["losses"] == pytest.approx(native["losses"], rel=1e-2)
    ran, _, total, *_ = own["notes"][-1].split()
    assert ran == total
    assert int(ran) > 20


def test_ranks_have_equal_weights(capsys: pytest.CaptureFixture[str]) -> None:
    from tools.examples.pytorch.data_parallel import run

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    run(0, "native", {"steps": 1, "batch": 2, "size": 8, "ranks": 1, "port": port})
    steps = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert steps["notes"] == ["weights of 1 ranks are equal: True"]


def test_a_table_has_paths_side_by_side() -> None:
    from tools.examples.pytorch.paths import Steps, table

    runs = {"native": Steps([1.0, 0.5], [9.0, 2.0]), "lowdnn": Steps([1.0, 0.25], [9.0, 1.0], ["fast"])}
    lines = [line.split() for line in table(runs)]
    assert lines == [
        ["step", "native", "lowdnn"],
        ["0", "1.00000", "1.00000"],
        ["1", "0.50000", "0.25000"],
        ["ms", "2.00", "1.00"],
        ["lowdnn:", "fast"],
    ]
