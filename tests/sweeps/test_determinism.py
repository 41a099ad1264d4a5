"""Every engine that is not marked non-deterministic gives the same bits in 100 runs, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lowdnn.arch.specs import ArchSpec
from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.engines.base import Choices, Engine
from lowdnn.enums import HeurMode, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from tests.support.data import fresh_seed
from tests.support.running import HeldPlan

_RUNS = 100

#: Sums that are long or split, several waves of blocks, groups; real-valued, so that another order gives other bits.
_CASES = (
    "matmul m=256 n=256 k=16384 layout=nt dtype=bf16",
    "matmul m=1024 n=1000 k=777 layout=nn dtype=fp16",
    "matmul m=16 n=2048 k=4096 layout=nt dtype=bf16",
    "matmul m=300 n=300 k=4096 layout=nt dtype=fp32",
    "matmul m=512 n=512 k=4096 layout=nt dtype=e4m3 out=bf16",
    *(f"conv n=16 c=64 hw=28x28 k=64 rs=3x3 pad=1 dtype=bf16 dir={way}" for way in ("fprop", "dgrad", "wgrad")),
    *(f"conv n=8 c=64 hw=28x28 k=128 rs=3x3 pad=1 stride=2 dtype=bf16 dir={way}" for way in ("dgrad", "wgrad")),
    *(f"conv n=8 c=64 hw=28x28 k=64 rs=3x3 pad=1 groups=16 dtype=bf16 dir={way}" for way in ("dgrad", "wgrad")),
    *(f"conv n=8 c=64 hw=28x28 k=64 rs=7x7 pad=3 groups=64 dtype=bf16 dir={way}" for way in ("dgrad", "wgrad")),
    *(
        f"resample n=8 c=64 hw=57x57 mode={mode} dtype=bf16 dir=bwd"
        for mode in ("max window=3 stride=2", "linear size=99x99")
    ),
    *(f"conv n=8 c=3 hw=64x64 k=64 rs=7x7 pad=3 stride=2 dtype=bf16 dir={way}" for way in ("fprop", "wgrad")),
    *(f"sdpa_bwd b=2 h=8 hk=4 q=1000 d={size} right=0 deterministic=yes" for size in (64, 128, 256)),
    "sdpa_bwd b=2 h=8 hk=4 q=1000 d=64 right=0 deterministic=yes bias=11 dropout=0.1",
    *(
        f"rnn cell={cell} t=24 b=48 i=200 h=256 layers=2 bi=yes dtype={kind} dir={way}"
        for cell, kind in (("lstm", "bf16"), ("gru", "fp32"))
        for way in ("train", "dgrad", "wgrad")
    ),
)


@pytest.fixture(scope="module")
def cuda() -> Iterator[Handle]:
    with Handle.open("cuda") as handle:
        yield handle


@pytest.mark.gpu
@pytest.mark.parametrize("text", _CASES)
def test_runs_give_the_same_bits(cuda: Handle, text: str) -> None:
    _check(cuda, text, _RUNS)


def test_few_runs_without_a_gpu() -> None:
    with Handle.open("emulated", policy="fuzz(7),early,races") as handle:
        _check(handle, "norm dims=6x64 mode=layer dir=bwd", 3)


def _check(handle: Handle, text: str, runs: int) -> None:
    case = parse_case(text)
    graph = case.graph()
    seed = fresh_seed()
    inputs = case.inputs(seed, exact=False)
    for candidate in rank(graph, handle.arch, HeurMode.A, handle.engines).candidates:
        if NumericalNote.NONDETERMINISTIC in candidate.plan.numerical_notes:
            continue
        for choices in _splits(candidate.engine, graph, handle.arch):
            plan = candidate.engine.plan(graph, handle.arch, choices)
            with HeldPlan(handle.runtime, plan, graph, inputs) as held:
                first = held.run()
                for run in range(1, runs):
                    again = held.run_again(run)
                    same = all(again[uid].tobytes() == values.tobytes() for uid, values in first.items())
                    assert same, f"run {run} of {plan.name}, seed {seed}: {case}"


def _splits(engine: Engine, graph: OperationGraph, arch: ArchSpec) -> Iterator[Choices]:
    """The default knobs, then each other number of parts that the sum may be split into."""
    yield {}
    knobs = {knob.type: knob for knob in engine.knobs(graph, arch)}
    # A cluster along k needs a k block for each of its blocks in every part.
    alone = {KnobType.TILE_CGA_K: 1} if KnobType.TILE_CGA_K in knobs else {}
    if parts := knobs.get(KnobType.SPLIT_K_SLC):
        yield from (alone | {parts.type: value} for value in parts.values if value != parts.default)
