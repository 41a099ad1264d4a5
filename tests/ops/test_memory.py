from __future__ import annotations

import numpy as np
import pytest

from lowdnn.enums import DataType
from lowdnn.graph.layouts import Layout, strides_of
from lowdnn.ops.memory import check_storage, from_memory, to_memory
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError, ShapeMismatchError
from tests.support.errors import raises


def tensor(dims: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    return Tensor(1, DataType.FLOAT, dims, strides, 16)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dims", [(2, 3, 4, 5), (7,), (3, 4), (2, 0, 3), (1, 1, 1)])
def test_round_trip(dims: tuple[int, ...], layout: Layout) -> None:
    x = tensor(dims, strides_of(dims, layout))
    values = np.arange(x.element_count, dtype=np.float32).reshape(dims)
    memory = to_memory(values, x)
    assert memory.nbytes == x.span_bytes
    np.testing.assert_array_equal(from_memory(memory, x), values)


def test_elements_lie_at_their_strides() -> None:
    values = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    np.testing.assert_array_equal(to_memory(values, tensor((2, 3), (1, 2))), [1, 4, 2, 5, 3, 6])
    np.testing.assert_array_equal(to_memory(values, tensor((2, 3), (4, 1))), [1, 2, 3, 0, 4, 5, 6])


def test_background_shows_between_elements() -> None:
    background = np.full(7, 9, np.float32)
    memory = to_memory(np.zeros((2, 3), np.float32), tensor((2, 3), (4, 1)), background)
    np.testing.assert_array_equal(memory, [0, 0, 0, 9, 0, 0, 0])
    assert (background == 9).all()


def test_stride_0_repeats() -> None:
    x = tensor((3, 2), (0, 1))
    np.testing.assert_array_equal(from_memory(np.array([5, 6], np.float32), x), [[5, 6]] * 3)


def test_wrong_arrays_are_refused() -> None:
    x = tensor((2, 3), (3, 1))
    with raises(BadParamError, "tensor uid 1.values.dtype", expected="float32", got="float64"):
        check_storage(np.zeros((2, 3)), x)
    with raises(ShapeMismatchError, "tensor uid 1.values.shape", expected="[2, 3]", got="[3, 2]"):
        to_memory(np.zeros((3, 2), np.float32), x)
