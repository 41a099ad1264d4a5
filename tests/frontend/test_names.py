"""Names with control characters and line separators: messages, explanations and log lines stay one line each."""

from __future__ import annotations

import logging
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.events import event_line
from lowdnn.frontend.python_graph import pygraph
from lowdnn.one_line import one_line
from lowdnn.status import BadParamError, LowdnnError

FLOAT = cudnn.data_type.FLOAT
#: Controls, formats (they turn the direction of text), separators of lines and paragraphs, lone surrogates.
BREAKING = [
    char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")
]
BREAKING += ["\ud800", "\xa0"]


@pytest.mark.parametrize("start", range(0, len(BREAKING), 64))
def test_every_such_character_is_escaped(start: int) -> None:
    for char in BREAKING[start : start + 64]:
        name = f"a{char}b"
        assert one_line(name).isprintable()
        assert one_line(name).encode("ascii").decode("unicode_escape") == name
        for line in (
            event_line("event", {"name": name, "quoted": f'{name}"\\ ='}),
            str(BadParamError.at(name, expected=name, got=name, hint=name)).replace("\n", ""),
        ):
            assert line.isprintable()


def test_other_characters_stay() -> None:
    assert one_line("größe 大 =\"'\\") == "größe 大 =\"'\\"
    assert one_line("a\nb\tc", keep="\n") == "a\nb\\tc"
    assert event_line("x", {"name": "größe"}) == "x name=größe"


def _wrong_calls(handle: Handle, name: str) -> Iterator[Callable[[], object]]:
    """Calls that fail, or whose text names tensors and graphs of this name."""
    graph = pygraph(name, FLOAT, FLOAT, FLOAT, handle)
    x, b = graph.tensor([8], name=name), graph.tensor([8], name=name + "b")
    y = graph.add(x, b, name=name + "add").set_output(True)
    array = lowdnn.from_numpy(np.zeros(8, np.float32), handle)
    yield lambda: graph.build()
    yield lambda: graph.execute({x: array, y: array})
    yield lambda: graph.execute({x: array, b: 4, y: array})
    yield lambda: graph.execute({x: array, b: 0, y: array})
    yield lambda: graph.execute({x: array, b: lowdnn.from_numpy(np.zeros(7, np.float32), handle), y: array})
    yield lambda: graph.execute({x: array, b: array, y: array, name + "?": array})
    yield lambda: graph.execute({name: array, name + "?": array, name + "b": array})
    yield lambda: graph.tensor([8, 8], [1], name=name)
    yield lambda: x.set_dim(name)  # type: ignore[arg-type]
    yield lambda: graph.execute({name: array, (name,): array})
    yield lambda: repr(x)
    bare = pygraph(name, handle=handle)
    bare.relu(bare.tensor([8], name=name), name=name)
    yield bare.validate
    mixed = pygraph(name, FLOAT, FLOAT, FLOAT, handle)
    mixed.matmul(mixed.tensor([1, 2, 3], name=name), mixed.tensor([1, 2, 3], name=name + "b")).set_output(True)
    yield mixed.validate
    yield lambda: handle.load(graph._prepared.plan).execute({1: 4}) if graph._prepared else None


@pytest.mark.parametrize("char", ["\r", "\n", "\x1b[31m", "\u2028", "\u2029", "\x85", "\x00", "\u202e", "\v", "\f"])
def test_names_do_not_break_messages_and_logs(handle: Handle, char: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "lowdnn")
    told = 0
    for call in _wrong_calls(handle, f"a{char}z"):
        try:
            found = str(call())
        except LowdnnError as error:
            found = str(error)
            told += 1
        assert found.isprintable(), repr(found)
    assert told >= 8
    assert caplog.messages
    assert all(message.isprintable() for message in caplog.messages), caplog.messages


def test_explanations_have_one_line_for_each_reason(handle: Handle) -> None:
    graph = pygraph("g\u2028\x1b", FLOAT, FLOAT, FLOAT, handle)
    graph.relu(graph.tensor([8], name="x\r\n\u2028")).set_output(True).set_name("y\x1b[2J")
    with suppress(LowdnnError):
        graph.build()
    plans = graph._plans
    assert plans is not None
    assert all(line.isprintable() for line in str(plans.explanation()).split("\n"))
