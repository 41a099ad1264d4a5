"""``CapturedGraph`` refuses what is no stream or function, and a capture ends with what goes wrong in it."""

from __future__ import annotations

from typing import Any

import pytest

from lowdnn.backend.handle import Handle
from lowdnn.runtime.captured_graph import CapturedGraph
from lowdnn.runtime.stream import Stream
from lowdnn.status import AttributeTypeError, NotInitializedError


@pytest.mark.parametrize("wrong", [None, 0, "stream"])
def test_what_is_no_stream(handle: Handle, wrong: Any) -> None:
    with Stream.create(handle.runtime.context) as stream, CapturedGraph.record(stream, lambda: None) as graph:
        for call in (lambda: CapturedGraph.record(wrong, lambda: None), lambda: graph.launch(wrong)):
            with pytest.raises(AttributeTypeError, match=r"CapturedGraph\.stream: expected a Stream, got "):
                call()


def test_what_is_no_function_begins_no_capture(handle: Handle) -> None:
    with Stream.create(handle.runtime.context) as stream:
        with pytest.raises(AttributeTypeError, match=r"CapturedGraph\.work: expected a function, got None"):
            CapturedGraph.record(stream, None)  # type: ignore[arg-type]
        assert not stream.is_capturing


def test_a_capture_ends_with_what_the_work_raises(handle: Handle) -> None:
    with Stream.create(handle.runtime.context) as stream:
        with pytest.raises(ZeroDivisionError):
            CapturedGraph.record(stream, lambda: 1 / 0)
        assert not stream.is_capturing
        with CapturedGraph.record(stream, lambda: None) as graph:
            graph.launch(stream)
        with pytest.raises(NotInitializedError):
            graph.launch(stream)
