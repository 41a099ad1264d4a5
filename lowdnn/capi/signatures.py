"""C functions as a table: names, results and arguments; cuDNN's are read from ``data/functions.txt``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType

#: Names that the library exports and no header declares.
UNDOCUMENTED = ("cudnnGetBackdoor", "cudnnGetRNNDropoutLocationsInternal", "cudnnSetBackdoor", "cudnnSetBackdoorEx")


@dataclass(frozen=True)
class CType:
    """``base`` behind ``pointers`` pointers; is_const: what the first of them leads to is only read.

    base: the name without ``cudnn`` and ``_t`` (``Handle``, ``DataType``), or one of the table's own in small letters
    (``int``, ``size``).
    """

    base: str
    pointers: int = 0
    is_const: bool = False


@dataclass(frozen=True)
class Argument:
    name: str
    type: CType


@dataclass(frozen=True)
class Function:
    """One function, and the header that declares it (``cudnn_graph.h``)."""

    name: str
    header: str
    result: CType
    arguments: tuple[Argument, ...]


@cache
def functions() -> Mapping[str, Function]:
    """The 239 documented functions of cuDNN by name, in the order of the table."""
    return read_functions("functions.txt")


def read_functions(file: str) -> Mapping[str, Function]:
    """The functions that a table of ``data/`` lists, in its order."""
    text = resources.files("lowdnn.capi").joinpath("data", file).read_text(encoding="ascii")
    found: dict[str, Function] = {}
    header = ""
    for line in text.replace("\n    ", " ").splitlines():
        if line.startswith("["):
            header = line.strip("[]")
        elif line and not line.startswith("#"):
            function = _function(header, line)
            found[function.name] = function
    return MappingProxyType(found)


@cache
def exported_names() -> tuple[str, ...]:
    """Every name that the library exports, sorted."""
    return tuple(sorted((*functions(), *UNDOCUMENTED)))


def _function(header: str, line: str) -> Function:
    head, _, arguments = line.partition(":")
    name, _, result = head.partition(" -> ")
    listed = [argument.split() for argument in arguments.split(",") if argument.strip()]
    return Function(
        name, header, _type(result or "Status"), tuple(Argument(name, _type(written)) for name, written in listed)
    )


def _type(written: str) -> CType:
    base = written.lstrip("&*")
    return CType(base, len(written) - len(base), written.startswith("&"))
