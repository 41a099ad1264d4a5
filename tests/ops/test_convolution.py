from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import ConvolutionMode, DataType
from lowdnn.ops.convolution import Convolution, ConvolutionForward
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


def convolution(
    x: tuple[int, ...], w: tuple[int, ...], shape: Convolution, data_type: DataType = DataType.FLOAT, **changes: Any
) -> ConvolutionForward:
    y = tensor(3, shape.output_dims(x, w))
    return ConvolutionForward(shape, x=tensor(1, x, data_type), w=tensor(2, w, data_type), y=y, **changes)


def by_definition(operation: ConvolutionForward, x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
    """The formula of the module's docstring, one term at a time."""
    shape = operation.convolution
    y = np.zeros(operation.y.dims)
    per_group = w.shape[0] // operation.groups
    for n, k, *o in product(*map(range, y.shape)):
        for c, *r in product(*map(range, w.shape[1:])):
            at = [
                out * stride + tap * dilation - pad
                for out, stride, tap, dilation, pad in zip(
                    o, shape.strides, r, shape.dilations, shape.pre_paddings, strict=True
                )
            ]
            if all(0 <= i < extent for i, extent in zip(at, x.shape[2:], strict=True)):
                flipped = shape.mode is ConvolutionMode.CONVOLUTION
                tap = [extent - 1 - i for i, extent in zip(r, w.shape[2:], strict=True)] if flipped else r
                y[(n, k, *o)] += x[(n, k // per_group * w.shape[1] + c, *at)] * w[(k, c, *tap)]
    return y


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
def test_reference_is_the_formula(x: tuple[int, ...], w: tuple[int, ...], shape: Convolution) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    operation = convolution(x, w, shape)
    values, filters = rng.integers(-5, 6, x).astype(float), rng.integers(-5, 6, w).astype(float)
    got = operation.reference({"x": values, "w": filters})["y"]
    np.testing.assert_array_equal(got, by_definition(operation, values, filters), err_msg=f"seed {seed}")


def test_alpha_and_beta() -> None:
    ones = {"x": np.ones((1, 1, 2, 2)), "w": np.ones((1, 1, 2, 2)), "y": np.full((1, 1, 1, 1), 10.0)}
    operation = convolution((1, 1, 2, 2), (1, 1, 2, 2), geometry(), alpha=0.5, beta=2.0)
    assert operation.reference(ones)["y"].item() == 22
    del ones["y"]
    with raises(BadParamError, "convolution_forward.y", expected="old values", got="none"):
        operation.reference(ones)


def test_integer_accumulators_wrap() -> None:
    shape = geometry(compute_type=DataType.INT32)
    operation = convolution((1, 2, 1, 1), (1, 2, 1, 1), shape, DataType.INT32)
    big = np.array([2**30, 2**30]).reshape(1, 2, 1, 1)
    assert operation.reference({"x": big, "w": np.ones_like(big)})["y"].item() == -(2**31)


def test_empty_batches_and_filters() -> None:
    for x, w in (((0, 2, 3, 3), (4, 2, 3, 3)), ((1, 2, 3, 3), (0, 2, 3, 3))):
        operation = convolution(x, w, geometry())
        assert operation.reference({"x": np.zeros(x), "w": np.zeros(w)})["y"].shape == operation.y.dims


def test_facts() -> None:
    operation = convolution((2, 8, 5, 5), (6, 4, 3, 3), geometry())
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
        ((1, 4, 3, 3), (1, 3, 1, 1), "w.dims[1]", "a divisor of x's 4 channels", "3"),
        ((1, 4, 3, 3), (1, 0, 1, 1), "w.dims[1]", "a divisor of x's 4 channels", "0"),
        ((1, 4, 3, 3), (3, 2, 1, 1), "w.dims[0]", "a multiple of the 2 groups", "3"),
        ((1, 4, 3, 3), (4, 4, 4, 3), "w.dims[2]", "a dilated filter of 1 to 3", "4 taps"),
        ((1, 4, 3, 3), (4, 4, 3, 0), "w.dims[3]", "a dilated filter of 1 to 3", "0 taps"),
    ],
)
def test_dims_are_checked(x: tuple[int, ...], w: tuple[int, ...], where: str, expected: str, got: str) -> None:
    with raises(ShapeMismatchError, f"convolution_forward.{where}", expected=expected, got=got):
        geometry().output_dims(x, w)


def test_output_dims_are_checked() -> None:
    x, w = tensor(1, (1, 2, 5, 5)), tensor(2, (4, 2, 3, 3))
    with raises(ShapeMismatchError, "convolution_forward.y.dims", expected="[1, 4, 3, 3]", got="[1, 4, 5, 5]"):
        ConvolutionForward(geometry(), x=x, w=w, y=tensor(3, (1, 4, 5, 5)))
    y = tensor(3, (1, 4, 3, 3), is_virtual=True)
    with raises(BadParamError, "convolution_forward.beta", expected="0 where y is virtual", got="1"):
        ConvolutionForward(geometry(), x=x, w=w, y=y, beta=1.0)


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
        convolution((1, 2, 3, 3), (2, 2, 1, 1), geometry(compute_type=compute_type), data_type)
