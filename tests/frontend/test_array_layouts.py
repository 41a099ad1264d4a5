"""Strides of arrays that differ from the graph's: one warning, or none where cuDNN's users rely on it."""

from __future__ import annotations

import warnings
from random import Random
from typing import Any

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.enums import DataType
from lowdnn.frontend.array_layouts import LayoutWarning, LayoutWatch
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.tensor import Tensor

FLOAT = cudnn.data_type.FLOAT
NCHW, NHWC = [60, 20, 5, 1], [60, 1, 15, 3]


class Relu:
    """y = relu(x) over (2, 3, 4, 5), x with the given strides."""

    def __init__(self, handle: Handle, strides: list[int] | None = None, dims: tuple[int, ...] = (2, 3, 4, 5)) -> None:
        self.handle = handle
        self.graph = pygraph("relu", FLOAT, FLOAT, FLOAT, handle)
        self.tensor_x = self.graph.tensor(dims, strides or [], name="x")
        self.tensor_y = self.graph.relu(self.tensor_x).set_output(True)
        self.dims = dims
        self.graph.build()
        self.y = self.array(self.tensor_y.get_stride())

    def array(self, strides: list[int] | None = None, dims: tuple[int, ...] = ()) -> lowdnn.DeviceTensor:
        return lowdnn.from_numpy(np.ones(dims or self.dims, np.float32), self.handle, strides=strides)

    def execute(self, x: Any) -> None:
        self.graph.execute({self.tensor_x: x, self.tensor_y: self.y})


class TorchLike:
    """A device tensor with torch's names for address and strides."""

    def __init__(self, tensor: lowdnn.DeviceTensor) -> None:
        self.shape = tensor.shape
        self._tensor = tensor

    def stride(self) -> tuple[int, ...]:
        return self._tensor.strides

    def get_device(self) -> int:
        return 3

    def data_ptr(self) -> int:
        return self._tensor.ptr


class DlpackOnly:
    def __init__(self, tensor: lowdnn.DeviceTensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> object:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()


@pytest.mark.parametrize("wrap", [lambda tensor: tensor, lambda tensor: tensor.buffer, TorchLike, DlpackOnly])
@pytest.mark.parametrize(("declared", "given"), [(NCHW, NHWC), (NHWC, NCHW)])
def test_other_strides_over_the_same_extents_are_warned_of_once(
    handle: Handle, wrap: Any, declared: list[int], given: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    handle.cuda_device = 3
    case = Relu(handle, declared)
    right = wrap(case.array(declared))  # kept, so that its address is not another's
    case.execute(right)
    text = rf"tensor 'x' \(uid 1\) has strides \{declared} over extents \[2, 3, 4, 5\] in the graph, .* \{given};"
    wrong = wrap(case.array(given))
    with pytest.warns(LayoutWarning, match=text) as caught:
        case.execute(wrong)
    assert [warning.filename for warning in caught] == [__file__]
    assert handle.runtime.counters.snapshot()["layouts_differ"] == 1
    name = "\"tensor 'x' (uid 1)\""
    event = f'layout_differs tensor={name} extents="[2, 3, 4, 5]" given="{given}" declared="{declared}"'
    assert event in caplog.messages
    for _ in range(2):
        case.execute(wrong)
        case.execute(wrap(case.array(given)))


def test_a_warning_turned_into_an_error_leaves_a_usable_graph(handle: Handle) -> None:
    case = Relu(handle, NCHW)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LayoutWarning)
        with pytest.raises(LayoutWarning):
            case.execute(case.array(NHWC))
        case.execute(case.array(NHWC))


@pytest.mark.parametrize(
    ("dims", "strides", "given_dims", "given_strides"),
    [
        ((1, 6, 1, 1), [6, 1, 1, 1], (6,), None),
        ((1, 6, 1, 1), [6, 1, 6, 6], (1, 6, 1, 1), [9, 1, 7, 3]),
        ((2, 3, 4, 5), NCHW, (120,), None),
        ((2, 3, 4, 5), NHWC, (2, 4, 5, 3), None),
        ((2, 3, 4, 5), NCHW, (6, 20), None),
        ((2, 3, 4, 5), NCHW, (2, 3, 5, 4), [60, 20, 1, 5]),
    ],
)
def test_views_with_other_axes_are_taken(
    handle: Handle, dims: Any, strides: list[int], given_dims: Any, given_strides: list[int] | None
) -> None:
    case = Relu(handle, strides, dims)
    case.execute(case.array(given_strides, given_dims))
    np.testing.assert_array_equal(case.y.numpy(), 1)


def test_what_was_planned_counts_and_not_what_its_tensor_has_become(handle: Handle) -> None:
    case = Relu(handle, NCHW)
    case.graph.build_operation_graph()
    case.graph.create_execution_plans()
    case.tensor_x.set_dim([2]).set_stride([7, 7, 7])
    case.graph.build_plans()
    right = case.array(NCHW)  # kept, so that its address is not another's
    case.execute(right)
    with pytest.warns(LayoutWarning, match=r"\[60, 1, 15, 3\]; the graph's are taken"):
        case.execute(case.array(NHWC))


def test_buffers_bytes_and_addresses_tell_no_layout(handle: Handle) -> None:
    case = Relu(handle, NCHW)
    raw = lowdnn.from_numpy(np.ones(120, np.float32).view(np.uint8), handle)
    with lowdnn.runtime.buffer.DeviceBuffer.allocate(handle.runtime.context, 480) as buffer:
        buffer.fill_bytes(0)
        for value in (raw, raw.ptr, buffer):
            case.execute(value)


def test_an_axis_of_stride_0_given_for_a_full_one(handle: Handle) -> None:
    case = Relu(handle, [3, 1], (2, 3))
    backing = case.array(None, (2, 3)).buffer
    backing.strides = (0, 1)
    with pytest.warns(LayoutWarning, match=r"array given for it \[0, 1\]"):
        case.execute(backing)


def test_random_layouts_are_told_of_where_an_element_lies_elsewhere(handle: Handle) -> None:
    """Compares with the elements' offsets; arrays have other axes of extent 1 than the tensor."""
    draw = Random("layouts")
    told = 0
    for address in range(1, 400):
        dims = tuple(draw.choice((1, 1, 2, 3)) for _ in range(draw.randint(1, 4)))
        declared, given = (tuple(draw.choice((0, 1, 2, 3, 6, 9)) for _ in dims) for _ in range(2))
        given = tuple(d if draw.random() < 0.7 else g for d, g in zip(declared, given, strict=True))
        tensor = Tensor(1, DataType.FLOAT, dims, declared, 16, name="x")
        array = Described(*_with_other_ones(draw, dims, given))
        differs = not np.array_equal(_offsets(dims, declared), _offsets(dims, given))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                LayoutWatch({0: tensor}).look(0, array, address, handle)
        assert len(caught) == 2 * differs, (dims, declared, given)
        told += differs
    assert 100 < told < 300


class Described:
    """A description of an array by torch's names."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.shape = shape
        self._strides = strides

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def data_ptr(self) -> int:
        return 0


def _offsets(dims: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray[Any, Any]:
    places = np.indices(dims).reshape(len(dims), -1)
    return (places * np.array(strides)[:, None]).sum(0)


def _with_other_ones(draw: Random, dims: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Dims and strides of the same layout, with axes of extent 1 removed and added."""
    axes = [axis for axis in zip(dims, strides, strict=True) if axis[0] != 1 or draw.random() < 0.5]
    for _ in range(draw.randint(0, 2)):
        axes.insert(draw.randint(0, len(axes)), (1, draw.randint(0, 9)))
    return tuple(extent for extent, _ in axes), tuple(stride for _, stride in axes)
