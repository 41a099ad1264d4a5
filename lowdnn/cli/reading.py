"""The cases of a command line, read from arguments and files; cases beyond the machine's memory are refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from math import prod

from lowdnn.cases import parse_case, parse_counted_cases
from lowdnn.cases.base import Case
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError, NotSupportedError, SizeInsufficientError

#: Room for more than a million cases.
_MAX_FILE_BYTES = 64 << 20
#: Characters of the longest text of a case in a table.
_MAX_SHOWN = 120
#: Bytes of an element while the data of a case are made, in float64.
_MADE_BYTES = 8


def read_cases(texts: Sequence[str]) -> Iterator[Case]:
    """The cases of the command line; ``@FILE`` stands for the lines of a file."""
    return (case for _, case in read_counted_cases(texts))


def read_counted_cases(texts: Sequence[str]) -> Iterator[tuple[int, Case]]:
    """As ``read_cases``, each case with its count: that of a file of LOWDNN_RECORD_CASES, otherwise 1."""
    for text in texts:
        if text.startswith("@"):
            yield from parse_counted_cases(_content(text[1:]).splitlines())
        else:
            yield 1, parse_case(text)


def read_lines(texts: Sequence[str]) -> Iterator[str]:
    """The lines of the command line, unread; ``@FILE`` stands for those of a file that have a case."""
    for text in texts:
        lines = _content(text[1:]).splitlines() if text.startswith("@") else [text]
        yield from (line for line in lines if line.split("#")[0].strip() or not text.startswith("@"))


def short_text(case: object) -> str:
    """The text of a case as far as it fits a line of a terminal."""
    text = str(case)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def check_cases(cases: Iterable[Case], device_bytes: int | None = None) -> None:
    """Raises BadParamError for a case whose values do not fit together, SizeInsufficientError for one whose tensors do
    not fit the host's memory, or ``device_bytes``, the device's."""
    host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for case in cases:
        try:
            graph = case.graph()
        except NotSupportedError:
            continue  # reported as a refusal when the case's turn comes
        except BadParamError as error:
            raise type(error)(f"{error.detail}; in {str(case)!r}") from None
        stored = [tensor for tensor in graph.tensors.values() if not tensor.is_virtual]
        needed_bytes = sum(tensor.span_bytes for tensor in stored)
        _check_memory(case, "the host", needed_bytes + max(map(_made_bytes, stored), default=0), host_bytes)
        if device_bytes is not None:
            _check_memory(case, "the device", needed_bytes, device_bytes)


def _content(path: str) -> str:
    """The text of a regular file.

    Raises BadParamError for any other kind of file, which may never end, without waiting for a pipe's writer.
    """
    where = "cases"
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadParamError.at(where, expected="a regular file after @", got=repr(path))
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise BadParamError.at(where, expected=f"a file of at most {_MAX_FILE_BYTES} bytes", got=repr(path))
        return content.decode("utf-8")
    except BadParamError:
        raise
    except (OSError, ValueError) as error:  # ValueError: the content is no text, or the name is no path
        raise BadParamError.at(where, expected="a readable file after @", got=f"{path!r}: {error}") from None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _made_bytes(tensor: Tensor) -> int:
    """Bytes of the array that the data are made in, with extents of 0 taken as 1, since NumPy limits the others too."""
    return prod(max(extent, 1) for extent in tensor.dims) * _MADE_BYTES


def _check_memory(case: Case, whose: str, needed_bytes: int, bytes_there: int) -> None:
    if needed_bytes > bytes_there:
        raise SizeInsufficientError.at(
            "case.tensors",
            expected=f"at most {bytes_there} bytes, the memory of {whose}",
            got=f"{needed_bytes} bytes in {str(case)!r}",
        )
