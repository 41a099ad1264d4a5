"""The keys of one execute: the tensor of the graph that each stands for, and the keys that are passed over."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lowdnn.backend.handle import Handle
from lowdnn.events import emit, event_logger
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.status import BadParamError, DuplicatedEntriesError

#: Types of keys that execute takes for tensors; None is passed over.
Key = Tensor | str | int | None


class Keys:
    """The keys of one execute: ``by_uid`` those of the graph's tensors in memory, ``passed_over`` the others.

    As in cudnn-frontend a key of None is passed over (an output that the operation did not make), and so are virtual
    tensors and those that the graph does not have.
    """

    def __init__(self, tensors: Mapping[int, Tensor], keys: Iterable[object]) -> None:
        """``tensors``: the graph's by uid.

        Raises BadParamError for a key that is no tensor, name or uid and for a name that several tensors have,
        DuplicatedEntriesError for a tensor that is given twice.
        """
        self._stored = {uid: tensor for uid, tensor in tensors.items() if not tensor.get_is_virtual()}
        self.by_uid: dict[int, object] = {}
        self.passed_over: list[object] = []
        for key in keys:
            uid = self._uid_of(key)
            if uid is None or uid not in self._stored:
                self.passed_over.append(key)
            elif uid in self.by_uid:
                raise DuplicatedEntriesError.at("execute.tensor_dict", expected="each tensor once", got=repr(key))
            else:
                self.by_uid[uid] = key

    @property
    def unknown(self) -> list[object]:
        """The keys that are passed over, except None."""
        return [key for key in self.passed_over if key is not None]

    def explain_unknown(self) -> str:
        """A hint for the message about a missing tensor: the keys that are no tensors of the graph."""
        if not self.unknown:
            return ""
        names = ", ".join(repr(tensor.get_name()) for tensor in self._stored.values() if tensor.get_name())
        return f"the graph has no {_listed(self.unknown)}, and the names {names or 'of none'}"

    def report(self, graph: str, handle: Handle) -> None:
        """Counts the keys that are passed over, with an event; it is a warning where any of them is not None."""
        if not self.passed_over:
            return
        handle.runtime.counters.add("keys_passed_over", len(self.passed_over))
        level = logging.WARNING if self.unknown else logging.DEBUG
        fields = {"plan": graph, "count": len(self.passed_over), "unknown": _listed(self.unknown)}
        emit(event_logger("frontend"), level, "keys_passed_over", fields)

    def _uid_of(self, key: object) -> int | None:
        if key is None:
            return None
        if isinstance(key, Tensor):
            return key.get_uid()
        if isinstance(key, str):
            return self._uid_of_name(key)
        if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
            return int(key)
        raise BadParamError.at("execute.tensor_dict", expected="a tensor, a name or a uid as key", got=repr(key))

    def _uid_of_name(self, name: str) -> int | None:
        named = [uid for uid, tensor in self._stored.items() if tensor.get_name() == name]
        if len(named) > 1:
            raise BadParamError.at(
                "execute.tensor_dict", expected="the name of one tensor", got=f"{name!r}, which {len(named)} have"
            )
        return named[0] if named else None


def _listed(keys: Sequence[object]) -> str:
    return ", ".join(key.label if isinstance(key, Tensor) else repr(key) for key in keys)
