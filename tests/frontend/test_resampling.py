"""Pooling and interpolation through pygraph."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.tensor import channels_last_strides
from lowdnn.status import AttributeTypeError, BadParamError
from tests.support.data import fresh_seed

FLOAT, MODES, PADDINGS = cudnn.data_type.FLOAT, cudnn.resample_mode, cudnn.padding_mode


def new_graph(handle: Handle | None = None) -> pygraph:
    return pygraph("test", FLOAT, FLOAT, FLOAT, handle, sm_version=None if handle else 90)


def executed(graph: pygraph, handle: Handle, given: dict[Any, NDArray[Any]], outputs: list[Any]) -> list[NDArray[Any]]:
    graph.build([cudnn.heur_mode.A])
    storage = {FLOAT: np.float32, cudnn.data_type.INT8: np.int8}
    arrays = given | {t: np.zeros(t.get_dim(), storage[t.get_data_type()]) for t in outputs}
    values = {t: cudnn.from_numpy(array, handle, t.get_data_type(), t.get_stride()) for t, array in arrays.items()}
    graph.execute(values, cudnn.from_numpy(np.zeros(max(graph.get_workspace_size(), 1), np.uint8), handle))
    return [values[t].numpy() for t in outputs]


def test_max_pooling_and_its_gradient(handle: Handle) -> None:
    x = np.random.default_rng(fresh_seed()).permutation(128).reshape(1, 4, 4, 8).astype(np.float32)
    graph = new_graph(handle)
    tx = graph.tensor(x.shape, channels_last_strides(x.shape))
    y, index = graph.resample(tx, MODES.MAXPOOL, [2, 2], [2, 2], generate_index=True)
    assert index is not None
    for tensor in (y, index):
        tensor.set_output(True)
    largest, places = executed(graph, handle, {tx: x}, [y, index])
    windows = x.reshape(1, 4, 2, 2, 4, 2).transpose(0, 1, 2, 4, 3, 5).reshape(1, 4, 2, 4, 4)
    np.testing.assert_array_equal(largest, windows.max(-1))
    np.testing.assert_array_equal(places, windows.argmax(-1))

    graph = new_graph(handle)
    loss = graph.tensor(largest.shape, channels_last_strides(largest.shape))
    ti = graph.tensor(places.shape, channels_last_strides(places.shape), cudnn.data_type.INT8)
    dx = graph.resample_backward(loss, MODES.MAXPOOL, [2, 2], [2, 2], index=ti).set_dim(x.shape).set_output(True)
    (gradient,) = executed(graph, handle, {loss: largest, ti: places}, [dx])
    np.testing.assert_array_equal(gradient, np.where(np.isin(x, largest), x, 0))


def test_dims_strides_and_types_are_inferred() -> None:
    graph = new_graph()
    x = graph.tensor([2, 8, 9, 7])
    y, none = graph.resample(x, MODES.AVGPOOL_EXCLUDE_PADDING, [3, 3], [2, 2], [1, 1], [1, 1], PADDINGS.ZERO_PAD)
    z, index = graph.resample_to(x, MODES.MAXPOOL, [1, 1], generate_index=True)
    half = Fraction(1, 2)
    up, _ = graph.resample(x, MODES.BILINEAR, [2, 2], [half, half], [half, half], [1, 1], PADDINGS.EDGE_VAL_PAD)
    dx = graph.resample_to_backward(z, MODES.MAXPOOL, input=x)
    for tensor in (y, z, index, up, dx):
        tensor.set_output(True)
    graph.validate()
    assert none is None
    assert (y.get_dim(), y.get_stride()) == ([2, 8, 5, 4], [160, 1, 32, 8])
    assert (z.get_dim(), up.get_dim(), dx.get_dim()) == ([2, 8, 1, 1], [2, 8, 18, 14], [2, 8, 9, 7])
    assert index is not None
    assert (index.get_dim(), index.get_data_type()) == ([2, 8, 1, 1], cudnn.data_type.INT8)


def test_a_large_window_has_a_wide_index() -> None:
    graph = new_graph()
    x = graph.tensor([1, 1, 16, 16])
    _, index = graph.resample_to(x, MODES.MAXPOOL, [1, 1], generate_index=True)
    assert index is not None
    index.set_output(True)
    graph.validate()
    assert index.get_data_type() is cudnn.data_type.INT32


def test_arguments_are_checked() -> None:
    graph = new_graph()
    x = graph.tensor([1, 1, 4, 4])
    with pytest.raises(BadParamError, match=r"resample\.mode: expected a resample mode, got NOT_SET"):
        graph.resample(x, MODES.NOT_SET, [2, 2])
    with pytest.raises(AttributeTypeError, match=r"resample_to\.mode: expected a member of resample_mode, got 5"):
        graph.resample_to(x, 5, [2, 2])  # type: ignore[arg-type]
    with pytest.raises(BadParamError, match=r"resample\.padding_mode: expected a padding mode"):
        graph.resample(x, MODES.MAXPOOL, [2, 2], padding_mode=PADDINGS.NOT_SET)
    with pytest.raises(AttributeTypeError, match=r"resample\.window: expected an integer, got 1\.5"):
        graph.resample(x, MODES.MAXPOOL, [1.5, 2])  # type: ignore[list-item]
    graph.resample_backward(x, MODES.AVGPOOL_INCLUDE_PADDING, [2, 2]).set_output(True)
    with pytest.raises(BadParamError, match=r"dim: expected dims, which the gradient's do not determine"):
        graph.validate()
