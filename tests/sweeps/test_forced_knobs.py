"""Kernels that the heuristics choose for large tensors alone, on small ones: sums in parts, wide clusters, chunks.

Random cases for the emulated device are small, and so never split. Each line takes an engine's values of its knobs,
with other types, spatial axes, layouts and memory than the engines' own tests take beside them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lowdnn.engines.registry import engine_named
from lowdnn.enums import KnobType
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_case

_LINES = (Path(__file__).parent / "forced_knobs.txt").read_text().splitlines()[1:]


@pytest.mark.parametrize("text", _LINES)
def test_case_with_knobs(racing: Runtime, text: str) -> None:
    name, knobs, expected, line = text.split(maxsplit=3)
    choices = {KnobType[knob]: int(value) for knob, value in _pairs(knobs)}
    plan = check_case(racing, engine_named(name), line, choices)
    kernels = [{(macro, str(value)) for macro, value in kernel.parameters} for kernel in plan.kernels]
    assert any(kernel.issuperset(_pairs(expected)) for kernel in kernels), plan.name


def _pairs(text: str) -> list[tuple[str, str]]:
    """NAME=VALUE,NAME=VALUE."""
    return [(name, value) for name, _, value in (word.partition("=") for word in text.split(","))]
