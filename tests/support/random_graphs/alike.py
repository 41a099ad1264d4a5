"""Operations between tensors of equal dims, with the parameters of their text cases, for growing graphs."""

from __future__ import annotations

from lowdnn import dtypes
from lowdnn.ops.base import inputs_of, outputs_of, with_tensors
from lowdnn.ops.tensor import Tensor
from tests.support.random_graphs.growth import Growth
from tests.support.single_operations import operations_of_cases


def alike(kind: type, growth: Growth) -> None:
    operation = growth.choose(operations_of_cases()[kind])
    (first, *others), outputs = inputs_of(operation).values(), outputs_of(operation)

    def fits(tensor: Tensor) -> bool:
        return tensor.rank == first.rank and dtypes.info(tensor.data_type).kind is dtypes.Kind.FLOAT

    def new() -> Tensor:
        return growth.input(tuple(growth.extent(f"x{axis}", 6) for axis in range(first.rank)), growth.float_type())

    x = growth.value(new, fits)
    tensors = {first.uid: x}
    tensors |= {tensor.uid: growth.like(x.dims, growth.float_type()) for tensor in others}
    tensors |= {tensor.uid: growth.output(x.dims, growth.float_type(), name=port) for port, tensor in outputs.items()}
    growth.add(with_tensors(operation, tensors))
