"""``gemm/split_k_reduce.cu``: every slice counts once, whatever the lanes and the reads of a lane are."""

from __future__ import annotations

from lowdnn.cases import parse_case
from lowdnn.engines.conv.wgmma.conv_wgrad_wgmma import ConvWgradWgmma
from lowdnn.engines.matmul.matmul_mma import MatmulMma
from lowdnn.enums import KnobType
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.pairs import paired
from tests.support.running import check_exact

TILE = {
    KnobType.TILE_M: 32,
    KnobType.TILE_N: 32,
    KnobType.TILEK: 64,
    KnobType.STAGES: 2,
    KnobType.SPLIT_K_SLC: 32,
}


@paired(("splits", [2, 3, 8, 15]), (("columns", "vector"), [(24, 4), (22, 2), (21, 1)]))
def test_slices_of_products(racing: Runtime, splits: int, columns: int, vector: int) -> None:
    depth = splits * 64 - 9  # a k tile each
    case = parse_case(f"matmul m=13 n={columns} k={depth} dtype=bf16 out=fp32 epilogue=bias+relu")
    plan = check_exact(racing, MatmulMma(), case.graph(), length=case.length, choices=TILE)
    assert macros(plan)["VECTOR"] == vector
    assert 0 <= plan.workspace_bytes - splits * 13 * 24 * 4 < 256


def test_lanes_with_more_slices_than_reads(device: Runtime) -> None:
    case = parse_case("conv n=2 c=8 hw=65x64 k=8 rs=1x1 dir=wgrad dtype=fp16 out=fp32")
    choices = {KnobType.SPLIT_K_SLC: 130}
    plan = check_exact(device, ConvWgradWgmma(), case.graph(), length=case.length, choices=choices)
    assert macros(plan)["LANES"] == 32


def macros(plan: Plan) -> dict[str, str | int]:
    kernel = plan.kernels[-1]
    assert kernel.name.startswith("gemm_split_k_reduce")
    return dict(kernel.parameters)
