"""Random arguments: values that fit an annotation, and values that fit nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

import lowdnn.frontend as cudnn
from lowdnn import enums

#: Frontend enums by name, as annotations name them.
_ENUMS = {name: value for name, value in vars(cudnn).items() if isinstance(value, type) and issubclass(value, Enum)}
_NAMES = ("", "x", "y", "bias", "a\u2028b", "n\x1b[2J", "x" * 300, "größe", "%s", "{}")
_INTEGERS = (0, 1, 2, 3, 4, 5, 8, 16, 128, -1, -2, 2**31, 2**63 - 1, 2**63, -(2**63), 2**70)
_FLOATS = (0.0, 1.0, 0.5, 1e-5, -2.0, 1e300, 1e-320, float("nan"), float("inf"), -float("inf"))


class Values:
    """Draws of values."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw

    def garbage(self) -> Any:
        """Something of any type."""
        return self._draw.choice(_GARBAGE)(self._draw)

    def integer(self) -> int:
        return self._draw.choice(_INTEGERS[: self._draw.choice((6, 9, len(_INTEGERS)))])

    def number(self) -> float:
        return self._draw.choice(_FLOATS[: self._draw.choice((4, len(_FLOATS)))])

    def name(self) -> str:
        return self._draw.choice(_NAMES)

    def sequence(self, length: int | None = None) -> list[int]:
        count = self._draw.randint(0, 5) if length is None else length
        return [self.integer() for _ in range(count)]

    def permutation(self) -> list[int]:
        return self._draw.sample(range(4), self._draw.randint(1, 4))

    def dims(self) -> tuple[int, ...]:
        shapes = ((4, 8), (2, 4, 4), (2, 3, 4, 4), (1, 3, 1, 1), (1, 1, 1, 1), (1,), (8,), (2, 4, 0), (1, 4, 8))
        return self._draw.choice(shapes)

    def data_type(self) -> Any:
        return self._draw.choice(
            (
                *(cudnn.data_type.FLOAT,) * 6,
                *(cudnn.data_type.HALF, cudnn.data_type.NOT_SET),
                self._draw.choice(list(cudnn.data_type)),
                self._draw.choice(list(enums.DataType)),
                self._draw.choice(("float32", "bfloat16", np.int32, np.dtype("float16"), "nothing")),
            )
        )

    def argument(self, annotation: str, others: dict[str, Callable[[], Any]]) -> Any:
        """A value for an annotation, given as its text; ``others`` make values of classes that are not known here."""
        if self._draw.random() < 0.04:
            return self.garbage()
        option = self._draw.choice([part.strip() for part in annotation.split(" | ")])
        if option in others:
            return others[option]()
        found = re.fullmatch(r"Sequence\[(.+)\]", option)
        if found:
            return [self.argument(found[1], others) for _ in range(self._draw.randint(0, 4))]
        if option in _ENUMS:
            return self._draw.choice(list(_ENUMS[option]))
        return self._plain(option)

    def _plain(self, option: str) -> Any:
        match option:
            case "None":
                return None
            case "bool":
                return self._draw.choice((True, False))
            case "int":
                return self.integer()
            case "float":
                return self.number()
            case "str":
                return self.name()
            case "DataTypeLike":
                return self.data_type()
            case "builtins.slice":
                return slice(*self._draw.choices((None, 0, 1, 2, -1, 9), k=self._draw.randint(1, 3)))
            case "ScalarType":
                return self._draw.choice(list(cudnn.scalar_type))
            case "Mapping[knob_type, int]":
                return {
                    self._draw.choice(list(cudnn.knob_type)): self.integer() for _ in range(self._draw.randint(0, 2))
                }
            case "KernelCache":
                return cudnn.create_kernel_cache()
            case "CudaGraphRetention":
                return self._draw.choice(list(cudnn.cuda_graph_retention))
            case "Mapping[str, Sequence[int]]":
                return {self._draw.choice(("Y", "out_0", "mean", "dx")): self.dims()}
            case "Any" | "object":
                return self.garbage()
            case _:
                raise ValueError(f"no values are drawn for the annotation {option!r}")

    def one_of(self, choices: Sequence[Any]) -> Any:
        return self._draw.choice(choices) if choices else self.garbage()


_GARBAGE: tuple[Callable[[Random], Any], ...] = (
    lambda draw: None,
    lambda draw: draw.choice((True, False)),
    lambda draw: draw.choice(_INTEGERS),
    lambda draw: draw.choice(_FLOATS),
    lambda draw: draw.choice(_NAMES),
    lambda draw: draw.choice((b"", b"\x00\xff")),
    lambda draw: [draw.choice(_INTEGERS) for _ in range(draw.randint(0, 9))],
    lambda draw: draw.choice(((), {}, set(), {"a": 1}, [None], [[1]], ("x", 1), range(3))),
    lambda draw: object(),
    lambda draw: np.float32(draw.choice(_FLOATS[:4])),
    lambda draw: np.int64(draw.randint(-3, 9)),
    lambda draw: np.zeros(draw.randint(0, 3), draw.choice((np.float32, np.int64, np.complex64, "U3", object))),
    lambda draw: draw.choice((Fraction(1, 3), 1j, 1e-5, slice(1), Ellipsis, int, len)),
    lambda draw: draw.choice(list(draw.choice((enums.DataType, enums.AttributeName, enums.DescriptorType)))),
    lambda draw: draw.choice(list(draw.choice((cudnn.data_type, cudnn.heur_mode, enums.HeurMode)))),
    lambda draw: cudnn.pygraph().tensor([2, 3]),
    lambda draw: lambda *arguments: arguments,
)
