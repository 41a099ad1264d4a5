"""The devices on which the operations of torch are tested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.torch.support import Face


@pytest.fixture(scope="module", params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """lowdnn's operations over one kind of memory; nothing is left of them behind the module."""
    pytest.importorskip("torch", reason="torch's operations are under test")
    found = Face(request.param)
    yield found
    found.reset()
