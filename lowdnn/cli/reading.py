"""The cases of a command line, read from arguments and files; cases beyond the machine's memory are refused."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from lowdnn.cases import parse_counted_cases
from lowdnn.cases.base import Case
from lowdnn.cases.ranges import has_ranges
from lowdnn.documents import shown
from lowdnn.graph.graph import OperationGraph
from lowdnn.one_line import one_line
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError, NotSupportedError, SizeInsufficientError
from lowdnn.text_files import read_text

#: Room for more than a million cases.
_MAX_FILE_BYTES = 64 << 20
#: Characters of the longest text of a case in a table.
_MAX_SHOWN = 120
#: Bytes of an element while the data of a case are made, in float64.
_MADE_BYTES = 8


@dataclass(frozen=True)
class Line:
    """The text of a case, perhaps with a count or ranges.  where: ``FILE:LINE``, or empty for an argument."""

    text: str
    where: str = ""

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors of the block about the case say where it stands."""
        try:
            yield
        except (BadParamError, NotSupportedError) as error:
            if not self.where:
                raise
            raise type(error)(f"{one_line(self.where)}: {error.detail}") from None


@dataclass(frozen=True)
class ReadCase:
    """A case, how often it counts (1 but in a file of LOWDNN_RECORD_CASES), and its line."""

    case: Case
    count: int
    line: Line


def read_cases(texts: Sequence[str]) -> Iterator[ReadCase]:
    """The cases of the command line; ``@FILE`` stands for the lines of a file.

    Raises BadParamError for a line that is no case, which a case with ranges is not, either.
    """
    for line in read_lines(texts):
        with line.named():
            if has_ranges(line.text.split("#")[0]):
                rule, hint = "a number in the place of each range", "lowdnn kernels and lowdnn cache export take ranges"
                raise BadParamError.at("case", expected=rule, got=shown(line.text), hint=hint)
            ((count, case),) = parse_counted_cases([line.text])
        yield ReadCase(case, count, line)


def read_lines(texts: Sequence[str]) -> Iterator[Line]:
    """The lines of the command line, unread; ``@FILE`` stands for those of a file that have a case."""
    for text in texts:
        if text.startswith("@"):
            yield from _lines_of(text[1:])
        elif _has_case(text):
            yield Line(text)
        else:
            raise BadParamError.at("cases", expected="a case in quotes, or @FILE", got=shown(text))


def short_text(case: object) -> str:
    """The text of a case as far as it fits a line of a terminal."""
    text = str(case)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def check_values(cases: Iterable[ReadCase]) -> None:
    """Raises BadParamError for a case whose values do not fit together."""
    for read in cases:
        with read.line.named():
            _graph(read.case)


def check_cases(cases: Iterable[ReadCase], device_bytes: int | None = None) -> None:
    """As ``check_values``; raises SizeInsufficientError for a case whose tensors do not fit the host's memory, or
    ``device_bytes``, the device's."""
    host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for read in cases:
        with read.line.named():
            graph = _graph(read.case)
            stored = [tensor for tensor in graph.tensors.values() if not tensor.is_virtual] if graph else []
            needed_bytes = sum(tensor.span_bytes for tensor in stored)
            made_bytes = max(map(_made_bytes, stored), default=0)
            _check_memory(read.case, "the host", needed_bytes + made_bytes, host_bytes)
            if device_bytes is not None:
                _check_memory(read.case, "the device", needed_bytes, device_bytes)


def _lines_of(path: str) -> Iterator[Line]:
    content = read_text(path, "cases", "a readable file after @", _MAX_FILE_BYTES)
    for number, text in enumerate(io.StringIO(content, newline=None), 1):
        if _has_case(text):
            yield Line(text.rstrip("\n"), f"{path}:{number}")


def _has_case(text: str) -> bool:
    return bool(text.split("#")[0].strip())


def _graph(case: Case) -> OperationGraph | None:
    """The case's graph; None for one that is refused, which is reported when the case's turn comes."""
    try:
        return case.graph()
    except NotSupportedError:
        return None
    except BadParamError as error:
        raise type(error)(f"{error.detail}; in {shown(str(case), _MAX_SHOWN)}") from None


def _made_bytes(tensor: Tensor) -> int:
    """Bytes of the array that the data are made in, with extents of 0 taken as 1, since NumPy limits the others too."""
    return prod(max(extent, 1) for extent in tensor.dims) * _MADE_BYTES


def _check_memory(case: Case, whose: str, needed_bytes: int, bytes_there: int) -> None:
    if needed_bytes > bytes_there:
        raise SizeInsufficientError.at(
            "case.tensors",
            expected=f"at most {bytes_there} bytes, the memory of {whose}",
            got=f"{needed_bytes} bytes in {shown(str(case), _MAX_SHOWN)}",
        )
