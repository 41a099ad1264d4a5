from __future__ import annotations

import re

import pytest

from lowdnn.codegen.expressions import expression
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.pointwise import Pointwise, compute_types, input_ports

_PLAIN = [Pointwise(mode, compute_types(mode)[0], axis=0) for mode in PointwiseMode]
_CLIPPED = Pointwise(PointwiseMode.RELU_FWD, DataType.FLOAT, relu_upper_clip=6.0)


@pytest.mark.parametrize("pointwise", [*_PLAIN, _CLIPPED], ids=lambda pointwise: pointwise.mode.name)
def test_every_mode_names_its_operands_and_parameters(pointwise: Pointwise) -> None:
    mode, row = pointwise.mode, expression(pointwise)
    operands = {"index"} if mode is PointwiseMode.GEN_INDEX else set(input_ports(mode))
    is_integer = DataType.INT32 in compute_types(mode)
    assert bool(row.integer) is is_integer
    for text in filter(None, (row.real, row.integer)):
        assert set(re.findall(r"\{(\w+)\}", text)) - {"T"} == operands | set(row.parameters)
    assert set(row.parameters) <= set(Pointwise.__dataclass_fields__)
