"""Runs text cases on one engine, bit for bit against the oracle, and the knobs of the wgmma engines."""

from __future__ import annotations

from lowdnn.arch.specs import SM_90A, ArchSpec
from lowdnn.cases import parse_case
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.base import Choices, Engine
from lowdnn.enums import KnobType
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.running import run_plan
from tests.support.tolerance import assert_exact


def check_case(
    runtime: Runtime, engine: Engine, text: str, choices: Choices | None = None, arch: ArchSpec = SM_90A
) -> Plan:
    """Integer data, as the case draws it; what the reference leaves as it was must stay so. Returns the plan."""
    case = parse_case(text)
    graph = case.graph()
    refusal = engine.refuse(graph, arch)
    assert refusal is None, str(refusal)
    plan = engine.plan(graph, arch, choices or {})
    seed = fresh_seed()
    inputs = case.inputs(seed, exact=True)
    actual = run_plan(runtime, plan, graph, inputs)
    for uid, expected in evaluate(graph, inputs).items():
        assert_exact(actual[uid], expected, graph.tensors[uid].data_type, f"{text}, seed {seed}, {plan.name}")
    return plan


def wgmma_tile(m: int, n: int, *, warps: int, stages: int = 2, cluster_m: int = 1, by_map: bool = True) -> Choices:
    """Knobs of the wgmma engines."""
    return {
        KnobType.TILE_M: m,
        KnobType.TILE_N: n,
        KnobType.WARP_SPEC_CFG: warps,
        KnobType.STAGES: stages,
        KnobType.TILE_CGA_M: cluster_m,
        KnobType.TILE_CGA_N: 1,
        KnobType.OUTPUT_TMA_ENABLE: int(by_map),
        KnobType.SWIZZLE: 2,
    }
