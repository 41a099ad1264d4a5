"""Kernels of mma.sync engines that start while the one before them ends: each waits before it touches memory."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.engines.launch import uncrowded_bytes
from lowdnn.engines.model.occupancy import resident_blocks
from lowdnn.engines.registry import engine_named
from lowdnn.enums import KnobType
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.workspace import Workspace
from tests.support.data import poison
from tests.support.runtime import upload

SPLIT = {KnobType.SPLIT_K_SLC: 2}
CASES = (
    ("matmul_mma", "matmul m=24 n=40 k=72 dtype=bf16", {}),
    ("matmul_mma", "matmul m=24 n=40 k=136 dtype=bf16", SPLIT),
    ("conv_implicit_gemm_mma", "conv n=1 c=8 hw=6x6 k=16 rs=3x3 pad=1 dtype=bf16", {}),
    ("conv_implicit_gemm_mma", "conv n=1 c=5 hw=6x6 k=16 rs=3x3 pad=1 stride=2 dir=dgrad dtype=bf16", {}),
    ("conv_implicit_gemm_mma", "conv n=2 c=8 hw=6x6 k=16 rs=3x3 pad=1 dir=wgrad dtype=bf16", SPLIT),
    ("conv_narrow_mma", "conv n=1 c=24 hw=6x6 k=20 rs=1x1 dtype=bf16", {}),
    ("conv_stem_mma", "conv n=1 c=3 hw=16x16 k=16 rs=3x3 pad=1 stride=2 dtype=bf16", {}),
    ("conv_stem_dgrad_mma", "conv n=1 c=3 hw=16x16 k=12 rs=3x3 pad=1 stride=2 dir=dgrad dtype=bf16", {}),
    ("conv_stem_wgrad_mma", "conv n=2 c=3 hw=16x16 k=16 rs=3x3 pad=1 stride=2 dir=wgrad dtype=bf16", {}),
)


@pytest.mark.parametrize(("engine", "line", "choices"), CASES)
def test_a_plan_behind_itself_is_no_race(racing: Runtime, engine: str, line: str, choices: dict[KnobType, int]) -> None:
    graph = parse_case(line).graph()
    plan = engine_named(engine).plan(graph, SM_90A, choices)
    assert all(launch.overlaps_previous for launch in plan.launches)
    tensors = [graph.tensors[item.uid] for item in plan.tensors]
    buffers = [upload(racing, poison(tensor.element_count, tensor.data_type)) for tensor in tensors]
    pointers = tuple(buffer.address for buffer in buffers)
    with Workspace(racing.context, plan.workspace_bytes) as workspace, np.errstate(all="ignore"):
        loaded = racing.load(plan)
        for _ in range(2):
            loaded.execute(pointers, workspace.address)


@pytest.mark.parametrize(("engine", "line", "choices"), CASES)
def test_none_is_launched_early_where_that_is_unknown(engine: str, line: str, choices: dict[KnobType, int]) -> None:
    found = engine_named(engine)
    graph = parse_case(line).graph()
    if found.refuse(graph, SM_80) is None:
        plan = found.plan(graph, SM_80, choices)
        assert not any(launch.overlaps_previous for launch in plan.launches)
        assert {kernel.target for kernel in plan.kernels} == {"sm_80"}


@pytest.mark.parametrize(
    ("blocks", "shared_bytes", "share"),
    [(128, 167_040, 1), (128, 114_256, 1), (262, 38_016, 2), (256, 89_856, 2), (1000, 20_000, 8), (3000, 20_000, 11)],
)
def test_multiprocessors_have_room_for_an_even_share_of_blocks_that_start_early(
    blocks: int, shared_bytes: int, share: int
) -> None:
    taken = uncrowded_bytes(SM_90A, blocks, shared_bytes)
    assert taken >= shared_bytes
    assert resident_blocks(SM_90A, 32, shared_bytes=taken) == share
    assert uncrowded_bytes(SM_80, blocks, shared_bytes) == shared_bytes
