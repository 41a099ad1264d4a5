"""The command's standard output and standard error: lines that reach nobody end the command, warnings are one line."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO

from lowdnn.one_line import one_line


class OutputError(Exception):
    """Standard output cannot be written. It is no OSError, so that nothing takes it for that of a file."""


class ClosedPipeError(OutputError):
    """The reader of standard output (a pager, ``head``) has gone."""


class Output(io.TextIOBase):
    """A stream whose failures are OutputErrors. Characters that its encoding lacks are written as Python's escapes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        escaped = text.encode(self.encoding, errors="backslashreplace").decode(self.encoding)
        with self._told():
            self._stream.write(escaped)
        return len(text)

    def flush(self) -> None:
        with self._told():
            self._stream.flush()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raises OutputError for what goes wrong, after which the stream takes everything and keeps nothing."""
        try:
            yield
        except OSError as error:
            _drop(self._stream)
            if isinstance(error, BrokenPipeError):
                raise ClosedPipeError("the reader of standard output has gone") from None
            raise OutputError(f"standard output cannot be written: {error.strerror or error}") from None
        except ValueError as error:  # a closed file
            raise OutputError(f"standard output cannot be written: {error}") from None


@contextmanager
def command_output() -> Iterator[None]:
    """Standard output as an ``Output``, which is flushed at the end, and warnings of one line each.

    Raises OutputError, also where standard output is closed from the beginning.
    """
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    output, format_of_python = Output(sys.stdout), warnings.formatwarning
    warnings.formatwarning = _warning_line
    try:
        with redirect_stdout(output):
            try:
                yield
            finally:
                output.flush()
    finally:
        warnings.formatwarning = format_of_python


def tell(text: str) -> None:
    """Writes a line to standard error, if there is one that can be written."""
    if sys.stderr is not None:  # otherwise print would take standard output
        with suppress(OSError, ValueError):
            print(f"lowdnn: {text}", file=sys.stderr)


def drop_unwritable_errors() -> None:
    """Drops what standard error cannot take: the command's status says enough."""
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except (OSError, ValueError):
            _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    """Sends a stream nowhere: the interpreter flushes it when it ends, and must not fail on what is left in it."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _warning_line(message: Warning | str, *_: object, **__: object) -> str:
    return f"lowdnn: warning: {one_line(str(message))}\n"
