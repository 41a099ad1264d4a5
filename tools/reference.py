"""Writes the reference of public names from their docstrings: ``python tools/reference.py [--check]``.

One page for each public module, one for pygraph's methods, and one for the names that are refused or ignored
(``tools/refused.py``), in ``lowdnn/guide/reference/``. With ``--check`` nothing is written, and the exit code is 1
where a page is not what the code gives.
"""

from __future__ import annotations

import argparse
import enum
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

FOLDER = Path("lowdnn", "guide", "reference")
#: The most characters of a signature on one line.
_LINE = 110
#: Parameters that are not shown: every method of pygraph that adds an operation has ``out_dims``.
_LEFT_OUT = ("self", "cls", "out_dims")


@dataclass(frozen=True)
class Subject:
    """The subject of a page. name: the page's.  place: the module, or the class, whose public names it has."""

    name: str
    place: str


SUBJECTS = (
    Subject("lowdnn", "lowdnn"),
    Subject("frontend", "lowdnn.frontend"),
    Subject("pygraph", "lowdnn.frontend:pygraph"),
    Subject("backend", "lowdnn.backend"),
    Subject("adv", "lowdnn.adv"),
    Subject("capi", "lowdnn.capi"),
    Subject("distributed", "lowdnn.distributed"),
    Subject("driver", "lowdnn.driver"),
    Subject("status", "lowdnn.status"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is out of date")
    is_check = parser.parse_args().check
    pages = {f"{subject.name}.md": page(subject) for subject in SUBJECTS} | {
        "refused.md": import_module("tools.refused").page()
    }
    folder = ROOT / FOLDER
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    stale = sorted(name for name in pages.keys() | found.keys() if pages.get(name) != found.get(name))
    if is_check:
        for name in stale:
            print(f"{(FOLDER / name).as_posix()}: expected what the code gives; run python tools/reference.py")
        return 1 if stale else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in stale:
        if name in pages:
            (folder / name).write_text(pages[name], encoding="utf-8")
        else:
            (folder / name).unlink()
    print(f"{FOLDER.as_posix()}: {len(pages)} pages, {len(stale)} changed")
    return 0


def page(subject: Subject) -> str:
    """The Markdown of one page."""
    thing = _thing(subject)
    if inspect.isclass(thing):
        lines = [f"# {subject.place.replace(':', '.')}", *_class(thing, thing.__name__)]
    else:
        lines = [f"# {subject.place}", "", inspect.getdoc(thing) or ""]
        for name in sorted(_public(thing), key=lambda name: (name.lower(), name)):
            lines += _entry(name, getattr(thing, name), subject)
    return "\n".join(lines).rstrip() + "\n"


def _thing(subject: Subject) -> Any:
    module, _, attribute = subject.place.partition(":")
    thing = import_module(module)
    return getattr(thing, attribute) if attribute else thing


def _public(module: Any) -> list[str]:
    """The names in ``__all__``, or the classes and functions that the module defines."""
    if hasattr(module, "__all__"):
        return [*module.__all__]
    defined = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    return [name for name, value in defined.items() if value.__module__ == module.__name__]


def _entry(name: str, value: Any, subject: Subject) -> Iterator[str]:
    """A heading, the signature and the docstring of one name, and for a class its public methods."""
    yield from ("", f"## {name}", "")
    home = _home(value)
    if home not in (None, subject.name):
        yield f"See `reference/{home}`."
    elif inspect.isclass(value) and issubclass(value, enum.Enum):
        yield from (value.__doc__ or "", "", *(f"- `{member.name}`" for member in value))
    elif inspect.isclass(value):
        yield from _class(value, name)
    elif callable(value):
        yield from (*_code(name, value), "", inspect.getdoc(value) or "")
    else:
        yield f"{type(value).__name__}: {value!r}."


def _home(value: Any) -> str | None:
    """The page of a class or function that several modules export: that of its module, or the first that exports it."""
    if not callable(value):
        return None
    for subject in sorted(SUBJECTS, key=lambda subject: ":" not in subject.place):
        thing = _thing(subject)
        if thing is value or (
            not inspect.isclass(thing) and any(getattr(thing, name) is value for name in _public(thing))
        ):
            return subject.name
    return None


def _class(kind: type, name: str) -> Iterator[str]:
    yield from (*_code(name, kind), "", _own_doc(kind))
    for attribute in sorted(each for each in dir(kind) if not each.startswith("_")):
        static = inspect.getattr_static(kind, attribute)
        function = getattr(static, "__func__", None) or getattr(static, "fget", None) or static
        doc = inspect.getdoc(function) if inspect.isroutine(function) else None
        if doc and getattr(function, "__module__", "").startswith("lowdnn"):
            code = [f"    {attribute}"] if isinstance(static, property) else _code(attribute, function)
            yield from ("", f"### {name}.{attribute}", "", *code, "", doc)


def _own_doc(kind: type) -> str:
    """The class's docstring, or its module's where it refers to that."""
    if kind.__doc__ == "See the module's docstring.":
        return inspect.getdoc(sys.modules[kind.__module__]) or ""
    return inspect.getdoc(kind) or ""


def _code(name: str, value: Any) -> list[str]:
    """The signature as an indented block, a parameter a line where it is long."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return [f"    {name}"]
    parameters = [*_parameters(signature)]
    returned = signature.return_annotation
    ending = "" if inspect.isclass(value) or returned is inspect.Signature.empty else f" -> {_annotation(returned)}"
    line = f"{name}({', '.join(parameters)}){ending}"
    if len(line) <= _LINE:
        return [f"    {line}"]
    return [f"    {name}(", *(f"        {parameter}," for parameter in parameters), f"    ){ending}"]


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    is_after_star = False
    for parameter in signature.parameters.values():
        if parameter.name in _LEFT_OUT:
            continue
        is_after_star |= parameter.kind is inspect.Parameter.VAR_POSITIONAL
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not is_after_star:
            is_after_star = True
            yield "*"
        text = stars.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not inspect.Parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not inspect.Parameter.empty:
            text += f" = {_default(parameter.default)}"
        yield text


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return type(value).__name__ + "()" if " object at 0x" in repr(value) else repr(value)


if __name__ == "__main__":
    sys.exit(main())
