"""Plans say what they do to the numbers of their operands."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec
from lowdnn.cases import parse_case, parse_cases
from lowdnn.engines.base import LastResort
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import NumericalNote
from lowdnn.plan import MathUnit

_CASES = Path(__file__).resolve().parents[1] / "cases"
#: A gradient of pixels that are packed, which no text case has in fp32.
_PACKED = "conv n=1 c=84 hw=12 k=8 rs=1 dir=wgrad dtype=fp32"
_TF32_UNITS = {MathUnit.MMA_TF32, MathUnit.WGMMA_TF32, MathUnit.WGMMA_TF32X3}
_TF32_NOTES = {NumericalNote.TF32_INPUTS, NumericalNote.TF32X3}


@pytest.mark.parametrize("arch", [SM_80, SM_90A])
@pytest.mark.parametrize("family", ["conv", "matmul", "moe"])
def test_plans_that_multiply_in_tf32_say_so(arch: ArchSpec, family: str) -> None:
    lines = (_CASES / f"{family}.txt").read_text(encoding="utf-8").splitlines()
    cases = [*parse_cases(lines), *([parse_case(_PACKED)] if family == "conv" else [])]
    rounding = set()
    for case in cases:
        graph = case.graph()
        for engine in ENGINES:
            if engine.refuse(graph, arch) is not None:
                continue
            plan = engine.plan(graph, arch, {})
            if _TF32_UNITS.isdisjoint(launch.work.unit for launch in plan.launches if launch.work):
                continue
            rounding.add(engine.name)
            assert not _TF32_NOTES.isdisjoint(plan.numerical_notes), (engine.name, str(case))
            if not isinstance(engine, LastResort):  # composite has those of its parts
                assert {*plan.numerical_notes} <= {*engine.numerical_notes}, (engine.name, str(case))
    assert rounding
