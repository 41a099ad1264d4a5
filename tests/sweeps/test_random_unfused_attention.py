"""Random attention and gradients in parts: a sample on the emulated device, a sweep of hundreds on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80
from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.engines.engine_set import anchored
from lowdnn.engines.registry import ENGINES
from tests.support.data import fresh_seed
from tests.sweeps.checking import failures
from tests.sweeps.random_unfused_attention import draw, draw_backward

Draw = Callable[[np.random.Generator, int], str]

_PLANNED, _SAMPLED, _SWEPT, _PARTS = 30, 2, 200, 8
_KINDS = pytest.mark.parametrize("drawn", [draw, draw_backward], ids=["forward", "backward"])


@_KINDS
def test_drawn_graphs_are_taken(drawn: Draw) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    for _ in range(_PLANNED):
        line = drawn(rng, 300)
        graph = parse_case(line).graph()
        taking = [engine.name for engine in anchored(ENGINES, graph.operations) if engine.refuse(graph, SM_80) is None]
        assert taking in (["composite"], ["attention_backward_parts"]), f"seed {seed}: {line}: {taking}"


@_KINDS
def test_sample_under_the_race_detector(drawn: Draw) -> None:
    _sweep(drawn, "emulated", _SAMPLED, 24, policy="fuzz(7),early,races")


@pytest.mark.gpu
@_KINDS
@pytest.mark.parametrize("part", range(_PARTS))
def test_sweep_on_a_gpu(part: int, drawn: Draw) -> None:
    _sweep(drawn, "cuda", _SWEPT // _PARTS, 300)


def _sweep(drawn: Draw, device: str, count: int, most: int, policy: str | None = None) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    with Handle.open(device, **({"policy": policy} if policy else {})) as handle:
        wrong = [failure for _ in range(count) for failure in failures(handle, drawn(rng, most), seed)]
    assert not wrong, f"seed {seed}: " + "\n".join(wrong)
