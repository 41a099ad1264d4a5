"""Random calls of the C functions for convolutions along sequences: what their references read, and its memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.runtime.runtime import Runtime
from tests.support.capi import Memory

F, H, B16, D64 = DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, DataType.DOUBLE
#: The error that a result may have, as a share of it and of 1, by the type of the inputs.
_RELATIVE = {F: 1e-4, H: 4e-3, B16: 3e-2, D64: 1e-9}


class DrawnCall:
    """A type and dims (batch, channels, length), the values of tensors by port, and the tensors themselves."""

    def __init__(self, device: Runtime, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.memory = Memory(device)
        self.type = DataType(self.rng.choice([F, H, B16, D64]))
        self.sums = D64 if self.type is D64 else F
        batch, channels, length = (int(self.rng.integers(1, most)) for most in (4, 9, 60))
        self.dims = (batch, channels, length)
        self.values: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}

    def dims_of(self, port: str) -> tuple[int, ...]:
        """The dims of the tensor of a port."""
        raise NotImplementedError

    def turned(self, values: Any) -> Any:
        """A tensor's values in the order of their memory, and back."""
        return values

    def put(self, port: str, data_type: DataType | None = None) -> int:
        """The address of a tensor with random numbers."""
        kind, dims = data_type or self.type, self.dims_of(port)
        stored = dtypes.from_float64(self.rng.standard_normal(dims), kind)
        self.values[port] = dtypes.to_values(stored, kind)
        self.tensors[port] = Tensor(len(self.tensors), kind, dims, packed_strides(dims), 16)
        return self.memory.put(self.turned(stored))

    def get(self, address: int, port: str) -> Any:
        return self.turned(dtypes.to_values(self.memory.get(address), self.tensors[port].data_type))

    def check(self, found: Any, wanted: Any, data_type: DataType, context: str) -> None:
        """Compares with a tolerance for each element, and that of sums for inputs of ``data_type``."""
        relative = _RELATIVE[data_type]
        np.testing.assert_allclose(found, wanted, rtol=relative, atol=relative, err_msg=context)
