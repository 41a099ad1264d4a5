from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from lowdnn.enums import ConvolutionMode, DataType
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.ops.convolution import Convolution, ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, LowdnnError, ShapeMismatchError, UnsupportedDataTypeError
from tests.support.data import fresh_seed
from tests.support.errors import raises


def tensor(uid: int, dims: tuple[int, ...], data_type: DataType = DataType.FLOAT, **changes: Any) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16, **changes)


def geometry(spatial: int = 2, **changes: Any) -> Convolution:
    values: dict[str, Any] = {
        "compute_type": DataType.FLOAT,
        "spatial_dims": spatial,
        "pre_paddings": (0,) * spatial,
        "post_paddings": (0,) * spatial,
        "strides": (1,) * spatial,
        "dilations": (1,) * spatial,
    }
    return Convolution(**(values | changes))


def forward(
    x: tuple[int, ...], w: tuple[int, ...], shape: Convolution, data_type: DataType = DataType.FLOAT, **changes: Any
) -> ConvolutionForward:
    y = tensor(3, shape.output_dims(x, w))
    return ConvolutionForward(shape, x=tensor(1, x, data_type), w=tensor(2, w, data_type), y=y, **changes)


def backward_data(
    x: tuple[int, ...], w: tuple[int, ...], shape: Convolution, data_type: DataType = DataType.FLOAT, **changes: Any
) -> ConvolutionBackwardData:
    dy = tensor(3, shape.output_dims(x, w), data_type)
    return ConvolutionBackwardData(shape, w=tensor(2, w, data_type), dy=dy, dx=tensor(1, x), **changes)


def backward_filter(
    x: tuple[int, ...], w: tuple[int, ...], shape: Convolution, data_type: DataType = DataType.FLOAT, **changes: Any
) -> ConvolutionBackwardFilter:
    dy = tensor(3, shape.output_dims(x, w), data_type)
    return ConvolutionBackwardFilter(shape, x=tensor(1, x, data_type), dy=dy, dw=tensor(2, w), **changes)


Make = Callable[..., ConvolutionOperation]
DIRECTIONS: tuple[Make, ...] = (forward, backward_data, backward_filter)


def products(operation: ConvolutionOperation) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Every product of the convolution: the elements of image, filter and response that take part in it."""
    shape, image, weights = operation.convolution, operation.image.dims, operation.filter.dims
    per_group = weights[0] // operation.groups
    for n, k, *o in product(*map(range, operation.response.dims)):
        for c, *r in product(*map(range, weights[1:])):
            at = [
                out * stride + tap * dilation - pad
                for out, stride, tap, dilation, pad in zip(
                    o, shape.strides, r, shape.dilations, shape.pre_paddings, strict=True
                )
            ]
            if all(0 <= i < extent for i, extent in zip(at, image[2:], strict=True)):
                flipped = shape.mode is ConvolutionMode.CONVOLUTION
                tap = [extent - 1 - i for i, extent in zip(r, weights[2:], strict=True)] if flipped else r
                yield (n, k // per_group * weights[1] + c, *at), (k, c, *tap), (n, k, *o)


@pytest.mark.parametrize("make", DIRECTIONS)
@pytest.mark.parametrize(
    ("x", "w", "shape"),
    [
        ((2, 3, 5, 6), (4, 3, 3, 2), geometry()),
        ((1, 4, 6, 5), (6, 2, 3, 3), geometry(pre_paddings=(1, 0), post_paddings=(2, 1), strides=(2, 1))),
        ((1, 3, 9, 7), (3, 1, 3, 2), geometry(dilations=(3, 2), mode=ConvolutionMode.CONVOLUTION)),
        ((2, 2, 8), (2, 2, 3), geometry(1, pre_paddings=(2,), post_paddings=(2,), strides=(3,))),
        ((1, 2, 3, 4, 3), (2, 1, 2, 3, 1), geometry(3, pre_paddings=(1, 1, 0), post_paddings=(0, 1, 0))),
    ],
)
def test_reference_is_the_formula(make: Make, x: tuple[int, ...], w: tuple[int, ...], shape: Convolution) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    operation = make(x, w, shape)
    inputs = {port: rng.integers(-5, 6, read.dims).astype(float) for port, read in inputs_of(operation).items()}
    [target] = outputs_of(operation)
    expected = np.zeros(operation.output.dims)
    for places in products(operation):
        at = dict(zip(operation.roles, places, strict=True))
        expected[at[target]] += np.prod([values[at[port]] for port, values in inputs.items()])
    got = operation.reference(inputs)[target]
    np.testing.assert_array_equal(got, expected, err_msg=f"seed {seed}")


def test_gradients_are_exact_for_integers() -> None:
    shape = geometry(pre_paddings=(1, 1), post_paddings=(1, 1))
    for make in (backward_data, backward_filter):
        operation = make((1, 2, 4, 4), (2, 2, 3, 3), shape)
        inputs = {port: np.ones(read.dims, np.int64) for port, read in inputs_of(operation).items()}
        [result] = operation.reference(inputs).values()
        assert result.dtype == np.int64


@pytest.mark.parametrize("make", DIRECTIONS)
def test_alpha_and_beta(make: Make) -> None:
    operation = make((1, 1, 1, 1), (1, 1, 1, 1), geometry(), alpha=0.5, beta=2.0)
    [target] = outputs_of(operation)
    values = {port: np.full((1, 1, 1, 1), 10.0 if port == target else 2.0) for port in operation.roles}
    assert operation.reference(values)[target].item() == 22
    del values[target]
    with raises(BadParamError, f"{operation.label}.{target}", expected="old values", got="none"):
        operation.reference(values)


def test_integer_accumulators_wrap() -> None:
    shape = geometry(compute_type=DataType.INT32)
    operation = forward((1, 2, 1, 1), (1, 2, 1, 1), shape, DataType.INT32)
    big = np.array([2**30, 2**30]).reshape(1, 2, 1, 1)
    assert operation.reference({"x": big, "w": np.ones_like(big)})["y"].item() == -(2**31)


@pytest.mark.parametrize("make", DIRECTIONS)
def test_empty_batches_and_filters(make: Make) -> None:
    for x, w in (((0, 2, 3, 3), (4, 2, 3, 3)), ((1, 2, 3, 3), (0, 2, 3, 3))):
        operation = make(x, w, geometry())
        inputs = {port: np.zeros(read.dims) for port, read in inputs_of(operation).items()}
        [result] = operation.reference(inputs).values()
        assert result.shape == operation.output.dims
        assert not result.any()


@pytest.mark.parametrize("make", DIRECTIONS)
def test_facts(make: Make) -> None:
    operation = make((2, 8, 5, 5), (6, 4, 3, 3), geometry())
    assert [t.uid for t in (operation.image, operation.filter, operation.response)] == [1, 2, 3]
    assert operation.groups == 2
    assert operation.flops == 2 * (2 * 6 * 3 * 3) * (4 * 3 * 3)


@pytest.mark.parametrize(
    ("changes", "field", "expected", "got"),
    [
        ({"spatial_dims": 4}, "spatial_dims", "1, 2 or 3", "4"),
        ({"pre_paddings": (1,)}, "pre_paddings", "2 integers >= 0", "[1]"),
        ({"post_paddings": (0, -1)}, "post_paddings", "2 integers >= 0", "[0, -1]"),
        ({"strides": (0, 1)}, "strides", "2 integers >= 1", "[0, 1]"),
        ({"dilations": (1, 1, 1)}, "dilations", "2 integers >= 1", "[1, 1, 1]"),
    ],
)
def test_geometry_is_checked(changes: dict[str, Any], field: str, expected: str, got: str) -> None:
    with raises(BadParamError, f"convolution.{field}", expected=expected, got=got):
        geometry(**changes)


@pytest.mark.parametrize(
    ("x", "w", "where", "expected", "got"),
    [
        ((1, 2, 3), (1, 2, 3, 3), "x.dims", "rank 4", "[1, 2, 3]"),
        ((1, 2, 3, 3), (1, 2, 3), "w.dims", "rank 4", "[1, 2, 3]"),
        ((1, 4, 3, 3), (1, 3, 1, 1), "w.dims[1]", "a divisor of the image's 4 channels", "3"),
        ((1, 4, 3, 3), (1, 0, 1, 1), "w.dims[1]", "a divisor of the image's 4 channels", "0"),
        ((1, 4, 3, 3), (3, 2, 1, 1), "w.dims[0]", "a multiple of the 2 groups", "3"),
        ((1, 4, 3, 3), (4, 4, 4, 3), "w.dims[2]", "a dilated filter of 1 to 3", "4 taps"),
        ((1, 4, 3, 3), (4, 4, 3, 0), "w.dims[3]", "a dilated filter of 1 to 3", "0 taps"),
    ],
)
def test_dims_are_checked(x: tuple[int, ...], w: tuple[int, ...], where: str, expected: str, got: str) -> None:
    with raises(ShapeMismatchError, f"convolution.{where}", expected=expected, got=got):
        geometry().output_dims(x, w)


@pytest.mark.parametrize(
    ("extent", "taps", "changes", "expected"),
    [
        (9, 3, {}, 7),
        (9, 3, {"dilations": (2,)}, 5),
        (9, 3, {"dilations": (4,)}, 1),
        (9, 3, {"strides": (2,), "dilations": (2,)}, 3),
        (8, 3, {"pre_paddings": (1,), "post_paddings": (3,), "strides": (2,)}, 5),
    ],
)
def test_output_dims(extent: int, taps: int, changes: dict[str, Any], expected: int) -> None:
    assert geometry(1, **changes).output_dims((1, 2, extent), (3, 2, taps)) == (1, 3, expected)


def test_output_dims_are_checked() -> None:
    x, w = tensor(1, (1, 2, 5, 5)), tensor(2, (4, 2, 3, 3))
    with raises(ShapeMismatchError, "convolution_forward.y.dims", expected="[1, 4, 3, 3]", got="[1, 4, 5, 5]"):
        ConvolutionForward(geometry(), x=x, w=w, y=tensor(3, (1, 4, 5, 5)))
    y = tensor(3, (1, 4, 3, 3), is_virtual=True)
    for beta in (1.0, -0.5):
        with raises(BadParamError, "convolution_forward.beta", expected="0 where y is virtual", got=str(beta)):
            ConvolutionForward(geometry(), x=x, w=w, y=y, beta=beta)


def test_gradient_dims_are_checked() -> None:
    x, w, dy = tensor(1, (1, 2, 5, 5)), tensor(2, (4, 2, 3, 3)), tensor(3, (1, 4, 2, 2))
    stride = geometry(strides=(2, 2))
    ConvolutionBackwardData(stride, w=w, dy=dy, dx=tensor(1, (1, 2, 6, 5)))  # several extents give the same dy
    with raises(ShapeMismatchError, "convolution_backward_data.dy.dims", expected="[1, 4, 3, 2]", got="[1, 4, 2, 2]"):
        ConvolutionBackwardData(stride, w=w, dy=dy, dx=tensor(1, (1, 2, 7, 5)))
    with raises(ShapeMismatchError, "convolution_backward_filter.dw.dims[3]", expected="1 to 5", got="6 taps"):
        ConvolutionBackwardFilter(stride, x=x, dy=dy, dw=tensor(2, (4, 2, 3, 6)))


@pytest.mark.parametrize(
    ("data_type", "compute_type", "where", "expected", "got"),
    [
        (DataType.HALF, DataType.BFLOAT16, ".compute_type", "FLOAT, DOUBLE, HALF, INT32", "BFLOAT16"),
        (DataType.INT8, DataType.FLOAT, ".compute_type", "INT32 for integer operands", "FLOAT"),
        (DataType.HALF, DataType.INT32, ".compute_type", "for float operands", "INT32"),
        (DataType.BOOLEAN, DataType.FLOAT, ": tensor uid 1.data_type", "a float type", "BOOLEAN"),
        (DataType.INT64, DataType.INT32, ": tensor uid 1.data_type", "INT8 or INT32", "INT64"),
    ],
)
def test_data_types_are_checked(
    data_type: DataType, compute_type: DataType, where: str, expected: str, got: str
) -> None:
    error: type[LowdnnError] = UnsupportedDataTypeError
    with raises(error, f"convolution_forward{where}", expected=expected, got=got):
        forward((1, 2, 3, 3), (2, 2, 1, 1), geometry(compute_type=compute_type), data_type)


@pytest.mark.parametrize("make", [backward_data, backward_filter])
def test_gradients_take_float_types_only(make: Make) -> None:
    integers = geometry(compute_type=DataType.INT32)
    with pytest.raises(UnsupportedDataTypeError, match=r"convolution_backward_\w+: .* expected a float type, got INT8"):
        make((1, 2, 3, 3), (2, 2, 1, 1), integers, DataType.INT8)
