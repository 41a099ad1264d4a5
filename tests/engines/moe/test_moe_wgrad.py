from __future__ import annotations

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.engines.moe.moe_wgrad_simt import MoeWgradSimt
from lowdnn.engines.moe.moe_wgrad_wgmma import MoeWgradWgmma
from lowdnn.enums import DataType
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.cases import check_case, wgmma_tile
from tests.support.running import run_plan

SIMT, WGMMA = MoeWgradSimt(), MoeWgradWgmma()
COOPERATIVE, PING_PONG = range(2)
ALONE = SM_90A.with_sm_count(1)


@pytest.mark.parametrize(
    "words", ["layout=nn sizes=64x128x0x17", "layout=nt sizes=1x0x0x208", "layout=nt sizes=70x0x60x33 ends=1"]
)
def test_rows_of_an_expert(device: Runtime, words: str) -> None:
    text = f"moe dir=wgrad experts=4 rows=209 k=72 n=136 dtype=bf16 {words}"
    check_case(device, WGMMA, text, wgmma_tile(64, 64, warps=PING_PONG, stages=3), ALONE)


def test_every_kind_of_block_under_races(racing: Runtime) -> None:
    """Clusters, two warpgroups on a tile, experts with several batches, 64-bit offsets."""
    text = "moe dir=wgrad experts=2 batches=3 rows=166 k=136 n=72 dtype=bf16 sizes=64x0x0x66x3x33 offset=int64"
    plan = check_case(racing, WGMMA, text, wgmma_tile(128, 128, warps=COOPERATIVE, cluster_m=2))
    assert plan.launches[0].cluster == (2, 1, 1)


def test_what_other_experts_have_does_not_count(racing: Runtime) -> None:
    """Rows of NaN and infinity, of one expert or of none, lie in the last k block of another expert."""
    case = parse_case("moe dir=wgrad experts=3 rows=128 k=64 n=64 dtype=bf16 sizes=40x30x20 ends=1")
    graph = case.graph()
    inputs = case.inputs(1, exact=True)
    tensors = {tensor.name: tensor.uid for tensor in graph.inputs}
    for name, value in (("token", np.nan), ("doutput", np.inf)):
        inputs[tensors[name]][:, 40:70] = inputs[tensors[name]][:, 90:] = dtypes.from_float64(
            np.full((1, 1, 1), value), DataType.BFLOAT16
        )
    plan = WGMMA.plan(graph, SM_90A, wgmma_tile(64, 64, warps=PING_PONG, stages=3))
    (dweight,) = run_plan(racing, plan, graph, inputs).values()
    finite = np.isfinite(dtypes.to_values(dweight, DataType.BFLOAT16))
    assert finite[[0, 2]].all()
    assert not finite[1].any()


def test_without_tensor_cores(device: Runtime) -> None:
    check_case(device, SIMT, "moe dir=wgrad experts=3 batches=2 rows=100 k=33 n=37 layout=nt ends=1", arch=SM_80)


def test_what_wgmma_refuses() -> None:
    def status(text: str) -> Status:
        refusal = WGMMA.refuse(parse_case(f"moe experts=2 dir=wgrad {text}").graph(), SM_90A)
        assert refusal is not None
        return refusal.status

    assert status("rows=8 k=8 n=8 dtype=fp32") is Status.NOT_SUPPORTED_DATA_TYPE
    assert status("rows=0 k=8 n=8 dtype=bf16") is Status.NOT_SUPPORTED_SHAPE
    assert WGMMA.refuse(parse_case("moe experts=2 dir=wgrad rows=8 k=8 n=8 dtype=bf16").graph(), SM_80) is not None
