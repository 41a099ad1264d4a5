"""Values of several knobs at once: an engine makes a plan that a device can run, or says which values do not fit."""

from __future__ import annotations

import math
from itertools import count
from pathlib import Path
from random import Random

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case, parse_cases
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import KnobType
from lowdnn.runtime.plan_rules import check_plan
from lowdnn.status import BadParamError, NotSupportedError
from tests.support.errors import raises

_FOLDER = Path(__file__).parents[1] / "cases"
CASES = [case for path in sorted(_FOLDER.glob("*.txt")) for case in parse_cases(path.read_text().splitlines())]
_DRAWS = 1500


def test_any_values_of_knobs_make_a_plan_or_are_refused() -> None:
    random, draws = Random(), count()
    while next(draws) < _DRAWS:
        case, arch = random.choice(CASES), random.choice((SM_90A, SM_80))
        try:
            graph = case.graph()
        except NotSupportedError:
            continue
        engine = random.choice([engine for engine in ENGINES if engine.name != "composite"])
        if engine.refuse(graph, arch) is not None:
            continue
        knobs = engine.knobs(graph, arch)
        chosen = random.sample(knobs, random.randint(0, len(knobs)))
        choices = {knob.type: random.choice(knob.values) for knob in chosen}
        try:
            plan = engine.plan(graph, arch, choices)
        except (BadParamError, NotSupportedError):
            continue
        check_plan(plan)
        where = f"{case} {engine.name} {choices}"
        assert all(launch.shared_bytes <= arch.shared_bytes_per_block for launch in plan.launches), where
        assert not math.isnan(plan_us(plan, arch)), where


def test_a_first_layers_tile_that_fits_no_block_is_refused() -> None:
    graph = parse_case("conv n=64 c=3 hw=224x224 k=96 rs=4x4 stride=4 dtype=bf16").graph()
    with raises(BadParamError, "conv_stem_mma.TILE_ROWS, TILE_COLS, STAGES", expected="shared memory", got="36, 56"):
        engine_named("conv_stem_mma").plan(graph, SM_90A, {KnobType.TILE_COLS: 56, KnobType.TILE_ROWS: 36})
