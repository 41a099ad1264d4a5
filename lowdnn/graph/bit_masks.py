"""Masks of activations beside norms: stored BOOLEAN tensors of such a graph have a bit for each element, as cuDNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lowdnn.enums import DataType
from lowdnn.ops.base import HasPorts, inputs_of, outputs_of, with_tensors
from lowdnn.ops.bit_mask import PackBits, UnpackBits, bits_of
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.tensor import Tensor


def with_bit_masks(operations: Sequence[HasPorts], first_uid: int) -> tuple[HasPorts, ...]:
    """``operations`` with a virtual tensor in place of each such mask, and what packs or unpacks its bits.

    first_uid: uids of the virtual tensors begin with it.
    """
    if not any(isinstance(op, NormForward | NormBackward) for op in operations):
        return tuple(operations)
    written = _masks(operations, outputs_of)
    read = {uid: mask for uid, mask in _masks(operations, inputs_of).items() if uid not in written}
    inside = {
        uid: replace(mask, uid=virtual_uid, is_virtual=True)
        for virtual_uid, (uid, mask) in enumerate((read | written).items(), first_uid)
    }
    unpacked = (UnpackBits(bits_of(mask), inside[uid]) for uid, mask in read.items())
    packed = (PackBits(inside[uid], bits_of(mask)) for uid, mask in written.items())
    return (*unpacked, *(with_tensors(op, inside) for op in operations), *packed)


def _masks(operations: Sequence[HasPorts], ports_of: Callable[[HasPorts], dict[str, Tensor]]) -> dict[int, Tensor]:
    """The BOOLEAN tensors in device memory among those that ``ports_of`` gives for the operations, by uid."""
    tensors = (tensor for op in operations for tensor in ports_of(op).values())
    return {
        tensor.uid: tensor
        for tensor in tensors
        if tensor.data_type is DataType.BOOLEAN and not tensor.is_virtual and not tensor.is_scalar_value
    }
