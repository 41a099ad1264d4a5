from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import DataType, NanPropagation, PaddingMode, ResampleMode
from lowdnn.ops.resample import Resample
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import (
    BadParamError,
    NotSupportedError,
    ShapeMismatchError,
    UnsupportedDataTypeError,
    UnsupportedPaddingError,
)
from tests.support.data import fresh_seed
from tests.support.errors import raises

MAX, INCLUDE, EXCLUDE = (
    ResampleMode.MAXPOOL,
    ResampleMode.AVGPOOL_INCLUDE_PADDING,
    ResampleMode.AVGPOOL_EXCLUDE_PADDING,
)
LINEAR, NEAREST = ResampleMode.BILINEAR, ResampleMode.NEAREST
ZERO, NEG_INF, EDGE = PaddingMode.ZERO_PAD, PaddingMode.NEG_INF_PAD, PaddingMode.EDGE_VAL_PAD
KEEP, DROP = NanPropagation.PROPAGATE_NAN, NanPropagation.NOT_PROPAGATE_NAN
DOUBLE = DataType.DOUBLE
INF, NAN = float("inf"), float("nan")
HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)

#: (window, strides, pre-paddings, post-paddings) of images of 5 x 6.
WINDOWS = [
    ((2, 3), (2, 1), (0, 0), (0, 0)),
    ((3, 3), (2, 2), (1, 1), (1, 1)),
    ((2, 3), (4, 5), (2, 3), (4, 5)),  # windows of nothing but padding
    ((7, 8), (1, 1), (1, 2), (1, 1)),  # larger than the image
    ((1, 1), (3, 2), (0, 0), (0, 0)),
    ((Fraction(5, 2), 2), (Fraction(5, 4), Fraction(3, 2)), (0, HALF), (QUARTER, 1)),
]
POOLINGS = [(MAX, ZERO), (MAX, NEG_INF), (MAX, EDGE), (INCLUDE, ZERO), (INCLUDE, EDGE), (EXCLUDE, NEG_INF)]


def tensor(uid: int, dims: tuple[int, ...], data_type: DataType = DOUBLE) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16)


def geometry(mode: ResampleMode, window: tuple[Any, ...], padding: PaddingMode = ZERO, **changes: Any) -> Resample:
    spatial = len(window)
    fields = {"strides": (1,) * spatial, "pre_paddings": (0,) * spatial, "post_paddings": (0,) * spatial}
    rules = {"mode": mode, "compute_type": DOUBLE, "nan_propagation": KEEP, "padding_mode": padding}
    return Resample(spatial, window, **(fields | rules | changes))


def forward(resample: Resample, x: NDArray[Any], index: DataType | None = None) -> dict[str, NDArray[Any]]:
    dims = resample.output_dims(x.shape)
    places = None if index is None else tensor(3, dims, index)
    return ResampleForward(resample, tensor(1, x.shape), tensor(2, dims), places).reference({"x": x})


def backward(resample: Resample, dy: NDArray[Any], dims: tuple[int, ...], **given: NDArray[Any]) -> NDArray[Any]:
    types = {"index": DataType.INT64}
    ports = {name: tensor(3, values.shape, types.get(name, DOUBLE)) for name, values in given.items()}
    operation = ResampleBackward(resample, tensor(1, dy.shape), tensor(2, dims), **ports)
    return operation.reference({"dy": dy, **given})["dx"]


def window_of(resample: Resample, axis: int, output: int) -> range:
    """The positions that a window of a pooling touches."""
    start = output * Fraction(resample.strides[axis]) - resample.pre_paddings[axis]
    return range(floor(start), ceil(start + resample.window_dims[axis]))


def pooled(resample: Resample, x: NDArray[Any], place: tuple[int, ...]) -> float:
    """One output of one channel's image, from the definition."""
    values, inside, taps = [], 0, 0
    for position in product(*(window_of(resample, axis, output) for axis, output in enumerate(place))):
        taps += 1
        clipped = tuple(min(max(p, 0), extent - 1) for p, extent in zip(position, x.shape, strict=True))
        if clipped == position or resample.is_clamped:
            inside += clipped == position
            values.append(float(x[clipped]))
        elif resample.padding_mode is ZERO and resample.mode is MAX:
            values.append(0.0)
    if resample.mode is MAX:
        return max(values, default=-INF)
    return sum(values) / max(1, inside if resample.mode is EXCLUDE else taps)


@pytest.mark.parametrize(("mode", "padding"), POOLINGS)
@pytest.mark.parametrize("windows", WINDOWS)
def test_pooling_is_what_the_definition_says(
    mode: ResampleMode, padding: PaddingMode, windows: tuple[tuple[Any, ...], ...]
) -> None:
    window, strides, pre, post = windows
    resample = geometry(mode, window, padding, strides=strides, pre_paddings=pre, post_paddings=post)
    seed = fresh_seed()
    x = np.random.default_rng(seed).integers(-9, 10, (2, 1, 5, 6)).astype(float)
    y = forward(resample, x)["y"]
    for place in np.ndindex(*y.shape):
        expected = pooled(resample, x[place[0], place[1]], place[2:])
        assert y[place] == pytest.approx(expected, rel=1e-15), (place, seed)


def test_dims() -> None:
    resample = geometry(MAX, (2, 3), strides=(4, 5), pre_paddings=(2, 3), post_paddings=(4, 5))
    assert resample.output_dims((8, 8, 56, 56)) == (8, 8, 16, 13)
    upsample = geometry(LINEAR, (2,), strides=(HALF,), pre_paddings=(HALF,), post_paddings=(1,))
    assert upsample.output_dims((1, 1, 7)) == (1, 1, 14)


def test_index_is_the_place_in_the_window_and_the_first_of_equal_ones_wins() -> None:
    """As cuDNN 9 gives it: row-major over the window's taps, padding counted."""
    x = np.array([[1.0, 5.0, 5.0], [5.0, 2.0, 0.0], [7.0, 7.0, 3.0]])[None, None]
    found = forward(geometry(MAX, (2, 2), NEG_INF, pre_paddings=(1, 1)), x, DataType.INT8)
    assert found["y"][0, 0].tolist() == [[1, 5, 5], [5, 5, 5], [7, 7, 7]]
    assert found["index"][0, 0].tolist() == [[3, 3, 2], [3, 1, 0], [3, 2, 2]]


def test_a_place_in_the_image_holds_the_maximum() -> None:
    """Also with paddings, several axes, and windows of padding alone, whose place is that of the nearest position."""
    x = np.random.default_rng(fresh_seed()).permutation(2 * 3 * 5 * 4).reshape(2, 1, 3, 5, 4).astype(np.float64)
    geometry = Resample(
        3, (2, 3, 2), (1, 2, 2), (1, 1, 3), (0, 1, 0), ResampleMode.MAXPOOL, DataType.DOUBLE,
        padding_mode=PaddingMode.NEG_INF_PAD,
    )  # fmt: skip
    dims = geometry.output_dims(x.shape)
    tensors = [
        Tensor(uid, data_type, own, packed_strides(own), 16)
        for uid, data_type, own in (
            (1, DataType.DOUBLE, x.shape), (2, DataType.DOUBLE, dims), (3, DataType.INT64, dims)
        )
    ]  # fmt: skip
    found = ResampleForward(geometry, *tensors, index_in_image=True).reference({"x": x})
    held = np.take_along_axis(x.reshape(2, -1), found["index"].reshape(2, -1), 1).reshape(dims)
    is_padding = np.isneginf(found["y"])
    assert is_padding.any()
    np.testing.assert_array_equal(held[~is_padding], found["y"][~is_padding])
    np.testing.assert_array_equal(found["index"][is_padding] % 4, 0)


def test_padding_of_zeros_may_be_the_maximum_and_then_its_gradient_is_lost() -> None:
    x = np.array([-3.0, -1.0, 4.0])[None, None]
    resample = geometry(MAX, (2,), ZERO, pre_paddings=(1,))
    found = forward(resample, x, DataType.INT8)
    assert (found["y"].ravel().tolist(), found["index"].ravel().tolist()) == ([0, -1, 4], [0, 1, 1])
    dy = np.array([10.0, 20.0, 30.0])[None, None]
    assert backward(resample, dy, x.shape, x=x).ravel().tolist() == [0, 20, 30]


@pytest.mark.parametrize(
    ("rule", "values", "places"), [(KEEP, [NAN, NAN, 3, -INF], [1, 0, 1, 0]), (DROP, [1, 2, 3, -INF], [0, 1, 1, 0])]
)
def test_nan_wins_or_counts_as_minus_infinity(rule: NanPropagation, values: list[float], places: list[int]) -> None:
    x = np.array([1, NAN, 2, 3, -INF, -INF])[None, None]
    resample = geometry(MAX, (2,), nan_propagation=rule)
    found = forward(resample, x, DataType.INT8)
    np.testing.assert_array_equal(found["y"].ravel()[[0, 1, 2, 4]], values)
    assert found["index"].ravel()[[0, 1, 2, 4]].tolist() == places


def test_bilinear_samples_where_cudnn_does() -> None:
    """Strides 1/2, pre-padding 1/2: output o samples the image at o / 2, between pixels by distance."""
    x = np.array([4.0, 8.0, 2.0])[None, None]
    resample = geometry(LINEAR, (2,), strides=(HALF,), pre_paddings=(HALF,), post_paddings=(1,))
    assert forward(resample, x)["y"].ravel().tolist() == [4, 6, 8, 5, 2, 2]


def test_interpolation_to_a_size_lies_between_the_middles_of_pixels() -> None:
    x = np.array([4.0, 8.0])[None, None]
    assert forward(Resample.to_size(LINEAR, (2,), (4,), DOUBLE), x)["y"].ravel().tolist() == [4, 5, 7, 8]
    assert forward(Resample.to_size(NEAREST, (2,), (5,), DOUBLE), x)["y"].ravel().tolist() == [4, 4, 8, 8, 8]
    assert forward(Resample.to_size(NEAREST, (2,), (1,), DOUBLE), x)["y"].ravel().tolist() == [8]


@pytest.mark.parametrize(("x_extent", "y_extent"), [(7, 3), (10, 4), (3, 7), (6, 3), (5, 1)])
def test_pooling_to_a_size_is_adaptive(x_extent: int, y_extent: int) -> None:
    """Output o has the positions from floor(o x / y) up to ceil((o + 1) x / y)."""
    x = np.arange(1.0, x_extent + 1)[None, None]
    ranges = [(o * x_extent // y_extent, -(-(o + 1) * x_extent // y_extent)) for o in range(y_extent)]
    averages = forward(Resample.to_size(INCLUDE, (x_extent,), (y_extent,), DOUBLE), x)["y"].ravel()
    np.testing.assert_allclose(averages, [x[0, 0, first:end].mean() for first, end in ranges], rtol=1e-15)
    largest = forward(Resample.to_size(MAX, (x_extent,), (y_extent,), DOUBLE), x)["y"].ravel()
    assert largest.tolist() == [end for _, end in ranges]


def test_integers_truncate_toward_zero() -> None:
    x = np.array([-3, -4, 3, 4])[None, None]
    resample = geometry(INCLUDE, (2,), strides=(2,), compute_type=DataType.INT32)
    assert forward(resample, x)["y"].ravel().tolist() == [-3, 3]
    assert forward(geometry(MAX, (2,), strides=(2,), compute_type=DataType.INT32), x)["y"].ravel().tolist() == [-3, 4]


@pytest.mark.parametrize(
    "resample",
    [
        *(
            geometry(mode, window, padding, strides=strides, pre_paddings=pre, post_paddings=post)
            for mode, padding in POOLINGS
            for window, strides, pre, post in (WINDOWS[1], WINDOWS[2], WINDOWS[5])
        ),
        Resample.to_size(LINEAR, (5, 6), (8, 3), DOUBLE),
        Resample.to_size(NEAREST, (5, 6), (8, 3), DOUBLE),
        geometry(LINEAR, (2, 2), strides=(Fraction(4, 3), 3), pre_paddings=(2, HALF), post_paddings=(2, 4)),
    ],
    ids=lambda resample: f"{resample.mode.name}-{resample.padding_mode.name}",
)
def test_gradients_agree_with_finite_differences(resample: Resample) -> None:
    """The slopes of sum(y * dy), all at once as images of a batch; values a unit apart keep the maxima where they
    are."""
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    x = rng.permutation(30).reshape(1, 1, 5, 6) + 0.5 - 15.0
    dy = rng.standard_normal(resample.output_dims(x.shape))
    finite = np.isfinite(forward(resample, x)["y"])
    steps = 0.25 * np.eye(x.size).reshape(x.size, 1, 5, 6)
    above, below = (np.where(finite, forward(resample, x + s)["y"] * dy, 0).sum((1, 2, 3)) for s in (steps, -steps))
    slopes = ((above - below) / 0.5).reshape(x.shape)
    given = {"x": x} if resample.mode is MAX else {}
    np.testing.assert_allclose(backward(resample, dy, x.shape, **given), slopes, atol=1e-10, err_msg=f"seed {seed}")


@pytest.mark.parametrize("padding", [ZERO, NEG_INF, EDGE])
def test_the_index_gives_the_gradient_that_x_gives(padding: PaddingMode) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    resample = geometry(MAX, (3, 2, 2), padding, strides=(2, 1, 1), pre_paddings=(1, 1, 1), post_paddings=(2, 0, 1))
    x = rng.integers(-2, 3, (2, 2, 4, 3, 5)).astype(float)
    index = forward(resample, x, DataType.INT64)["index"]
    dy = rng.integers(-4, 5, index.shape).astype(float)
    from_index, from_x = (backward(resample, dy, x.shape, **given) for given in ({"index": index}, {"x": x}))
    np.testing.assert_array_equal(from_index, from_x, err_msg=f"seed {seed}")


def test_descriptions_are_checked() -> None:
    with raises(NotSupportedError, "resample.strides", expected="2 numbers", got="['1']"):
        geometry(MAX, (2, 2), strides=(1,))
    with raises(NotSupportedError, "resample.window_dims", expected="2 for BILINEAR", got="['3']"):
        geometry(LINEAR, (3,))
    with raises(BadParamError, "resample.strides", expected="numbers > 0", got="['0']"):
        geometry(MAX, (2,), strides=(0,))
    with raises(BadParamError, "resample.pre_paddings", expected=">= 0 in pooling", got="['-1/2']"):
        geometry(MAX, (2,), pre_paddings=(-HALF,))
    with raises(BadParamError, "resample.spatial_dims", expected="1, 2 or 3", got="4"):
        geometry(MAX, (2, 2, 2, 2))
    with raises(UnsupportedPaddingError, "resample.padding_mode", expected="ZERO_PAD or EDGE_VAL_PAD", got="NEG_INF"):
        geometry(INCLUDE, (2,), NEG_INF)
    with raises(UnsupportedDataTypeError, "resample.compute_type", expected="FLOAT, DOUBLE for BILINEAR", got="INT32"):
        geometry(LINEAR, (2,), compute_type=DataType.INT32)
    with raises(BadParamError, "resample.y_extents", expected="2 integers >= 1", got="[3]"):
        Resample.to_size(MAX, (4, 4), (3,))


def test_operations_are_checked() -> None:
    resample = geometry(MAX, (3, 3), strides=(2, 2))
    x, y = tensor(1, (1, 1, 7, 9)), tensor(2, (1, 1, 3, 4))
    with raises(ShapeMismatchError, "resample_forward.y.dims", expected="[1, 1, 3, 4]", got="[1, 1, 4, 4]"):
        ResampleForward(resample, x, tensor(2, (1, 1, 4, 4)))
    with raises(ShapeMismatchError, "resample_forward.x.dims[2]", expected="a window of 3", got="2"):
        ResampleForward(resample, tensor(1, (1, 1, 2, 9)), y)
    with raises(ShapeMismatchError, "resample_forward.x.dims", expected="rank 4", got="[1, 7, 9]"):
        ResampleForward(resample, tensor(1, (1, 7, 9)), y)
    with raises(ShapeMismatchError, "resample_forward.index.dims", expected="[1, 1, 3, 4]", got="[1, 1, 4, 4]"):
        ResampleForward(resample, x, y, tensor(3, (1, 1, 4, 4), DataType.INT8))
    with raises(UnsupportedDataTypeError, "resample_forward.index.data_type", expected="INT8, UINT8", got="FLOAT"):
        ResampleForward(resample, x, y, tensor(3, y.dims, DataType.FLOAT))
    for places, data_type in ((128, DataType.INT8), (256, DataType.UINT8)):
        row, one = geometry(MAX, (1, places)), tensor(2, (1, 1, 1, 1))
        ResampleForward(row, tensor(1, (1, 1, 1, places)), one, tensor(3, one.dims, data_type))
        row, where = geometry(MAX, (1, places + 1)), "resample_forward.index.data_type"
        with raises(UnsupportedDataTypeError, where, expected=f"for {places + 1} places", got=data_type.name):
            ResampleForward(row, tensor(1, (1, 1, 1, places + 1)), one, tensor(3, one.dims, data_type))
    with raises(BadParamError, "resample_forward.index", expected="no index tensor for BILINEAR", got="uid 3"):
        ResampleForward(geometry(LINEAR, (2, 2), strides=(2, 2)), x, y, tensor(3, y.dims, DataType.INT8))
    with raises(NotSupportedError, "resample_forward.beta", expected="0.0", got="1.0"):
        ResampleForward(resample, x, y, beta=1.0)
    with raises(BadParamError, "resample_backward.index", expected="index tensor, or x", got="none"):
        ResampleBackward(resample, y, x)
    with raises(
        UnsupportedDataTypeError, "resample_backward: tensor uid 2.data_type", expected="a float type", got="INT8"
    ):
        ResampleBackward(resample, tensor(2, y.dims, DataType.INT8), x, x=tensor(3, x.dims))


def test_a_wide_window_needs_a_wide_index() -> None:
    resample = geometry(MAX, (12, 11))
    x, y = tensor(1, (1, 1, 12, 11)), tensor(2, (1, 1, 1, 1))
    with raises(UnsupportedDataTypeError, "resample_forward.index.data_type", expected="132 places", got="INT8"):
        ResampleForward(resample, x, y, tensor(3, y.dims, DataType.INT8))
    assert ResampleForward(resample, x, y, tensor(3, y.dims, DataType.UINT8)).flops == 132
