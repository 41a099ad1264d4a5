"""Every engine plans for every device: kernels that it loads, and launches that it has room for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lowdnn.arch.specs import ArchSpec, all_specs, spec_for, spec_named
from lowdnn.cases import parse_case, parse_cases
from lowdnn.engines.engine_set import anchored
from lowdnn.engines.model.occupancy import resident_blocks
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import HeurMode, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.plan import Argument, KernelRef, Launch, Plan, Struct, TensorMap
from lowdnn.status import BadParamError, NotSupportedError
from tests.support.data import fresh_seed
from tests.sweeps import random_attention, random_cases, random_moves, random_resamples, random_rows
from tools.assemble import Figures, Key, key_of, recorded_figures

CASES = Path(__file__).parent.parent / "cases"
DEVICES = (*all_specs(), spec_for(13, 0))
#: A device with little shared memory and few multiprocessors, one with much and few threads, and the oldest one.
EXTREMES = ("sm_121", "sm_110", "sm_80")
PRODUCT = "matmul m=1024 n=1024 k=1024 b=1 dtype=bf16"
#: Bytes that a device takes of each block's shared memory.
RESERVED_BYTES = 1024


@pytest.mark.parametrize("arch", DEVICES, ids=lambda arch: arch.name)
def test_plans_load(arch: ArchSpec) -> None:
    """Every candidate of every text case, the first choice among them."""
    for case, graph in text_cases().items():
        candidates = rank(graph, arch, HeurMode.A, ENGINES).candidates
        assert candidates, f"{case} on {arch.name}"
        for candidate in candidates:
            check_plan(candidate.plan, arch, case)


@pytest.mark.parametrize("arch", [*map(spec_named, EXTREMES)], ids=lambda arch: arch.name)
def test_plans_with_any_knob_load_or_are_refused(arch: ArchSpec) -> None:
    made = sum(check_knobs(case, graph, arch) for case, graph in text_cases().items())
    assert made > 5000


@pytest.mark.parametrize("arch", DEVICES, ids=lambda arch: arch.name)
def test_plans_of_random_graphs_load(arch: ArchSpec) -> None:
    seed = fresh_seed()
    for line in random_lines(seed, 4):
        candidates = rank(parse_case(line).graph(), arch, HeurMode.A, ENGINES).candidates
        assert candidates, f"{line} on {arch.name}, seed {seed}"
        for candidate in candidates:
            check_plan(candidate.plan, arch, f"{line}, seed {seed}")


@pytest.mark.parametrize("arch", DEVICES, ids=lambda arch: arch.name)
def test_a_product_has_tensor_cores_and_the_kernels_of_its_device(arch: ArchSpec) -> None:
    best = rank(parse_case(PRODUCT).graph(), arch, HeurMode.A, ENGINES).best
    assert best is not None
    expected = ("matmul_wgmma", {"sm_90a"}) if arch.has_wgmma else ("matmul_mma", {"sm_80"})
    assert (best.engine.name, {kernel.target for kernel in best.plan.kernels}) == expected


def test_a_tile_that_takes_more_shared_memory_than_there_is_is_refused() -> None:
    """Each knob's values are possible with some of the others; these together take 144 bytes too many."""
    case = parse_case("conv n=128 c=3 hw=224x224 k=64 rs=7x7 pad=3 stride=2 dir=wgrad dtype=bf16")
    engine, graph, arch = engine_named("conv_stem_wgrad_mma"), case.graph(), spec_named("sm_86")
    choices = {KnobType.TILE_ROWS: 5, KnobType.TILE_COLS: 112, KnobType.STAGES: 1}
    rule = "conv_stem_wgrad_mma.knob_choices: expected at most 101376 bytes of shared memory on sm_86, got 101520 bytes"
    with pytest.raises(BadParamError, match=rule):
        engine.plan(graph, arch, choices)


def test_rows_are_pipelined_where_there_are_bulk_copies_only() -> None:
    graph = parse_case("norm dims=32x256x14x14 mode=batch dir=bwd layout=nhwc dtype=bf16").graph()
    engine, choices = engine_named("norm_rows"), {KnobType.READ_AHEAD: 2}
    for arch in DEVICES:
        if arch.has_tma:
            check_plan(engine.plan(graph, arch, choices), arch, "in turns")
            continue
        with pytest.raises(BadParamError, match=r"rows\.CTA_COUNT: expected blocks that the device has, got"):
            engine.plan(graph, arch, choices)


@cache
def text_cases() -> dict[str, OperationGraph]:
    """The text cases with their graphs, which cache derived values."""
    lines = (line for path in sorted(CASES.glob("*.txt")) for line in path.read_text(encoding="utf-8").splitlines())
    return {str(case): case.graph() for case in parse_cases(lines)}


def random_lines(seed: int, count: int) -> Iterator[str]:
    """``count`` lines of each kind that the sweeps draw, of ordinary sizes."""
    rng = np.random.default_rng(seed)
    for form in (*random_cases.forms(count, seed), *random_cases.narrow_forms(count, seed)):
        yield random_cases.draw(form, rng, random_cases.SMALL)
    for form in random_resamples.forms(count, seed):
        yield random_resamples.draw(form, rng, 64)
    attention = (
        random_attention.draw,
        random_attention.draw_mapped,
        random_attention.draw_fp8,
        random_attention.draw_decode,
        random_attention.draw_backward,
        random_attention.draw_fp8_backward,
    )
    for draw in attention:
        yield from (draw(rng, rng, 2048) for _ in range(count))
    rows = random_rows.draw_norm, random_rows.draw_softmax, random_rows.draw_reduction, random_rows.draw_pointwise
    for draw_rows in rows:
        yield from (draw_rows(rng, 1 << 22) for _ in range(count))
    yield from (random_moves.draw(rng, 64) for _ in range(count))


def check_knobs(case: str, graph: OperationGraph, arch: ArchSpec) -> int:
    """Checks the plans of each engine that takes the case, with one knob at a time off its default; counts them."""
    made = 0
    for engine in anchored(ENGINES, graph.operations):
        if engine.refuse(graph, arch) is not None:
            continue
        for knob in engine.knobs(graph, arch):
            assert knob.default in knob.values, f"{case} on {arch.name}: {engine.name}.{knob.name}"
            for value in knob.values:
                try:
                    plan = engine.plan(graph, arch, {knob.type: value})
                except (BadParamError, NotSupportedError):
                    continue
                check_plan(plan, arch, f"{case}, {knob.type.name} {value}")
                made += 1
    return made


def check_plan(plan: Plan, arch: ArchSpec, what: str) -> None:
    where = f"{plan.name} for {arch.name}: {what}"
    assert plan.target_arch == arch.name
    for kernel in plan.kernels:
        assert arch.runs(kernel.target), f"{where}: {kernel.name}"
    for launch in plan.launches:
        check_launch(launch, arch, where)
        check_figures(launch, plan.kernels[launch.kernel], arch, where)


def check_figures(launch: Launch, kernel: KernelRef, arch: ArchSpec, where: str) -> None:
    """The registers that ptxas gave the kernel fit, if the table of assembled kernels has it; threads take them by
    eights."""
    figures = assembled().get(key_of(kernel, arch))
    if figures is not None:
        shared_bytes = figures.shared + launch.shared_bytes
        assert resident_blocks(arch, math.prod(launch.block), figures.registers, shared_bytes) >= 1, where


@cache
def assembled() -> dict[Key, Figures]:
    return {key: figures for key, _, figures in recorded_figures()}


def check_launch(launch: Launch, arch: ArchSpec, where: str) -> None:
    threads, cluster = math.prod(launch.block), math.prod(launch.cluster)
    assert threads <= 1024, where
    assert launch.shared_bytes <= arch.shared_bytes_per_block, where
    assert cluster == 1 or arch.has_clusters, where
    assert not launch.overlaps_previous or arch.has_dependent_launches, where
    assert arch.has_tma or not any(map(has_map, launch.arguments)), where
    if launch.cooperative:
        by_shared_memory = arch.shared_bytes_per_sm // (launch.shared_bytes + RESERVED_BYTES)
        resident = min(arch.threads_per_sm // threads, arch.max_blocks_per_sm, by_shared_memory)
        assert math.prod(launch.grid) <= resident * arch.sm_count, where


def has_map(argument: Argument) -> bool:
    return isinstance(argument, TensorMap) or (isinstance(argument, Struct) and any(map(has_map, argument.fields)))
