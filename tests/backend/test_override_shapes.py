"""Variant packs with other shapes than the graph's, on the device."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.arch.specs import SM_90A
from lowdnn.backend import Descriptor, Handle, execute
from lowdnn.backend.override_shapes import Shapes, candidate_with
from lowdnn.cases import parse_case
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, HeurMode, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.status import (
    BadParamError,
    DuplicatedEntriesError,
    LowdnnError,
    NotSupportedError,
    NullPointerError,
    ShapeMismatchError,
    SizeInsufficientError,
)
from tests.support.descriptors import add_graph, best_config, made, plan_of, tensor
from tests.support.runtime import download, upload

N, T, D = AttributeName, AttributeType, DescriptorType
Attributes = tuple[tuple[AttributeName, AttributeType, object], ...]

#: m, n, k of the graph.
LARGEST = (48, 40, 64)
#: Other m, n, k.
OTHERS = [(48, 40, 64), (16, 8, 24), (1, 40, 64), (37, 11, 5)]


def product_plan(handle: Handle, *, is_enabled: bool = True) -> Descriptor:
    """y = relu(a b) in fp32, with integer data exact in TF32."""
    m, n, k = LARGEST
    product = made(
        D.OPERATION_MATMUL,
        (
            N.OPERATION_MATMUL_DESC,
            T.BACKEND_DESCRIPTOR,
            made(D.MATMUL, (N.MATMUL_COMP_TYPE, T.DATA_TYPE, DataType.FLOAT)),
        ),
        (N.OPERATION_MATMUL_ADESC, T.BACKEND_DESCRIPTOR, tensor(1, (1, m, k), (m * k, k, 1))),
        (N.OPERATION_MATMUL_BDESC, T.BACKEND_DESCRIPTOR, tensor(2, (1, k, n), (k * n, n, 1))),
        (N.OPERATION_MATMUL_CDESC, T.BACKEND_DESCRIPTOR, tensor(4, (1, m, n), (m * n, n, 1), is_virtual=True)),
    )
    relu = made(
        D.POINTWISE,
        (N.POINTWISE_MODE, T.POINTWISE_MODE, PointwiseMode.RELU_FWD),
        (N.POINTWISE_MATH_PREC, T.DATA_TYPE, DataType.FLOAT),
    )
    epilogue = made(
        D.OPERATION_POINTWISE,
        (N.OPERATION_POINTWISE_PW_DESCRIPTOR, T.BACKEND_DESCRIPTOR, relu),
        (N.OPERATION_POINTWISE_XDESC, T.BACKEND_DESCRIPTOR, tensor(4, (1, m, n), (m * n, n, 1), is_virtual=True)),
        (N.OPERATION_POINTWISE_YDESC, T.BACKEND_DESCRIPTOR, tensor(3, (1, m, n), (m * n, n, 1))),
    )
    graph = made(
        D.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, (product, epilogue)),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
        (N.OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED, T.BOOLEAN, is_enabled),
    )
    return plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))


def shapes_of(m: int, n: int, k: int) -> Attributes:
    """The three tensors' shapes in a row."""
    return (
        (N.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, T.INT64, (1, 2, 3)),
        (N.VARIANT_PACK_OVERRIDE_SHAPES, T.INT64, (1, m, k, 1, k, n, 1, m, n)),
        (N.VARIANT_PACK_OVERRIDE_STRIDES, T.INT64, (m * k, k, 1, k * n, n, 1, m * n, n, 1)),
    )


def pack_of(buffers: list[DeviceBuffer], *more: tuple[AttributeName, AttributeType, object]) -> Descriptor:
    return made(
        D.VARIANT_PACK,
        (N.VARIANT_PACK_UNIQUE_IDS, T.INT64, tuple(range(1, len(buffers) + 1))),
        (N.VARIANT_PACK_DATA_POINTERS, T.VOID_PTR, tuple(buffer.address for buffer in buffers)),
        *more,
    )


def data(handle: Handle, m: int, n: int, k: int) -> tuple[list[DeviceBuffer], NDArray[Any]]:
    rng = np.random.default_rng(m * n * k)
    a, b = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    buffers = [upload(handle.runtime, values) for values in (a, b, np.full((m, n), np.nan, np.float32))]
    return buffers, np.maximum(a @ b, 0)


def run(handle: Handle, plan: Descriptor, m: int, n: int, k: int) -> None:
    buffers, expected = data(handle, m, n, k)
    execute(handle, plan, pack_of(buffers, *shapes_of(m, n, k)))
    np.testing.assert_array_equal(download(buffers[2], np.float32).reshape(m, n), expected)


def test_one_plan_runs_other_shapes_without_compiling(handle: Handle) -> None:
    plan = product_plan(handle)
    for m, n, k in OTHERS:
        run(handle, plan, m, n, k)
    before = handle.runtime.counters.snapshot()
    for m, n, k in OTHERS:
        run(handle, plan, m, n, k)
    assert handle.runtime.counters.snapshot()["plans_loaded"] == before["plans_loaded"]
    buffers, expected = data(handle, *LARGEST)
    execute(handle, plan, pack_of(buffers))
    np.testing.assert_array_equal(download(buffers[2], np.float32).reshape(expected.shape), expected)


class Vectors:
    """std::vector<std::vector<int64_t>> as it lies in memory: 3 addresses for each vector."""

    def __init__(self, *rows: tuple[int, ...]) -> None:
        self._rows = [(ctypes.c_int64 * len(row))(*row) for row in rows]
        ends = [(ctypes.addressof(row), ctypes.addressof(row) + ctypes.sizeof(row)) for row in self._rows]
        flat = [address for begin, end in ends for address in (begin, end, end)]
        self._vectors = (ctypes.c_uint64 * len(flat))(*flat)
        self.address = ctypes.addressof(self._vectors)


def test_shapes_as_vectors_of_vectors(handle: Handle) -> None:
    plan, (m, n, k) = product_plan(handle), OTHERS[1]
    buffers, expected = data(handle, m, n, k)
    shapes = Vectors((1, m, k), (1, k, n), (1, m, n))
    strides = Vectors((m * k, k, 1), (k * n, n, 1), (m * n, n, 1))
    pack = pack_of(
        buffers,
        (N.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, T.INT64, (1, 2, 3)),
        (N.VARIANT_PACK_OVERRIDE_SHAPES, T.VOID_PTR, shapes.address),
        (N.VARIANT_PACK_OVERRIDE_STRIDES, T.VOID_PTR, strides.address),
    )
    assert pack.get_attribute(N.VARIANT_PACK_OVERRIDE_SHAPES, T.VOID_PTR) == [shapes.address]
    execute(handle, plan, pack)
    np.testing.assert_array_equal(download(buffers[2], np.float32).reshape(m, n), expected)


def test_no_overrides_at_all(handle: Handle) -> None:
    buffers, expected = data(handle, *LARGEST)
    pack = pack_of(
        buffers,
        (N.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, T.INT64, ()),
        (N.VARIANT_PACK_OVERRIDE_SHAPES, T.VOID_PTR, 0),
        (N.VARIANT_PACK_OVERRIDE_STRIDES, T.VOID_PTR, 0),
    )
    execute(handle, product_plan(handle, is_enabled=False), pack)
    np.testing.assert_array_equal(download(buffers[2], np.float32).reshape(expected.shape), expected)


UIDS = (N.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, T.INT64, (1,))
STRIDES = (N.VARIANT_PACK_OVERRIDE_STRIDES, T.INT64, (8, 8, 1))
WRONG: list[tuple[Attributes, type[LowdnnError], str]] = [
    ((UIDS,), BadParamError, r"OVERRIDE_SHAPES: expected numbers for each of the uids, got none"),
    (
        (UIDS, (N.VARIANT_PACK_OVERRIDE_SHAPES, T.INT64, (1, 2)), STRIDES),
        BadParamError,
        "expected 3 numbers, one for each dimension, got 2",
    ),
    (
        (UIDS, (N.VARIANT_PACK_OVERRIDE_SHAPES, T.VOID_PTR, 0), STRIDES),
        NullPointerError,
        "expected a host address, got a null pointer",
    ),
    (
        (UIDS, (N.VARIANT_PACK_OVERRIDE_SHAPES, T.INT64, (1, 1, 8)), STRIDES),
        ShapeMismatchError,
        r"matmul\.b\.dims\[-2\]: expected K = 8",
    ),
    (
        (
            (N.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, T.INT64, (77,)),
            (N.VARIANT_PACK_OVERRIDE_SHAPES, T.INT64, (1,)),
            (N.VARIANT_PACK_OVERRIDE_STRIDES, T.INT64, (1,)),
        ),
        BadParamError,
        r"OVERRIDE_UNIQUE_IDS: expected uids of the graph, got \[77\]",
    ),
    (
        ((N.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, T.INT64, (1, 1)),),
        DuplicatedEntriesError,
        r"OVERRIDE_UNIQUE_IDS: expected each uid once, got \[1, 1\]",
    ),
]


@pytest.mark.parametrize(("attributes", "error", "text"), WRONG)
def test_wrong_shapes(handle: Handle, attributes: Attributes, error: type[LowdnnError], text: str) -> None:
    plan = product_plan(handle)
    buffers, _ = data(handle, *LARGEST)
    with pytest.raises(error, match=text):
        execute(handle, plan, pack_of(buffers, *attributes))
    run(handle, plan, *OTHERS[1])


def test_a_graph_must_allow_them(handle: Handle) -> None:
    buffers, _ = data(handle, *LARGEST)
    plan = product_plan(handle, is_enabled=False)
    with pytest.raises(NotSupportedError, match="IS_OVERRIDE_SHAPE_ENABLED: expected true for a variant pack"):
        execute(handle, plan, pack_of(buffers, *shapes_of(16, 8, 24)))


def test_other_shapes_keep_within_the_plans_workspace() -> None:
    """Attention in fp32 is a chain with intermediates, whose bytes grow with its queries."""
    small, middle, large = (parse_case(f"sdpa b=1 h=1 q={rows} kv=64 d=16 dtype=fp32").graph() for rows in (8, 32, 128))
    (candidate,) = [found for found in rank(middle, SM_90A, HeurMode.A, ENGINES).candidates if found.plan.launches][:1]
    limit_bytes = size_anywhere(candidate.plan.workspace_bytes)
    assert limit_bytes > 0

    def shapes(graph: OperationGraph) -> Shapes:
        held = [x for x in graph.tensors.values() if not x.is_virtual and not x.is_scalar_value]
        return tuple((x.uid, x.dims, x.strides) for x in held)

    plan = candidate_with(candidate, shapes(small), ENGINES).plan
    assert size_anywhere(plan.workspace_bytes) <= limit_bytes
    with pytest.raises(SizeInsufficientError, match=rf"at most {limit_bytes} bytes of workspace"):
        candidate_with(candidate, shapes(large), ENGINES)


def test_it_is_an_attribute_of_graphs() -> None:
    assert add_graph().get_attribute(N.OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED, T.BOOLEAN) == [False]
