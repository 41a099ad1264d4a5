"""``norm_rows`` for images: rows side by side, and group norms whose rows are single channels."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, KnobType, NormMode, PointwiseMode
from lowdnn.graph.layouts import Layout
from lowdnn.runtime.runtime import Runtime
from tests.engines.norm.rows import CLUSTER, COLUMNS, ENGINE, GRID, SMALL, check, shape_of
from tests.support.data import fresh_seed
from tests.support.running import check_case, check_outputs


def test_rows_side_by_side(device: Runtime) -> None:
    """32 elements in a chunk; the channels are contiguous."""
    for extent in (1, 15, 32, 40, 150):
        check(device, f"dims=2x24x{extent}x1 mode=instance layout=nhwc dtype=bf16", COLUMNS)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize(
    ("dims", "groups", "group_rows", "vector"),
    [
        ("3x8x5x7", 8, 1, 8),  # a channel each
        ("3x24x5x7", 8, 3, 8),  # several groups in a vector, and some in two
        ("2x16x9x9", 4, 4, 8),
        ("2x64x6x5", 8, 8, 8),
        ("3x40x3x11", 4, 10, 8),
        ("2x30x5x5", 3, 10, 2),
        ("2x15x5x3", 3, 5, 1),
        ("1x96x4x5", 4, 24, 8),
        ("2x20x2x3x4", 2, 10, 4),
        ("5x10x2x1", 1, 10, 2),
        ("2x20x1x1", 2, 1, 2),  # one pixel: groups are rows that lie in memory one after the other
        ("2x128x3x5", 2, 1, 8),  # groups as wide as a line of memory are rows too
    ],
)
def test_channels_of_a_group_side_by_side(
    device: Runtime, dims: str, groups: int, group_rows: int, vector: int, direction: str
) -> None:
    line = f"dims={dims} mode=group groups={groups} layout=nhwc dtype=fp16 dir={direction}"
    shape = shape_of(check(device, line))
    assert (shape["NORM_GROUP"], shape["VECTOR"]) == (group_rows, vector)


@pytest.mark.parametrize("choices", [SMALL, CLUSTER, GRID, COLUMNS], ids=["block", "cluster", "grid", "columns"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_group_rows_of_many_pixels(racing: Runtime, choices: dict[KnobType, int], direction: str) -> None:
    """Several chunks, several blocks of one image, and blocks with channels of two images."""
    line = f"dims=3x60x11x13 mode=group groups=6 layout=nhwc dtype=bf16 dir={direction}"
    assert shape_of(check(racing, line, choices))["NORM_GROUP"] == 10


@pytest.mark.parametrize(
    "line",
    [
        "mode=group groups=2 scale=none dtype=fp32",
        "mode=group groups=2 scale=scale phase=inference dtype=bf16",
        "mode=group groups=5 dtype=fp64",
        "mode=group groups=5 dtype=fp64 dir=bwd",
        "mode=group groups=2 dtype=bf16 before=residual+store epilogue=residual+relu",
        "mode=group groups=2 scale=none dtype=fp32 dir=bwd",
        "mode=group groups=2 scale=scale dtype=fp32 dir=bwd",
        "mode=group groups=2 dtype=bf16 before=relu_bwd dir=bwd",
        "mode=instance dtype=bf16 before=relu_bwd dir=bwd",
    ],
)
def test_group_rows_with_fused_operations(device: Runtime, line: str) -> None:
    check(device, f"dims=3x20x6x7 layout=nhwc {line}")


def test_strided_channels(device: Runtime) -> None:
    """Rows are single channels too if vectors lie along the pixels, as those of the largest tensor do."""
    builder, dims = CaseBuilder(Layout.CHANNELS_LAST), (2, 20, 4, 6)
    x = builder.tensor(dims, DataType.HALF)
    residual = builder.tensor(dims, DataType.FLOAT, layout=Layout.ROW_MAJOR)
    total = builder.pointwise(PointwiseMode.ADD, x, residual)
    builder.norm(NormMode.GROUP_NORM, total, builder.constant(4, DataType.FLOAT, 1e-3), groups=2, store=DataType.HALF)
    graph, rng = builder.graph(), np.random.default_rng(fresh_seed())
    inputs = {tensor.uid: rng.normal(0, 1, tensor.dims).astype(np.float32) for tensor in (x, residual)}
    inputs[x.uid] = inputs[x.uid].astype(np.float16)
    plan = ENGINE.plan(graph, SM_90A, {})
    assert (shape_of(plan)["NORM_GROUP"], shape_of(plan)["IS_ROW"]) == (10, 1)
    check_outputs(device, plan, graph, inputs, 240)


@pytest.mark.parametrize(
    ("line", "choices", "group_rows"),
    [
        ("dims=3x20x9x11 mode=group groups=2 dtype=bf16", SMALL, 10),
        ("dims=5x24x8x16 mode=group groups=6 dtype=fp16", CLUSTER, 4),
        ("dims=5x24x8x16 mode=group groups=6 dtype=fp16", CLUSTER | {KnobType.READ_AHEAD: 1}, 4),
        ("dims=2x66x4x5 mode=group groups=2", SMALL, 1),  # more than a block has side by side
    ],
)
def test_gradients_of_channels_one_after_the_other(
    racing: Runtime, line: str, choices: dict[KnobType, int], group_rows: int
) -> None:
    """Rows are single channels, which share the statistics of their group."""
    plan = check_case(racing, ENGINE, f"norm {line} dir=bwd", choices, SM_90A.with_sm_count(4))
    assert shape_of(plan)["NORM_GROUP"] == group_rows


@pytest.mark.parametrize(
    ("line", "choices", "tile"),
    [
        ("dims=5x24x8x16 mode=group groups=6 mean=10000", CLUSTER, (64, 32, 2)),
        ("dims=5x24x8x16 mode=group groups=6 dtype=fp16 dir=bwd", CLUSTER, (64, 32, 2)),
        ("dims=5x30x16x16 mode=group groups=3 dtype=fp16 epilogue=swish", SMALL, (320, 32, 1)),
        ("dims=3x30x16x16 mode=group groups=3 dir=bwd", SMALL, (320, 32, 1)),
        ("dims=3x64x32x32 mode=group groups=4 dtype=bf16", {}, (64, 32, 8)),
    ],
)
def test_each_channel_of_a_group_has_a_team(
    racing: Runtime, line: str, choices: dict[KnobType, int], tile: tuple[int, int, int]
) -> None:
    """The teams are in one block, or in those of a cluster, which add their sums."""
    shape = shape_of(check(racing, line, choices))
    assert (shape["THREADS"], shape["TEAM"], shape["CLUSTER"]) == tile
    assert (shape["SHARING"], shape["SIDE"]) == (1, 1)


def test_groups_without_scales_are_rows(device: Runtime) -> None:
    """One axis then has all of a group's elements."""
    assert shape_of(check(device, "dims=3x24x8x16 mode=group groups=6 scale=none dtype=bf16"))["NORM_GROUP"] == 1


@pytest.mark.parametrize("layout", ["row", "nhwc"])
def test_gradients_of_channels_read_images_once(layout: str) -> None:
    """The sums that dx needs are those of the gradients, image by image."""
    for mode in ("group groups=32", "instance"):
        graph = parse_case(f"norm dims=8x320x32x32 mode={mode} layout={layout} dtype=fp16 dir=bwd").graph()
        plan = ENGINE.plan(graph, SM_90A, {})
        assert [kernel.source for kernel in plan.kernels] == ["norm/norm_backward.cu", "norm/norm_join.cu"]
        assert len(plan.launches) == 2
        x = graph.tensors[1]
        assert sum(launch.work.bytes for launch in plan.launches) < 1.05 * 3 * x.span_bytes
        assert plan.workspace_bytes < 0.04 * x.span_bytes
