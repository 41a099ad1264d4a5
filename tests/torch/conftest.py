"""The devices on which the operations of torch are tested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torch.support import Face

#: Warnings of torch about parts of its own that it calls itself, in words that change from version to version, and
#: inductor's advice to allow TF32.
_TORCHS_OWN = ("ignore:.*torch\\.jit\\.:DeprecationWarning", "ignore:TensorFloat32 tensor cores:UserWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder):
            for words in _TORCHS_OWN:
                item.add_marker(pytest.mark.filterwarnings(words))


@pytest.fixture(scope="module", params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """lowdnn's operations over one kind of memory; nothing is left of them behind the module."""
    pytest.importorskip("torch", reason="torch's operations are under test")
    found = Face(request.param)
    yield found
    found.reset()
