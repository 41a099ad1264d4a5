"""Makes lowdnn's libraries those of the process before cudnn-frontend is imported, and gives tests their session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lowdnn import capi

capi.install()


@pytest.fixture(scope="session")
def session() -> Iterator[object]:
    from tests.cudnn_frontend.program import Session

    opened = Session()
    yield opened
    opened.close()
