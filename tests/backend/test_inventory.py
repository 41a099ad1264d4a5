"""Every descriptor type and attribute of cuDNN 9.28 is there, with its number, its types, its count and its access."""

from __future__ import annotations

import pytest

from lowdnn.backend import create
from lowdnn.backend.catalogue import declarations
from lowdnn.backend.inert import inert_of
from lowdnn.backend.read_only import read_only_of
from lowdnn.backend.uncomputed import uncomputed_attributes
from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.schema import attributes_of
from tests.support.inventory import Row, rows

ROWS = rows()


def test_every_descriptor_type_can_be_created() -> None:
    named = {row.descriptor for row in ROWS}
    assert named == set(DescriptorType) == set(declarations())
    assert len(named) == 51
    for descriptor_type in DescriptorType:
        assert create(descriptor_type).type is descriptor_type


def test_every_attribute_has_its_number() -> None:
    assert {row.name: row.number for row in ROWS} == {member.name: member.value for member in AttributeName}
    assert len(ROWS) == 383


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_attribute_is_a_descriptors_own(row: Row) -> None:
    name, declaration = AttributeName[row.name], declarations()[row.descriptor]
    settable = {**attributes_of(declaration), **uncomputed_attributes(row.descriptor)}
    computed, inert = read_only_of(declaration), inert_of(row.descriptor)
    assert name in settable or name in computed or name in inert
    if name in inert:
        types, most = (inert[name].type,), 1
    elif name in settable:
        types, most = settable[name].types, settable[name].max_count
    else:
        types, most = (computed[name].type,), 0
    assert {AttributeType[known] for known in row.types} <= set(types)
    if row.access == "get":
        assert name in computed
        assert name not in settable
    elif most:
        assert row.count == "-" or (most > 1) == (row.count == "n")
