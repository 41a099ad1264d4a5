"""Graphs that are bound to their memory, and the memory that they share."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

import lowdnn.frontend as cudnn
from lowdnn import dtypes
from lowdnn.backend import Handle
from lowdnn.distributed.rank_sum import RankSum
from lowdnn.distributed.split import Split
from lowdnn.enums import DataType
from lowdnn.ops.tensor import channels_last_strides, packed_strides
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import BadParamError


@dataclass(frozen=True)
class Parts:
    """Arrays of one shape, one for each part of the batch that this rank computes (``distributed.split``)."""

    arrays: tuple[DeviceBuffer, ...]


class BoundGraph(cudnn.pygraph):
    """A pygraph whose inputs and outputs have their memory from the start; arithmetic and edges are fp32.

    Where some of them are ``Parts``, ``launch`` runs it once for each part.
    """

    def __init__(self, name: str, handle: Handle, mode: cudnn.heur_mode, workspace: Workspace) -> None:
        float32 = cudnn.data_type.FLOAT
        super().__init__(name, intermediate_data_type=float32, compute_data_type=float32, handle=handle)
        self._mode = mode
        self._workspace = workspace
        self._arrays: dict[cudnn.Tensor, DeviceBuffer | Parts] = {}
        self._memory: list[dict[cudnn.Tensor, object]] = []

    def read(self, array: DeviceBuffer | Parts) -> cudnn.Tensor:
        """An input with the shape, the type and the memory of ``array``."""
        tensor = self.tensor_like(first_of(array))
        self._arrays[tensor] = array
        return tensor

    def write(self, tensor: cudnn.Tensor | None, array: DeviceBuffer | Parts) -> None:
        """Makes ``tensor`` an output in the memory of ``array``, with its shape and type.

        Raises BadParamError for None: an output that its operation does not have.
        """
        if tensor is None:
            raise BadParamError.at(f"graph {self.name!r}: output", expected="a tensor", got="None")
        like = first_of(array)
        tensor.set_output(True).set_data_type(like.data_type)
        tensor.set_dim(dims_of(like)).set_stride(like.strides or ())
        self._arrays[tensor] = array

    def built(self) -> Self:
        """Plans and loads the graph, and enlarges the shared workspace if necessary."""
        self.build([self._mode])
        self._workspace.grow(self.get_workspace_size())
        count = max((len(one.arrays) for one in self._arrays.values() if isinstance(one, Parts)), default=1)
        self._memory = [
            {tensor: one.arrays[part] if isinstance(one, Parts) else one for tensor, one in self._arrays.items()}
            for part in range(count)
        ]
        return self

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines of the plan, in launch order."""
        plan = self._selected().plan
        return tuple(re.sub(r"^eng\d+_|_k\d+=.*$", "", name) for name in plan.parts or (plan.name,))

    def launch(self) -> None:
        for memory in self._memory:
            self.execute(memory, self._workspace)


class Session:
    """The device memory, the workspace and the graphs of one training; ``close`` or ``with`` frees them.

    ``activation_type``: the storage type of activations and their gradients, and of the weights that meet them.
    ``mode``: the heuristics that plan the graphs; FALLBACK keeps fp32 from being rounded to TF32.
    ``split``: the ranks and the parts of a batch.
    """

    def __init__(
        self,
        handle: Handle,
        activation_type: DataType = DataType.FLOAT,
        mode: cudnn.heur_mode = cudnn.heur_mode.A,
        split: Split | None = None,
    ) -> None:
        self.handle = handle
        self.split = Split() if split is None else split
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

    def part_zeros(self, dims: tuple[int, ...], data_type: DataType = DataType.FLOAT) -> Parts:
        """``zeros`` for each part of the batch."""
        return Parts(tuple(self.zeros(dims, data_type) for _ in self.split.own_parts))

    def sum_of_parts(self, dims: tuple[int, ...]) -> tuple[DeviceBuffer, Parts, Callable[[], None]]:
        """(total, partial sums, a step that makes the total of those of all parts and ranks); fp32 zeros of ``dims``.

        The step runs once after the partial sums are written.
        """
        total = self.zeros(dims)
        made = RankSum(self.handle, self.split, total)
        self._owned.callback(made.close)

        def add_up() -> None:
            made.exchange(self.handle.borrowed_stream())
            made.add_up()

        return total, Parts(tuple(view(partial, dims) for partial in made.partials)), add_up

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

    def set_value(self, scalar: DeviceBuffer, value: float) -> None:
        """Writes the one fp32 element of ``scalar``, in stream order."""
        bits = int(np.float32(value).view(np.uint32))
        context = self.handle.runtime.context
        with context.activated():
            context.driver.memset_d32_async(scalar.address, bits, 1, self.handle.borrowed_stream().handle)

    def synchronize(self) -> None:
        """Waits for the stream; raises CommunicationError where a rank has failed."""
        stream = self.handle.borrowed_stream()
        if self.split.communicator is None:
            stream.synchronize()
        else:
            self.split.communicator.wait(stream)

    def keep(self, owner: Any) -> None:
        """Closes ``owner`` together with the session."""
        self._owned.callback(owner.close)

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


def part_views(parts: Parts, dims: tuple[int, ...], strides: tuple[int, ...] | None = None, offset: int = 0) -> Parts:
    """``view`` of each part."""
    return Parts(tuple(view(array, dims, strides, offset) for array in parts.arrays))


def first_of(array: DeviceBuffer | Parts) -> DeviceBuffer:
    """The array itself, or that of the first part."""
    return array.arrays[0] if isinstance(array, Parts) else array


def dims_of(array: DeviceBuffer | Parts) -> tuple[int, ...]:
    """The shape of an array that has one."""
    shape = first_of(array).shape
    if shape is None:
        raise BadParamError.at("array.shape", expected="one entry for each dimension", got="None")
    return shape
