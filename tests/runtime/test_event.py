from __future__ import annotations

import numpy as np
import pytest

from lowdnn.runtime.event import Event
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.status import NotInitializedError
from tests.support.runtime import download, upload


def test_events_order_and_measure(device: Runtime) -> None:
    context = device.context
    buffer = upload(device, np.zeros(1 << 16, np.uint8))
    with (
        Stream.create(context) as first,
        Stream.create(context) as second,
        Event.create(context) as start,
        Event.create(context) as end,
    ):
        start.record(first)
        buffer.fill_bytes(7, first)
        end.record(first)
        second.wait(end)
        copy = upload(device, np.zeros(1 << 16, np.uint8))
        copy.copy_from(buffer, second)
        second.synchronize()
        end.synchronize()
        assert end.is_done()
        assert 0 <= end.elapsed_ms(start) < 1e4
        assert (download(copy, np.uint8) == 7).all()
    with pytest.raises(NotInitializedError, match="Event"):
        start.synchronize()
