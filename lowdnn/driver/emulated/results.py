"""The errors that the emulated driver answers with."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.driver.base import DriverError, emitted
from lowdnn.driver.results import CuResult


def driver_error(
    call: str,
    result: int,
    arguments: object = "",
    explanation: str = "",
    report: Mapping[str, object] | None = None,
) -> DriverError:
    """The error for ``result``, a CUresult."""
    known = CuResult(result)
    return emitted(DriverError(call, int(known), known.c_name, str(arguments), explanation, report))
