"""Ragged attention through ``pygraph``, in arrays of as many rows as the sequences have, on every plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import lowdnn.frontend as cudnn
from lowdnn.backend.handle import Handle
from lowdnn.frontend import data_type, pygraph
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed


@pytest.fixture
def handle(guarded: Runtime) -> Iterator[Handle]:
    with Handle(guarded) as opened:
        yield opened


@pytest.mark.parametrize(
    ("most", "queries", "keys", "heads", "size"),
    [
        (9, [5], [6], 1, 16),
        (64, [64, 63], [64, 63], 1, 16),
        (130, [130, 20], [130, 20], 1, 16),
        (300, [1, 0, 129, 64], [0, 65, 130, 1], 3, 64),
    ],
)
def test_every_plan(
    handle: Handle, most: int, queries: Sequence[int], keys: Sequence[int], heads: int, size: int
) -> None:
    rng = np.random.default_rng(fresh_seed())
    graph = pygraph("sdpa", data_type.HALF, data_type.FLOAT, data_type.FLOAT, handle)
    values: dict[Tensor, object] = {}

    def given(array: np.ndarray) -> Tensor:
        values[tensor := graph.tensor_like(cudnn.from_numpy(array, handle))] = cudnn.from_numpy(array, handle)
        return tensor

    def offsets(rows: Sequence[int], row_elements: int) -> Tensor:
        return given((np.cumsum([0, *rows]) * row_elements).reshape(-1, 1, 1, 1))

    def ragged(tensor: Tensor, rows: Sequence[int], row_size: int) -> Tensor:
        tensor.set_stride((most * heads * row_size, row_size, heads * row_size, 1))
        return tensor.set_ragged_offset(offsets(rows, heads * row_size))

    arrays = [rng.standard_normal((sum(rows), heads, size)).astype(np.float16) for rows in (queries, keys, keys)]
    operands = [ragged(graph.tensor((len(rows), heads, most, size)), rows, size) for rows in (queries, keys, keys)]
    values |= {tensor: cudnn.from_numpy(array, handle) for tensor, array in zip(operands, arrays, strict=True)}
    lengths = [given(np.array(rows, np.int32).reshape(-1, 1, 1, 1)) for rows in (queries, keys)]
    o, stats = graph.sdpa(
        *operands,
        attn_scale=size**-0.5,
        generate_stats=True,
        use_padding_mask=True,
        seq_len_q=lengths[0],
        seq_len_kv=lengths[1],
    )
    assert stats is not None
    ragged(o.set_output(True), queries, size)
    ragged(stats.set_output(True), queries, 1)
    graph.build()
    names = [graph.get_plan_name_at_index(index) for index in range(graph.get_execution_plan_count())]
    assert any("attention_wgmma" in name for name in names)
    wanted_o, wanted_stats = _attention(arrays, queries, keys)
    for index, name in enumerate(names):
        graph.build_plan_at_index(index)
        values[o] = cudnn.from_numpy(np.full((sum(queries), heads, size), np.nan, np.float16), handle)
        values[stats] = cudnn.from_numpy(np.full((sum(queries), heads, 1), np.nan, np.float32), handle)
        workspace = cudnn.from_numpy(np.zeros(max(1, graph.get_workspace_size_plan_at_index(index)), np.uint8), handle)
        graph.execute_plan_at_index(values, workspace, index)
        np.testing.assert_allclose(values[o].numpy(), wanted_o, rtol=2e-3, atol=2e-3, err_msg=name)
        np.testing.assert_allclose(values[stats].numpy(), wanted_stats, rtol=1e-4, atol=1e-4, err_msg=name)


def _attention(
    arrays: Sequence[np.ndarray], queries: Sequence[int], keys: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs and log-sum-exps of packed sequences."""
    ends = np.cumsum(queries)[:-1], np.cumsum(keys)[:-1]
    parts = [np.split(array.astype(float), ends[place > 0]) for place, array in enumerate(arrays)]
    outputs, statistics = [], []
    for q, k, v in zip(*parts, strict=True):
        exponentials = np.exp(np.einsum("qhd,khd->qhk", q, k) * q.shape[2] ** -0.5)
        total = exponentials.sum(-1, keepdims=True)
        with np.errstate(divide="ignore"):
            statistics.append(np.log(total))
        outputs.append(np.einsum("qhk,khd->qhd", exponentials / np.where(total == 0, 1, total), v))
    return np.concatenate(outputs), np.concatenate(statistics)
