"""Sums over all parts of a batch, wherever they are computed (``split.Split``).

    total = partial(0) + partial(1) + ...

Without shards the partial sum of a rank is all-reduced in place. With shards every rank gathers the partial sums of all
parts and adds them up itself, in fp32 and in the order of the parts.
"""

from __future__ import annotations

from math import prod

import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.distributed.split import Split
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import UnsupportedDataTypeError

#: The most partial sums that one kernel adds up.
_MOST_TERMS = 8
_FLOAT_BYTES = 4
#: Each partial sum begins at a multiple of this many elements, 256 bytes, as allocations do.
_ROW_ELEMENTS = 64


class RankSum:
    """``total``, packed fp32 memory of the caller, as the sum of ``partials``, one for each part of this rank.

    Without shards the one partial sum is ``total`` itself. ``exchange`` sends, in a stream that the caller chooses;
    ``add_up`` computes, in the handle's stream, where the exchange must be done. ``close`` frees the memory.
    """

    def __init__(self, handle: Handle, split: Split, total: DeviceBuffer) -> None:
        if total.data_type is not DataType.FLOAT or total.shape is None:
            raise UnsupportedDataTypeError.at("RankSum.total", expected="FLOAT with a shape", got=total.data_type)
        self.total = total
        self._communicator = split.communicator if split.size > 1 else None
        self._gathered: DeviceBuffer | None = None
        self._sums: list[_OrderedSum] = []
        self.partials: tuple[DeviceBuffer, ...] = (total,)
        if split.shards is not None:
            self._gather(handle, split, prod(total.shape))

    def exchange(self, stream: Stream) -> None:
        """Sends this rank's partial sums to the others, and receives theirs."""
        if self._communicator is None:
            return
        if self._gathered is None:
            self._communicator.all_reduce(self.total, self.total, stream=stream)
        else:
            self._communicator.all_gather(self._own, self._gathered, stream=stream)

    def add_up(self) -> None:
        """Makes ``total``, where it is not made by the exchange."""
        for one in self._sums:
            one.launch()

    def close(self) -> None:
        for one in self._sums:
            one.close()
        if self._gathered is not None:
            self._gathered.close()

    def _gather(self, handle: Handle, split: Split, count: int) -> None:
        padded = -(-count // _ROW_ELEMENTS) * _ROW_ELEMENTS
        row_bytes, size_bytes = _FLOAT_BYTES * padded, _FLOAT_BYTES * count
        self._gathered = gathered = DeviceBuffer.allocate(
            handle.runtime.context,
            split.parts * row_bytes,
            data_type=DataType.FLOAT,
            shape=(split.parts, padded),
            label="partial sums",
        )
        gathered.fill_bytes(0, handle.borrowed_stream())
        rows = [
            gathered.view(part * row_bytes, size_bytes, data_type=DataType.FLOAT, shape=(1, 1, count))
            for part in range(split.parts)
        ]
        own = split.own_parts
        self.partials = tuple(rows[own.start : own.stop])
        self._own = gathered.view(
            own.start * row_bytes, len(own) * row_bytes, data_type=DataType.FLOAT, shape=(len(own), padded)
        )
        total = self.total.view(0, size_bytes, data_type=DataType.FLOAT, shape=(1, 1, count))
        for first in range(0, split.parts, _MOST_TERMS):
            terms = rows[first : first + _MOST_TERMS]
            self._sums.append(_OrderedSum(handle, [total, *terms] if first else terms, total))


class _OrderedSum:
    """total = ((terms[0] + terms[1]) + terms[2]) + ..., one kernel; ``total`` may be the first term."""

    def __init__(self, handle: Handle, terms: list[DeviceBuffer], total: DeviceBuffer) -> None:
        single = cudnn.data_type.FLOAT
        self._graph = graph = cudnn.pygraph(
            "sum of parts", intermediate_data_type=single, compute_data_type=single, handle=handle
        )
        tensors = [graph.tensor_like(term) for term in terms]
        made = graph.identity(tensors[0])
        for tensor in tensors[1:]:
            made = graph.add(made, tensor)
        made.set_output(True).set_data_type(single)
        self._memory: dict[cudnn.Tensor, object] = {made: total, **dict(zip(tensors, terms, strict=True))}
        graph.build([cudnn.heur_mode.A])
        self._workspace = Workspace(handle.runtime.context, graph.get_workspace_size())

    def launch(self) -> None:
        self._graph.execute(self._memory, self._workspace)

    def close(self) -> None:
        self._workspace.close()
