"""The memory of a call that is replayed: tensors lie beside each other as they did, and hold what they held."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

import numpy as np

from lowdnn.plan import Plan
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.context import Context
from lowdnn.runtime.workspace import Workspace

#: Addresses keep their place in a block of so many bytes, which allocations begin with.
_BLOCK_BYTES = 256


@dataclass
class _Region:
    """Tensors whose memory overlaps: from ``begin`` to ``end``."""

    begin: int
    end: int
    uids: list[int]


class ReplayMemory:
    """Buffers for the tensors of ``plan`` with the bytes of ``contents``; other bytes are left unwritten.

    addresses: where tensors lay in the call; those that overlapped overlap again. 0 or none: memory of its own.
    pointers: an address for each tensor of the plan, in its order.  workspace: its address.
    """

    def __init__(
        self, context: Context, plan: Plan, addresses: Mapping[int, int], contents: Mapping[int, bytes]
    ) -> None:
        self._stack = ExitStack()
        self._views: dict[int, DeviceBuffer] = {}
        self._host = {
            tensor.uid: np.frombuffer(contents[tensor.uid], np.uint8).copy()
            for tensor in plan.tensors
            if tensor.is_by_value
        }
        try:
            for region in _regions(plan, addresses):
                self._place(context, plan, region, addresses)
            for uid, data in contents.items():
                if uid in self._views and data:
                    self._views[uid].copy_from_host(np.frombuffer(data, np.uint8))
            self.workspace = self._stack.enter_context(Workspace(context, plan.workspace_bytes)).address
        except BaseException:
            self._stack.close()
            raise
        self.pointers = tuple(
            self._host[tensor.uid].ctypes.data if tensor.is_by_value else self._views[tensor.uid].address
            for tensor in plan.tensors
        )

    def bytes_of(self, uid: int) -> bytes:
        """The bytes of a tensor on the device, now."""
        return self._views[uid].to_host().tobytes()

    def _place(self, context: Context, plan: Plan, region: _Region, addresses: Mapping[int, int]) -> None:
        margin = region.begin % _BLOCK_BYTES
        labels = {tensor.uid: tensor.name or f"uid {tensor.uid}" for tensor in plan.tensors}
        label = " and ".join(labels[uid] for uid in region.uids)
        size_bytes = margin + region.end - region.begin
        buffer = self._stack.enter_context(DeviceBuffer.allocate(context, size_bytes, label=label))
        for tensor in plan.tensors:
            if tensor.uid in region.uids:
                offset = margin + max(addresses.get(tensor.uid, 0) - region.begin, 0)
                self._views[tensor.uid] = DeviceBuffer(context, buffer.address + offset, tensor.size_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _regions(plan: Plan, addresses: Mapping[int, int]) -> list[_Region]:
    placed = [tensor for tensor in plan.tensors if not tensor.is_by_value]
    own = [_Region(0, tensor.size_bytes, [tensor.uid]) for tensor in placed if not addresses.get(tensor.uid)]
    found: list[_Region] = []
    for tensor in sorted(placed, key=lambda tensor: addresses.get(tensor.uid, 0)):
        begin = addresses.get(tensor.uid, 0)
        if not begin:
            continue
        if found and begin < found[-1].end:
            found[-1].end = max(found[-1].end, begin + tensor.size_bytes)
            found[-1].uids.append(tensor.uid)
        else:
            found.append(_Region(begin, begin + tensor.size_bytes, [tensor.uid]))
    return own + found
