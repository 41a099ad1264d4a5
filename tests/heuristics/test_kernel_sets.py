"""Few kernels for many shapes."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import combinations

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.ranges import lines_in
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.kernel_sets import KernelSet, Shape, kernel_set
from lowdnn.heuristics.kernels_at_hand import KnownChoices, best_at_hand
from lowdnn.heuristics.ranking import Ranking, rank
from lowdnn.plan import KernelRef
from lowdnn.status import BadParamError
from tests.support.data import fresh_seed

PRODUCT = "matmul m=1..8192 n=4096 k=4096 layout=nt dtype=bf16"
LAYER_NORM = "norm dims=1..8192x64..8192 mode=layer dtype=bf16"
CONVOLUTION = "conv n=1..256 c=64 hw=56x56 k=64 rs=3x3 pad=1 dtype=bf16"


def ranked(graph: OperationGraph) -> Ranking:
    return rank(graph, SM_90A, HeurMode.A, ENGINES)


def set_of(lines: Sequence[str], most: int | None = None) -> KernelSet:
    return kernel_set([Shape(line, parse_case(line).graph()) for line in lines], ranked, ENGINES, most)


@pytest.mark.parametrize(
    ("text", "least_needed", "most", "mean"),
    [(PRODUCT, 20, 6, 1.06), (LAYER_NORM, 20, 7, 1.05), (CONVOLUTION, 10, 4, 1.04)],
)
def test_few_kernels_serve_sixty_shapes(text: str, least_needed: int, most: int, mean: float) -> None:
    found = set_of(lines_in(text, 60), most)
    assert found.needed >= least_needed
    assert len(found.kernels) <= most
    assert found.waiting == 0
    assert found.steps[-1].mean < mean
    slowdowns = [shape.slowdown for shape in found.shapes if shape.slowdown is not None]
    assert sum(slowdowns) / 60 == pytest.approx(found.steps[-1].mean)
    assert max(slowdowns) == pytest.approx(found.steps[-1].worst)
    for shape in found.shapes:
        assert shape.served is not None
        assert set(shape.served.plan.kernels) <= set(found.kernels)
        assert shape.served.graph is shape.shape.graph


@pytest.mark.parametrize("text", [PRODUCT, LAYER_NORM, CONVOLUTION])
def test_other_shapes_of_the_ranges_find_a_kernel_of_the_set(text: str) -> None:
    lines = lines_in(text, 300)
    shapes = [Shape(line, parse_case(line).graph(), float(place < 60)) for place, line in enumerate(lines)]
    found = kernel_set(shapes, ranked, ENGINES, 8)
    known, kernels = KnownChoices(None), set(found.kernels)
    for shape in found.shapes:
        assert shape.served is not None
        known.add(shape.served.plan, shape.shape.graph, SM_90A)

    def are_at_hand(wanted: Sequence[KernelRef]) -> bool:
        return kernels.issuperset(wanted)

    drawn = random.Random(fresh_seed())
    for _ in range(30):
        line = re.sub(r"(\d+)\.\.(\d+)", lambda ends: str(drawn.randint(int(ends[1]), int(ends[2]))), text)
        graph = parse_case(line).graph()
        best = ranked(graph).best
        assert best is not None
        taken = best_at_hand(best, known.of(graph, SM_90A), ENGINES, are_at_hand, lambda plan: True)
        assert taken is not None, line
        assert taken.slowdown < 4, line


def test_without_a_bound_each_shape_is_as_fast_as_its_best_plan() -> None:
    found = set_of(lines_in(CONVOLUTION, 30))
    assert found.steps[-1].worst == pytest.approx(1.0)
    assert len(found.kernels) <= found.needed


def test_the_set_is_nearly_the_best_of_its_size() -> None:
    """Against every pair of the kernels that plans of single kernels have."""
    shapes = lines_in(PRODUCT, 12)
    whole = set_of(shapes)
    pairs = [means for pair in combinations(whole.kernels, 2) if (means := mean_with(whole, pair)) is not None]
    greedy = set_of(shapes, 2).steps[-1].mean
    assert min(pairs) - 1e-9 <= greedy <= 1 + (min(pairs) - 1) * 1.6 + 1e-9


def mean_with(whole: KernelSet, kernels: tuple[KernelRef, ...]) -> float | None:
    """The mean slowdown with ``kernels`` alone, each with the choices of the whole set; None where a shape waits."""
    known = KnownChoices(None)
    for shape in whole.shapes:
        assert shape.served is not None
        known.add(shape.served.plan, shape.shape.graph, SM_90A)
    total = 0.0
    for shape in whole.shapes:
        there, choices = set(kernels), known.of(shape.shape.graph, SM_90A)
        taken = best_at_hand(shape.best, choices, ENGINES, there.issuperset, lambda plan: True)
        if taken is None:
            return None
        total += taken.slowdown
    return total / len(whole.shapes)


def test_weights_say_which_shapes_come_first() -> None:
    lines = ["norm dims=64x512 mode=layer dtype=bf16", "softmax dims=64x512 dtype=bf16"]
    graphs = [parse_case(line).graph() for line in lines]
    for weights in ((1.0, 5.0), (5.0, 1.0)):
        shapes = [Shape("", graph, weight) for graph, weight in zip(graphs, weights, strict=True)]
        found = kernel_set(shapes, ranked, ENGINES, 1)
        served = [shape.served is not None for shape in found.shapes]
        assert served == [weight == 5.0 for weight in weights]
        assert (found.waiting, found.steps[-1].waiting) == (1, 1)


def test_a_set_of_nothing_is_refused() -> None:
    with pytest.raises(BadParamError, match="expected at least one shape, got none"):
        set_of([])
    with pytest.raises(BadParamError, match="max_kernels: expected at least 1, got 0"):
        set_of(["softmax dims=64x512 dtype=bf16"], 0)


def test_shapes_without_a_weight_are_served_too() -> None:
    """A row length of another vector width needs a kernel of its own, however seldom it comes."""
    even, odd = (f"softmax dims=64x{columns} dtype=bf16" for columns in (512, 511))
    shapes = [Shape(even, parse_case(even).graph()), Shape(odd, parse_case(odd).graph(), 0.0)]
    assert len(kernel_set(shapes[:1], ranked, ENGINES).kernels) == 1
    found = kernel_set(shapes, ranked, ENGINES)
    assert [shape.shape.name for shape in found.shapes] == [even, odd]
    assert found.waiting == 0
    assert len(found.kernels) == 2
    assert kernel_set(shapes, ranked, ENGINES, 1).waiting == 1


def test_shapes_without_work_are_served_at_once() -> None:
    found = set_of(lines_in("matmul m=0..4 n=64 k=64 dtype=fp16", 5))
    assert found.waiting == 0
    assert min(shape.slowdown or 0.0 for shape in found.shapes) == 1
