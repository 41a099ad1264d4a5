"""The pages of the guide by topic.

A topic is a page's path below this folder without its ending: ``concepts``, ``failures/f4_hang``,
``recipes/attention``. A page is Markdown; that of a recipe is the program itself.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from lowdnn.status import BadParamError

_FOLDER = Path(__file__).parent
_RECIPES = "recipes"
#: The folders of pages, in the order of the list.
_FOLDERS = ("production", "failures", "runbooks", _RECIPES, "reference")


@dataclass(frozen=True)
class Page:
    """title: its heading, or the first line of a recipe's docstring.  text: the whole file."""

    topic: str
    title: str
    text: str


def topics() -> tuple[str, ...]:
    """Every topic: pages of the folder itself, then those of the folders in it."""
    return (*_stems(_FOLDER, "*.md"), *(f"{name}/{stem}" for name in _FOLDERS for stem in _in_folder(name)))


def page(topic: str) -> Page:
    """The page of a topic. Raises BadParamError, with the topics that are spelt alike, where there is none."""
    known = topics()
    if topic not in known:
        # The last part of a topic suffices where it is the only one of its name.
        named = [each for each in known if each.rpartition("/")[2] == topic]
        if len(named) != 1:
            alike = get_close_matches(topic, known, n=3) or known
            raise BadParamError.at("guide.topic", expected=f"one of {', '.join(alike)}", got=repr(topic))
        (topic,) = named
    if topic.startswith(f"{_RECIPES}/"):
        text = (_FOLDER / f"{topic}.py").read_text(encoding="utf-8")
        title = (ast.get_docstring(ast.parse(text)) or topic).partition("\n")[0]
    else:
        text = (_FOLDER / f"{topic}.md").read_text(encoding="utf-8")
        title = text.partition("\n")[0].lstrip("# ")
    return Page(topic, title, text)


def _in_folder(name: str) -> list[str]:
    return _stems(_FOLDER / name, "*.py" if name == _RECIPES else "*.md")


def _stems(folder: Path, pattern: str) -> list[str]:
    return sorted(path.stem for path in folder.glob(pattern) if not path.stem.startswith("_"))
