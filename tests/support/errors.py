"""Expecting errors in the library's message form."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lowdnn.status import LowdnnError


def raises(error: type[LowdnnError], where: str, *, expected: str = "", got: str = "") -> Any:
    """``pytest.raises`` for exactly ``<STATUS> <where>: expected <...expected...>, got <...got...>``."""
    text = f"^{error.status.name} {re.escape(where)}: expected .*{re.escape(expected)}.*, got .*{re.escape(got)}"
    return pytest.raises(error, match=text)
