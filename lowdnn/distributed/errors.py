"""Errors of communication between ranks."""

from __future__ import annotations

from collections.abc import Callable

from lowdnn.status import ExecutionFailedError


class CommunicationError(ExecutionFailedError):
    """Ranks could not exchange data; the communicator is of no further use, and its ranks may form a new one."""


class CommunicationTimeoutError(CommunicationError, TimeoutError):
    """Other ranks did not do their part in time: they died, hang, or were never started."""

    def __reduce__(self) -> tuple[Callable[..., CommunicationTimeoutError], tuple[object, ...]]:
        return _timeout, (self.detail, self.__dict__.copy())


def _timeout(detail: str, fields: dict[str, object]) -> CommunicationTimeoutError:
    # An OSError is made by its own class alone, which the base's way does not do.
    error = CommunicationTimeoutError(detail)
    error.__dict__.update(fields)
    return error


class PeerFailedError(CommunicationError):
    """Another rank said that it failed, or ended the communicator."""
