from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowdnn.config import Config
from lowdnn.driver.base import DriverError
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream, stream_handle
from lowdnn.status import AttributeTypeError, NotInitializedError


class Foreign:
    """A stream object of another library."""

    def __init__(self, version: int, handle: int) -> None:
        self.answer = (version, handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        return self.answer


def test_own_stream_lives_until_closed(device: Runtime) -> None:
    with Stream.create(device.context) as stream:
        assert stream.__cuda_stream__() == (0, stream.handle)
        stream.synchronize()
        assert stream.is_done()
        assert not stream.is_capturing
    with pytest.raises(NotInitializedError, match="Stream"):
        stream.synchronize()
    stream.close()


def test_borrowed_stream_is_left_alone(device: Runtime) -> None:
    with Stream.create(device.context) as stream:
        for value in (stream, stream.handle, SimpleNamespace(cuda_stream=stream.handle), Foreign(0, stream.handle)):
            with Stream.borrow(device.context, value) as borrowed:
                assert borrowed.handle == stream.handle
        stream.synchronize()


@pytest.mark.parametrize("value", [0, 1, 2, None])
def test_default_streams_are_taken(device: Runtime, value: Any) -> None:
    Stream.borrow(device.context, value).synchronize()


@pytest.mark.parametrize("value", [-1, True, 1.0, "0", object()])
def test_what_is_no_stream(value: object) -> None:
    with pytest.raises(AttributeTypeError, match="__cuda_stream__"):
        stream_handle(value)


def test_unknown_version_of_the_protocol() -> None:
    with pytest.raises(AttributeTypeError, match="version 0, got 1"):
        stream_handle(Foreign(1, 4))


def test_a_handle_that_nobody_made() -> None:
    with (
        Runtime.open("emulated", config=Config(disk_cache=False)) as runtime,
        pytest.raises(DriverError, match="INVALID_HANDLE"),
    ):
        Stream.borrow(runtime.context, 0x123456)
