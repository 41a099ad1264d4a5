"""Compiles kernels of a convolution's gradients into the disk cache during a network's forward pass."""

from __future__ import annotations

from functools import partial

from lowdnn.backend.handle import Handle
from lowdnn.engines.base import Engine
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate, rank
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.plan import Plan


def begin_gradients(handle: Handle, forward: Candidate) -> None:
    """Begins to compile, in other threads, what the gradients of ``forward`` are likely to need.

    Does nothing where ``forward`` is not one convolution alone, or without a disk cache. Errors are those of the plans
    that need the kernels then.
    """
    for gradient in gradients_of(forward.graph):
        handle.runtime.begin_kernels(partial(_likely_plan, handle, gradient, forward.engine))


def gradients_of(graph: OperationGraph) -> tuple[OperationGraph, ...]:
    """The graphs of the gradients for the image and for the filter, if ``graph`` is one convolution; otherwise none."""
    (operation, *others) = graph.operations
    if others or not isinstance(operation, ConvolutionForward):
        return ()
    geometry, x, w, y = operation.convolution, operation.x, operation.w, operation.y
    gradients = ConvolutionBackwardData(geometry, w, dy=y, dx=x), ConvolutionBackwardFilter(geometry, x, dy=y, dw=w)
    return tuple(OperationGraph((gradient,)) for gradient in gradients)


def _likely_plan(handle: Handle, graph: OperationGraph, forward: Engine) -> Plan | None:
    """The first plan that whoever chose ``forward`` may take, by engines' numerical notes; None where there is none."""
    allowed = set(forward.numerical_notes)
    candidates = rank(graph, handle.arch, HeurMode.INSTANT, handle.engines).candidates
    return next((found.plan for found in candidates if allowed.issuperset(found.engine.numerical_notes)), None)
