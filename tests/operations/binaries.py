"""Programs of Debian's packages ``prometheus`` and ``prometheus-alertmanager``."""

from __future__ import annotations

import os
import shutil

import pytest


def binary(name: str) -> str:
    """The path of ``promtool``, ``prometheus``, ``amtool`` or ``prometheus-alertmanager``.

    Where it is missing, the test is skipped; under CI (``CI=true``), whose script installs the packages, it fails.
    """
    found = shutil.which(name)
    if found is None:
        reason = f"no {name}: apt-get install --no-install-recommends prometheus prometheus-alertmanager"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    return found
