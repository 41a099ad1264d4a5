"""Sets of kernels for the shapes of a service: chosen by the cost model, compiled before they are needed."""

from __future__ import annotations

from collections.abc import Iterable

from lowdnn.backend.building import built
from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_counted_cases
from lowdnn.cases.ranges import lines_in
from lowdnn.checks import instance, integer, sequence
from lowdnn.enums import HeurMode
from lowdnn.frontend.python_graph import pygraph
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.kernel_sets import KernelSet, Shape
from lowdnn.heuristics.kernel_sets import kernel_set as set_for
from lowdnn.status import AttributeTypeError

#: The most shapes that a case with ranges may stand for.
_MOST_SHAPES = 100_000
#: How many more shapes of a case are looked at for each of those: whether the set serves them, too.
_CHECKED = 9


def kernel_set(
    cases: Iterable[str | pygraph], handle: Handle, *, max_kernels: int | None = None, shapes: int = 60
) -> KernelSet:
    """At most ``max_kernels`` kernels for a workload on the handle's device, those that lose the least predicted time.

    cases: text cases, whose numbers may be ranges (``matmul m=1..8192 n=4096 k=4096``); lines of a file of
    LOWDNN_RECORD_CASES, whose counts are weights; graphs of the shapes that matter.  shapes: how many shapes of a case
    with ranges have to be fast; nine times as many more are looked at, so that the set serves them.  max_kernels: None
    for as many as make each shape as fast as its best plan.
    The set names its kernels, the state after each of them, and for each shape the plan that serves it. Nothing is
    compiled; ``build_kernels`` does it.

    Raises BadParamError for a case that is none, or for none at all; NotSupportedError for one that no engine takes.
    """
    instance(handle, Handle, "kernel_set.handle")
    most = None if max_kernels is None else integer(max_kernels, "kernel_set.max_kernels", 1)
    return set_for(workload_of(cases, shapes), lambda graph: handle.rank(graph, HeurMode.A), handle.engines, most)


def build_kernels(kernels: KernelSet, handle: Handle) -> None:
    """Compiles a set for the handle's device into the disk cache, where any process finds it (topic ``new_shapes``)."""
    wanted = instance(kernels, KernelSet, "build_kernels.kernels", "a KernelSet, which kernel_set gives")
    for _ in built(wanted, instance(handle, Handle, "build_kernels.handle")):
        pass


def workload_of(cases: Iterable[str | pygraph], shapes: int) -> list[Shape]:
    """The shapes of graphs, and those that lines of text stand for, which share the weight of their line.

    ``_CHECKED`` times as many more shapes of each line have no weight.
    """
    most = integer(shapes, "kernel_set.shapes", 1, _MOST_SHAPES)
    found: list[Shape] = []
    for line in sequence(cases, "kernel_set.cases", "lines of text and graphs"):
        if isinstance(line, pygraph):
            found.append(Shape(line.name, _operation_graph(line)))
            continue
        if not isinstance(line, str):
            raise AttributeTypeError.at("kernel_set.cases", expected="lines of text and graphs", got=repr(line))
        drawn = parse_counted_cases(lines_in(line, (1 + _CHECKED) * most))
        weighted = min(most, len(drawn))
        weights = [count / weighted if place < weighted else 0.0 for place, (count, _) in enumerate(drawn)]
        found += [Shape(str(case), case.graph(), weight) for (_, case), weight in zip(drawn, weights, strict=True)]
    return found


def _operation_graph(graph: pygraph) -> OperationGraph:
    """The operations of a graph, which is validated where it was not."""
    graph.key()
    return graph._graph_or_raise()
