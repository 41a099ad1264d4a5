from __future__ import annotations

import pytest

from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.ops import catalog
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import ELEMENT_TYPES, attributes_of, declared_in
from tests.support.builders import convolution_graph


@pytest.mark.parametrize("cls", catalog.descriptors())
def test_every_attribute_is_declared_once_and_readable(cls: type) -> None:
    declared = attributes_of(cls)
    assert declared
    for name, attribute in declared.items():
        assert attribute.name is name
        for kind in attribute.types:
            assert kind in ELEMENT_TYPES or kind is AttributeType.BACKEND_DESCRIPTOR
        assert bool(attribute.descriptors) == (AttributeType.BACKEND_DESCRIPTOR in attribute.types)


def test_attribute_facts() -> None:
    clip = attributes_of(Pointwise)[AttributeName.POINTWISE_RELU_UPPER_CLIP]
    assert (clip.field, clip.required, clip.max_count) == ("relu_upper_clip", False, 1)
    assert clip.types == (AttributeType.DOUBLE, AttributeType.FLOAT)
    dims = attributes_of(Tensor)[AttributeName.TENSOR_DIMENSIONS]
    assert (dims.field, dims.required, dims.max_count) == ("dims", True, 8)
    x = attributes_of(PointwiseOperation)[AttributeName.OPERATION_POINTWISE_XDESC]
    assert (x.role, x.descriptors) == ("input", (DescriptorType.TENSOR,))


@pytest.mark.parametrize("cls", catalog.operations())
def test_operations_have_ports(cls: type) -> None:
    roles = {attribute.role for attribute in declared_in(cls)}
    assert {"input", "output"} <= roles


def test_ports_of_an_operation() -> None:
    operation = convolution_graph().operations[0]
    assert isinstance(operation, Operation)
    assert list(inputs_of(operation)) == ["x", "w"]
    assert list(outputs_of(operation)) == ["y"]
