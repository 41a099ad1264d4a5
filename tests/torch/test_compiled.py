"""Programs that Inductor has compiled run on lowdnn: one graph, and the same losses."""

from __future__ import annotations

from shutil import which
from typing import Any

import pytest

from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
ops: Any = pytest.importorskip("lowdnn.torch.ops")
nn = torch.nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 12)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Any, classes: Any) -> Any:
        rows = self.convolution(x).relu().mean((2, 3))
        y, total = ops.add_rms_norm(rows, 2 * rows, self.scale)
        return ops.cross_entropy(self.linear(y + total), classes)


@pytest.mark.skipif(which("g++") is None and which("gcc") is None, reason="Inductor needs a C++ compiler")
def test_inductor_trains_as_eager_programs_do(face: Face) -> None:
    x = face.reals(5, 3, 6, 6, dtype=torch.float32)
    classes = torch.tensor([0, 11, 3, 4, 7], device=face.torch_device)

    def losses(*, compiled: bool) -> list[float]:
        torch.manual_seed(5)
        model = Model().to(face.torch_device)
        run = torch.compile(model, fullgraph=True) if compiled else model
        optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
        for _ in range(3):
            optimizer.zero_grad()
            loss = run(x, classes)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    torch._dynamo.reset()
    native = losses(compiled=False)
    before = face.counts()
    with face.enable():
        assert losses(compiled=True) == pytest.approx(native, rel=2e-3)
    taken = {
        name for (name, reason), calls in face.counts().items() if not reason and calls != before.get((name, ""), 0)
    }
    assert taken >= {"convolution", "convolution_backward", "lowdnn::add_norm", "lowdnn::cross_entropy_backward"}
    assert not torch._dynamo.utils.counters["graph_break"]
