"""A lower bound of the cost of an interval for any engine, updated operation by operation."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import bytes_touched
from lowdnn.engines.model.clock import launch_s, overlap
from lowdnn.engines.model.plan_time import EXPOSED
from lowdnn.enums import PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor


class LeastCost:
    """The cost of one launch that does an interval's products, reads each of its inputs once, and writes the tensors
    that other operations read or the graph stores.

    Bytes are counted for operations that touch all elements of their tensors; products are counted unless a softmax in
    the interval may allow some to be skipped. An interval that writes no elements takes no launch.
    """

    def __init__(self, graph: OperationGraph, arch: ArchSpec, least_s: Mapping[int, float]) -> None:
        """least_s: seconds of arithmetic that each product takes at least, by the id of its operation."""
        self._graph = graph
        self._arch = arch
        self._least_s = least_s
        self._read: set[int] = set()
        self._written: dict[int, int] = {}  # bytes written, by uid
        self._readers: dict[int, int] = {}  # readers outside the interval, by uid of a tensor written inside
        self._bytes = 0
        self._products_s = 0.0
        self._skips_products = False

    @property
    def us(self) -> float:
        """Microseconds: no plan has fewer by ``plan_us``, where any launch may begin while the one before ends."""
        if not self._written:
            return 0.0
        products_s = 0.0 if self._skips_products else self._products_s
        copy_s = self._bytes / self._arch.copy_bytes_per_s
        return 1e6 * launch_s(self._arch, overlap(products_s, copy_s, EXPOSED), is_dependent=True)

    def add(self, operation: Operation) -> None:
        """Appends ``operation`` to the interval."""
        touches_all = isinstance(operation, MatmulOperation | ConvolutionOperation | PointwiseOperation)
        self._skips_products |= isinstance(operation, Softmax)
        self._products_s += self._least_s.get(id(operation), 0.0)
        for uid, tensor in {tensor.uid: tensor for tensor in inputs_of(operation).values()}.items():
            if uid in self._readers:
                self._read_inside(tensor)
            elif uid not in self._read and touches_all and not tensor.is_scalar_value and not _is_index(operation):
                self._read.add(uid)
                self._bytes += bytes_touched(tensor)
        for tensor in outputs_of(operation).values():
            self._readers[tensor.uid] = len(self._graph.consumers(tensor))
            if tensor.element_count:
                self._written[tensor.uid] = bytes_touched(tensor) if touches_all else 0
                self._bytes += self._written[tensor.uid]

    def _read_inside(self, tensor: Tensor) -> None:
        """Counts one reader inside the interval. A virtual tensor without other readers need not be written."""
        self._readers[tensor.uid] -= 1
        if tensor.is_virtual and not self._readers[tensor.uid]:
            self._bytes -= self._written.pop(tensor.uid, 0)


def _is_index(operation: Operation) -> bool:
    """Whether the operation reads its operand's dims but not its elements."""
    return isinstance(operation, PointwiseOperation) and operation.mode is PointwiseMode.GEN_INDEX
