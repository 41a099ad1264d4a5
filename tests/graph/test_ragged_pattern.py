from __future__ import annotations

import pytest

from lowdnn.engines.base import plan_tensors
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.ragged_pattern import Padded, padded
from lowdnn.ops.ragged import RaggedStore
from tests.support.near_misses.pattern import Sketch


@pytest.mark.parametrize("is_read_again", [False, True])
def test_a_padded_output_is_for_what_packs_it_alone(is_read_again: bool) -> None:
    """The largest magnitude of the padded form does not count what lies between packed sequences."""
    builder = Sketch()
    x, offsets = builder.tensor((3, 2, 5, 8), DataType.HALF), builder.tensor((4, 1, 1, 1), DataType.INT32)
    y = builder.pointwise(PointwiseMode.RELU_FWD, x, virtual=DataType.HALF)
    if is_read_again:
        builder.reduction(ReduceTensorOp.AMAX, y, (0, 1, 2, 3), store=DataType.FLOAT)
    packed = builder.tensor((1, 2, 15, 8), DataType.HALF, strides=(240, 8, 16, 1))
    builder.compound(RaggedStore(y, packed, offsets))
    found = padded(builder.graph())
    assert isinstance(found, str if is_read_again else Padded)
    assert not is_read_again or "expected a virtual tensor, read by what packs it alone" in str(found)


@pytest.mark.parametrize("read_again", ["", "x", "y"])
def test_a_packed_tensor_that_is_read_whole_has_all_its_rows(read_again: str) -> None:
    """Offsets say how much there is of the others, which may be a single element."""
    builder = Sketch()
    packed = {"dims": (1, 2, 15, 8), "data_type": DataType.HALF, "strides": (240, 8, 16, 1)}
    offsets = builder.tensor((4, 1, 1, 1), DataType.INT32)
    tensors = {name: builder.tensor(**packed, name=name) for name in "xy"}
    negated = builder.pointwise(PointwiseMode.NEG, builder.ragged_load(tensors["x"], offsets, 5), virtual=DataType.HALF)
    builder.compound(RaggedStore(negated, tensors["y"], offsets))
    if read_again:
        builder.pointwise(PointwiseMode.ABS, tensors[read_again], store=DataType.HALF)
    sizes = {tensor.uid: tensor.size_bytes for tensor in plan_tensors(builder.graph())}
    assert {name: sizes[tensor.uid] for name, tensor in tensors.items()} == {
        name: 480 if name == read_again else 2 for name in "xy"
    }
