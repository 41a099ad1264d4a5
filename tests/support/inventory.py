"""Descriptor types and attributes of cuDNN 9.28: the rows of ``tests/backend/attributes.txt``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lowdnn.enums import DescriptorType

_FILE = Path(__file__).parents[1] / "backend" / "attributes.txt"


@dataclass(frozen=True)
class Row:
    """One attribute as the file has it."""

    descriptor: DescriptorType
    number: int
    name: str
    types: tuple[str, ...]
    count: str
    access: str


def rows() -> tuple[Row, ...]:
    return tuple(_rows())


def _rows() -> Iterator[Row]:
    descriptor = DescriptorType.POINTWISE
    for line in _FILE.read_text().splitlines():
        if line.startswith("#"):
            continue
        fields = line.split()
        if not line.startswith(" "):
            descriptor = DescriptorType(int(fields[0]))
            assert descriptor.name == fields[1]
            continue
        number, name, types, count, access = fields
        yield Row(descriptor, int(number), name, () if types == "?" else tuple(types.split("/")), count, access)
