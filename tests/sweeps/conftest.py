"""Fixtures of the sweeps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lowdnn.runtime.compile import compile_source


@pytest.fixture(scope="module", autouse=True)
def any_kernel(only_fit_kernels: None) -> Iterator[None]:
    """Drawn shapes may pick a kernel that spills: slower, not wrong. The engines' tests hold those that must not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lowdnn.runtime.compile.compile_source", compile_source)
        yield
