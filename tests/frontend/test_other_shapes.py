"""One graph executed with other shapes than it was built for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.frontend.python_graph import pygraph
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    DuplicatedEntriesError,
    LowdnnError,
    NotSupportedError,
    SizeInsufficientError,
)
from tests.support.data import fresh_seed

FLOAT = cudnn.data_type.FLOAT
UIDS = (1, 2, 3)


class Product:
    """y = relu(a b), built for the largest shapes."""

    def __init__(self, handle: Handle, *, is_enabled: bool = True) -> None:
        self.handle = handle
        self.graph = pygraph("product", *[FLOAT] * 3, handle, is_override_shape_enabled=is_enabled)
        a, b = self.graph.tensor([2, 32, 24], name="a", uid=1), self.graph.tensor([2, 24, 40], name="b", uid=2)
        self.graph.relu(self.graph.matmul(a, b)).set_output(True).set_name("y").set_uid(3)
        self.graph.build([cudnn.heur_mode.A])

    def run(self, m: int, n: int, k: int, **options: Any) -> None:
        """Executes it for these extents and checks the result."""
        random = np.random.default_rng(fresh_seed())
        a, b = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((2, m, k), (2, k, n)))
        values = [lowdnn.from_numpy(array, self.handle) for array in (a, b, np.full((2, m, n), np.nan, np.float32))]
        self.graph.execute(dict(zip(UIDS, values, strict=True)), None, None, *overrides(m, n, k), **options)
        np.testing.assert_array_equal(values[2].numpy(), np.maximum(a @ b, 0))


def overrides(m: int, n: int, k: int) -> tuple[Any, ...]:
    """uids, shapes and strides of a, b and y."""
    return list(UIDS), [(2, m, k), (2, k, n), (2, m, n)], [(m * k, k, 1), (k * n, n, 1), (m * n, n, 1)]


def test_one_graph_runs_other_shapes(handle: Handle) -> None:
    """A shape that was there before is neither planned nor compiled again."""
    case = Product(handle)
    extents = ((7, 40, 24), (1, 4, 8), (33, 48, 8), (32, 40, 24))
    for m, n, k in extents:
        case.run(m, n, k)
    before = handle.runtime.counters.snapshot()
    for m, n, k in extents:
        case.run(m, n, k)
    assert handle.runtime.counters.snapshot() == before


def test_its_own_shapes_stay(handle: Handle) -> None:
    case = Product(handle)
    case.run(7, 8, 16)
    a, b, y = (np.ones((2, 32, 24), np.float32), np.ones((2, 24, 40), np.float32), np.zeros((2, 32, 40), np.float32))
    values = [lowdnn.from_numpy(array, handle) for array in (a, b, y)]
    case.graph.execute(values, tensor_uids=UIDS, override_uids=[], override_shapes=[], override_strides=[])
    np.testing.assert_array_equal(values[2].numpy(), np.full((2, 32, 40), 24))


def test_any_plan_runs_them_and_tells_its_workspace(handle: Handle) -> None:
    case = Product(handle)
    keywords = dict(zip(("override_uids", "override_shapes", "override_strides"), overrides(5, 8, 16), strict=True))
    ones = [np.ones(shape, np.float32) for shape in ((2, 5, 16), (2, 16, 8), (2, 5, 8))]
    for index in range(case.graph.get_execution_plan_count()):
        needed = case.graph.get_workspace_size_plan_at_index(index, handle, **keywords)
        assert 0 <= needed <= case.graph.get_workspace_size_plan_at_index(index)
        values = [lowdnn.from_numpy(array, handle) for array in ones]
        workspace = lowdnn.from_numpy(np.zeros(max(needed, 1), np.uint8), handle)
        case.graph.execute_plan_at_index(values, workspace, index, handle, tensor_uids=UIDS, **keywords)
        np.testing.assert_array_equal(values[2].numpy(), np.full((2, 5, 8), 16))
    assert case.graph.get_workspace_size(**keywords) <= case.graph.get_workspace_size()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({0: None}, AttributeTypeError, r"execute\.override_uids: expected a sequence of integers, got None"),
        ({0: [1, 2, 2]}, DuplicatedEntriesError, r"override_uids: expected each uid once, got \[1, 2, 2\]"),
        ({0: [1, 2, 9]}, BadParamError, r"expected uids of the graph's inputs and outputs, got \[9\]"),
        ({1: [[2, 4, 8]]}, BadParamError, r"override_shapes: expected 3 sequences, of the lengths 3, 3, 3"),
        ({2: None}, AttributeTypeError, r"override_strides: expected a sequence of sequences, got None"),
        ({2: [(1,), (1,), (1,)]}, BadParamError, r"override_strides: expected 3 sequences, of the lengths 3, 3, 3"),
        ({1: [(2, 4, "8"), (2, 8, 8), (2, 4, 8)]}, AttributeTypeError, r"override_shapes\[0\]: expected integers"),
        ({1: [(2, 4, 8), (2, 9, 8), (2, 4, 8)]}, LowdnnError, "matmul"),
    ],
)
def test_wrong_shapes(handle: Handle, change: dict[int, Any], error: type[LowdnnError], message: str) -> None:
    case = Product(handle)
    uids, shapes, strides = (change.get(place, given) for place, given in enumerate(overrides(4, 8, 8)))
    with pytest.raises(error, match=message):
        case.graph.execute({}, None, None, uids, shapes, strides)
    case.run(4, 8, 8)


def test_memory_must_hold_the_other_shapes(handle: Handle) -> None:
    case = Product(handle)
    values = {uid: lowdnn.from_numpy(np.zeros(64, np.float32), handle) for uid in UIDS}
    with pytest.raises(SizeInsufficientError, match=r"tensor_dict\['a' \(uid 1\)\]: expected at least 384 bytes"):
        case.graph.execute(values, None, None, *overrides(4, 8, 12))


def test_a_graph_must_allow_them(handle: Handle) -> None:
    case = Product(handle, is_enabled=False)
    with pytest.raises(NotSupportedError, match=r"pygraph\.is_override_shape_enabled: expected True for execute"):
        case.run(4, 8, 8)


@pytest.mark.parametrize("of_packed_rows", [False, True])
def test_ragged_tensors_with_other_shapes(handle: Handle, of_packed_rows: bool) -> None:
    """Strides of a ragged tensor are its own, or those of its packed rows (rows, heads, elements)."""
    heads, size, half = 2, 32, cudnn.data_type.HALF

    def strides(rows: int) -> tuple[int, ...]:
        return (heads * rows * size, size, heads * size, 1)

    graph = pygraph("thd", half, FLOAT, FLOAT, handle, is_override_shape_enabled=True)
    offsets = graph.tensor((3, 1, 1, 1), data_type=cudnn.data_type.INT32, name="offsets")
    q, k, v = (graph.tensor((2, heads, 64, size), strides(64), name=name) for name in "qkv")
    lengths = [graph.tensor((2, 1, 1, 1), data_type=cudnn.data_type.INT32, name=f"seq_len_{name}") for name in "qk"]
    q.set_ragged_offset(offsets)
    o, _ = graph.sdpa(q, k, v, use_padding_mask=True, seq_len_q=lengths[0], seq_len_kv=lengths[1])
    o.set_output(True).set_dim((2, heads, 64, size)).set_stride(strides(64)).set_ragged_offset(offsets).set_name("o")
    graph.build()
    random, counts = np.random.default_rng(fresh_seed()), ((20, 30), (32, 17))
    rows = random.standard_normal((50, heads, size)).astype(np.float16)
    keys, values = (random.standard_normal((2, 32, heads, size)).astype(np.float16) for _ in "kv")
    result = lowdnn.from_numpy(np.zeros_like(rows), handle)
    pack = {"q": rows, "k": keys, "v": values, "offsets": np.int32([0, 20 * heads * size, 50 * heads * size])}
    pack |= {"seq_len_q": np.int32(counts[0]), "seq_len_k": np.int32(counts[1])}
    given = {name: lowdnn.from_numpy(array, handle) for name, array in pack.items()} | {"o": result}
    workspace = lowdnn.from_numpy(np.zeros(max(graph.get_workspace_size(), 1), np.uint8), handle)
    own = (heads * size, size, 1) if of_packed_rows else (heads * size, size, heads * size, 1)
    others = ([t.uid for t in (q, k, v, o)], [(2, heads, 32, size)] * 4, [own, strides(32), strides(32), own])
    graph.execute(given, workspace, None, *others)
    for batch, first in enumerate((0, 20)):
        there = slice(first, first + counts[0][batch])
        seen = slice(counts[1][batch])
        scores = np.exp(np.einsum("qhd,khd->hqk", rows[there].astype(float), keys[batch, seen].astype(float)))
        expected = np.einsum("hqk,khd->qhd", scores / scores.sum(2, keepdims=True), values[batch, seen].astype(float))
        np.testing.assert_allclose(result.numpy()[there], expected, atol=4e-3)
    with pytest.raises(BadParamError, match=r"override_strides: expected 1 sequences, of the lengths 4"):
        graph.execute(given, workspace, None, [k.uid], [(2, heads, 32, size)], [(heads * size, size, 1)])
