"""A library of its own for each test, bound to the device of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lowdnn.capi.library import LIBRARY_NAME, write_library
from lowdnn.capi.loading import Binding
from lowdnn.capi.state import State
from lowdnn.runtime.runtime import Runtime
from tests.support.capi import Caller


@pytest.fixture
def binding(device: Runtime) -> Iterator[Binding]:
    bound = Binding(State(device.driver))
    yield bound
    bound.end()


@pytest.fixture
def caller(binding: Binding, tmp_path: Path) -> Caller:
    write_library(tmp_path / LIBRARY_NAME)
    return Caller(binding.library(tmp_path / LIBRARY_NAME))
