"""Gradient buckets: neighbouring gradients that are exchanged together, while the backward pass goes on.

The backward pass makes the gradients of the last parameters first, so buckets are filled from the last parameter on. A
bucket whose gradients are all on their way is exchanged in a stream of its own, behind the kernels that make them and
beside those that come after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from math import prod

from lowdnn import checks
from lowdnn.backend import Handle
from lowdnn.distributed.rank_sum import RankSum
from lowdnn.distributed.split import Split
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.event import Event
from lowdnn.runtime.stream import Stream
from lowdnn.status import BadParamError, ShapeMismatchError

#: Bytes of a bucket by default: large enough for the links' full rate, small enough to begin early.
BUCKET_BYTES = 25 << 20
_FLOAT_BYTES = 4


def plan_buckets(sizes_bytes: Sequence[int], bucket_bytes: int = BUCKET_BYTES) -> tuple[range, ...]:
    """Which gradients, by their places in the order of use, share a bucket: ranges from the last gradient to the first.

    A bucket is closed by the gradient with which it has ``bucket_bytes``; the last one may have less.
    Raises AttributeTypeError and OutOfBoundError for sizes that are not positive.
    """
    checks.integer(bucket_bytes, "plan_buckets.bucket_bytes", 1)
    checks.integers(sizes_bytes, "plan_buckets.sizes_bytes", 1)
    found: list[range] = []
    end, filled = len(sizes_bytes), 0
    for place in reversed(range(len(sizes_bytes))):
        filled += sizes_bytes[place]
        if filled >= bucket_bytes or place == 0:
            found.append(range(place, end))
            end, filled = place, 0
    return tuple(found)


class GradientBuckets:
    """The gradients of a network in one flat array, summed over all parts of the batch.

    flat: packed fp32.  places: for each parameter, in the order of use, its (first element, elements) there; they
    follow each other, with gaps where alignment asks for them.
    The backward pass writes ``partials(name)``, one view for each part of this rank, and calls ``ready(name)`` once the
    kernels that do are in the handle's stream. Behind ``finish`` that stream has the sums in ``flat``.
    """

    def __init__(
        self,
        handle: Handle,
        split: Split,
        flat: DeviceBuffer,
        places: Mapping[str, tuple[int, int]],
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._handle = handle
        self._owned = ExitStack()
        context = handle.runtime.context
        self._stream = self._owned.enter_context(Stream.create(context))
        self._event = self._owned.enter_context(Event.create(context, is_timed=False))
        self._places = places
        self._buckets: list[_Bucket] = []
        self._by_name: dict[str, _Bucket] = {}
        names, ends = [*places], _ends(flat, places)
        for chosen in plan_buckets([_FLOAT_BYTES * count for _, count in places.values()], bucket_bytes):
            first, end = places[names[chosen.start]][0], ends[chosen.stop - 1]
            total = flat.view(
                _FLOAT_BYTES * first,
                _FLOAT_BYTES * (end - first),
                data_type=DataType.FLOAT,
                shape=(1, 1, end - first),
            )
            bucket = _Bucket(first, frozenset(names[place] for place in chosen), RankSum(handle, split, total))
            self._owned.callback(bucket.sum.close)
            self._buckets.append(bucket)
            self._by_name |= dict.fromkeys(bucket.names, bucket)

    def partials(self, name: str) -> tuple[DeviceBuffer, ...]:
        """Where the backward pass writes a gradient: flat fp32 views, one for each part of this rank."""
        bucket, (first, count) = self._by_name[name], self._places[name]
        offset_bytes, size_bytes = _FLOAT_BYTES * (first - bucket.first), _FLOAT_BYTES * count
        return tuple(
            partial.view(offset_bytes, size_bytes, data_type=DataType.FLOAT, shape=(count,))
            for partial in bucket.sum.partials
        )

    def ready(self, name: str) -> None:
        """Notes a gradient whose kernels are in the stream; exchanges its bucket with the last one.

        Raises BadParamError for a gradient that was noted before in this step, or is none.
        """
        bucket = self._by_name.get(name)
        if bucket is None or name in bucket.noted:
            raise BadParamError.at(
                "GradientBuckets.ready", expected="each gradient once before finish", got=f"{name!r} again"
            )
        bucket.noted.add(name)
        if len(bucket.noted) == len(bucket.names):
            self._event.record(self._handle.borrowed_stream())
            self._stream.wait(self._event)
            bucket.sum.exchange(self._stream)

    def finish(self) -> None:
        """Lets the handle's stream wait for all exchanges, and adds up what they brought. Never waits on the host.

        Raises BadParamError where a gradient was not noted.
        """
        missing = sorted(name for bucket in self._buckets for name in bucket.names - bucket.noted)
        if missing:
            raise BadParamError.at("GradientBuckets.finish", expected="every gradient ready", got=f"not {missing}")
        self._event.record(self._stream)
        self._handle.borrowed_stream().wait(self._event)
        for bucket in self._buckets:
            bucket.noted.clear()
            bucket.sum.add_up()

    def close(self) -> None:
        self._owned.close()


class _Bucket:
    """first: its first element in the flat array.  noted: the gradients that are ready in this step."""

    def __init__(self, first: int, names: frozenset[str], total: RankSum) -> None:
        self.first = first
        self.names = names
        self.sum = total
        self.noted: set[str] = set()


def _ends(flat: DeviceBuffer, places: Mapping[str, tuple[int, int]]) -> list[int]:
    """Where each gradient ends in the flat array, with the gap behind it: where the next one begins."""
    size = prod(flat.shape or ())
    starts = [first for first, _ in places.values()]
    ends = [*starts[1:], size]
    for (name, (first, count)), end in zip(places.items(), ends, strict=True):
        if first < 0 or count < 1 or first + count > end:
            raise ShapeMismatchError.at(
                f"GradientBuckets.places.{name}",
                expected=f"a place before element {end}, behind the one before it",
                got=f"elements {first} to {first + count}",
            )
    return ends
