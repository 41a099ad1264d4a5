"""The observable part of a graph: its stored tensors, and the operations that they depend on."""

from __future__ import annotations

from dataclasses import replace

from lowdnn.ops.base import DropsOutputs, Operation, inputs_of, outputs_of, with_tensors
from lowdnn.ops.tensor import Tensor, has_overlap, packed_strides, span_elements


def observable(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """``operations``, in topological order, without those that no stored tensor depends on.

    Optional outputs of other operations that are virtual and that nothing reads are left out too. Where nothing is left
    out, the result is ``operations`` itself.
    """
    read: set[int] = set()
    kept: list[Operation] = []
    for operation in reversed(operations):
        outputs = outputs_of(operation)
        unread = [port for port, tensor in outputs.items() if tensor.is_virtual and tensor.uid not in read]
        if len(unread) == len(outputs):
            continue
        if unread and isinstance(operation, DropsOutputs):
            operation = operation.without(unread)
        kept.append(operation)
        read.update(tensor.uid for tensor in inputs_of(operation).values())
    kept.reverse()
    same = len(kept) == len(operations) and all(one is other for one, other in zip(kept, operations, strict=True))
    return operations if same else tuple(kept)


def with_unread_stored(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """``operations`` with unread virtual tensors put into memory; ``operations`` itself where there are none.

    Such tensors are outputs that their operations cannot leave out.
    """
    read = {tensor.uid for operation in operations for tensor in inputs_of(operation).values()}
    written = (tensor for operation in operations for tensor in outputs_of(operation).values())
    unread = {tensor.uid: in_memory(tensor) for tensor in written if tensor.is_virtual and tensor.uid not in read}
    return tuple(with_tensors(operation, unread) for operation in operations) if unread else operations


def in_memory(tensor: Tensor) -> Tensor:
    """The virtual ``tensor`` put into memory.

    Its strides mean nothing but an order of the axes, so it is packed: nothing would write what lies between elements,
    and kernels may read it.
    """
    dims, strides = tensor.dims, tensor.strides
    if has_overlap(dims, strides):
        return replace(tensor, is_virtual=False, strides=packed_strides(dims))
    if span_elements(dims, strides) > tensor.element_count:
        order = tuple(sorted(range(tensor.rank), key=lambda axis: -strides[axis]))
        strides = packed_strides(dims, order)
    return replace(tensor, is_virtual=False, strides=strides)
