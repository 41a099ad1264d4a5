"""A graph with other extents is the graph that is made with them, whatever lies between its stored tensors."""

from __future__ import annotations

import pytest

from lowdnn.cases import parse_case
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.other_shapes import with_shapes
from lowdnn.status import BadParamError, ShapeMismatchError

#: A case without some words, and these words with the extents before and after.
CASES = [
    ("matmul epilogue=bias+relu dtype=bf16", "b=2 m=64 n=96 k=40", "b=3 m=17 n=8 k=129"),
    ("matmul epilogue=bias+store+gelu exits=rowmax dtype=fp32", "m=40 n=24 k=64", "m=7 n=100 k=8"),
    ("matmul layout=nt dtype=bf16 prologue=scale+bias+relu", "m=40 n=24 k=64", "m=48 n=16 k=32"),
    ("matmuls layout=nt dtype=bf16", "m=64x100 n=96x32 k=40x72", "m=8x16 n=24x40 k=16x8"),
    ("conv rs=3x3 pad=1 dtype=bf16 epilogue=bias+relu", "n=2 c=8 hw=16x16 k=16", "n=1 c=24 hw=9x5 k=8"),
    (
        "conv rs=3x3 stride=2 dtype=bf16 epilogue=relu exits=genstats+sum+amax",
        "n=2 c=4 hw=9x9 k=8",
        "n=3 c=8 hw=7x5 k=4",
    ),
    ("conv rs=3x3 pad=1 dir=dgrad", "n=2 c=8 hw=16x16 k=16", "n=4 c=4 hw=8x6 k=8"),
    ("conv rs=3x3 pad=1 dir=wgrad", "n=2 c=8 hw=16x16 k=16", "n=4 c=4 hw=8x6 k=8"),
    ("pointwise ops=add+relu dtype=fp32 broadcast=channel", "dims=2x3x8x8", "dims=5x7x2x3"),
    ("pointwise ops=add+store+relu broadcast=row", "dims=4x5", "dims=9x2"),
    ("reduction axes=1,2 op=avg dtype=bf16 before=abs after=sqrt", "dims=4x8x16", "dims=3x5x9"),
    ("norm mode=layer dtype=bf16 epilogue=relu", "dims=64x768", "dims=3x100"),
    ("norm mode=batch layout=nhwc epilogue=residual", "dims=2x8x4x4", "dims=3x16x2x5"),
    ("norm mode=rms dir=bwd dtype=bf16", "dims=64x96", "dims=5x40"),
    ("softmax dtype=bf16 dir=bwd", "dims=64x768", "dims=3x100"),
    ("rope dtype=bf16", "b=2 h=8 s=100 d=64", "b=1 h=4 s=33 d=64"),
    ("sdpa causal=top_left dtype=bf16 stats=yes", "b=2 h=8 hk=2 q=100 d=64", "b=3 h=4 hk=1 q=7 d=64"),
    ("sdpa dtype=fp16 lengths=both", "b=2 h=2 q=20 kv=30 d=16", "b=1 h=3 q=9 kv=11 d=16"),
    ("sdpa_bwd right=0 dtype=bf16", "b=2 h=8 hk=2 q=100 d=64", "b=1 h=4 hk=4 q=30 d=64"),
    ("block_scale axis=1 block=32 dtype=bf16 out=e4m3", "dims=64x256", "dims=32x96"),
]


def graphs(words: str, before: str, after: str) -> tuple[OperationGraph, OperationGraph]:
    family, _, rest = words.partition(" ")
    first, second = (parse_case(f"{family} {extents} {rest}").graph() for extents in (before, after))
    return first, second


def stored(graph: OperationGraph) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shapes of the tensors in memory, by uid."""
    return {uid: (x.dims, x.strides) for uid, x in graph.tensors.items() if not x.is_virtual and not x.is_scalar_value}


@pytest.mark.parametrize(("words", "before", "after"), CASES)
def test_it_is_the_graph_made_with_them(words: str, before: str, after: str) -> None:
    old, new = graphs(words, before, after)
    assert old.key != new.key
    found = with_shapes(old, stored(new))
    assert [(x.dims, x.strides) for x in found.tensors.values()] == [(x.dims, x.strides) for x in new.tensors.values()]
    assert found.key == new.key
    assert with_shapes(found, stored(old)).key == old.key


def test_its_own_shapes_give_the_same_graph() -> None:
    graph = parse_case("conv n=2 c=8 hw=9x7 k=4 rs=3x2 epilogue=bias+relu").graph()
    assert with_shapes(graph, stored(graph)).key == graph.key
    assert with_shapes(graph, {}).key == graph.key


def test_what_does_not_fit_is_refused() -> None:
    graph = parse_case("matmul m=4 n=5 k=6 epilogue=relu").graph()
    (a, b), (y,) = (x.uid for x in graph.inputs), (x.uid for x in graph.outputs)
    with pytest.raises(ShapeMismatchError, match=r"matmul\.b\.dims\[-2\]: expected K = 7"):
        with_shapes(graph, {a: ((4, 7), (7, 1))})
    with pytest.raises(ShapeMismatchError, match=r"pointwise\.x\.dims: expected \[4, 5\]"):
        with_shapes(graph, {a: ((8, 6), (6, 1))})
    with pytest.raises(BadParamError, match="expected a stored tensor of the graph, got 99"):
        with_shapes(graph, {99: ((1,), (1,))})
    with pytest.raises(BadParamError, match="dims and strides of rank 2"):
        with_shapes(graph, {b: ((6,), (1,))})
    grown = with_shapes(graph, {a: ((8, 6), (6, 1)), y: ((8, 5), (5, 1))})
    assert grown.operations[0].c.dims == (8, 5)  # type: ignore[attr-defined]
