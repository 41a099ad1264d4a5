"""What belongs to one process and exists once there: it is neither pickled nor copied."""

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
            got=f"a {name}, which owns what is of one device in one process",
            hint="send plans, graphs or arrays, and make it anew from them",
        )
