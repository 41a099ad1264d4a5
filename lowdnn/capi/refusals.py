"""The functions that exist and refuse, and why."""

from __future__ import annotations

import re
from typing import Final

from lowdnn.capi.errors import Call
from lowdnn.capi.state import State
from lowdnn.status import NotSupportedError

#: The purpose of functions, by a pattern of their names; the first match counts.
_FAMILIES: Final = {
    "CTCLoss": "connectionist temporal classification",
    "Attn|SeqData": "attention outside of graphs",
    "SpatialT": "spatial transformers",
    "Gnn": "graph neural networks",
    "Backdoor|Internal": "calls that no header declares",
}


def reason_of(name: str) -> str:
    """The purpose of a function that lowdnn does not have."""
    return next(family for pattern, family in _FAMILIES.items() if re.search(pattern, name))


def refused(name: str) -> Call:
    """The call behind a function that lowdnn does not implement: it raises NotSupportedError."""

    def refuse(_: State, *arguments: object) -> None:
        expected = "a function that lowdnn has"
        raise NotSupportedError.at(name, expected=expected, got=f"one for {reason_of(name)}")

    return refuse
