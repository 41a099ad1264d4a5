"""The common part of the operations of recurrent networks: their arithmetic and their references."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_cells import Arithmetic, PlainArithmetic
from lowdnn.ops.rnn_reference import Walk
from lowdnn.ops.rnn_saved import cell_type
from lowdnn.ops.rnn_weights import WeightSpace
from lowdnn.ops.tolerance import ToleranceClass


class RecurrentOperation(ABC):
    """An operation on the network ``rnn``."""

    descriptor_type: ClassVar[DescriptorType | None] = None
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.CONTRACTION

    rnn: Rnn

    @property
    @abstractmethod
    def data_type(self) -> DataType:
        """The type of the sequences."""

    @abstractmethod
    def results(self, walk: Walk, inputs: Values) -> dict[str, NDArray[Any]]:
        """The outputs by port, from ``inputs`` by port, in the arithmetic of ``walk``."""

    @property
    def compute_type(self) -> DataType:
        return cell_type(self.data_type)

    @property
    def flops(self) -> int:
        return 2 * WeightSpace(self.rnn).element_count * self.rnn.max_length * self.rnn.batch_size

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        return self._walked(inputs, Arithmetic())

    def rounded_reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        """The results of a plain implementation. Any product that may round its operands to TF32 may do so or not: each
        element comes from the implementation that is farthest from the exact result."""
        exact = self.reference(inputs) if self.rnn.uses_tf32 else {}
        forms = ((True, True), (True, False), (False, True)) if self.rnn.uses_tf32 else ((False, False),)
        first, *others = (self._walked(inputs, PlainArithmetic(self.data_type, *form)) for form in forms)
        for other in others:
            for port, values in other.items():
                is_farther = np.abs(values - exact[port]) > np.abs(first[port] - exact[port])
                first[port] = np.where(is_farther, values, first[port])
        return first

    def _walked(self, inputs: Values, arithmetic: Arithmetic) -> dict[str, NDArray[Any]]:
        with np.errstate(all="ignore"):
            return self.results(Walk(self.rnn, arithmetic, inputs), inputs)
