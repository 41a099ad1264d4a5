"""A small network trains as natively: eagerly, compiled, in streams, in CUDA graphs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
nn = torch.nn


def network(face: Face) -> Any:
    torch.manual_seed(7)
    layers = (
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2), nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 16), nn.LayerNorm(16), nn.Linear(16, 5), nn.LogSoftmax(1),
    )  # fmt: skip
    return nn.Sequential(*layers).to(face.torch_device)


def batch(face: Face) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 3, 12, 12, generator=generator).to(face.torch_device)
    return x, torch.tensor([0, 3, 1, 4], device=face.torch_device)


def losses(face: Face, *, steps: int = 3) -> list[float]:
    model, (x, target) = network(face), batch(face)
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(x), target)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_losses_are_those_of_the_native_kernels(face: Face) -> None:
    native = losses(face)
    before = {name for name, reason in face.counts() if reason}
    with face.enable():
        own = losses(face)
    assert own == pytest.approx(native, rel=1e-3)
    assert own[-1] < own[0]
    taken = {name for name, reason in face.counts() if not reason}
    assert {"convolution_backward", "addmm", "native_group_norm_backward", "_log_softmax_backward_data"} <= taken
    assert {name for name, reason in face.counts() if reason} == before


@pytest.mark.gpu
def test_a_step_is_captured_into_a_cuda_graph() -> None:
    face = Face("cuda")
    model, (x, _) = network(face).eval(), batch(face)
    with torch.no_grad(), face.enable():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(2):
                expected = model(x)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        y.zero_()
        graph.replay()
        torch.cuda.synchronize()
    assert torch.equal(y, expected)


@pytest.mark.gpu
def test_threads_run_in_streams_of_their_own() -> None:
    face = Face("cuda")
    model, (x, _) = network(face).eval(), batch(face)
    with torch.no_grad():
        expected = model(x)

        def work(_: int) -> bool:
            stream = torch.cuda.Stream()
            with torch.no_grad(), torch.cuda.stream(stream):
                results = [model(x) for _ in range(50)]
            stream.synchronize()
            return all(torch.allclose(y, expected, rtol=1e-3, atol=1e-3) for y in results)

        torch.cuda.synchronize()
        with face.enable(), ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4)))


@pytest.mark.gpu
def test_new_shapes_wait_while_a_graph_is_captured() -> None:
    face = Face("cuda")
    x = torch.randn(3, 37, device="cuda")
    reason = "first called inside of a CUDA graph's capture"
    before = face.counts().get(("_softmax", reason), 0)
    torch.softmax(x, -1)
    graph = torch.cuda.CUDAGraph()
    with face.enable(["softmax"]), torch.cuda.graph(graph):
        torch.softmax(x, -1)
    assert face.counts()["_softmax", reason] == before + 1


@pytest.mark.gpu
def test_a_thousand_steps_take_no_more_device_memory() -> None:
    face = Face("cuda")
    with face.enable():
        losses(face)
        torch.cuda.synchronize()
        free = torch.cuda.mem_get_info()[0]
        losses(face, steps=1000)
        torch.cuda.synchronize()
        assert torch.cuda.mem_get_info()[0] >= free - (4 << 20)
