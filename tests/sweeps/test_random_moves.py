"""Random moves, random numbers and block scales: a sample on the emulated device, a sweep of hundreds on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from tests.support.data import fresh_seed
from tests.sweeps.checking import failures
from tests.sweeps.random_moves import draw

_SAMPLED, _SWEPT = 48, 500


def test_drawn_lines_are_graphs_of_every_kind() -> None:
    rng = np.random.default_rng(1)
    lines = [draw(rng, 300) for _ in range(200)]
    kinds = {type(op).__name__ for line in lines for op in parse_case(line).graph().operations}
    assert kinds == {
        "BlockScaleDequantize",
        "BlockScaleQuantize",
        "Concat",
        "ContractBandMatrix",
        "ExpandBandMatrix",
        "Reshape",
        "PagedCacheLoad",
        "RngOperation",
        "Slice",
        "Transpose",
    }


def test_sample_under_the_race_detector() -> None:
    _sweep("emulated", _SAMPLED, 300, policy="fuzz(7),early,races")


@pytest.mark.gpu
def test_sweep_on_a_gpu() -> None:
    _sweep("cuda", _SWEPT, 1_000_000)


def _sweep(device: str, count: int, most: int, policy: str | None = None) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    lines = [draw(rng, most) for _ in range(count)]
    with Handle.open(device, **({"policy": policy} if policy else {})) as handle:
        wrong = [failure for line in lines for failure in failures(handle, line, seed)]
    assert not wrong, f"seed {seed}: " + "\n".join(wrong)
