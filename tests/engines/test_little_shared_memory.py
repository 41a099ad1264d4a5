"""Devices with less shared memory than others of their compute capability: engines refuse, and name what they lack."""

from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec
from lowdnn.cases import parse_case
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.heuristics.ranking import rank
from lowdnn.status import Status

CASES = (
    "matmul m=512 n=512 k=64 b=64 layout=nt dtype=bf16",
    "matmul m=35 n=700 k=2560 dtype=fp16",
    "conv n=32 c=3 hw=224x224 k=64 rs=7x7 pad=3 stride=2 dir=dgrad dtype=bf16",
    "conv n=32 c=4 hw=64x64 k=320 rs=3x3 pad=1 dir=dgrad dtype=bf16",
    "conv n=32 c=4 hw=32x32 k=512 rs=3x3 pad=1 dir=dgrad dtype=bf16",
    "conv n=128 c=64 hw=56x56 k=64 rs=3x3 pad=1 dir=wgrad dtype=bf16",
    "conv n=32 c=768 hw=500 k=768 rs=31 pad=15 groups=768 dtype=bf16",
    "conv n=64 c=144 hw=1x1 k=6 rs=1x1 dir=wgrad dtype=bf16",
    "sdpa b=2 h=4 q=256 d=128 dtype=bf16",
    "sdpa_bwd b=2 h=4 q=256 d=128 dtype=bf16",
    "moe experts=4 rows=1024 n=7168 k=2048 sizes=256x256x256x256 layout=nt dtype=bf16",
    "rnn cell=lstm t=3 b=2 i=8 h=8 layers=2 bi=yes dir=train dtype=fp16",
    "norm dims=512x4096 mode=layer dtype=bf16",
)


@pytest.mark.parametrize("arch", [SM_80, SM_90A], ids=lambda arch: arch.name)
@pytest.mark.parametrize("kib", [48, 64, 96])
def test_engines_refuse_what_does_not_fit(arch: ArchSpec, kib: int) -> None:
    small = arch.with_shared_bytes(kib << 10, (kib + 1) << 10)
    assert small.lacks_shared_memory
    assert not arch.lacks_shared_memory
    for text in CASES:
        graph = parse_case(text).graph()
        for engine in ENGINES:
            refusal = engine.refuse(graph, small)
            if refusal is None:
                plan = engine.plan(graph, small, {})
                assert max(launch.shared_bytes for launch in plan.launches) <= kib << 10
            elif refusal.status is Status.NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT:
                assert ": expected " in refusal.reason, refusal
        assert rank(graph, small, HeurMode.A, ENGINES).best is not None, text
