"""Random numbers through pygraph and through descriptors, end to end."""

from __future__ import annotations

import numpy as np

import lowdnn.frontend as cudnn
from lowdnn.backend import Handle, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, RngDistribution
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.rng import Rng, RngOperation
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import AttributeTypeError, BadParamError
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.errors import raises
from tests.support.runtime import download, upload

N, T = AttributeName, AttributeType
DIMS = (4, 25)


def coins(seed: int, offset: int) -> np.ndarray:
    """The results of a coin of 0.75 for DIMS."""
    y = Tensor(1, DataType.FLOAT, DIMS, packed_strides(DIMS), 16)
    inputs = {"offset": np.array([offset])}
    offsets = Tensor(2, DataType.INT64, (1,), (1,), 8)
    return RngOperation(Rng(probability=0.75), y, seed, offsets).reference(inputs)["y"]


def test_dropout_and_its_gradient(handle: Handle) -> None:
    """y = 4 / 3 * mask * x; dx = 4 / 3 * mask * dy from a mask that is drawn again."""
    x = np.arange(1, 101, dtype=np.float32).reshape(DIMS)
    results = []
    for _ in ("y", "dx"):
        graph = pygraph("dropout", *[cudnn.data_type.FLOAT] * 3, handle)
        tx = graph.tensor(DIMS)
        seed, offset = (
            graph.tensor([1], data_type=cudnn.data_type.INT64, is_pass_by_value=by_value) for by_value in (True, False)
        )
        mask = graph.rng(DIMS, seed, offset, cudnn.rng_distribution.BERNOULLI, probability=0.75)
        y = graph.mul(graph.mul(tx, mask), 4 / 3).set_output(True)
        graph.build([cudnn.heur_mode.A])
        values = {tx: cudnn.from_numpy(x, handle), y: cudnn.from_numpy(np.zeros_like(x), handle)}
        values |= {offset: cudnn.from_numpy(np.array([5]), handle), seed: np.array([99])}
        graph.execute(values, cudnn.from_numpy(np.zeros(1, np.uint8), handle))
        results.append(values[y].numpy())
    np.testing.assert_array_equal(results[0], coins(99, 5) * x * np.float32(4 / 3))
    np.testing.assert_array_equal(results[0], results[1])


def test_numbers_as_seed_and_offset(handle: Handle) -> None:
    graph = pygraph(io_data_type=cudnn.data_type.FLOAT, handle=handle)
    y = graph.rng(DIMS, 99, 5, probability=0.75).set_output(True)
    graph.build([cudnn.heur_mode.A])
    assert y.get_stride() == [25, 1]
    result = cudnn.from_numpy(np.zeros(DIMS, np.float32), handle)
    graph.execute({y: result}, cudnn.from_numpy(np.zeros(1, np.uint8), handle))
    np.testing.assert_array_equal(result.numpy(), coins(99, 5))


def test_distributions_are_checked() -> None:
    graph = pygraph()
    with raises(BadParamError, "rng.distribution", expected="a distribution", got="NOT_SET"):
        graph.rng(DIMS, 0, 0, cudnn.rng_distribution.NOT_SET)
    with raises(BadParamError, "rng.probability", expected="0 to 1", got="2"):
        graph.rng(DIMS, 0, 0, probability=2)


def test_descriptors(handle: Handle) -> None:
    distribution = made(
        DescriptorType.RNG,
        (N.RNG_DISTRIBUTION, T.RNG_DISTRIBUTION, RngDistribution.BERNOULLI),
        (N.RNG_BERNOULLI_DIST_PROBABILITY, T.DOUBLE, 0.75),
    )
    dims = tensor(1, DIMS, packed_strides(DIMS))
    scalars = [tensor(uid, (1,), (1,), data_type=DataType.INT64) for uid in (2, 3)]
    for seed_type, seed in ((T.INT64, 99), (T.BACKEND_DESCRIPTOR, scalars[0])):
        operation = made(
            DescriptorType.OPERATION_RNG,
            (N.OPERATION_RNG_YDESC, T.BACKEND_DESCRIPTOR, dims),
            (N.OPERATION_RNG_SEED, seed_type, seed),
            (N.OPERATION_RNG_DESC, T.BACKEND_DESCRIPTOR, distribution),
            (N.OPERATION_RNG_OFFSET_DESC, T.BACKEND_DESCRIPTOR, scalars[1]),
        )
        assert operation.get_attribute_count(N.OPERATION_RNG_SEED, seed_type) == 1
        other = ({T.INT64, T.BACKEND_DESCRIPTOR} - {seed_type}).pop()
        with raises(
            AttributeTypeError,
            "OPERATION_RNG descriptor.OPERATION_RNG_SEED",
            expected="the type that was set",
            got=other.name,
        ):
            operation.get_attribute(N.OPERATION_RNG_SEED, other)
        graph = made(
            DescriptorType.OPERATIONGRAPH,
            (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operation),
            (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
        )
        plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
        given = {1: np.zeros(100, np.float32), 3: np.array([5])}
        if seed_type is T.BACKEND_DESCRIPTOR:
            given[2] = np.array([99])
        buffers = {uid: upload(handle.runtime, values) for uid, values in given.items()}
        execute(handle, plan, variant_pack({uid: buffer.address for uid, buffer in buffers.items()}))
        np.testing.assert_array_equal(download(buffers[1], np.float32).reshape(DIMS), coins(99, 5))
