"""Moves of elements through pygraph and through descriptors, end to end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn.frontend as cudnn
from lowdnn.backend import Handle, execute
from lowdnn.enums import AttributeName, AttributeType, DescriptorType, ReshapeMode
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.tensor import channels_last_strides, packed_strides
from lowdnn.status import AttributeTypeError, BadParamError
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.errors import raises
from tests.support.runtime import download, upload

N, T = AttributeName, AttributeType
X = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)

Build = Callable[[pygraph, cudnn.Tensor], cudnn.Tensor]


def logical(graph: pygraph, x: cudnn.Tensor) -> cudnn.Tensor:
    return graph.reshape(x, reshape_mode=cudnn.reshape_mode.LOGICAL).set_dim([6, 20])


@pytest.mark.parametrize(
    ("build", "expected", "strides"),
    [
        (logical, X.reshape(6, 20), [20, 1]),
        (lambda graph, x: graph.reshape(x).set_dim([20, 6]).set_stride([1, 20]), X.reshape(6, 20).T, [1, 20]),
        (lambda graph, x: graph.transpose(x, [0, 2, 3, 1]), X.transpose(0, 2, 3, 1), [60, 15, 3, 1]),
        (lambda graph, x: graph.slice(x, [slice(1, None), slice(None, 2)]), X[1:, :2], [40, 20, 5, 1]),
        (lambda graph, x: graph.slice(x, [slice(None)] * 3 + [slice(-4, 5, 3)]), X[..., 1:5:3], [24, 8, 2, 1]),
        (lambda graph, x: graph.concatenate([x, x], 1), np.concatenate([X, X], 1), [120, 20, 5, 1]),
    ],
)
def test_methods(handle: Handle, build: Build, expected: NDArray[np.float32], strides: list[int]) -> None:
    graph = pygraph(io_data_type=cudnn.data_type.FLOAT, handle=handle)
    x = graph.tensor(X.shape)
    y = build(graph, x).set_output(True)
    graph.build([cudnn.heur_mode.A])
    assert (y.get_dim(), y.get_stride()) == (list(expected.shape), strides)
    values = {x: cudnn.from_numpy(X, handle)}
    values[y] = cudnn.from_numpy(np.zeros(expected.shape, np.float32), handle, y.get_data_type(), strides)
    workspace = cudnn.from_numpy(np.zeros(max(graph.get_workspace_size(), 1), np.uint8), handle)
    graph.execute(values, workspace)
    np.testing.assert_array_equal(values[y].numpy(), expected)


def test_slices_and_concatenations_keep_the_order_of_dimensions() -> None:
    graph = pygraph(io_data_type=cudnn.data_type.FLOAT)
    x = graph.tensor(X.shape, channels_last_strides(X.shape))
    part = graph.slice(x, [slice(None), slice(0, 2)]).set_output(True)
    joined = graph.concatenate([x, x], 1).set_output(True)
    whole = graph.tensor([2, 3, 4, 5], [240, 1, 60, 12])
    in_place = graph.concatenate([x, whole, x, x], 1, in_place_index=1).set_output(True)
    graph.validate()
    assert part.get_stride() == [40, 1, 10, 2]
    assert joined.get_stride() == [120, 1, 30, 6]
    assert in_place.get_stride() == [240, 1, 60, 12]


def test_checks() -> None:
    graph = pygraph(io_data_type=cudnn.data_type.FLOAT)
    x = graph.tensor(X.shape)
    with raises(AttributeTypeError, "slice.slices", expected="slices", got="3"):
        graph.slice(x, [3])  # type: ignore[list-item]
    for part in (slice(0, 4, 0), slice("a", 2)):
        with raises(BadParamError, "slice.slices", expected="integers, a step above 0", got=repr(part)):
            graph.slice(x, [part])
    with raises(BadParamError, "concatenate.inputs", expected="at least one tensor", got="none"):
        graph.concatenate([], 0)
    with raises(BadParamError, "concatenate.in_place_index", expected="0 to 0", got="1"):
        graph.concatenate([x], 0, 1)
    graph.reshape(x, "flat").set_output(True)
    with raises(BadParamError, "tensor 'flat::Y'.dim", expected="dims, which no input determines", got="none"):
        graph.validate()


DIMS, TURNED = (3, 8), (8, 3)
SOURCE = np.arange(24, dtype=np.float32).reshape(DIMS)


def packed(uid: int, dims: tuple[int, ...]) -> object:
    return tensor(uid, dims, packed_strides(dims))


@pytest.mark.parametrize(
    ("descriptor", "attributes", "y_dims", "expected"),
    [
        (
            DescriptorType.OPERATION_TRANSPOSE,
            lambda: (
                (N.OPERATION_TRANSPOSE_XDESC, T.BACKEND_DESCRIPTOR, packed(1, DIMS)),
                (N.OPERATION_TRANSPOSE_YDESC, T.BACKEND_DESCRIPTOR, packed(2, TURNED)),
                (N.OPERATION_TRANSPOSE_PERMUTATION, T.INT64, (1, 0)),
            ),
            TURNED,
            SOURCE.T,
        ),
        (
            DescriptorType.OPERATION_SLICE,
            lambda: (
                (N.OPERATION_SLICE_XDESC, T.BACKEND_DESCRIPTOR, packed(1, DIMS)),
                (N.OPERATION_SLICE_YDESC, T.BACKEND_DESCRIPTOR, packed(2, (2, 3))),
                (N.OPERATION_SLICE_START_INDICES, T.INT64, (1, 1)),
                (N.OPERATION_SLICE_LIMIT_INDICES, T.INT64, (3, 7)),
                (N.OPERATION_SLICE_STRIDES, T.INT64, (1, 2)),
            ),
            (2, 3),
            SOURCE[1:3, 1:7:2],
        ),
        (
            DescriptorType.OPERATION_RESHAPE,
            lambda: (
                (N.OPERATION_RESHAPE_XDESC, T.BACKEND_DESCRIPTOR, packed(1, DIMS)),
                (N.OPERATION_RESHAPE_YDESC, T.BACKEND_DESCRIPTOR, packed(2, (4, 6))),
                (N.OPERATION_RESHAPE_MODE, T.RESHAPE_MODE, ReshapeMode.LOGICAL),
            ),
            (4, 6),
            SOURCE.reshape(4, 6),
        ),
        (
            DescriptorType.OPERATION_CONCAT,
            lambda: (
                (N.OPERATION_CONCAT_AXIS, T.INT64, 0),
                (N.OPERATION_CONCAT_INPUT_DESCS, T.BACKEND_DESCRIPTOR, (packed(1, DIMS), packed(1, DIMS))),
                (N.OPERATION_CONCAT_OUTPUT_DESC, T.BACKEND_DESCRIPTOR, packed(2, (6, 8))),
            ),
            (6, 8),
            np.concatenate([SOURCE, SOURCE]),
        ),
    ],
    ids=["transpose", "slice", "reshape", "concat"],
)
def test_descriptors(
    handle: Handle,
    descriptor: DescriptorType,
    attributes: Callable[[], tuple[tuple[AttributeName, AttributeType, object], ...]],
    y_dims: tuple[int, ...],
    expected: NDArray[np.float32],
) -> None:
    operation = made(descriptor, *attributes())
    for name, kind, given in attributes():
        assert operation.get_attribute_count(name, kind) == (len(given) if isinstance(given, tuple) else 1)
    graph = made(
        DescriptorType.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operation),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    given = {1: SOURCE.ravel(), 2: np.zeros(expected.size, np.float32)}
    buffers = {uid: upload(handle.runtime, values) for uid, values in given.items()}
    execute(handle, plan, variant_pack({uid: buffer.address for uid, buffer in buffers.items()}))
    np.testing.assert_array_equal(download(buffers[2], np.float32).reshape(y_dims), expected)
