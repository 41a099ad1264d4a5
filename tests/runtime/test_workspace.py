from __future__ import annotations

import pytest

from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import InvalidValueError, NotInitializedError, SizeInsufficientError


def test_workspace_is_aligned_and_grows_only_when_told(device: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    with Workspace(device.context, 1000) as workspace:
        assert workspace.address % 256 == 0
        workspace.require(1000)
        with pytest.raises(SizeInsufficientError, match="at least 1001, got 1000"):
            workspace.require(1001)
        before = workspace.address
        workspace.grow(500)
        assert (workspace.address, workspace.size_bytes) == (before, 1000)
        waits: list[bool] = []
        monkeypatch.setattr(device.context, "synchronize", lambda: waits.append(workspace.address == before))
        workspace.grow(1 << 20)
        assert waits == [True], "work under way may use the old memory"
        workspace.require(1 << 20)
    with pytest.raises(NotInitializedError):
        _ = workspace.address
    assert Workspace(device.context, 0).address == 0
    with pytest.raises(InvalidValueError):
        Workspace(device.context, -1)
