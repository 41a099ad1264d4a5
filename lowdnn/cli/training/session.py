"""Graphs that are bound to their memory, and the memory that they share."""

from __future__ import annotations

import re
from contextlib import ExitStack
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

import lowdnn.frontend as cudnn
from lowdnn import dtypes
from lowdnn.backend import Handle
from lowdnn.enums import DataType
from lowdnn.ops.tensor import channels_last_strides, packed_strides
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import BadParamError


class BoundGraph(cudnn.pygraph):
    """A pygraph whose inputs and outputs have their memory from the start; arithmetic and edges are fp32."""

    def __init__(self, name: str, handle: Handle, mode: cudnn.heur_mode, workspace: Workspace) -> None:
        float32 = cudnn.data_type.FLOAT
        super().__init__(name, intermediate_data_type=float32, compute_data_type=float32, handle=handle)
        self._mode = mode
        self._workspace = workspace
        self._memory: dict[cudnn.Tensor, object] = {}

    def read(self, array: DeviceBuffer) -> cudnn.Tensor:
        """An input with the shape, the type and the memory of ``array``."""
        tensor = self.tensor_like(array)
        self._memory[tensor] = array
        return tensor

    def write(self, tensor: cudnn.Tensor | None, array: DeviceBuffer) -> None:
        """Makes ``tensor`` an output in the memory of ``array``, with its shape and type.

        Raises BadParamError for None: an output that its operation does not have.
        """
        if tensor is None:
            raise BadParamError.at(f"graph {self.name!r}: output", expected="a tensor", got="None")
        tensor.set_output(True).set_data_type(array.data_type)
        tensor.set_dim(dims_of(array)).set_stride(array.strides or ())
        self._memory[tensor] = array

    def built(self) -> Self:
        """Plans and loads the graph, and enlarges the shared workspace if necessary."""
        self.build([self._mode])
        self._workspace.grow(self.get_workspace_size())
        return self

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines of the plan, in launch order."""
        plan = self._selected().plan
        return tuple(re.sub(r"^eng\d+_|_k\d+=.*$", "", name) for name in plan.parts or (plan.name,))

    def launch(self, values: dict[cudnn.Tensor, float] | None = None) -> None:
        """Launches the graph; ``values``: those of by-value tensors."""
        self.execute(self._memory if values is None else self._memory | values, self._workspace)


class Session:
    """The device memory, the workspace and the graphs of one training; ``close`` or ``with`` frees them.

    ``activation_type``: the storage type of activations and their gradients, and of the weights that meet them.
    ``mode``: the heuristics that plan the graphs; FALLBACK keeps fp32 from being rounded to TF32.
    """

    def __init__(
        self,
        handle: Handle,
        activation_type: DataType = DataType.FLOAT,
        mode: cudnn.heur_mode = cudnn.heur_mode.A,
    ) -> None:
        self.handle = handle
        self.activation_type = activation_type
        self.graphs: list[BoundGraph] = []
        self._mode = mode
        self._owned = ExitStack()
        self._workspace = self._owned.enter_context(Workspace(handle.runtime.context, 0))

    @property
    def is_mixed(self) -> bool:
        """Whether activations are narrower than the fp32 of the parameters."""
        return self.activation_type is not DataType.FLOAT

    def graph(self, name: str) -> BoundGraph:
        """A graph to be written, then ``built``."""
        self.graphs.append(BoundGraph(name, self.handle, self._mode, self._workspace))
        return self.graphs[-1]

    def zeros(self, dims: tuple[int, ...], data_type: DataType = DataType.FLOAT) -> DeviceBuffer:
        """Zeros in new memory, 4-D ones channels last."""
        return self.on_device(np.zeros(dims, np.float32), data_type)

    def on_device(self, array: NDArray[Any], data_type: DataType = DataType.FLOAT) -> DeviceBuffer:
        """The values of ``array`` in new memory, 4-D ones channels last."""
        strides = channels_last_strides(array.shape) if array.ndim == 4 else packed_strides(array.shape)
        tensor = cudnn.from_numpy(array, self.handle, data_type, strides)
        return self._owned.enter_context(tensor).buffer

    def read_back(self, array: DeviceBuffer) -> NDArray[Any]:
        """A copy on the host; waits for the stream."""
        return array.to_host(self.handle.borrowed_stream())

    def copy(self, source: DeviceBuffer, target: DeviceBuffer) -> None:
        """Copies on the device, in stream order."""
        target.copy_from(source, self.handle.borrowed_stream())

    def synchronize(self) -> None:
        """Waits for the stream."""
        self.handle.borrowed_stream().synchronize()

    def close(self) -> None:
        self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def view(
    array: DeviceBuffer, dims: tuple[int, ...], strides: tuple[int, ...] | None = None, offset: int = 0
) -> DeviceBuffer:
    """Part of the memory of ``array`` under other dims and strides (packed if left out), from element ``offset`` on."""
    data_type = array.data_type or DataType.FLOAT
    element_bytes = dtypes.info(data_type).size_bytes
    return DeviceBuffer(
        array.context,
        array.address + offset * element_bytes,
        prod(dims) * element_bytes,
        data_type=data_type,
        shape=dims,
        strides=strides or packed_strides(dims),
    )


def dims_of(array: DeviceBuffer) -> tuple[int, ...]:
    """The shape of an array that has one."""
    if array.shape is None:
        raise BadParamError.at("array.shape", expected="one entry for each dimension", got="None")
    return array.shape
