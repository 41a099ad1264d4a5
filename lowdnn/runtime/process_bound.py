"""A base of objects that belong to one process and must not be pickled or copied."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from lowdnn.status import AttributeTypeError


class ProcessBound:
    """Refuses ``pickle``, ``copy.copy`` and ``copy.deepcopy``: two owners of one handle would both give it back."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        name = type(self).__name__
        raise AttributeTypeError.at(
            name,
            expected="an object that may be copied or pickled",
            got=f"a {name}, which owns objects of one device in one process",
            hint="send plans, graphs or arrays, and make the object anew from them",
        )
