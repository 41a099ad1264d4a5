"""Kernels of gradients are compiled from the forward pass on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lowdnn.backend.gradients_ahead import gradients_of
from lowdnn.backend.handle import Handle
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate, rank
from lowdnn.plan import KernelRef
from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
planning: Any = pytest.importorskip("lowdnn.torch.planning", reason="it needs torch")


def _linear(face: Face) -> Any:
    layer = torch.nn.Linear(64, 40).to(face.torch_device, torch.bfloat16)
    return layer(_leaf(face, 72, 64))


def _product(face: Face) -> Any:
    return torch.bmm(_leaf(face, 2, 48, 64), _leaf(face, 2, 64, 40))


def _convolution(face: Face) -> Any:
    layer = torch.nn.Conv2d(16, 24, 3, padding=1).to(face.torch_device, torch.bfloat16)
    return layer(_leaf(face, 2, 16, 8, 8))


def _leaf(face: Face, *shape: int) -> Any:
    return face.reals(*shape, dtype=torch.bfloat16).requires_grad_()


@pytest.mark.parametrize("forward", [_linear, _product, _convolution])
def test_kernels_of_gradients_are_begun_by_the_forward_pass(
    face: Face, forward: Callable[[Face], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, needed = set[KernelRef](), set[KernelRef]()
    chosen = planning._chosen

    def begin(handle: Handle, candidate: Candidate) -> None:
        for graph in gradients_of(candidate.graph):
            (best, *_) = rank(graph, handle.arch, HeurMode.INSTANT, handle.engines).candidates
            begun.update(best.plan.kernels)

    def choose(handle: Handle, graph: OperationGraph, settings: Any) -> Candidate:
        found = chosen(handle, graph, settings)
        needed.update(found.plan.kernels)
        return found

    monkeypatch.setattr(planning, "begin_gradients", begin)
    face.reset()
    with face.enable(["matmul", "convolution"]):
        y = forward(face)
        monkeypatch.setattr(planning, "_chosen", choose)
        y.backward(torch.ones_like(y))
    products = {kernel for kernel in needed if "reduction" not in kernel.name}
    assert begun
    assert products <= begun, {kernel.name for kernel in products - begun}


def test_without_gradients_nothing_is_begun(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Candidate] = []
    monkeypatch.setattr(planning, "begin_gradients", lambda handle, candidate: begun.append(candidate))
    face.reset()
    with face.enable(["matmul"]), torch.no_grad():
        torch.mm(_leaf(face, 40, 64), _leaf(face, 64, 24))
    with face.enable(["matmul"]):
        torch.mm(_leaf(face, 40, 64).detach(), _leaf(face, 64, 24).detach())
    assert not begun
