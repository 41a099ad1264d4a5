"""Products with scalars, which kernels of attention compute once for a row instead of once for each element."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.tensor import Tensor


@dataclass(frozen=True)
class Factors:
    """``product`` = ``constant`` times each number in ``tensors``, which lie in device memory, times what a DAG begins
    with; rest: its other operations."""

    product: Tensor
    rest: tuple[PointwiseOperation, ...]
    constant: float = 1.0
    tensors: tuple[Tensor, ...] = ()

    @staticmethod
    def of(dag: PointwiseDag, x: Tensor, last: Tensor | None = None) -> Factors:
        """The factors of as many operations of ``dag`` from ``x`` on as there are, up to ``last``."""
        found = Factors(x, dag.operations)
        while last is None or found.product.uid != last.uid:
            following = found._following()
            if following is None:
                return found
            found = following
        return found

    def _following(self) -> Factors | None:
        """These factors together with the only operation that reads the product, if that multiplies by a scalar in
        FLOAT; otherwise None."""
        readers = [op for op in self.rest if any(t.uid == self.product.uid for t in op.operands.values())]
        if len(readers) != 1 or readers[0].mode is not PointwiseMode.MUL:
            return None
        op, y = readers[0], readers[0].output
        x, number = op.operands["x"], op.operands["b"]
        is_float = {op.pointwise.compute_type, x.data_type, y.data_type} == {DataType.FLOAT}
        if (
            x.uid != self.product.uid
            or not (x.is_virtual and y.is_virtual)
            or (op.alpha1, op.alpha2) != (1.0, 1.0)
            or not is_float
        ):
            return None
        rest = tuple(other for other in self.rest if other is not op)
        if number.constant_value is not None:
            return Factors(y, rest, self.constant * float(number.constant_value), self.tensors)
        is_number = number.element_count == 1 and number.data_type is DataType.FLOAT
        is_given = all(number.uid != other.output.uid for other in self.rest) and not number.is_scalar_value
        return Factors(y, rest, self.constant, (*self.tensors, number)) if is_number and is_given else None
