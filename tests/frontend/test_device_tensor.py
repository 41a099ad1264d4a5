"""Device tensors: every type and layout there and back."""

from __future__ import annotations

import gc
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.enums import DataType
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    DeviceAllocationFailedError,
    NotInitializedError,
    ShapeMismatchError,
    SizeInsufficientError,
    UnsupportedDataTypeError,
)

VALUES = np.arange(24).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "dtype",
    [
        np.float64,
        np.float32,
        np.float16,
        np.int8,
        np.uint8,
        np.int32,
        np.int64,
        np.bool_,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
    ],
)
def test_each_type_comes_back(handle: Handle, dtype: type) -> None:
    array = (VALUES % 7).astype(dtype)
    with lowdnn.from_numpy(array, handle) as tensor:
        back = tensor.numpy()
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("strides", [None, (12, 1, 3), (1, 2, 6), (40, 10, 2)])
def test_each_layout_comes_back(handle: Handle, strides: tuple[int, ...] | None) -> None:
    array = VALUES.astype(np.float32)
    with lowdnn.from_numpy(array, handle, strides=strides) as tensor:
        assert tensor.strides == (strides or (12, 4, 1))
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_strides_are_those_of_the_memory(handle: Handle) -> None:
    array = VALUES.astype(np.float32)
    with lowdnn.from_numpy(array, handle, strides=(12, 1, 3)) as tensor:
        flat = tensor.buffer._to_host_bytes(None).view(np.float32)
    np.testing.assert_array_equal(flat.reshape(2, 4, 3), array.transpose(0, 2, 1))


def test_an_array_that_is_not_contiguous(handle: Handle) -> None:
    array = VALUES.astype(np.float32)[:, ::2].transpose(2, 0, 1)
    with lowdnn.from_numpy(array, handle) as tensor:
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_values_are_converted_to_the_type_asked_for(handle: Handle) -> None:
    array = np.array([0.0, 1.0, -2.5, 3.140625, 1e9], np.float32)
    with lowdnn.from_numpy(array, handle, cudnn.data_type.BFLOAT16) as tensor:
        np.testing.assert_array_equal(tensor.numpy(), array.astype(ml_dtypes.bfloat16))
        assert tensor.dtype is cudnn.data_type.BFLOAT16
    with lowdnn.from_numpy(array, handle, DataType.INT8) as tensor:
        np.testing.assert_array_equal(tensor.numpy(), np.array([0, 1, -2, 3, 127], np.int8))
    with lowdnn.from_numpy(array.astype(ml_dtypes.bfloat16), handle, DataType.HALF) as tensor:
        np.testing.assert_array_equal(tensor.numpy(), array.astype(ml_dtypes.bfloat16).astype(np.float16))
    with lowdnn.from_numpy(array[:4].astype(ml_dtypes.float8_e5m2), handle, cudnn.data_type.FP8_E4M3) as tensor:
        np.testing.assert_array_equal(tensor.numpy().astype(np.float32), [0.0, 1.0, -2.5, 3.0])
    bits = np.array([0x3F80, 0x4000], np.uint16)
    with lowdnn.from_numpy(bits, handle, DataType.BFLOAT16) as tensor:
        np.testing.assert_array_equal(tensor.numpy().astype(np.float32), [1.0, 2.0])


def test_bf16_comes_as_fp32_without_ml_dtypes(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with lowdnn.from_numpy(np.array([1.5, -2.0], np.float32), handle, cudnn.data_type.BFLOAT16) as tensor:
        back = tensor.numpy()
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, [1.5, -2.0])


def test_copy_from_overwrites(handle: Handle) -> None:
    with lowdnn.from_numpy(np.zeros((2, 2), np.float32), handle, strides=(1, 2)) as tensor:
        new = np.array([[1, 2], [3, 4]], np.float32)
        tensor.copy_from(new)
        np.testing.assert_array_equal(tensor.numpy(), new)
        with pytest.raises(ShapeMismatchError, match=r"tensor.copy_from.array: expected \[2, 2\], got \[4\]"):
            tensor.copy_from(new.ravel())
        np.testing.assert_array_equal(tensor.numpy(), new)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (), (1, 1, 1)])
def test_empty_scalar_and_unit_shapes(handle: Handle, shape: tuple[int, ...]) -> None:
    array: NDArray[np.float32] = np.ones(shape, np.float32)
    with lowdnn.from_numpy(array, handle) as tensor:
        back = tensor.numpy()
    assert back.shape == shape
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (), (0, 3)])
def test_new_tensors_have_the_layout_asked_for(handle: Handle, shape: tuple[int, ...]) -> None:
    strides = lowdnn.channels_last_strides(shape)
    with lowdnn.zeros(shape, handle, cudnn.data_type.HALF, strides) as zeros, lowdnn.empty(shape, handle) as empty:
        assert (zeros.shape, zeros.strides, zeros.dtype) == (shape, strides, cudnn.data_type.HALF)
        np.testing.assert_array_equal(zeros.numpy(), np.zeros(shape, np.float16))
        assert (empty.shape, empty.strides, empty.dtype) == (shape, packed_strides(shape), cudnn.data_type.FLOAT)
        empty.copy_from(np.ones(shape, np.float32))
        assert (empty.numpy() == 1).all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda h: lowdnn.empty((2, -1), h), BadParamError, "empty.shape[1]: expected 0 to"),
        (lambda h: lowdnn.zeros((2, 3), h, strides=(3,)), BadParamError, "zeros.strides: expected 2 strides, got [3]"),
        (lambda h: lowdnn.zeros((2,), h, "int7"), UnsupportedDataTypeError, "zeros.data_type"),
        (lambda h: lowdnn.empty((2,), "cuda"), AttributeTypeError, "empty.handle: expected a Handle"),
        (lambda h: lowdnn.empty(3, h), AttributeTypeError, "empty.shape: expected a sequence of integers"),
        (lambda h: lowdnn.zeros((4,), h).view((3,), offset=2), SizeInsufficientError, "at most 16 bytes, got 20"),
        (lambda h: lowdnn.zeros((4,), h).reshape((3, -1)), ShapeMismatchError, "expected 4 elements, got [3, -1]"),
        (lambda h: lowdnn.zeros((4,), h).reshape((-1, -1)), BadParamError, "expected at most one -1"),
        (lambda h: lowdnn.zeros((2, 3), h).permute((1, 0)).reshape((6,)), BadParamError, "packed in row-major order"),
        (lambda h: lowdnn.zeros((2, 3), h).permute((0, 0)), BadParamError, "expected each of 2 axes once, got [0, 0]"),
        (lambda h: lowdnn.zeros((2, 3), h)[::-1], BadParamError, "expected slices with positive steps"),
        (lambda h: lowdnn.zeros((2, 3), h)[..., ...], BadParamError, "expected at most one ellipsis"),
        (lambda h: lowdnn.zeros((2, 3), h)[1.5], AttributeTypeError, "expected an integer"),
        (lambda h: lowdnn.zeros((2, 3), h)[2], IndexError, "expected -2 to 1 along axis 0, got 2"),
        (lambda h: lowdnn.zeros((2, 3), h)[0, 0, 0], IndexError, "expected at most 2 indices, got 3"),
    ],
)
def test_bad_layouts_and_views(handle: Handle, make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        make(handle)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "choose",
    [
        lambda t: t[1],
        lambda t: t[-1, 2],
        lambda t: t[:, 1:3, ::2],
        lambda t: t[..., 3],
        lambda t: t[0, ..., 1:2],
        lambda t: t[1, 2, 3],
        lambda t: t[2:, 1],
        lambda t: t[:, 1:][:, :, 1:3],
        lambda t: t.reshape((4, -1)),
        lambda t: t.reshape((24,))[3:9].reshape((2, 3)),
    ],
)
def test_views_choose_what_numpy_chooses(handle: Handle, choose: Any) -> None:
    with lowdnn.from_numpy(VALUES.astype(np.float32), handle) as tensor:
        view, expected = choose(tensor), choose(VALUES.astype(np.float32))
        assert view.shape == expected.shape
        np.testing.assert_array_equal(view.numpy(), expected)
        view.copy_from(-expected)
        changed = VALUES.astype(np.float32)
        changed.flat[choose(VALUES)] *= -1
        np.testing.assert_array_equal(tensor.numpy(), changed)


def test_axes_in_another_order(handle: Handle) -> None:
    with lowdnn.from_numpy(VALUES.astype(np.float32), handle) as tensor:
        view = tensor.permute((2, 0, -2))
        assert view.strides == (1, 12, 4)
        np.testing.assert_array_equal(view.numpy(), VALUES.transpose(2, 0, 1))


def test_a_view_of_a_closed_tensor_has_no_address(handle: Handle) -> None:
    tensor = lowdnn.zeros((4,), handle)
    view = tensor[1:]
    assert view.ptr == tensor.ptr + 4
    view.close()
    assert tensor.numpy().sum() == 0
    second = tensor[1:][1:]
    tensor.close()
    with pytest.raises(NotInitializedError):
        _ = second.ptr


def test_a_view_keeps_the_memory(handle: Handle) -> None:
    view = lowdnn.from_numpy(VALUES.astype(np.float32), handle)[1]
    gc.collect()
    np.testing.assert_array_equal(view.numpy(), VALUES[1])


def test_bad_arguments(handle: Handle) -> None:
    with pytest.raises(UnsupportedDataTypeError):
        lowdnn.from_numpy(np.zeros(2, np.complex64), handle)
    with pytest.raises(BadParamError, match=r"from_numpy.strides: expected 2 strides >= 0, got \[1\]"):
        lowdnn.from_numpy(np.zeros((2, 2), np.float32), handle, strides=[1])


def test_a_closed_tensor_has_no_address(handle: Handle) -> None:
    tensor = lowdnn.from_numpy(np.zeros(2, np.float32), handle)
    assert tensor.ptr % 256 == 0
    tensor.close()
    tensor.close()
    with pytest.raises(NotInitializedError):
        _ = tensor.ptr


@pytest.mark.parametrize("strides", [[1.5, 1], ["a", 1], [None, 1], "31", 5])
def test_strides_that_are_no_integers(handle: Handle, strides: Any) -> None:
    with pytest.raises(AttributeTypeError, match=r"from_numpy\.strides"):
        lowdnn.from_numpy(np.zeros((2, 3), np.float32), handle, strides=strides)
    assert lowdnn.from_numpy(np.ones(3, np.float32), handle).numpy().sum() == 3


def test_elements_that_share_a_place_must_be_equal(handle: Handle) -> None:
    row = np.broadcast_to(np.arange(3, dtype=np.float32), (2, 3))
    with lowdnn.from_numpy(row, handle, strides=(np.int64(0), 1)) as tensor:
        assert tensor.size_bytes == 12
        np.testing.assert_array_equal(tensor.numpy(), row)
    with pytest.raises(BadParamError, match="a place of its own for each different element"):
        lowdnn.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3), handle, strides=(0, 1))


@pytest.mark.parametrize("array", [[1, 2], None, "x"])
def test_what_is_no_array(handle: Handle, array: Any) -> None:
    with pytest.raises(AttributeTypeError, match="expected a NumPy array"):
        lowdnn.from_numpy(array, handle)


def test_what_is_no_handle() -> None:
    with pytest.raises(AttributeTypeError, match=r"from_numpy\.handle: expected a Handle"):
        lowdnn.from_numpy(np.zeros(3), None)  # type: ignore[arg-type]


def test_more_memory_than_the_device_has(handle: Handle) -> None:
    with pytest.raises(DeviceAllocationFailedError, match="size_bytes: expected no more than the device has free"):
        lowdnn.from_numpy(np.zeros((2, 1), np.float32), handle, strides=(2**50, 1))


def test_numpy_copies_a_tensor(handle: Handle) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    with lowdnn.from_numpy(values, handle, strides=(1, 2)) as tensor:
        found = np.asarray(tensor)
        assert found.dtype == np.float32
        assert found.tolist() == values.tolist()
        found[0, 0] = 9
        assert np.array(tensor).tolist() == values.tolist()
        assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
        assert (np.ones((2, 3)) + np.asarray([tensor, tensor])).shape == (2, 2, 3)
        with pytest.raises(BadParamError, match=r"tensor\.__array__\.copy: expected None or True, got False"):
            np.asarray(tensor, copy=False)


def test_a_tensor_is_no_number(handle: Handle) -> None:
    with lowdnn.from_numpy(np.ones(1, np.float32), handle) as tensor:
        with pytest.raises(AttributeTypeError, match="expected a truth value on the host"):
            bool(tensor)
        for use in (float, int, len, iter):
            with pytest.raises(TypeError):
                use(tensor)  # type: ignore[operator]


def test_the_two_names_of_a_data_type_agree(handle: Handle) -> None:
    with lowdnn.from_numpy(np.ones(3, np.float32), handle) as tensor:
        assert tensor.dtype is tensor.data_type is cudnn.data_type.FLOAT
        assert tensor.stored_type is DataType.FLOAT


def test_members_of_different_enums_differ() -> None:
    """FLOAT is 1 in the frontend, as DOUBLE is in the backend."""
    for mine in cudnn.data_type:
        assert [other for other in DataType if other == mine or mine == other] == []
    assert cudnn.data_type.FLOAT != 1
    assert int(cudnn.data_type.FLOAT) == 1
    assert len({cudnn.data_type.FLOAT, DataType.DOUBLE, 1}) == 2
    assert not cudnn.data_type.NOT_SET
    assert all(cudnn.heur_mode)


def test_a_type_that_no_tensor_has_is_told_with_those_that_are(handle: Handle) -> None:
    with pytest.raises(UnsupportedDataTypeError, match=r"dtype of float64, float32, .*, got dtype\('int16'\)"):
        lowdnn.from_numpy(np.ones(3, np.int16), handle)
