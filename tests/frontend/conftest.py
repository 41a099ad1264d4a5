"""A handle on the device of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lowdnn.backend.handle import Handle
from lowdnn.runtime.runtime import Runtime


@pytest.fixture
def handle(device: Runtime) -> Iterator[Handle]:
    with Handle(device) as opened:
        yield opened
