"""Every topic of the guide has a page with a title, and ``lowdnn guide`` prints them."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from lowdnn import config
from lowdnn.cli.main import main
from lowdnn.engines.registry import ENGINES
from lowdnn.guide import pages
from lowdnn.guide.pages import page, topics
from lowdnn.status import BadParamError

_README = Path(__file__).resolve().parents[2] / "README.md"
#: Markdown that speaks of lowdnn as it is; the changelog names what has gone, too.
_DOCUMENTS = [
    path
    for path in (*_README.parent.glob("*.md"), *Path(pages.__file__).parent.rglob("*.md"))
    if path.name != "CHANGELOG.md"
]
#: The modules that documents name by these words.
_HOMES = {"pygraph": "lowdnn.frontend.pygraph", "capi": "lowdnn.capi", "cudnn": "lowdnn.frontend"}
_CONCEPTS = Path(pages.__file__).parent / "concepts.md"


@pytest.mark.parametrize("topic", topics())
def test_page_has_a_title(topic: str) -> None:
    found = page(topic)
    assert found.topic == topic
    assert 3 <= len(found.title) <= 120
    assert found.title in found.text


def test_coverage_names_every_engine() -> None:
    text = page("coverage").text
    assert [engine.name for engine in ENGINES if f"`{engine.name}`" not in text] == []


def test_configuration_names_every_variable() -> None:
    source = Path(config.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r"\| (LOWDNN_\w+) \|", page("configuration").text)) == set(
        re.findall(r'"(LOWDNN_\w+)"', source)
    )


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: path.stem)
def test_names_are_there(document: Path) -> None:
    """Each name of lowdnn in backquotes is one: ``lowdnn.empty``, ``pygraph.run``, ``capi.load``, ``cudnn.Graph``."""
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = set(re.findall(r"`((?:lowdnn|pygraph|capi|cudnn)(?:\.[A-Za-z]\w*)+)[`(]", text))
    assert [name for name in sorted(named) if not _is_there(name)] == []


def test_readme_is_short() -> None:
    lines = _README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    cells = [cell.strip() for line in lines if line.startswith("|") for cell in line.split("|")]
    assert max(map(len, cells)) <= 120


@pytest.mark.parametrize("source", [_README, _CONCEPTS], ids=["README", "concepts"])
def test_program_runs(source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The Python of a page, one block behind the other, is a program."""
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated")
    program = "\n".join(re.findall(r"```python\n(.*?)```", source.read_text(encoding="utf-8"), re.DOTALL))
    exec(compile(program, str(source), "exec"), {"__name__": "__main__"})
    assert "[[[" in capsys.readouterr().out


def test_command_lists_every_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guide"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(topics())


def test_command_prints_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guide", "convolution_gradients"]) == 0
    assert capsys.readouterr().out == page("recipes/convolution_gradients").text


def test_unknown_topic_names_those_that_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        BadParamError, match=r"expected one of .*recipes/convolution_gradients.*got 'recipes/convolution'"
    ):
        page("recipes/convolution")
    assert main(["guide", "nothing of the kind"]) == 2
    assert "guide.topic: expected one of" in capsys.readouterr().err


def _is_there(name: str) -> bool:
    first, _, rest = name.partition(".")
    parts = f"{_HOMES.get(first, first)}.{rest}".split(".")
    found: object = import_module(parts[0])
    for number, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            try:
                import_module(".".join(parts[:number]))
            except ModuleNotFoundError as error:
                # Another module is missing: the package of an extra is not installed.
                return error.name != ".".join(parts[:number])
        found = getattr(found, part)
    return True
