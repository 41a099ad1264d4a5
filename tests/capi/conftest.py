"""A library of its own for each test, bound to the device of the test."""

from __future__ import annotations

import ctypes
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


@pytest.fixture(scope="session")
def global_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose names C libraries find that are loaded later; the first one in the process counts."""
    path = tmp_path_factory.mktemp("global") / LIBRARY_NAME
    write_library(path)
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return path


@pytest.fixture
def endurance(pytestconfig: pytest.Config) -> bool:
    """Tests of many cycles run all of them, as ``--endurance`` asks for."""
    return bool(pytestconfig.getoption("endurance"))
