"""Convolutions and their gradients, bit for bit those of torch on whole numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")

BOTH = ("convolution", "convolution_backward")


@pytest.mark.parametrize(
    ("spatial", "arguments"),
    [
        (1, {"stride": 2, "padding": 1}),
        (2, {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}),
        (3, {"padding": 1}),
    ],
)
@pytest.mark.parametrize("has_bias", [True, False])
def test_convolutions_and_gradients_are_equal(
    face: Face, spatial: int, arguments: dict[str, Any], has_bias: bool
) -> None:
    extents = (9, 8, 5)[:spatial]
    channels = 4 // arguments.get("groups", 1)
    x, w = (
        face.integers(2, 4, *extents, dtype=torch.float32),
        face.integers(6, channels, *(3,) * spatial, dtype=torch.float32),
    )
    bias = [face.integers(6, dtype=torch.float32)] if has_bias else []
    convolve = getattr(torch.nn.functional, f"conv{spatial}d")
    face.check(lambda *leaves: convolve(*leaves, **arguments), x, w, *bias, taken=BOTH, exact=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types_keep_their_results(face: Face, dtype: Any) -> None:
    x, w = face.integers(2, 8, 6, 5, dtype=dtype), face.integers(8, 8, 3, 3, dtype=dtype, most=1)
    face.check(lambda x, w: torch.nn.functional.conv2d(x, w, padding=1), x, w, taken=BOTH, exact=True)


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_transposed_convolutions_are_equal(face: Face, spatial: int) -> None:
    x, w = (
        face.integers(2, 4, *(5, 4, 3)[:spatial], dtype=torch.float32),
        face.integers(4, 3, *(3,) * spatial, dtype=torch.float32),
    )
    convolve = getattr(torch.nn.functional, f"conv_transpose{spatial}d")
    bias = face.integers(6, dtype=torch.float32)
    face.check(
        lambda *leaves: convolve(*leaves, stride=2, padding=1, output_padding=1, groups=2),
        x, w, bias, taken=BOTH, exact=True,
    )  # fmt: skip


def test_channels_last_stays_channels_last(face: Face) -> None:
    x = face.integers(2, 8, 6, 5, dtype=torch.float16).to(memory_format=torch.channels_last)
    w = face.integers(16, 8, 3, 3, dtype=torch.float16, most=1)
    face.check(torch.nn.functional.conv2d, x, w, taken=BOTH, exact=True)


def test_a_view_that_is_not_aligned_is_taken(face: Face) -> None:
    """Another plan runs than for an aligned view with the same dims. Winograd, which may be chosen, rounds."""
    x = face.integers(2 * 3 * 8 * 8 + 1, dtype=torch.float32)
    w = face.integers(4, 3, 3, 3, dtype=torch.float32)

    def convolved(x: Any, w: Any) -> Any:
        return [torch.nn.functional.conv2d(own.view(2, 3, 8, 8), w) for own in (x[:-1], x[1:])]

    face.check(convolved, x, w, taken=BOTH)


def test_second_gradients_are_equal(face: Face) -> None:
    x, w = face.integers(2, 3, 6, 6, dtype=torch.float64), face.integers(4, 3, 3, 3, dtype=torch.float64)

    def penalty(x: Any, w: Any) -> Any:
        y = torch.nn.functional.conv2d(x, w)
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return slope.square().sum()

    face.check(penalty, x, w, taken=BOTH, exact=True)


def test_autocast_runs_in_its_type(face: Face) -> None:
    x, w = face.integers(2, 8, 6, 6, dtype=torch.float32), face.integers(8, 8, 3, 3, dtype=torch.float32, most=1)

    def convolved(x: Any, w: Any) -> Any:
        with torch.autocast(face.torch_device, dtype=torch.bfloat16):
            return torch.nn.functional.conv2d(x, w)

    face.check(convolved, x, w, taken=BOTH, exact=True)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda face: (face.integers(0, 3, 5, 5, dtype=torch.float32), face.integers(4, 3, 3, 3, dtype=torch.float32)),
         "a tensor without elements"),
        (lambda face: (face.integers(1, 3, 5, 5, dtype=torch.int64), face.integers(4, 3, 3, 3, dtype=torch.int64)),
         "int64, where a float type of 16, 32 or 64 bits is expected"),
    ],
)  # fmt: skip
def test_the_native_kernel_takes_the_rest(face: Face, make: Any, reason: str) -> None:
    x, w = make(face)
    if face.device == "cuda" and x.dtype is torch.int64:
        pytest.skip("torch has no convolution of integers on a GPU")
    before = face.counts().get(("convolution", reason), 0)
    face.check(torch.nn.functional.conv2d, x, w, taken=())
    assert face.counts()["convolution", reason] == before + 1


def test_errors_are_torchs_own(face: Face) -> None:
    x, w = face.integers(1, 3, 5, 5, dtype=torch.float32), face.integers(4, 2, 3, 3, dtype=torch.float32)
    with face.enable(), pytest.raises(RuntimeError, match="expected input"):
        torch.nn.functional.conv2d(x, w)
