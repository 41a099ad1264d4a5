"""Pooling and interpolation with their gradients, against torch's own kernels."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
F = torch.nn.functional


@pytest.mark.parametrize(
    ("shape", "arguments"),
    [
        ((2, 3, 9, 8), {"kernel_size": 3, "stride": 2, "padding": 1}),
        ((2, 3, 9, 8), {"kernel_size": (2, 3), "ceil_mode": True}),
        ((3, 7, 7), {"kernel_size": 2}),
        ((2, 3, 4, 7), {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True}),
        ((1, 2, 5, 6, 7), {"kernel_size": (2, 3, 2), "stride": (1, 2, 2), "padding": (0, 1, 1)}),
    ],
)
def test_maxima_and_their_indices_are_equal(face: Face, shape: tuple[int, ...], arguments: dict[str, Any]) -> None:
    x = face.integers(*shape, dtype=torch.float32)
    rank = len(arguments["kernel_size"]) if len(shape) == 5 else 2
    pool = getattr(F, f"max_pool{rank}d")
    names = [f"max_pool{rank}d_with_indices", f"max_pool{rank}d_with_indices_backward"]
    face.check(lambda x: pool(x, **arguments, return_indices=True), x, taken=names, exact=True)


def test_maxima_and_their_indices_take_one_launch(face: Face) -> None:
    import lowdnn.torch

    with face.enable(["pooling"]):
        F.max_pool2d(face.reals(2, 3, 9, 8, dtype=torch.float32), 3, 2, 1, return_indices=True)
    plans = lowdnn.torch.registry.REGISTRY._plans[face.device, "max_pool2d_with_indices"]
    *_, run = plans._known.values()
    assert sum(len(step.loaded.plan.launches) for step in run.prepared.steps) == 1


def test_channels_last_stays_channels_last(face: Face) -> None:
    x = face.integers(2, 8, 6, 6, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    names = ["max_pool2d_with_indices", "max_pool2d_with_indices_backward"]
    face.check(lambda x: F.max_pool2d(x, 3, 2, 1), x, taken=names, exact=True)


@pytest.mark.parametrize(
    ("rank", "arguments"),
    [
        (2, {"kernel_size": 3, "stride": 2, "padding": 1}),
        (2, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False, "ceil_mode": True}),
        (3, {"kernel_size": 2}),
    ],
)
def test_averages(face: Face, rank: int, arguments: dict[str, Any]) -> None:
    x = face.integers(2, 3, *(6, 8, 4)[:rank], dtype=torch.float32)
    names = [f"avg_pool{rank}d", f"avg_pool{rank}d_backward"]
    face.check(lambda x: getattr(F, f"avg_pool{rank}d")(x, **arguments), x, taken=names)


def test_adaptive_pooling(face: Face) -> None:
    x = face.integers(2, 3, 6, 9, dtype=torch.float32)
    names = ["_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"]
    face.check(lambda x: F.adaptive_avg_pool2d(x, (4, 3)), x, taken=names)
    names = ["adaptive_max_pool2d", "adaptive_max_pool2d_backward"]
    face.check(lambda x: F.adaptive_max_pool2d(x, (2, 3), return_indices=True), x, taken=names, exact=True)
    before = face.counts()
    face.check(lambda x: F.adaptive_max_pool2d(x, (4, 3)), x, taken=())
    assert sum(face.counts().values()) == sum(before.values()) + 2


@pytest.mark.parametrize(
    ("name", "rank", "arguments"),
    [
        ("upsample_nearest", 1, {"mode": "nearest", "size": 10}),
        ("upsample_nearest", 2, {"mode": "nearest", "scale_factor": 2.0}),
        ("_upsample_nearest_exact", 2, {"mode": "nearest-exact", "size": (7, 9)}),
        ("upsample_nearest", 3, {"mode": "nearest", "size": (4, 3, 8)}),
    ],
)
def test_nearest_positions_are_equal(face: Face, name: str, rank: int, arguments: dict[str, Any]) -> None:
    x = face.integers(2, 3, *(5, 6, 4)[:rank], dtype=torch.float32)
    names = [f"{name}{rank}d", f"{name}{rank}d_backward"]
    face.check(lambda x: F.interpolate(x, **arguments), x, taken=names, exact=True)


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize(("name", "mode", "rank"), [("linear1d", "linear", 1), ("bilinear2d", "bilinear", 2)])
def test_linear_interpolation(face: Face, align_corners: bool, name: str, mode: str, rank: int) -> None:
    x = face.reals(2, 3, *(5, 6)[:rank], dtype=torch.float32)
    names = [f"upsample_{name}", f"upsample_{name}_backward"]
    size = (8, 4)[:rank]
    face.check(
        lambda x: F.interpolate(x, size=size, mode=mode, align_corners=align_corners), x, taken=names, tolerance=1e-4
    )
