"""Which gradients share a bucket, and sums over the parts of a batch, in the order that the mode promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.backend import Handle
from lowdnn.distributed.buckets import GradientBuckets, plan_buckets
from lowdnn.distributed.in_process import InProcessCommunicator
from lowdnn.distributed.rank_sum import RankSum
from lowdnn.distributed.split import Split
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    InvalidValueError,
    OutOfBoundError,
    ShapeMismatchError,
    UnsupportedDataTypeError,
)
from tests.support.data import fresh_seed
from tests.support.errors import raises
from tests.support.ranks import on_handles


def zeros(handle: Handle, count: int) -> DeviceBuffer:
    made = DeviceBuffer.allocate(handle.runtime.context, 4 * count, data_type=DataType.FLOAT, shape=(1, 1, count))
    made.fill_bytes(0, handle.borrowed_stream())
    return made


def put(buffer: DeviceBuffer, array: NDArray[Any], handle: Handle) -> None:
    buffer.copy_from_host(np.ascontiguousarray(array, np.float32), handle.borrowed_stream())


@pytest.mark.parametrize(
    ("sizes", "bucket", "expected"),
    [
        ([4, 4, 4, 4, 4], 8, [range(3, 5), range(1, 3), range(1)]),
        ([100, 1, 1], 8, [range(3)]),
        ([1, 1, 100], 8, [range(2, 3), range(2)]),
        ([8], 8, [range(1)]),
        ([1, 2, 3], 10**12, [range(3)]),
        ([], 8, []),
    ],
)
def test_buckets_are_filled_from_the_last_gradient(sizes: list[int], bucket: int, expected: list[range]) -> None:
    assert plan_buckets(sizes, bucket) == tuple(expected)


def test_buckets_of_random_sizes_hold_each_gradient_once() -> None:
    rng = np.random.default_rng(fresh_seed())
    for _ in range(200):
        sizes = [int(size) for size in rng.integers(1, 50, rng.integers(1, 20))]
        bucket = int(rng.integers(1, 120))
        found = plan_buckets(sizes, bucket)
        assert [place for one in reversed(found) for place in one] == [*range(len(sizes))]
        for one in found[:-1]:
            assert sum(sizes[place] for place in one) >= bucket > sum(sizes[place] for place in [*one][1:])


def test_sizes_are_checked() -> None:
    with raises(OutOfBoundError, "plan_buckets.bucket_bytes"):
        plan_buckets([1], 0)
    with raises(OutOfBoundError, "plan_buckets.sizes_bytes[1]"):
        plan_buckets([1, 0], 1)


def test_sums_of_parts_are_in_their_order() -> None:
    """Twelve parts, more than one kernel adds up, on one, two and three ranks: the bits of a loop over the parts."""
    rng = np.random.default_rng(fresh_seed())
    parts = (rng.normal(size=(12, 37)) * 10.0 ** rng.integers(-6, 6, (12, 1))).astype(np.float32)
    expected = parts[0]
    for part in parts[1:]:
        expected = expected + part

    def work(handle: Handle, communicator: InProcessCommunicator) -> NDArray[Any]:
        with zeros(handle, 37) as total:
            split = Split(communicator, 12)
            made = RankSum(handle, split, total)
            for place, partial in zip(split.own_parts, made.partials, strict=True):
                put(partial, parts[place], handle)
            made.exchange(handle.borrowed_stream())
            made.add_up()
            made.close()
            return total.to_host(handle.borrowed_stream())[0, 0]

    for size in (1, 2, 3):
        for found in on_handles(size, work):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shards", [None, 4])
def test_gradients_are_summed_bucket_by_bucket(shards: int | None) -> None:
    """Two steps, with gaps between the gradients and an order of its own; misuse raises before anything is sent."""
    places = {"a": (0, 5), "b": (8, 3), "c": (16, 8)}
    given = np.random.default_rng(fresh_seed()).integers(-9, 9, (2, 4, 24)).astype(np.float32)

    def work(handle: Handle, communicator: InProcessCommunicator) -> list[NDArray[Any]]:
        split, results = Split(communicator, shards), []
        with zeros(handle, 24) as flat:
            buckets = GradientBuckets(handle, split, flat, places, bucket_bytes=40)
            for step in given:
                for name in ("c", "a", "b"):
                    first, count = places[name]
                    for part, partial in zip(split.own_parts, buckets.partials(name), strict=True):
                        put(partial, step[part, first : first + count], handle)
                    with raises(BadParamError, "GradientBuckets.finish", expected="every gradient"):
                        buckets.finish()
                    buckets.ready(name)
                    with raises(BadParamError, "GradientBuckets.ready", got=repr(name)):
                        buckets.ready(name)
                with raises(BadParamError, "GradientBuckets.ready", got="'d'"):
                    buckets.ready("d")
                buckets.finish()
                results.append(flat.to_host(handle.borrowed_stream())[0, 0])
            buckets.close()
        return results

    for results in on_handles(2, work):
        for found, step in zip(results, given, strict=True):
            whole = step[: 2 if shards is None else 4].sum(0)
            for first, count in places.values():
                np.testing.assert_array_equal(found[first : first + count], whole[first : first + count])


def test_what_does_not_fit_is_refused() -> None:
    with raises(OutOfBoundError, "Split.shards", expected="1 to", got="0"):
        Split(None, 0)
    with raises(AttributeTypeError, "Split.shards"):
        Split(None, 2.0)  # type: ignore[arg-type]
    with raises(InvalidValueError, "Split.batch", expected="a multiple of 4 parts", got="6"):
        Split(None, 4).part_of(6)
    with Handle.open("emulated") as handle, zeros(handle, 8) as flat:
        with raises(ShapeMismatchError, "GradientBuckets.places.b"):
            GradientBuckets(handle, Split(), flat, {"a": (0, 4), "b": (4, 5)})
        with raises(ShapeMismatchError, "GradientBuckets.places.a"):
            GradientBuckets(handle, Split(), flat, {"a": (0, 5), "b": (4, 4)})
        halves = flat.view(0, 16, data_type=DataType.HALF, shape=(8,))
        with raises(UnsupportedDataTypeError, "RankSum.total"):
            RankSum(handle, Split(), halves)
