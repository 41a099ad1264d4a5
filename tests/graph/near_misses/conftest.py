"""One emulated device for the near misses of a family, so that they share what is made of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lowdnn.driver import open_driver
from lowdnn.runtime.runtime import Runtime
from tests.support.runtime import open_runtime


@pytest.fixture(scope="module")
def runtime(kernel_cache_dir: Path) -> Iterator[Runtime]:
    with open_runtime(open_driver("emulated"), kernel_cache_dir) as opened:
        yield opened
