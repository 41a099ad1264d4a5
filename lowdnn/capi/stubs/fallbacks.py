"""Answers of the library's functions where Python does not answer: versions are known even then."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from lowdnn.mirrored import CUDA_VERSION, MIRRORED_CUDNN_VERSION, version_number
from lowdnn.status import Status

#: cudnnGetMaxDeviceVersion: major * 100 + minor * 10 of the newest device.
MAX_DEVICE_VERSION: Final = 1210
#: Functions that the library always answers by itself, from numbers that are part of it.
ANSWERED_BY_STUBS: Final = frozenset({"cudnnGetVersion", "cudnnGetCudartVersion", "cudnnGetMaxDeviceVersion"})

_PROPERTIES = struct.pack("<3i", *MIRRORED_CUDNN_VERSION)
_TEXT = (
    b"CUDNN_STATUS_NOT_INITIALIZED lowdnn.capi: expected a loaded implementation, got none; call lowdnn.capi.load()\0"
)


class Action(Enum):
    RETURN_NUMBER = auto()
    """Returns ``value``."""
    RETURN_ADDRESS = auto()
    """Returns the address of the constant at offset ``value``."""
    COPY_TEXT = auto()
    """Copies the text at offset ``value`` to (char *argument 0), at most argument 1 bytes with the final zero."""
    WRITE_PROPERTY = auto()
    """Writes element argument 0 of the three integers at offset ``value`` to (int *argument 1); returns a status."""


@dataclass(frozen=True)
class Fallback:
    action: Action
    value: int


@dataclass(frozen=True)
class Fallbacks:
    """The machine code that answers calls without Python. single: code of individual functions, by name. others: the
    code of all other functions. constants: the texts that the code refers to.
    """

    single: Mapping[str, Fallback]
    others: Fallback
    constants: bytes

    def of(self, name: str) -> Fallback:
        return self.single.get(name, self.others)


#: The answers of libcudnn.so.9: a status from all functions but those of versions and texts.
CUDNN: Final = Fallbacks(
    {
        "cudnnGetVersion": Fallback(Action.RETURN_NUMBER, version_number()),
        "cudnnGetCudartVersion": Fallback(Action.RETURN_NUMBER, CUDA_VERSION),
        "cudnnGetMaxDeviceVersion": Fallback(Action.RETURN_NUMBER, MAX_DEVICE_VERSION),
        "cudnnGetProperty": Fallback(Action.WRITE_PROPERTY, 0),
        "cudnnGetErrorString": Fallback(Action.RETURN_ADDRESS, len(_PROPERTIES)),
        "cudnnGetLastErrorString": Fallback(Action.COPY_TEXT, len(_PROPERTIES)),
    },
    Fallback(Action.RETURN_NUMBER, Status.NOT_INITIALIZED),
    _PROPERTIES + _TEXT,
)
