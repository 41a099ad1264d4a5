"""The cost model against times worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.arch.timings import Timings
from lowdnn.cases import parse_case
from lowdnn.engines.conv.direct.conv_direct import ConvDirect
from lowdnn.engines.conv.implicit_gemm.conv_implicit_gemm_mma import ConvImplicitGemmMma
from lowdnn.engines.floor import Floor, Multipliers, bound_us, floor_of, least_time
from lowdnn.engines.matmul.matmul_mma import MatmulMma
from lowdnn.engines.matmul.matmul_simt import MatmulSimt
from lowdnn.engines.matmul.matmul_wgmma import MatmulWgmma
from lowdnn.engines.model.plan_time import launch_us, plan_us
from lowdnn.engines.pointwise.pointwise import PointwiseEngine
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.plan import Launch, MathUnit, Plan, Work
from tests.support.builders import convolution_graph, matmul_graph, pointwise_graph

#: 100 multiprocessors at 1 GHz, 10 operations a clock each: 1e12 a second; 1e12 bytes a second; 2 us a launch,
#: of which a dependent one saves 0.6.
ARCH = replace(
    SM_90A,
    sm_count=100,
    clock_hz=1e9,
    flops_per_clock=dict.fromkeys(MathUnit, 10),
    attained={unit: 0.5 if unit is MathUnit.MMA_F16 else 0.6 for unit in MathUnit},
    copy_bytes_per_s=1e12,
    timings=Timings(launch_s=2e-6, dependent_launch_saves_s=0.6e-6),
)


def launch(blocks: int, flops: int = 0, size_bytes: int = 0, unit: MathUnit = MathUnit.FMA_F32) -> Launch:
    return Launch(0, (blocks, 1, 1), (128, 1, 1), (), work=Work(flops, size_bytes, unit))


def test_a_launch_that_moves_bytes_takes_their_time_and_the_overhead() -> None:
    assert launch_us(launch(100, size_bytes=10**7), ARCH) == pytest.approx(2 + 10)


def test_the_longer_of_arithmetic_and_memory_counts() -> None:
    arithmetic_us = 1e6 * 6e8 / (1e12 * 0.6)
    assert launch_us(launch(100, flops=6 * 10**8, size_bytes=10**6), ARCH) == pytest.approx(2 + arithmetic_us + 0.1)
    assert launch_us(launch(100, flops=10**3, size_bytes=10**6), ARCH) == pytest.approx(2 + 1, rel=1e-3)


def test_a_plan_is_the_sum_of_its_launches() -> None:
    launches = (launch(100, size_bytes=10**6), launch(25, size_bytes=10**6))
    plan = Plan("e", 0, "", "sm_90a", (), (), launches, ())
    assert plan_us(plan, ARCH) == pytest.approx((2 + 1) + (2 + 2))


def test_blocks_that_meet_take_longer() -> None:
    meeting = replace(launch(100, size_bytes=10**6), cooperative=True)
    assert launch_us(meeting, ARCH) == pytest.approx(2 + 1.2 + 1)


def test_a_launch_that_overlaps_the_one_before_takes_less() -> None:
    overlapping = replace(launch(100, size_bytes=10**6), overlaps_previous=True)
    assert launch_us(overlapping, ARCH) == pytest.approx(2 - 0.6 + 1)


def test_half_of_the_multiprocessors_keep_the_memory_busy() -> None:
    times = [launch_us(launch(blocks, size_bytes=10**6), ARCH) for blocks in (10, 50, 101)]
    assert times == pytest.approx([2 + 5, 2 + 1, 2 + 1])


def test_the_bound_takes_tensor_cores_only_where_the_notes_say_so() -> None:
    arch = replace(ARCH, flops_per_clock={unit: 100 if unit is MathUnit.MMA_F16 else 10 for unit in MathUnit})
    graph = matmul_graph((1,), 1024, 1024, 1024, data_type=DataType.HALF)
    flops, copied_us = 2 * 1024**3, 3 * 2 * 1024**2 / 1e6
    on_fma_us, on_tensor_cores_us = 1e6 * flops / (1e12 * 0.6), 1e6 * flops / (1e13 * 0.5)
    assert bound_us(graph, MatmulSimt(), arch) == pytest.approx(1.4 + on_fma_us + 0.1 * copied_us)
    assert bound_us(graph, MatmulMma(), arch) == pytest.approx(1.4 + on_tensor_cores_us + 0.1 * copied_us)


def test_the_bound_of_mma_sync_does_not_take_faster_tensor_cores() -> None:
    graph = matmul_graph((1,), 1024, 1024, 1024, data_type=DataType.HALF)
    slow = bound_us(graph, MatmulMma(), SM_90A)
    assert slow > bound_us(graph, MatmulWgmma(), SM_90A)
    without = replace(SM_90A, flops_per_clock={MathUnit.MMA_F16: 4096})
    assert bound_us(graph, MatmulMma(), without) == slow


def test_the_bound_counts_the_launches_and_the_waste_of_a_floor() -> None:
    """A gradient with strides 2 x 2 of 48 channels: by mma.sync four launches of tiles that are 64 wide at least."""
    graph = parse_case("conv n=8 c=48 hw=32x32 k=64 rs=3x3 pad=1 stride=2 dir=dgrad dtype=bf16").graph()
    operation = graph.operations[0]
    least = least_time(graph, floor_of(ConvImplicitGemmMma(), graph), ARCH)
    assert floor_of(ConvImplicitGemmMma(), graph) == Floor(Multipliers.MMA_SYNC, 4, 64 / 48)
    assert least.arithmetic_s == pytest.approx(operation.flops * 64 / 48 / ARCH.attained_rate(MathUnit.MMA_F16))


@pytest.mark.parametrize(
    "case",
    [
        "matmuls m=256x1024 n=512x256 k=512x512 layout=nt dtype=bf16",
        "moe experts=4 rows=512 n=384 k=256 dtype=bf16",
        "moe experts=4 rows=512 n=384 k=256 dir=wgrad dtype=bf16",
    ],
)
def test_the_bound_counts_every_contraction(case: str) -> None:
    graph = parse_case(case).graph()
    flops = sum(operation.flops for operation in graph.operations)
    least = least_time(graph, Floor(Multipliers.MMA_SYNC), ARCH)
    assert least.arithmetic_s == pytest.approx(flops / ARCH.attained_rate(MathUnit.MMA_F16))


def test_the_bound_counts_each_tensor_in_memory_once() -> None:
    graph = pointwise_graph(PointwiseMode.ADD, (1000, 1000))
    assert bound_us(graph, PointwiseEngine(), ARCH) == pytest.approx(1.4 + 3 * 4)


def test_the_bound_leaves_virtual_tensors_out() -> None:
    plain = convolution_graph((8, 64, 64, 64), (64, 64, 1, 1))
    fused = convolution_graph((8, 64, 64, 64), (64, 64, 1, 1), epilogue=(PointwiseMode.RELU_FWD,))
    assert bound_us(fused, ConvDirect(), ARCH) == pytest.approx(bound_us(plain, ConvDirect(), ARCH))
