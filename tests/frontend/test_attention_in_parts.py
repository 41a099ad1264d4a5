"""``pygraph.sdpa`` and ``sdpa_backward`` where no kernel of attention takes the graph: odd sizes and types, packed
sequences and page tables, a dump of the random numbers. Compared with attention written out in float64, sequence by
sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowdnn.frontend as cudnn
from lowdnn.backend.handle import Handle
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops import philox
from lowdnn.ops.rng import Rng
from tests.support.data import fresh_seed

H, HK, DV = 4, 2, 10
QUERIES, KEYS = (9, 0, 5), (11, 4, 6)
B, SQ, SKV = len(QUERIES), max(QUERIES), max(KEYS)
KINDS = {
    np.float16: (cudnn.data_type.HALF, 4e-3),
    np.float32: (cudnn.data_type.FLOAT, 2e-5),
    np.float64: (cudnn.data_type.DOUBLE, 2e-5),
}
FLOAT, INT32 = cudnn.data_type.FLOAT, cudnn.data_type.INT32

Arrays = dict[str, np.ndarray]


class Packed:
    """A graph, and tensors whose sequences lie one behind the other in exactly the memory that they need."""

    def __init__(self, handle: Handle, kind: type) -> None:
        self.handle, self.kind = handle, kind
        self.graph = pygraph("attention", KINDS[kind][0], FLOAT, FLOAT, handle)
        self.values: dict[Tensor, Any] = {}
        lengths = {"seq_len_q": QUERIES, "seq_len_kv": KEYS}
        given = {name: self.given(np.array(rows, np.int32).reshape(B, 1, 1, 1)) for name, rows in lengths.items()}
        self.lengths: dict[str, Any] = {"use_padding_mask": True} | given

    def given(self, array: np.ndarray) -> Tensor:
        """A tensor of these values."""
        on_device = cudnn.from_numpy(array, self.handle)
        self.values[tensor := self.graph.tensor_like(on_device)] = on_device
        return tensor

    def packed(self, values: np.ndarray, lengths: tuple[int, ...]) -> Tensor:
        """A tensor of rows (T, heads, size)."""
        _, heads, size = values.shape
        tensor = self.graph.tensor((B, heads, max(lengths), size), data_type=KINDS[values.dtype.type][0])
        self.values[self.as_packed(tensor, lengths, heads, size)] = cudnn.from_numpy(values, self.handle)
        return tensor

    def as_packed(self, tensor: Tensor, lengths: tuple[int, ...], heads: int, size: int) -> Tensor:
        sums = np.concatenate([[0], np.cumsum(lengths)]) * heads * size
        tensor.set_stride((max(lengths) * heads * size, size, heads * size, 1))
        return tensor.set_ragged_offset(self.given(sums.astype(np.int64).reshape(-1, 1, 1, 1)))

    def run(self, outputs: dict[Tensor, np.ndarray]) -> list[np.ndarray]:
        """outputs: the values in their memory before."""
        for tensor in outputs:
            tensor.set_output(True)
        self.graph.build([cudnn.heur_mode.A])
        found = {tensor: cudnn.from_numpy(array, self.handle) for tensor, array in outputs.items()}
        workspace = cudnn.from_numpy(np.zeros(max(1, self.graph.get_workspace_size()), np.uint8), self.handle)
        self.graph.execute(self.values | found, workspace)
        return [array.numpy() for array in found.values()]


def drawn(kind: type, size: int) -> Arrays:
    """Rows of all sequences, (T, heads, size)."""
    rng = np.random.default_rng(fresh_seed())
    shapes = {
        "q": (sum(QUERIES), H, size),
        "k": (sum(KEYS), HK, size),
        "v": (sum(KEYS), HK, DV),
        "d_o": (sum(QUERIES), H, DV),
    }
    return {name: rng.standard_normal(shape).astype(kind) for name, shape in shapes.items()}


def expected(data: Arrays, kept: np.ndarray | None = None) -> Arrays:
    """o, stats, dq, dk, dv, with causal masks from the last query and key on, in rows as ``data``.

    kept: factors of the weights, (B, H, SQ, SKV)."""
    found = {name: np.zeros(data[name[-1]].shape) for name in ("dq", "dk", "dv")}
    found |= {"o": np.zeros(data["d_o"].shape), "stats": np.zeros((sum(QUERIES), H, 1))}
    first_query, first_key = 0, 0
    for batch, (rows, keys) in enumerate(zip(QUERIES, KEYS, strict=True)):
        own, others = slice(first_query, first_query + rows), slice(first_key, first_key + keys)
        seen = np.arange(keys) <= np.arange(rows)[:, None] + keys - rows
        for head in range(H):
            shared = head // (H // HK)
            q, d_o = (data[name][own, head].astype(np.float64) for name in ("q", "d_o"))
            k, v = (data[name][others, shared].astype(np.float64) for name in "kv")
            factors = 1.0 if kept is None else kept[batch, head, :rows, :keys]
            scale = q.shape[1] ** -0.5
            exponentials = np.where(seen, np.exp(scale * q @ k.T), 0)
            total = exponentials.sum(1, keepdims=True)
            p = exponentials / total
            o = (factors * p) @ v
            ds = p * (factors * (d_o @ v.T) - (d_o * o).sum(1, keepdims=True))
            found["o"][own, head], found["stats"][own, head] = o, np.log(total)
            found["dq"][own, head] = scale * ds @ k
            found["dk"][others, shared] += scale * ds.T @ q
            found["dv"][others, shared] += (factors * p).T @ d_o
        first_query, first_key = first_query + rows, first_key + keys
    return found


def forward(case: Packed, data: Arrays, **more: Any) -> dict[Tensor, np.ndarray]:
    """O and Stats, and their memory."""
    size = data["q"].shape[2]
    tensors = [case.packed(data[name], lengths) for name, lengths in (("q", QUERIES), ("k", KEYS), ("v", KEYS))]
    o, stats = case.graph.sdpa(
        *tensors,
        attn_scale=size**-0.5,
        generate_stats=True,
        use_causal_mask_bottom_right=True,
        **case.lengths,
        **more,
    )
    assert stats is not None
    case.as_packed(o, QUERIES, H, DV)
    case.as_packed(stats, QUERIES, H, 1)
    return {
        o: np.zeros((sum(QUERIES), H, DV), case.kind),
        stats: np.zeros((sum(QUERIES), H, 1), np.float32),
    }


@pytest.mark.parametrize(("kind", "size"), [(np.float16, 264), (np.float16, 12), (np.float32, 5), (np.float64, 8)])
def test_packed_sequences(handle: Handle, kind: type, size: int) -> None:
    data, near = drawn(kind, size), KINDS[kind][1]
    wanted = expected(data)
    case = Packed(handle, kind)
    o, stats = case.run(forward(case, data))
    np.testing.assert_allclose(o, wanted["o"], rtol=near, atol=near)
    np.testing.assert_allclose(stats, wanted["stats"], rtol=1e-3, atol=near)

    data |= {"o": o, "stats": stats}
    case = Packed(handle, kind)
    of_queries = ("q", "o", "d_o", "stats")
    tensors = {
        name: case.packed(data[name], QUERIES if name in of_queries else KEYS)
        for name in ("q", "k", "v", "o", "d_o", "stats")
    }
    gradients = case.graph.sdpa_backward(
        *tensors.values(), attn_scale=size**-0.5, use_causal_mask_bottom_right=True, **case.lengths
    )
    memory = {}
    for name, tensor in zip("qkv", gradients, strict=True):
        case.as_packed(tensor, QUERIES if name == "q" else KEYS, *data[name].shape[1:])
        memory[tensor] = np.full(data[name].shape, np.nan, kind)
    for name, found in zip(("dq", "dk", "dv"), case.run(memory), strict=True):
        np.testing.assert_allclose(found, wanted[name], rtol=5 * near, atol=5 * near, err_msg=name)


def test_a_dump_of_random_numbers_beside_packed_sequences(handle: Handle) -> None:
    data, case = drawn(np.float16, 16), Packed(handle, np.float16)
    seed, offset = (case.given(np.full((1, 1, 1, 1), number, np.int64)) for number in (11, 3))
    dump = case.graph.tensor((B, H, SQ, SKV), data_type=FLOAT)
    outputs = forward(case, data, dropout=(0.25, seed, offset), rng_dump=dump)
    found_o, _, kept = case.run(outputs | {dump: np.full((B, H, SQ, SKV), np.nan, np.float32)})
    rng = Rng(probability=0.75)
    words = philox.words(11, 3, np.arange(B * H * SQ * SKV, dtype=np.uint64))
    np.testing.assert_array_equal(kept, (words < rng.threshold).reshape(kept.shape))
    np.testing.assert_allclose(found_o, expected(data, kept / 0.75)["o"], rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_packed_page_tables(handle: Handle, kind: type) -> None:
    """The pages of each sequence lie one behind the other; a page has 2 rows."""
    size, rows = 16, 2
    data, case = drawn(kind, size), Packed(handle, kind)
    counts = [-(-keys // rows) for keys in KEYS]
    rng = np.random.default_rng(fresh_seed())
    table = rng.permutation(sum(counts)).astype(np.int32)
    tensors: dict[str, Tensor] = {}
    for name in "kv":
        pages = np.full((sum(counts), HK, rows, data[name].shape[2]), np.nan, kind)
        first, entry = 0, 0
        for keys, count in zip(KEYS, counts, strict=True):
            for row in range(keys):
                pages[table[entry + row // rows], :, row % rows] = data[name][first + row]
            first, entry = first + keys, entry + count
        tensors[name] = case.given(pages)
        packed = case.graph.tensor((B, 1, max(counts), 1), data_type=INT32)
        case.values[case.as_packed(packed, tuple(counts), 1, 1)] = cudnn.from_numpy(table, handle)
        tensors[f"{name}_table"] = packed
    o, _ = case.graph.sdpa(
        case.packed(data["q"], QUERIES),
        tensors["k"],
        tensors["v"],
        attn_scale=size**-0.5,
        use_causal_mask_bottom_right=True,
        paged_attention_k_table=tensors["k_table"],
        paged_attention_v_table=tensors["v_table"],
        paged_attention_max_seq_len_kv=SKV,
        **case.lengths,
    )
    case.as_packed(o, QUERIES, H, DV)
    (found,) = case.run({o: np.zeros((sum(QUERIES), H, DV), kind)})
    near = KINDS[kind][1]
    np.testing.assert_allclose(found, expected(data)["o"], rtol=near, atol=near)


def test_other_operations_of_packed_sequences(handle: Handle) -> None:
    """ReLU of the product of packed rows with one matrix; memory behind the last row stays as it was."""
    rng, case = np.random.default_rng(fresh_seed()), Packed(handle, np.float32)
    x, w = (
        rng.standard_normal((sum(KEYS), HK, 7)).astype(np.float32),
        rng.standard_normal((1, 1, 7, 3)).astype(np.float32),
    )
    y = case.graph.relu(case.graph.matmul(case.packed(x, KEYS), case.given(w), compute_data_type=FLOAT))
    case.as_packed(y.set_output(True).set_data_type(FLOAT), KEYS, HK, 3)
    (found,) = case.run({y: np.full((sum(KEYS) + 2, HK, 3), -7, np.float32)})
    np.testing.assert_allclose(found[:-2], np.maximum(x @ w[0, 0], 0), rtol=1e-5, atol=1e-5)
    assert (found[-2:] == -7).all()
