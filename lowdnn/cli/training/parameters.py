"""The parameters of a network, packed in flat arrays, so that one graph updates all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from lowdnn.cli.training.session import Parts, Session, view
from lowdnn.distributed.buckets import BUCKET_BYTES, GradientBuckets
from lowdnn.ops.tensor import channels_last_strides, packed_strides
from lowdnn.runtime.buffer import DeviceBuffer

#: Each parameter begins at a multiple of this many elements: 16 bytes in the 2-byte types.
_PLACE_ELEMENTS = 8


@dataclass(frozen=True)
class Parameter:
    """Views of the flat arrays: the fp32 value, the value in the type of the activations, the fp32 gradient.

    partial_grad: the gradient of each part of the batch, which the backward pass writes.
    """

    name: str
    master: DeviceBuffer
    value: DeviceBuffer
    grad: DeviceBuffer
    partial_grad: Parts


class Parameters:
    """Values, gradients and momenta, each a flat (1, 1, size) array in fp32.

    ``values``: a copy in the type of the activations, or the masters themselves where that is fp32.
    ``buckets``: the sums of the gradients over the parts of the batch; ``grads`` has them behind ``buckets.finish``.
    Every rank begins with the values of rank 0.
    """

    def __init__(
        self,
        session: Session,
        initial: Mapping[str, NDArray[np.floating]],
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        places, size = _places(initial)
        flat = np.zeros((1, 1, size), np.float32)
        for name, array in initial.items():
            place = flat[0, 0, places[name] : places[name] + array.size]
            byte_strides = [4 * stride for stride in _strides(array.shape)]
            np.lib.stride_tricks.as_strided(place, array.shape, byte_strides)[...] = array
        self.masters = session.on_device(flat)
        self.grads = session.zeros(flat.shape)
        self.momenta = session.zeros(flat.shape)
        self.values = session.on_device(flat, session.activation_type) if session.is_mixed else self.masters
        sizes = {name: (places[name], array.size) for name, array in initial.items()}
        self.buckets = GradientBuckets(session.handle, session.split, self.grads, sizes, bucket_bytes=bucket_bytes)
        session.keep(self.buckets)
        self._by_name = {name: self._parameter(name, array.shape, places[name]) for name, array in initial.items()}
        if session.split.communicator is not None:
            for values in (self.masters, self.values):
                session.split.communicator.broadcast(values, root=0, stream=session.handle.borrowed_stream())

    def _parameter(self, name: str, dims: tuple[int, ...], place: int) -> Parameter:
        strides = _strides(dims)
        master, value, grad = (view(array, dims, strides, place) for array in (self.masters, self.values, self.grads))
        partial = Parts(tuple(view(one, dims, strides) for one in self.buckets.partials(name)))
        return Parameter(name, master, value, grad, partial)

    def __getitem__(self, name: str) -> Parameter:
        return self._by_name[name]


def _places(initial: Mapping[str, NDArray[np.floating]]) -> tuple[dict[str, int], int]:
    """(index of each parameter's first element in the flat array, elements of the flat array)."""
    places: dict[str, int] = {}
    end = 0
    for name, array in initial.items():
        places[name] = end
        end += -(-prod(array.shape) // _PLACE_ELEMENTS) * _PLACE_ELEMENTS
    return places, end


def _strides(dims: tuple[int, ...]) -> tuple[int, ...]:
    return channels_last_strides(dims) if len(dims) == 4 else packed_strides(dims)
