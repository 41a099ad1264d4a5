"""Convolutions that run by transforms (FFT, Winograd) as parts of a graph."""

from __future__ import annotations

import random

import pytest

from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.base import OptIn, keeps_precision
from lowdnn.engines.composite.composite import Composite
from lowdnn.engines.composite.least_cost import LeastCost
from lowdnn.engines.floor import least_arithmetic_s
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import DataType, HeurMode, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Ranking, rank
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.running import check_close

ENGINE = engine_named("composite")
ARCHITECTURES = pytest.mark.parametrize("arch", [SM_80, SM_90A], ids=lambda arch: arch.name)


def convolved(
    dims: tuple[int, ...], filters: tuple[int, ...], pads: int, *, is_behind_transpose: bool = True
) -> OperationGraph:
    """y = conv(x, w) in fp32, where x of ``dims`` is stored, or is the transpose of what is."""
    builder, spatial = CaseBuilder(), len(dims) - 2
    axes = (0, *range(len(dims) - 1, 0, -1))
    x = builder.tensor(tuple(dims[axis] for axis in axes) if is_behind_transpose else dims, DataType.FLOAT)
    image = builder.transpose(x, axes) if is_behind_transpose else x
    w = builder.tensor(filters, DataType.FLOAT)
    ones, padding = (1,) * spatial, (pads,) * spatial
    geometry = Convolution(DataType.FLOAT, spatial, padding, padding, ones, ones)
    builder.convolution(image, w, geometry=geometry, store=DataType.FLOAT)
    return builder.graph()


def ranking_of(graph: OperationGraph, arch: ArchSpec) -> Ranking:
    return rank(graph, arch, HeurMode.A, ENGINES)


def drawn_convolution(rng: random.Random) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """(dims, dims of the filters, padding) where transforms may pay."""
    channels = 8 * rng.randint(1, 16)
    if rng.random() < 0.5:
        length = rng.choice([256, 1000, 4096])
        return (rng.randint(1, 4), channels, length), (channels, 1, length), length - 1
    taps, extent, depth = rng.choice([3, 5, 15, 31]), rng.randint(32, 64), rng.choice([1, channels])
    return (rng.randint(1, 8), channels, extent, extent), (channels, depth, taps, taps), taps // 2


def test_parts_are_computed_by_all_engines_but_those_on_request() -> None:
    (entry,) = (entry for entry in ENGINES.entries if entry.name == ENGINE.name)
    others = [engine.name for engine in ENGINES if not isinstance(engine, OptIn) and engine is not ENGINE]
    assert sorted(name for names in entry.builds_on for name in names) == sorted(others)


@ARCHITECTURES
def test_a_long_filter_behind_a_transpose_costs_what_the_ranking_finds_and_the_transpose(arch: ArchSpec) -> None:
    """2,048 taps of each of 64 channels are summed 5 to 20 times as fast by spectra."""
    behind = ranking_of(convolved((2, 64, 2048), (64, 1, 2048), 2047), arch).best
    alone = ranking_of(convolved((2, 64, 2048), (64, 1, 2048), 2047, is_behind_transpose=False), arch).best
    assert behind is not None
    assert alone is not None
    assert alone.engine.name == "conv_fft"
    assert behind.plan.parts[-1] == alone.plan.name
    assert behind.estimated_us < 2 * alone.estimated_us


@ARCHITECTURES
def test_a_part_runs_no_slower_than_the_ranking_of_the_convolution_alone(arch: ArchSpec) -> None:
    seed = fresh_seed()
    rng = random.Random(seed)
    for _ in range(6):
        drawn = drawn_convolution(rng)
        graph, alone = convolved(*drawn), convolved(*drawn, is_behind_transpose=False)
        engines = {found.engine for found in ranking_of(alone, arch).candidates if not isinstance(found.engine, OptIn)}
        plans = (engine.plan(alone, arch, {}) for engine in engines)
        times = [plan_us(plan, arch) for plan in plans if keeps_precision(plan, graph)]
        moved = plan_us(engine_named("transform").plan(graph.subgraph(graph.operations[:1]), arch, {}), arch)
        assert plan_us(ENGINE.plan(graph, arch, {}), arch) <= 1.001 * (moved + min(times)), f"seed {seed}, {drawn}"


@ARCHITECTURES
def test_spectra_take_no_less_time_than_the_least_cost(arch: ArchSpec) -> None:
    """A sum over 32,768 taps at the tensor cores' rate takes longer than its spectra do."""
    graph = convolved((1, 256, 32768), (256, 1, 32768), 32767, is_behind_transpose=False)
    (operation,) = graph.operations
    assert isinstance(operation, ConvolutionForward)
    spectra_us = plan_us(engine_named("conv_fft").plan(graph, arch, {}), arch)
    assert 1e6 * least_arithmetic_s(operation, (), arch) > spectra_us
    least = LeastCost(graph, arch, {id(operation): least_arithmetic_s(operation, tuple(ENGINES), arch)})
    least.add(operation)
    assert 0 < least.us <= spectra_us


def test_the_ranking_lists_the_graph_once_more_without_transforms() -> None:
    """Whoever deselects their notes has a plan."""
    found = ranking_of(convolved((1, 8, 4096), (8, 1, 4096), 4095), SM_90A).candidates
    assert [dict(candidate.plan.choices) for candidate in found] == [{KnobType.TRANSFORMS: 1}, {KnobType.TRANSFORMS: 0}]
    assert [NumericalNote.FFT in candidate.plan.numerical_notes for candidate in found] == [True, False]
    assert found[0].estimated_us < found[1].estimated_us
    assert "without transforms" in found[1].reason
    short = ranking_of(convolved((1, 8, 16), (8, 1, 3), 1), SM_90A).candidates
    assert [NumericalNote.FFT in candidate.plan.numerical_notes for candidate in short] == [False]


def test_a_graph_that_a_transforming_engine_takes_whole_has_no_such_knob() -> None:
    """The ranking lists that engine itself."""
    assert [knob.name for knob in ENGINE.knobs(convolved((1, 8, 64), (8, 8, 64), 63), SM_90A)] == ["transforms"]
    rounding = Composite((engine_named("conv_implicit_gemm_mma"),), (engine_named("conv_fft"),))
    assert rounding.knobs(convolved((1, 8, 64), (8, 8, 64), 63, is_behind_transpose=False), SM_90A) == ()


def test_results_agree_with_the_reference(device: Runtime) -> None:
    plan = check_close(device, ENGINE, convolved((1, 1, 1000), (1, 1, 1500), 1400), length=1000)
    assert NumericalNote.FFT in plan.numerical_notes
    assert len(plan.parts) == 2
