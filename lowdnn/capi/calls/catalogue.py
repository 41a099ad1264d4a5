"""Every call by the name of its C function."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.capi.calls import backend, handles
from lowdnn.capi.errors import Call

CALLS: Mapping[str, Call] = {**handles.CALLS, **backend.CALLS}
