"""The lines of a functor, sorted by the part of the struct that holds them, and the header that they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lowdnn.plan import Argument, Scalar, ScalarType

#: The arguments that select the elements of a call.
_GROUP = "const Args& args, const Cursor& at, i64 column, int valid"
_STATIC = "  static __device__ __forceinline__"


@dataclass
class FunctorParts:
    """Lines in the order in which they are asked for.

    fields, arguments: members of ``Args`` and their values.  offsets: members of ``Cursor``, by name.
    handed: further parameters of ``finish``, each as its declaration and its name.
    before, body, after: ``finish`` before, inside and after the loop over elements.
    source: the address that ``address`` returns.
    """

    rank: int
    has_copies: bool
    headers: set[str] = field(default_factory=lambda: {"numeric", "pointwise", "vector"})
    types: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    arguments: list[Argument] = field(default_factory=list)
    offsets: dict[str, str] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    fetches: list[str] = field(default_factory=list)
    source: str = ""
    handed: list[tuple[str, str]] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    def add_field(self, c_type: str, name: str, argument: Argument) -> None:
        self.fields.append(f"{c_type} {name};")
        self.arguments.append(argument)

    def text(self, name: str) -> str:
        """The header of a struct of this name."""
        if not self.fields:
            self.add_field("i32", "unused", Scalar(ScalarType.I32, 0))
        headers = self.headers | ({"cp_async"} if self.has_copies else set())
        lines = [
            "#pragma once",
            "",
            *(f'#include "include/{header}.cuh"' for header in sorted(headers)),
            "",
            f"struct {name} {{",
            *self._declarations(),
            *self._cursor_method(),
            *_method("load", [f"{_GROUP}, Loaded<V>& in"], self.loads),
            "",
            *(self._copy_methods() if self.has_copies else ()),
            *self._finish_method(),
            "",
            *self._apply_method(),
            "};",
            "",
        ]
        return "\n".join(lines)

    def _declarations(self) -> Iterator[str]:
        yield f"  enum : int {{ RANK = {self.rank} }};"
        yield from _indented(self.types, 2)
        yield ""
        members = {
            "struct Args": self.fields,
            "struct Cursor": [f"i64 {name};" for name in self.offsets],
            "template <int V> struct Loaded": self.loaded,
        }
        for head, lines in members.items():
            yield f"  {head} {{"
            yield from _indented(lines, 4)
            yield from ("  };", "")

    def _cursor_method(self) -> Iterator[str]:
        yield f"{_STATIC} Cursor cursor(const Args& args, const i64 (&coordinate)[RANK]) {{"
        yield "    Cursor at;"
        yield from (f"    at.{name} = {value};" for name, value in self.offsets.items())
        yield from ("    return at;", "  }", "")

    def _copy_methods(self) -> Iterator[str]:
        yield from _method("copy", [f"{_GROUP}, Loaded<V>& copied"], self.copies)
        yield from ("", "  template <int V>")
        yield f"{_STATIC} void fetch(const Loaded<V>& copied, Loaded<V>& in) {{"
        yield from _indented(self.fetches, 4)
        yield from ("  }", "")
        if len(self.fetches) == 1:
            yield f"{_STATIC} const void* address(const Args& args, const Cursor& at, i64 column) {{"
            yield from (f"    return {self.source};", "  }", "")

    def _finish_method(self) -> Iterator[str]:
        loop = ["#pragma unroll", "for (int i = 0; i < V; ++i) {", *_indented(self.body, 2), "}"]
        parameters = [f"{_GROUP}, const Loaded<V>& in", *(declared for declared, _ in self.handed)]
        yield from _method("finish", parameters, [*self.before, *loop, *self.after])

    def _apply_method(self) -> Iterator[str]:
        passed = "".join(f", {name}" for _, name in self.handed)
        body = [
            "Loaded<V> in;",
            "load<V>(args, at, column, valid, in);",
            f"finish<V>(args, at, column, valid, in{passed});",
        ]
        yield from _method("apply", [_GROUP, *(declared for declared, _ in self.handed)], body)


def _method(name: str, parameters: Iterable[str], body: Iterable[str]) -> Iterator[str]:
    """A method for groups of V elements, its parameters one a line."""
    yield "  template <int V>"
    yield f"{_STATIC} void {name}("
    yield "      " + ",\n      ".join(parameters) + ") {"
    yield from _indented(body, 4)
    yield "  }"


def _indented(lines: Iterable[str], columns: int) -> list[str]:
    """The lines further right, except directives."""
    return [line if line.startswith("#") else " " * columns + line for line in lines]
