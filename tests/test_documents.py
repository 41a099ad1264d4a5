from __future__ import annotations

import json
from typing import Any

import pytest

from lowdnn.documents import MAX_BYTES, MAX_DEPTH, MAX_ITEMS, check_name, read_document, shown, write_document
from lowdnn.status import BadParamError, SerializationVersionMismatchError
from tests.support.errors import raises

FIELDS = {"body": list}


def read(text: object) -> Any:
    return read_document(text, "kind", 3, FIELDS, "file")["body"]


def body(content: str) -> str:
    return f'{{"kind":3,"body":{content}}}'


def nested(levels: int) -> str:
    return body("[" * levels + "]" * levels)


def test_documents_are_read_as_they_were_written() -> None:
    assert write_document("kind", 3, {"body": [1]}) == '{"kind":3,"body":[1]}'
    content = [1, -(2**63), 2**64 - 1, 0.1, 1e308, "\ud7ff \n", None, True, {"a": [[]]}]
    text = write_document("kind", 3, {"body": content})
    for form in (text, text.encode(), bytearray(text.encode()), memoryview(text.encode())):
        assert read(form) == content


def test_other_versions_and_kinds() -> None:
    for text in ('{"kind":4,"body":[]}', '{"body":[]}', '{"kind":true,"body":[]}', '{"kind":3.0,"body":[]}', "{}"):
        with raises(SerializationVersionMismatchError, "file.kind", expected="3"):
            read(text)


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("", "file", "a JSON document"),
        ("{", "file", "a JSON document"),
        ("[]", "file", "an object"),
        ("null", "file", "an object"),
        (7, "file", "text or bytes"),
        (None, "file", "text or bytes"),
        (b"\xff\xfe", "file", "UTF-8"),
        (body("[]").encode("utf-16"), "file", "UTF-8"),
        ("\ufeff" + body("[]"), "file", "a JSON document"),
        (body("{}"), "file.body", "list"),
        ('{"kind":3}', "file", "the fields body"),
        ('{"kind":3,"body":[],"more":1}', "file", "the fields body"),
        (body('[{"a":1,"b":2,"a":1}]'), "file.body[0]", "each key once"),
        ('{"kind":3,"kind":3,"body":[]}', "file", "each key once"),
        (body("[0,1e999]"), "file.body[1]", "a finite number"),
        (body("[-1e999]"), "file.body[0]", "a finite number"),
        (body("[NaN]"), "file.body[0]", "a finite number"),
        (body('[{"a b":Infinity}]'), "file.body[0]['a b']", "a finite number"),
        (body("[18446744073709551616]"), "file.body[0]", "an integer of 64 bits"),
        (body("[-9223372036854775809]"), "file.body[0]", "an integer of 64 bits"),
        (body("[" + "9" * 5000 + "]"), "file.body[0]", "an integer of 64 bits"),
        (body("[" + "9" * 5000 + ".5e9]"), "file.body[0]", "a finite number"),
        (nested(MAX_DEPTH), "file.body" + "[0]" * (MAX_DEPTH - 1), f"at most {MAX_DEPTH} levels"),
        (nested(100_000), "file", f"at most {MAX_DEPTH} levels"),
        ("[" * 100_000, "file", ""),
        (" " * (MAX_BYTES + 1), "file", f"at most {MAX_BYTES} bytes"),
        (b" " * (MAX_BYTES + 1), "file", f"at most {MAX_BYTES} bytes"),
        ("[" + "0," * MAX_ITEMS + "0]", "file", f"at most {MAX_ITEMS} items"),
    ],
    ids=lambda value: shown(value, 30),
)
def test_text_from_outside_has_limits(text: object, where: str, expected: str) -> None:
    with raises(BadParamError, where, expected=expected):
        read(text)


@pytest.mark.parametrize(("wanted", "content"), [(int, "true"), (int, "1.0"), (dict, "[]"), (str, "1")])
def test_fields_have_the_very_type(wanted: type, content: str) -> None:
    with raises(BadParamError, "file.body", expected=wanted.__name__):
        read_document(body(content), "kind", 3, {"body": wanted}, "file")


def test_the_deepest_document_is_read() -> None:
    assert json.dumps(read(nested(MAX_DEPTH - 1))) == nested(MAX_DEPTH - 1)[len('{"kind":3,"body":') : -1].replace(
        " ", ""
    )


def test_many_keys_and_one_twice_take_no_time() -> None:
    keys = ",".join(f'"{key}":0' for key in range(200_000))
    with raises(BadParamError, "file.body[0]", expected="each key once", got="'199999' again"):
        read(body(f'[{{{keys},"199999":0}}]'))


def test_nothing_is_written_that_cannot_be_read() -> None:
    content: list[Any] = []
    for _ in range(MAX_DEPTH):
        content = [content]
    with pytest.raises(BadParamError, match="levels"):
        write_document("kind", 3, {"body": content})


def test_names() -> None:
    check_name("conv1::Y, naïve 名前", "name")
    for name in ("a\nb", "a\rb", "\x1b[31m", "\x7f", "\x85", "\u2029", "\udcff", "\0", "x" * 1025):
        with raises(BadParamError, "name", expected="without control characters"):
            check_name(name, "name")


def test_values_are_shown_shortly() -> None:
    assert shown("x" * 1_000_000, 10) == "'xxxxxxxxx..."
    assert len(shown([[0] * 1_000_000])) < 100
    assert len(shown({str(key): key for key in range(1000)})) < 100
