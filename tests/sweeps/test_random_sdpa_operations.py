"""Random ``SdpaForward`` operations in parts, compared with the reference: a few on the emulated device, hundreds on a
GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.driver.base import Driver
from lowdnn.engines.registry import engine_named
from lowdnn.graph.expansion import expanded
from lowdnn.graph.graph import OperationGraph
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.running import check_outputs
from tests.support.runtime import open_runtime
from tests.sweeps.random_sdpa_operations import draw

_SAMPLED, _SWEPT = 2, 200


def test_sample_under_the_race_detector(racing: Runtime) -> None:
    _sweep(racing, _SAMPLED)


def test_one_unit_of_a_large_score_is_allowed(device: Runtime) -> None:
    """The operands are fp64 and the scores fp32, up to 45 in size: the output is off by a unit of a score."""
    _check(device, 1217441660)


@pytest.mark.gpu
def test_sweep_on_a_gpu(cuda_driver: Driver, kernel_cache_dir: Path) -> None:
    with open_runtime(cuda_driver, kernel_cache_dir) as runtime:
        _sweep(runtime, _SWEPT)


def _sweep(runtime: Runtime, count: int) -> None:
    for seed in range(first := fresh_seed(), first + count):
        _check(runtime, seed)


def _check(runtime: Runtime, seed: int) -> None:
    operation, inputs = draw(np.random.default_rng(seed))
    graph, engine = OperationGraph(expanded([operation])), engine_named("composite")
    refusal = engine.refuse(graph, SM_90A)
    assert refusal is None, f"seed {seed}: {refusal}"
    plan = engine.plan(graph, SM_90A, {})
    check_outputs(runtime, plan, graph, inputs, max(operation.scores_dims), f"seed {seed}")
