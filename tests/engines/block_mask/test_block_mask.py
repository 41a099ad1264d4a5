"""``block_mask``, alone and within a chain of plans."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.block_mask.block_mask import BlockMaskEngine
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.attention_pattern import match_attention
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.block_mask import mask_dims
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import ShapeMismatchError, UnsupportedDataTypeError, UnsupportedShapeError
from tests.support.errors import raises
from tests.support.running import run_plan

ENGINE = BlockMaskEngine()


def graph_of(dims: tuple[int, ...], data_type: DataType, layout: Layout = Layout.ROW_MAJOR) -> OperationGraph:
    builder = CaseBuilder(layout)
    x, mask = builder.tensor(dims, data_type), builder.tensor(mask_dims(dims), DataType.UINT8)
    builder.block_mask(x, mask, store=data_type)
    return builder.graph()


@pytest.mark.parametrize("layout", [Layout.ROW_MAJOR, Layout.TRANSPOSED, Layout.PADDED])
@pytest.mark.parametrize("data_type", [DataType.FLOAT, DataType.BFLOAT16, DataType.DOUBLE])
def test_tiles(device: Runtime, data_type: DataType, layout: Layout) -> None:
    """Bit t % 8 of byte t / 8 is that of tile t of the keys."""
    dims = (1, 2, 130, 1100)
    graph = graph_of(dims, data_type, layout)
    x, mask = graph.inputs
    rng = np.random.default_rng(5)
    scores, bits = rng.standard_normal(dims), rng.integers(0, 256, mask.dims).astype(np.uint8)
    stored = dtypes.from_float64(scores, data_type)
    (y,) = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, {x.uid: stored, mask.uid: bits}).values()
    nothing = dtypes.from_float64(np.array(-np.inf), data_type)
    for query in range(2):
        for key in range(9):
            here = (slice(None), slice(None), slice(query * 128, query * 128 + 128), slice(key * 128, key * 128 + 128))
            sees = (bits[:, :, query, key // 8] >> key % 8 & 1).astype(bool)[..., None, None]
            np.testing.assert_array_equal(y[here], np.where(sees, stored[here], nothing))


def test_attention_does_not_take_other_operations_behind_it() -> None:
    builder = CaseBuilder()
    q, k = builder.tensor((1, 1, 20, 16), DataType.HALF), builder.tensor((1, 1, 16, 20), DataType.HALF)
    scores = builder.matmul(q, k)
    masked = builder.block_mask(scores, builder.tensor(mask_dims(scores.dims), DataType.UINT8))
    weights = builder.softmax(builder.pointwise(PointwiseMode.TANH_FWD, masked), (3,))
    rounded = builder.pointwise(PointwiseMode.IDENTITY, weights, virtual=DataType.HALF)
    builder.matmul(rounded, builder.tensor((1, 1, 20, 16), DataType.HALF), store=DataType.HALF)
    assert "expected one BlockMask, with no other operations than masks behind it" in str(
        match_attention(builder.graph())
    )


def test_what_is_refused() -> None:
    graph = parse_case("sdpa b=1 h=1 q=20 d=16 blocks=yes").graph()
    assert "expected one BlockMask, got" in str(ENGINE.refuse(graph, SM_90A))
    builder = CaseBuilder()

    def masked(x: tuple[int, ...], mask: tuple[int, ...], data_type: DataType = DataType.UINT8) -> Tensor:
        return builder.block_mask(builder.tensor(x, DataType.FLOAT), builder.tensor(mask, data_type))

    with raises(UnsupportedShapeError, "block_mask.x.dims", expected="[batch, heads, queries, keys]", got="[4, 4]"):
        masked((4, 4), (1, 1))
    with raises(ShapeMismatchError, "block_mask.mask.dims", expected="[1, 2, 2, 2]", got="[1, 2, 2, 9]"):
        masked((1, 2, 130, 1100), (1, 2, 2, 9))
    with raises(UnsupportedDataTypeError, "block_mask.mask.data_type", expected="UINT8", got="BOOLEAN"):
        masked((1, 1, 1, 1), (1, 1, 1, 1), DataType.BOOLEAN)
