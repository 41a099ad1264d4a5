"""Checks the rules of a ``KernelRef`` before any part of it reaches a compiler.

Names, paths and macros have narrow forms. Generated text holds the directives that ``codegen`` writes, each on a line
of its own, and no character that could make another one: a preprocessor opens any path that a directive names.
"""

from __future__ import annotations

import re

from lowdnn.documents import INTEGERS, shown
from lowdnn.plan import KernelRef
from lowdnn.status import BadParamError

#: The most characters of a name and of a macro's value.
MAX_NAME = 256
#: The most characters of generated text.
MAX_GENERATED = 1 << 20

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SOURCE = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*\.cu")
_TARGET = re.compile(r"sm_[0-9]{2,3}[af]?")
_MACRO = re.compile(r"[A-Z][A-Z0-9_]*")
#: An identifier, a number, or a template with such arguments.
_WORD = re.compile(r"-?[A-Za-z0-9_.]+(<[A-Za-z0-9_.]+(,[A-Za-z0-9_.]+)*>)?")
#: The directives that generated text may have.
_DIRECTIVE = re.compile(r'#pragma once|#pragma unroll|#include "include/[a-z0-9_]+\.cuh"')
#: Text that other lines of generated code must not hold: any spelling of the start of a directive, continued lines,
#: quotes, and characters other than printable ASCII.
_FOREIGN = re.compile(r'#|%:|\?\?|\\|"|_Pragma|__has_|[^ -~]')


def check_kernel(kernel: KernelRef) -> None:
    """Raises BadParamError, naming the field, for a reference that breaks a rule."""
    _check_form(kernel.name, _NAME, "name", "a C identifier")
    _check_form(kernel.source, _SOURCE, "source", "a path of a .cu file below lowdnn/engines")
    _check_form(kernel.target, _TARGET, "target", "sm_<capability>")
    for name, value in kernel.parameters:
        _check_form(name, _MACRO, "parameters", "names in capitals")
        if not isinstance(value, int):
            _check_form(value, _WORD, f"parameters.{name}", "an integer, an identifier or a template's name")
        elif int(value) not in INTEGERS:
            raise BadParamError.at(f"KernelRef.parameters.{name}", expected="64 bits", got=shown(value))
    _check_generated(kernel.generated)


def _check_form(text: object, form: re.Pattern[str], field: str, expected: str) -> None:
    if not isinstance(text, str) or len(text) > MAX_NAME or not form.fullmatch(text):
        raise BadParamError.at(f"KernelRef.{field}", expected=expected, got=shown(text))


def _check_generated(text: object) -> None:
    if not isinstance(text, str) or len(text) > MAX_GENERATED:
        raise BadParamError.at("KernelRef.generated", expected=f"at most {MAX_GENERATED} characters", got=shown(text))
    for number, line in enumerate(text.split("\n"), 1):
        if _FOREIGN.search(line) and not _DIRECTIVE.fullmatch(line):
            raise BadParamError.at(
                f"KernelRef.generated: line {number}",
                expected="C++ in ASCII, without directives but those that codegen writes",
                got=shown(line),
            )
