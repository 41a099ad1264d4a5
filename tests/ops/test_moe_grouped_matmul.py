from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowdnn.enums import DataType, MoeGroupedMatmulMode
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul, output_dims
from lowdnn.ops.moe_grouped_matmul_backward import MoeGroupedMatmulBackward
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.ops.token_groups import TokenGroups
from lowdnn.status import (
    BadParamError,
    LowdnnError,
    ShapeMismatchError,
    UnsupportedDataTypeError,
    UnsupportedShapeError,
)
from tests.support.errors import raises

NONE, GATHER, SCATTER = MoeGroupedMatmulMode.NONE, MoeGroupedMatmulMode.GATHER, MoeGroupedMatmulMode.SCATTER
TOKEN, WEIGHT = np.arange(8.0).reshape(1, 4, 2), np.arange(12.0).reshape(2, 2, 3)


def tensor(uid: int, dims: tuple[int, ...], data_type: DataType = DataType.FLOAT) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16)


def offsets(extent: int) -> Tensor:
    return tensor(3, (extent, 1, 1), DataType.INT32)


def operation(mode: MoeGroupedMatmulMode = NONE, rows: int = 4, extent: int = 2, top_k: int = 2) -> MoeGroupedMatmul:
    """4 tokens of K = 2, 2 experts, N = 3."""
    index, ks = (tensor(uid, (1, rows, 1), DataType.INT32) for uid in (4, 5))
    return MoeGroupedMatmul(
        mode,
        DataType.FLOAT,
        token=tensor(1, TOKEN.shape),
        weight=tensor(2, WEIGHT.shape),
        first_token_offset=offsets(extent),
        output=tensor(6, (1, rows, 3)),
        token_index=None if mode is NONE else index,
        token_ks=ks if mode is SCATTER else None,
        top_k=top_k,
    )


def backward(experts: int = 2, extent: int = 2) -> MoeGroupedMatmulBackward:
    token, doutput, dweight = tensor(1, (1, 4, 2)), tensor(2, (1, 4, 3)), tensor(4, (experts, 2, 3))
    return MoeGroupedMatmulBackward(DataType.FLOAT, doutput, token, offsets(extent), dweight)


def given(*first: int) -> dict[str, np.ndarray]:
    return {"token": TOKEN, "weight": WEIGHT, "first_token_offset": np.array(first).reshape(-1, 1, 1)}


def test_rows_meet_the_weight_of_their_expert() -> None:
    got = operation().reference(given(0, 1))["output"]
    np.testing.assert_array_equal(got[0, :1], TOKEN[0, :1] @ WEIGHT[0])
    np.testing.assert_array_equal(got[0, 1:], TOKEN[0, 1:] @ WEIGHT[1])


def test_batches_share_the_experts_and_a_given_end_leaves_rows_as_they_were() -> None:
    values = {**given(0, 1, 1, 2, 3), "output": np.full((1, 4, 3), 9.0)}
    got = operation(extent=5).reference(values)["output"]
    np.testing.assert_array_equal(got[0, [0, 1]], TOKEN[0, [0, 1]] @ WEIGHT[0])
    np.testing.assert_array_equal(got[0, 2], TOKEN[0, 2] @ WEIGHT[1])
    np.testing.assert_array_equal(got[0, 3], [9.0] * 3)


def test_gathered_rows_come_from_their_index() -> None:
    index = np.array([3, 3, 0, 2, 1, 1])
    values = {**given(0, 2), "token_index": index.reshape(1, -1, 1)}
    got = operation(GATHER, rows=6).reference(values)["output"]
    np.testing.assert_array_equal(got[0, :2], TOKEN[0, [3, 3]] @ WEIGHT[0])
    np.testing.assert_array_equal(got[0, 2:], TOKEN[0, index[2:]] @ WEIGHT[1])


def test_scattered_rows_go_to_the_slots_of_their_token() -> None:
    values = {**given(0, 3), "token_index": np.array([1, 0, 1, 0]), "token_ks": np.array([1, 0, 0, 1])}
    got = operation(SCATTER).reference(values)["output"]
    plain = operation().reference(given(0, 3))["output"]
    np.testing.assert_array_equal(got[0, [3, 0, 2, 1]], plain[0])


def test_the_weights_gradient() -> None:
    doutput = np.arange(12.0).reshape(1, 4, 3)
    values = {"token": TOKEN, "doutput": doutput, "first_token_offset": np.array([0, 3, 3, 3])}
    got = backward(extent=4).reference(values)["dweight"]
    np.testing.assert_array_equal(got[0], TOKEN[0, :3].T @ doutput[0, :3])
    np.testing.assert_array_equal(got[1], TOKEN[0, 3:].T @ doutput[0, 3:])


@pytest.mark.parametrize(
    ("experts", "extent", "count", "has_end"),
    [(2, 2, 2, False), (2, 3, 2, True), (2, 4, 4, False), (1, 1, 1, False), (1, 2, 1, True), (1, 3, 2, True)],
)
def test_the_extent_says_whether_the_end_is_given(experts: int, extent: int, count: int, has_end: bool) -> None:
    groups = TokenGroups.of("offsets", offsets(extent), experts, 4)
    assert (groups.count, groups.has_end) == (count, has_end)


def test_groups_end_with_the_rows_and_none_is_negative() -> None:
    groups = TokenGroups.of("offsets", offsets(4), 2, 10)
    found = [(expert, part.start, part.stop) for expert, part in groups.ranges(np.array([-2, 7, 4, 20]))]
    assert found == [(0, 0, 7), (1, 7, 7), (0, 4, 10), (1, 20, 20)]


def test_flops() -> None:
    assert operation().flops == backward().flops == 2 * 4 * 3 * 2


@pytest.mark.parametrize(
    ("token", "weight", "error", "where", "got"),
    [
        ((2, 4, 2), (2, 2, 3), UnsupportedShapeError, "moe_grouped_matmul.token.dims", "[2, 4, 2]"),
        ((1, 4, 2), (2, 3), UnsupportedShapeError, "moe_grouped_matmul.weight.dims", "[2, 3]"),
        ((1, 4, 2), (0, 2, 3), UnsupportedShapeError, "moe_grouped_matmul.weight.dims", "[0, 2, 3]"),
        ((1, 4, 2), (2, 5, 3), ShapeMismatchError, "moe_grouped_matmul.weight.dims[1]", "5"),
    ],
)
def test_dims_are_checked(
    token: tuple[int, ...], weight: tuple[int, ...], error: type[LowdnnError], where: str, got: str
) -> None:
    with raises(error, where, got=got):
        output_dims(NONE, token, weight)


def test_routing_is_checked() -> None:
    with raises(BadParamError, "moe_grouped_matmul.token_index", expected="none in mode NONE"):
        replace(operation(GATHER), mode=NONE)
    with raises(BadParamError, "moe_grouped_matmul.token_ks", expected="a tensor in mode SCATTER", got="none"):
        replace(operation(SCATTER), token_ks=None)
    with raises(BadParamError, "moe_grouped_matmul.top_k", expected="divisor of the 4 rows", got="3"):
        operation(SCATTER, top_k=3)
    with raises(UnsupportedDataTypeError, "moe_grouped_matmul.token_index.data_type", expected="INT32", got="FLOAT"):
        replace(operation(GATHER), token_index=tensor(4, (1, 4, 1)))
    with raises(ShapeMismatchError, "moe_grouped_matmul.token_ks.dims", expected="[1, 4, 1]", got="[1, 5, 1]"):
        replace(operation(SCATTER), token_ks=tensor(5, (1, 5, 1), DataType.INT32))


def test_offsets_are_checked() -> None:
    where = "moe_grouped_matmul.first_token_offset"
    with raises(ShapeMismatchError, f"{where}.dims", expected="a multiple of 2 experts", got="[1, 1, 1]"):
        operation(extent=1)
    with raises(UnsupportedDataTypeError, f"{where}.data_type", expected="INT32 or INT64", got="FLOAT"):
        replace(operation(), first_token_offset=tensor(3, (2, 1, 1)))


def test_outputs_are_checked() -> None:
    with raises(ShapeMismatchError, "moe_grouped_matmul.output.dims", expected="[1, 4, 3]", got="[1, 5, 3]"):
        replace(operation(), output=tensor(6, (1, 5, 3)))
    with raises(ShapeMismatchError, "moe_grouped_matmul_bwd.dweight.dims", expected="[E, 2, 3]", got="[2, 3, 2]"):
        replace(backward(), dweight=tensor(4, (2, 3, 2)))
    with raises(ShapeMismatchError, "moe_grouped_matmul_bwd.token.dims[1]", expected="4 rows", got="5"):
        replace(backward(), token=tensor(1, (1, 5, 2)))
