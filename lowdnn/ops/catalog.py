"""Every operation, and every descriptor class that operations are made of, as they lie in the modules of this package.

A module of ``ops`` adds an operation by being there: what counts are its own dataclasses with a ``descriptor_type``,
None for what the backend has no descriptor of. The ones with a ``reference`` are operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import get_type_hints

from lowdnn import ops
from lowdnn.schema import ELEMENT_TYPES, declared_in


@cache
def declared() -> tuple[type, ...]:
    """All operations, and the descriptor classes that they are made of."""
    modules = [import_module(f"{ops.__name__}.{found.name}") for found in iter_modules(ops.__path__)]
    return tuple(
        cls
        for module in modules
        for cls in vars(module).values()
        if is_dataclass(cls) and isinstance(cls, type) and cls.__module__ == module.__name__
        if hasattr(cls, "descriptor_type")
    )


@cache
def operations() -> tuple[type, ...]:
    """The operations that graphs hold."""
    return tuple(cls for cls in declared() if hasattr(cls, "reference"))


@cache
def compounds() -> tuple[type, ...]:
    """Operations that stand for several others (``graph.expansion``), which graphs hold in their place."""
    return tuple(cls for cls in declared() if cls in descriptors() and cls not in operations() and _has_output(cls))


@cache
def forms(declaration: type) -> tuple[type, ...]:
    """The classes that stand for descriptors of ``declaration`` whose values they fit (``fits``)."""
    return tuple(cls for cls in declared() if getattr(cls, "form_of", None) is declaration)


@cache
def descriptors() -> tuple[type, ...]:
    """The operations that the backend has descriptors of, compound ones included."""
    return tuple(cls for cls in declared() if cls.descriptor_type is not None)  # type: ignore[attr-defined]


def enums() -> Iterator[type[Enum]]:
    """The enums that attributes and other fields take."""
    taken = {kind for cls in declared() for item in declared_in(cls) for kind in item.types}
    elements = [ELEMENT_TYPES[kind] for kind in sorted(taken & ELEMENT_TYPES.keys())]
    hints = [hint for cls in declared() for hint in get_type_hints(cls).values() if isinstance(hint, type)]
    yield from dict.fromkeys(found for found in (*elements, *hints) if issubclass(found, Enum))


def _has_output(cls: type) -> bool:
    return any(item.role == "output" for item in declared_in(cls))
