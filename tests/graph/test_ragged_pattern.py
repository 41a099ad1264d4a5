from __future__ import annotations

import pytest

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
