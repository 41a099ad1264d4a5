"""The buffers through which ranks exchange the statistics of a batch norm (``peer_stats``).

Each rank owns one buffer, which the kernels of all ranks reach (``distributed.peer_buffers`` makes them). In 32-bit
words:

    header      HEADER_WORDS: the owner's rank, the failure, the time limit (``engines/include/peers.cuh``)
    sequence    2 for each channel: how many exchanges there have been, and nothing
    mailboxes   [2][peers][NUMBERS][channels] of 64 bits, twice as many for DOUBLE

A mailbox has 32 bits of a number and the sequence number of its exchange. Successive exchanges use the two halves in
turn, so that nobody writes where another rank may still read. A buffer has room for as many channels as fit it; norms
with fewer channels use it, too, one after the other in the same order on every rank.

An operation names its rank's own buffer first, then those of the ranks after it, and after the last rank those from
rank 0 on. The graph is then the same on every rank.
"""

from __future__ import annotations

from typing import Final

from lowdnn.enums import DataType, NormMode
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, NotSupportedError, ShapeMismatchError, UnsupportedDataTypeError

#: Ranks that exchange statistics at most: the GPUs of a host.
MAX_PEERS: Final = 8
#: 32-bit words of a buffer's header.
HEADER_WORDS: Final = 16
#: Numbers that ranks exchange for a channel at most: the estimate of a mean, its correction, the variance.
NUMBERS: Final = 3

_SEQUENCE_WORDS = 2
_HALVES = 2


def channel_words(peers: int, compute_type: DataType = DataType.FLOAT) -> int:
    """32-bit words of a buffer for each channel."""
    mailbox_words = 4 if compute_type is DataType.DOUBLE else 2
    return _SEQUENCE_WORDS + _HALVES * peers * NUMBERS * mailbox_words


def peer_stat_dims(
    peers: int, channels: int, compute_type: DataType = DataType.FLOAT, rank: int = 4
) -> tuple[int, ...]:
    """(1, n, 1...), the dims of a buffer in FLOAT for so many channels."""
    return (1, HEADER_WORDS + channels * channel_words(peers, compute_type), *(1,) * (rank - 2))


def channels_of(elements: int, peers: int, compute_type: DataType) -> int:
    """The channels that a buffer of ``elements`` FLOATs has room for."""
    return max(0, elements - HEADER_WORDS) // channel_words(peers, compute_type)


def check_peer_stats(
    where: str, tensors: tuple[Tensor, ...], mode: NormMode, channels: int, compute_type: DataType
) -> None:
    """Raises BadParamError and NotSupportedError, in the class that fits, for tensors that are no buffers of all peers
    for ``channels``, and for any where the mode is not BATCH_NORM."""
    if tensors and mode is not NormMode.BATCH_NORM:
        raise NotSupportedError.at(f"{where}.peer_stats", expected="none, but for BATCH_NORM", got=mode.name)
    if len(tensors) > MAX_PEERS:
        raise NotSupportedError.at(f"{where}.peer_stats", expected=f"at most {MAX_PEERS} peers", got=len(tensors))
    for number, tensor in enumerate(tensors):
        place = f"{where}.peer_stats[{number}]"
        if tensor.data_type is not DataType.FLOAT:
            raise UnsupportedDataTypeError.at(f"{place}.data_type", expected="FLOAT", got=tensor.data_type.name)
        if tensor.is_virtual or tensor.is_scalar_value:
            raise BadParamError.at(place, expected="a tensor in memory", got=tensor.label)
        extents = [(extent, stride) for extent, stride in zip(tensor.dims, tensor.strides, strict=True) if extent != 1]
        packed = [pair for pair in zip(tensor.dims, packed_strides(tensor.dims), strict=True) if pair[0] != 1]
        if extents != packed:
            raise ShapeMismatchError.at(f"{place}.strides", expected="packed elements", got=list(tensor.strides))
        if tensor.dims != tensors[0].dims:
            raise ShapeMismatchError.at(
                f"{place}.dims", expected=f"{list(tensors[0].dims)}, as peer_stats[0]", got=list(tensor.dims)
            )
        if channels_of(tensor.element_count, len(tensors), compute_type) < channels:
            wanted = peer_stat_dims(len(tensors), channels, compute_type)
            raise ShapeMismatchError.at(
                f"{place}.dims",
                expected=f"room for {channels} channels of {len(tensors)} peers, such as {list(wanted)}",
                got=list(tensor.dims),
                hint="lowdnn.distributed.PeerBuffers.for_statistics makes them",
            )
    if len({tensor.uid for tensor in tensors}) != len(tensors):
        raise BadParamError.at(f"{where}.peer_stats", expected="a tensor for each peer", got="a tensor twice")


def refuse_peers(tensors: tuple[Tensor, ...]) -> None:
    """Raises NotSupportedError for several peers, of whose data the reference of one rank knows nothing."""
    if len(tensors) > 1:
        raise NotSupportedError.at("norm.peer_stats", expected="at most one, for the reference", got=len(tensors))
