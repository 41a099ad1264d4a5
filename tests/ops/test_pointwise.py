from __future__ import annotations

from typing import Any

import pytest

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.pointwise import (
    Pointwise,
    PointwiseOperation,
    compute_types,
    input_ports,
    is_backward,
    is_predicate,
    output_dims,
    output_port,
)
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError
from tests.support.builders import pointwise_graph
from tests.support.errors import raises

INTEGER_ONLY_REFUSED = ("EXP", "LOG", "SQRT", "POW", "ATAN2", "CEIL", "RECIPROCAL", "ERF", "GELU_FWD", "SIGMOID_BWD")
INTEGER_TAKEN = ("ADD", "DIV", "MOD", "FLOOR_MOD", "RELU_FWD", "CMP_LT", "LOGICAL_NOT", "GEN_INDEX", "BINARY_SELECT")


def tensor(uid: int, dims: tuple[int, ...], **changes: Any) -> Tensor:
    return Tensor(uid, DataType.FLOAT, dims, packed_strides(dims), 16, **changes)


X, B, T, Y = (tensor(uid, (2, 3)) for uid in range(1, 5))


def operation(mode: PointwiseMode, **ports: Any) -> PointwiseOperation:
    return PointwiseOperation(Pointwise(mode, DataType.FLOAT), **ports)


def test_ports() -> None:
    assert input_ports(PointwiseMode.EXP) == ("x",)
    assert input_ports(PointwiseMode.POW) == ("x", "b")
    assert input_ports(PointwiseMode.BINARY_SELECT) == ("x", "b", "t")
    assert input_ports(PointwiseMode.GELU_BWD) == ("dy", "x")
    assert output_port(PointwiseMode.GELU_BWD) == "dx"
    assert output_port(PointwiseMode.ADD) == "y"
    counts = [len(input_ports(mode)) for mode in PointwiseMode]
    assert (counts.count(1), counts.count(2), counts.count(3)) == (24, 27, 1)
    assert sum(map(is_backward, PointwiseMode)) == 8
    assert sum(map(is_predicate, PointwiseMode)) == 9


@pytest.mark.parametrize("name", INTEGER_ONLY_REFUSED)
@pytest.mark.parametrize("compute_type", [DataType.INT32, DataType.INT64])
def test_modes_without_a_meaning_in_integers_are_refused(name: str, compute_type: DataType) -> None:
    with raises(UnsupportedDataTypeError, "pointwise.compute_type", expected=f"for {name}", got=compute_type.name):
        Pointwise(PointwiseMode[name], compute_type)


@pytest.mark.parametrize("name", INTEGER_TAKEN)
def test_modes_with_a_meaning_in_integers_are_taken(name: str) -> None:
    assert DataType.INT32 in compute_types(PointwiseMode[name])
    assert DataType.INT64 in compute_types(PointwiseMode[name])


def test_boolean_arithmetic() -> None:
    taken = {mode for mode in PointwiseMode if DataType.BOOLEAN in compute_types(mode)}
    expected = {mode for mode in PointwiseMode if is_predicate(mode)}
    assert taken == expected | {PointwiseMode.IDENTITY, PointwiseMode.BINARY_SELECT}


def test_storage_only_types_do_not_compute() -> None:
    with raises(UnsupportedDataTypeError, "pointwise.compute_type", expected="FLOAT", got="FP8_E4M3"):
        Pointwise(PointwiseMode.ADD, DataType.FP8_E4M3)


@pytest.mark.parametrize(
    ("mode", "ports", "field", "expected", "got"),
    [
        (PointwiseMode.ADD, {"x": X, "y": Y}, "b", "a tensor for ADD", "none"),
        (PointwiseMode.EXP, {"x": X, "b": B, "y": Y}, "b", "no tensor for EXP", "a tensor"),
        (PointwiseMode.EXP, {"x": X}, "y", "a tensor for EXP", "none"),
        (PointwiseMode.RELU_BWD, {"x": X, "dy": B, "y": Y}, "y", "no tensor for RELU_BWD", "a tensor"),
        (PointwiseMode.BINARY_SELECT, {"x": X, "b": B, "y": Y}, "t", "a tensor for BINARY_SELECT", "none"),
    ],
)
def test_ports_must_fit_the_mode(
    mode: PointwiseMode, ports: dict[str, Tensor], field: str, expected: str, got: str
) -> None:
    with raises(BadParamError, f"pointwise.{field}", expected=expected, got=got):
        operation(mode, **ports)


def test_dims_must_repeat_to_the_output() -> None:
    for dims in ((2, 3), (1, 3), (2, 1), (1, 1), (1,), (1, 1, 1)):
        operation(PointwiseMode.ADD, x=X, b=tensor(9, dims), y=Y)
    for dims in ((3,), (2, 2), (2, 3, 1), (0, 3)):
        with raises(ShapeMismatchError, "pointwise.b.dims", expected="[2, 3]", got=str(list(dims))):
            operation(PointwiseMode.ADD, x=X, b=tensor(9, dims), y=Y)


def test_axis_of_gen_index() -> None:
    for axis in (-1, 2):
        with raises(BadParamError, "pointwise.axis", expected="0 to 1 for GEN_INDEX", got=str(axis)):
            pointwise_graph(Pointwise(PointwiseMode.GEN_INDEX, DataType.FLOAT, axis=axis), (2, 3))


def test_alphas_only_where_the_mode_takes_them() -> None:
    pointwise_graph(PointwiseMode.ADD, (2, 3), alpha1=0.5, alpha2=-2.0)
    pointwise_graph(PointwiseMode.EXP, (2, 3), alpha1=0.5)
    with raises(BadParamError, "pointwise.alpha2", expected="1.0 for EXP", got="2.0"):
        pointwise_graph(PointwiseMode.EXP, (2, 3), alpha2=2.0)
    for mode in (PointwiseMode.RELU_BWD, PointwiseMode.LOGICAL_NOT, PointwiseMode.GEN_INDEX):
        with raises(BadParamError, "pointwise.alpha1", expected=f"1.0 for {mode.name}", got="0.5"):
            pointwise_graph(Pointwise(mode, DataType.FLOAT, axis=0), (2, 3), alpha1=0.5)


def test_integer_arithmetic_takes_integer_parameters() -> None:
    arithmetic = Pointwise(PointwiseMode.ADD, DataType.INT32)
    pointwise_graph(arithmetic, (2, 3), data_type=DataType.INT32, alpha1=-3.0)
    with raises(BadParamError, "pointwise.alpha2", expected="an integer for INT32", got="0.5"):
        pointwise_graph(arithmetic, (2, 3), data_type=DataType.INT32, alpha2=0.5)
    with raises(BadParamError, "pointwise.relu_lower_clip_slope", expected="an integer for INT64", got="0.1"):
        Pointwise(PointwiseMode.RELU_FWD, DataType.INT64, relu_lower_clip_slope=0.1)


def test_the_clips_of_relu_do_not_cross() -> None:
    clips = {"relu_lower_clip": 2.0, "relu_upper_clip": 2.0}
    assert Pointwise(PointwiseMode.RELU_FWD, DataType.FLOAT, **clips).relu_lower_clip == 2.0
    for mode in (PointwiseMode.RELU_FWD, PointwiseMode.RELU_BWD):
        with raises(BadParamError, "pointwise.relu_lower_clip", expected="at most the upper clip, 2.0", got="2.5"):
            Pointwise(mode, DataType.FLOAT, **(clips | {"relu_lower_clip": 2.5}))


def test_softplus_beta() -> None:
    with raises(BadParamError, "pointwise.softplus_beta", expected="other than 0", got="0"):
        Pointwise(PointwiseMode.SOFTPLUS_FWD, DataType.FLOAT, softplus_beta=0.0)


def test_output_dims() -> None:
    assert output_dims({"x": (2, 1, 3), "b": (1, 4, 1)}) == (2, 4, 3)
    assert output_dims({"x": (1,), "b": (2, 3)}) == (2, 3)
    assert output_dims({"x": (2, 3), "b": (1, 1, 1, 1)}) == (2, 3)
    assert output_dims({"x": (1, 1), "b": (1, 1, 1)}) == (1, 1, 1)
    assert output_dims({"x": (0, 3), "b": (1, 3)}) == (0, 3)
    with raises(ShapeMismatchError, "pointwise.b.dims[1]", expected="1 or 3", got="4"):
        output_dims({"x": (2, 3), "b": (2, 4)})
    with raises(ShapeMismatchError, "pointwise.b.dims", expected="rank 2 or one element", got="[3]"):
        output_dims({"x": (2, 3), "b": (3,)})
