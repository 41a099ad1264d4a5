"""Products with M, N and K of each batch, and the padding value, on the device."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest

from lowdnn.backend import Descriptor, Handle, create, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.status import ShapeMismatchError, UnsupportedDataTypeError
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.runtime import download, upload

N, T, D = AttributeName, AttributeType, DescriptorType
BATCHES, ROWS, COLUMNS, TERMS = 3, 8, 12, 16
EXTENTS = {
    "m": (N.OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, 11, np.array([8, 0, 5], np.int32)),
    "n": (N.OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, 12, np.array([1, 12, 7], np.int32)),
    "k": (N.OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, 13, np.array([16, 3, 0], np.int32)),
}


def operation(
    names: Iterable[str], padding: float, *, batches: int = BATCHES, data_type: DataType = DataType.FLOAT
) -> Descriptor:
    """A product, not finalized, with the extents of ``names``."""
    compute = DataType.INT32 if data_type is DataType.INT8 else DataType.FLOAT
    matmul = made(D.MATMUL, (N.MATMUL_COMP_TYPE, T.DATA_TYPE, compute), (N.MATMUL_PADDING_VALUE, T.DOUBLE, padding))
    shapes = {
        N.OPERATION_MATMUL_ADESC: (1, (BATCHES, ROWS, TERMS)),
        N.OPERATION_MATMUL_BDESC: (2, (BATCHES, TERMS, COLUMNS)),
        N.OPERATION_MATMUL_CDESC: (3, (BATCHES, ROWS, COLUMNS)),
    }
    descriptor = create(D.OPERATION_MATMUL)
    descriptor.set_attribute(N.OPERATION_MATMUL_DESC, T.BACKEND_DESCRIPTOR, matmul)
    for name, (uid, dims) in shapes.items():
        own = tensor(uid, dims, (dims[1] * dims[2], dims[2], 1), data_type=data_type)
        descriptor.set_attribute(name, T.BACKEND_DESCRIPTOR, own)
    for name, uid, _ in (EXTENTS[extent] for extent in names):
        own = tensor(uid, (batches, 1, 1), (1, 1, 1), data_type=DataType.INT32)
        descriptor.set_attribute(name, T.BACKEND_DESCRIPTOR, own)
    return descriptor


@pytest.mark.parametrize("names", [names for names in product(("m", ""), ("n", ""), ("k", "")) if any(names)])
@pytest.mark.parametrize(("batches", "padding"), [(BATCHES, -1.5), (1, 0.0)])
def test_products_end_where_their_extents_do(
    handle: Handle, names: tuple[str, ...], batches: int, padding: float
) -> None:
    given = [name for name in names if name]
    descriptor = operation(given, padding, batches=batches)
    descriptor.finalize()
    graph = made(
        D.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, descriptor),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    rng = np.random.default_rng(7)
    a = rng.integers(-2, 3, (BATCHES, ROWS, TERMS)).astype(np.float32)
    b = rng.integers(-2, 3, (BATCHES, TERMS, COLUMNS)).astype(np.float32)
    expected = np.full((BATCHES, ROWS, COLUMNS), padding, np.float32)
    full = {"m": ROWS, "n": COLUMNS, "k": TERMS}
    for batch in range(BATCHES):
        m, n, k = (
            int(EXTENTS[name][2][batch if batches > 1 else 0]) if name in given else full[name] for name in "mnk"
        )
        expected[batch, :m, :n] = a[batch, :m, :k] @ b[batch, :k, :n]
        a[batch, m:], a[batch, :, k:], b[batch, k:], b[batch, :, n:] = (np.nan,) * 4
    buffers = {1: upload(handle.runtime, a), 2: upload(handle.runtime, b), 3: upload(handle.runtime, expected * np.nan)}
    for _, uid, values in (EXTENTS[name] for name in given):
        buffers[uid] = upload(handle.runtime, values[:batches].copy())
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    (size,) = plan.get_attribute(N.EXECUTION_PLAN_WORKSPACE_SIZE, T.INT64)
    workspace = upload(handle.runtime, np.zeros(max(size, 1), np.uint8))
    execute(handle, plan, variant_pack({uid: buffer.address for uid, buffer in buffers.items()}, workspace.address))
    np.testing.assert_array_equal(download(buffers[3], np.float32).reshape(expected.shape), expected)


def test_without_extents_it_is_a_plain_product() -> None:
    plain, padded = operation((), 0.0), operation((), 3.0)
    graphs = []
    for descriptor in (plain, padded):
        descriptor.finalize()
        assert descriptor.get_attribute(N.OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, T.BACKEND_DESCRIPTOR) == []
        graphs.append(made(D.OPERATIONGRAPH, (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, descriptor)).value.graph)
    assert len(graphs[0].operations) == 1
    assert graphs[0].key == graphs[1].key


def test_wrong_extents() -> None:
    with pytest.raises(ShapeMismatchError, match=r"matmul\.m\.dims: expected \[3, 1, 1\], with 1 where it repeats"):
        operation(("m",), 0.0, batches=2).finalize()
    with pytest.raises(UnsupportedDataTypeError, match="expected a float type, got INT8"):
        operation(("k",), 0.0, data_type=DataType.INT8).finalize()
    descriptor = operation((), 0.0)
    descriptor.set_attribute(
        N.OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, T.BACKEND_DESCRIPTOR, tensor(13, (3, 1, 1), (1,) * 3)
    )
    with pytest.raises(UnsupportedDataTypeError, match=r"matmul\.k\.data_type: expected INT32 or INT64, got FLOAT"):
        descriptor.finalize()
