"""Attention forward of few queries over many keys."""

from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.engines.attention.attention_decode import AttentionDecode
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_case

ENGINE = AttentionDecode()

#: Each crosses several features; sizes are odd on purpose.
LINES = (
    "sdpa b=2 h=4 hk=2 q=1 kv=300 d=64 stats=yes",
    "sdpa b=2 h=8 hk=1 q=3 kv=150 d=128 causal=bottom_right lengths=yes stats=yes dtype=fp16",
    "sdpa b=1 h=6 hk=2 hv=3 q=40 kv=50 d=16 dv=24 left=20 causal=top_left layout=bshd",
    "sdpa b=2 h=4 hk=2 q=2 kv=90 d=24 dv=256 scores=bias dropout=0.25 layout=sbhd out=fp32",
    "sdpa b=1 h=5 hk=1 q=7 kv=130 d=256 scores=tanh stats=yes",
    "sdpa b=1 h=2 q=1 kv=1 d=8 stats=yes",
    "sdpa b=5 h=4 hk=2 q=3 kv=130 d=16 lengths=both stats=lse",
    "sdpa b=2 h=4 hk=2 hv=1 q=3 kv=498 d=8 causal=top_left lengths=yes page=16 dtype=fp16",
    "sdpa b=2 h=4 hk=2 q=1 kv=210 d=256 lengths=yes page=16",
)
SPLIT = "sdpa b=2 h=4 hk=2 q=3 kv=2070 d=16 dv=72 causal=bottom_right lengths=yes scores=bias sink=yes stats=log2"


def graph_of(line: str) -> OperationGraph:
    return parse_case(line).graph()


@pytest.mark.parametrize("line", LINES)
def test_lines(racing: Runtime, line: str) -> None:
    check_case(racing, ENGINE, line)


@pytest.mark.parametrize(("splits", "launches"), [(1, 1), (2, 1), (4, 2)])
def test_parts_of_the_keys(device: Runtime, splits: int, launches: int) -> None:
    plan = check_case(device, ENGINE, SPLIT, {KnobType.SPLIT_K_SLC: splits})
    assert len(plan.launches) == launches
    assert plan.launches[0].cluster == (1, 2 if splits == 2 else 1, 1)


@pytest.mark.parametrize(("keys", "splits"), [(1040, 2), (1600, 3)])
def test_parts_are_joined_without_races(racing: Runtime, keys: int, splits: int) -> None:
    line = f"sdpa b=1 h=2 hk=1 q=1 kv={keys} d=16 dropout=0.5"
    plan = check_case(racing, ENGINE, line, {KnobType.SPLIT_K_SLC: splits})
    assert plan.workspace_bytes == (256 + 512 if splits == 3 else 0)  # maxima and sums, outputs


@pytest.mark.parametrize("stages", [2, 8])
def test_stages_of_the_rings(racing: Runtime, stages: int) -> None:
    check_case(racing, ENGINE, "sdpa b=1 h=4 hk=2 q=2 kv=700 d=32 dv=16 stats=yes", {KnobType.STAGES: stages})


@pytest.mark.parametrize("size", [8, 64, 128, 192, 256])
@pytest.mark.parametrize("arch", [SM_80, SM_90A], ids=lambda arch: arch.name)
def test_kernels_fit(arch: type(SM_80), size: int) -> None:
    for line in (f"sdpa b=8 h=8 hk=2 q=8 kv=4096 d={size}", f"sdpa b=1 h=8 q=1 kv=4096 d=8 dv={size}"):
        graph = graph_of(line)
        (stages,) = (knob for knob in ENGINE.knobs(graph, arch) if knob.type is KnobType.STAGES)
        assert stages.default in stages.values
        for value in stages.values:
            for launch in ENGINE.plan(graph, arch, {KnobType.STAGES: value}).launches:
                assert launch.shared_bytes <= arch.shared_bytes_per_block
                assert launch.overlaps_previous == (arch is SM_90A)


@pytest.mark.parametrize(
    ("line", "splits"),
    [
        ("sdpa b=32 h=32 hk=8 q=1 kv=8192 d=128", 1),  # 256 blocks for 264 places
        ("sdpa b=1 h=32 hk=8 q=1 kv=131072 d=128", 16),  # a block for each multiprocessor
        ("sdpa b=6 h=32 hk=8 q=1 kv=8192 d=128", 3),  # 144 blocks, all at once
        ("sdpa b=37 h=32 hk=8 q=1 kv=8192 d=128", 4),  # 1184 blocks in 5 waves of 264
        ("sdpa b=1 h=32 hk=8 q=1 kv=1000 d=128", 3),  # warps with at least 4 tiles
    ],
)
def test_keys_are_split_where_blocks_are_few(line: str, splits: int) -> None:
    assert dict(ENGINE.plan(graph_of(line), SM_90A, {}).choices)[KnobType.SPLIT_K_SLC] == splits


@pytest.mark.parametrize(
    ("line", "fills"),
    [
        ("sdpa b=32 h=32 hk=8 q=1 kv=8192 d=128", True),  # two blocks on a multiprocessor
        ("sdpa b=32 h=32 hk=8 q=1 kv=8192 d=64 page=16 lengths=yes", False),  # there would be room for four
        ("sdpa b=8 h=64 hk=8 q=1 kv=8192 d=128", False),  # one, and room for another
        ("sdpa b=37 h=32 hk=8 q=1 kv=8192 d=128", False),  # a second launch comes between
    ],
)
def test_the_next_launch_is_let_in_late_where_it_finds_no_room_before(line: str, fills: bool) -> None:
    kernel = ENGINE.plan(graph_of(line), SM_90A, {}).kernels[0]
    assert dict(kernel.parameters)["FILLS_DEVICE"] == fills


def test_few_queries_come_here_and_many_elsewhere() -> None:
    def first(line: str) -> str:
        best = rank(graph_of(line), SM_90A, HeurMode.A, ENGINES).best
        assert best is not None
        return best.engine.name

    assert first("sdpa b=32 h=32 hk=8 q=1 kv=8192 d=128 lengths=yes") == "attention_decode"
    assert first("sdpa b=4 h=16 q=1 kv=500 d=64") == "attention_decode"
    assert first("sdpa b=2 h=16 q=1000 d=64") == "attention_wgmma"
    reason = "q.dims: expected at most 128 queries of heads that share keys, got 132"
    assert reason in str(ENGINE.refuse(graph_of("sdpa b=1 h=4 hk=1 q=33 d=64"), SM_90A))
