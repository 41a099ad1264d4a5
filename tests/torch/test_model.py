"""A small network trains as natively: eagerly, compiled, in streams, in CUDA graphs."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
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


def training(face: Face) -> Callable[[], float]:
    """A function that trains a new network for one step, and returns the loss."""
    model, (x, target) = network(face), batch(face)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(x), target)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def losses(face: Face) -> list[float]:
    step = training(face)
    return [step() for _ in range(3)]


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


def lowdnns_own(face: Face) -> dict[str, int]:
    """Counts of calls that lowdnn knows, and of the plans, modules and compilations of its handle."""
    from lowdnn.torch.registry import REGISTRY

    handle = REGISTRY._memories[face.device].handle(torch.device(face.torch_device, 0))
    known = sum(len(plans._known) for plans in REGISTRY._plans.values())
    return {"calls known": known, "modules": len(handle.loader.modules), **handle.runtime.counters.snapshot()}


def allocated_bytes(face: Face) -> dict[str, int]:
    """The memory of this process alone: a GPU may have others. The emulated device has no other user."""
    from lowdnn.torch.registry import REGISTRY

    gc.collect()
    if face.device == "cuda":
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        return {kind: stats[f"{kind}_bytes.all.current"] for kind in ("allocated", "reserved")}
    runtime = REGISTRY._memories[face.device].handle(None).runtime
    with runtime.context.activated():
        free, total = runtime.driver.mem_get_info()
    return {"allocated": total - free}


def test_a_thousand_steps_take_no_more_device_memory(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a warm-up lowdnn makes and loads nothing, and torch's allocator asks the device for nothing."""
    from lowdnn.torch.registry import REGISTRY

    is_gpu = face.device == "cuda"
    with face.enable():
        step = training(face)
        for _ in range(20 if is_gpu else 2):
            step()
        own, memory = lowdnns_own(face), allocated_bytes(face)
        driver = REGISTRY._memories[face.device].handle(torch.device(face.torch_device, 0)).runtime.driver
        asked: Counter[str] = Counter()
        for name in ("mem_alloc", "mem_alloc_async", "mem_free", "mem_free_async", "module_load_data"):
            monkeypatch.setattr(driver, name, counting(getattr(driver, name), asked, name))
        for _ in range(1000 if is_gpu else 10):
            step()
    assert lowdnns_own(face) == own
    assert asked["mem_alloc"] == asked["mem_free"]
    assert not is_gpu or not asked
    assert allocated_bytes(face) == memory


def counting(function: Callable[..., Any], counts: Counter[str], name: str) -> Callable[..., Any]:
    def counted(*args: Any) -> Any:
        counts[name] += 1
        return function(*args)

    return counted
