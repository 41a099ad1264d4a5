"""PTX text -> ``ModuleIR``. Grammar: PTX ISA manual, sections 4 (syntax), 5 (state spaces and types), 11 (directives).

Scopes are flattened: a register, variable or label of an inner ``{ }`` gets a suffix, so that inline asm may repeat
names. The parser refuses, with the line, text that it does not know.
"""

from __future__ import annotations

import re

from lowdnn.driver.emulated.faults import unsupported
from lowdnn.driver.emulated.parsing.body import IGNORED_STATEMENTS, parse_body
from lowdnn.driver.emulated.parsing.declarations import SPACES, parameter_list, variables
from lowdnn.driver.emulated.parsing.ir import FunctionIR, ModuleIR
from lowdnn.driver.emulated.parsing.tokens import Tokens

_LINKAGE = frozenset({".visible", ".weak", ".extern", ".common"})
_TUNING = frozenset({
    ".maxntid", ".reqntid", ".minnctapersm", ".maxnreg", ".maxnctapersm", ".reqnctapercluster", ".explicitcluster",
    ".maxclusterrank", ".noreturn", ".blocksareclusters",
})  # fmt: skip


def parse_module(text: str) -> ModuleIR:
    """Parses a whole PTX text (a trailing NUL is allowed). Raises ``RefusedPtx``."""
    t = Tokens(text.rstrip("\0"))
    module = ModuleIR("", "", t.lines)
    while t.peek():
        _module_item(t, module)
    return module


def _module_item(t: Tokens, module: ModuleIR) -> None:
    while t.peek() in _LINKAGE:
        t.next()
    token, line = t.peek(), t.line
    if token == ".version":
        t.next()
        module.version = t.next()
    elif token == ".target":
        t.next()
        module.target = t.next()
        while t.accept(","):
            t.next()
    elif token == ".address_size":
        t.next()
        if t.integer() != 64:
            raise unsupported(".address_size other than 64", line)
    elif token in (".entry", ".func"):
        _function(t, module)
    elif token in SPACES:
        for variable in variables(t, suffix=""):
            module.variables[variable.name] = variable
    elif token in IGNORED_STATEMENTS:
        t.skip_statement()
    elif token == ".file":
        t.skip_line(line)
    elif token == ".section":
        t.skip_past("}")
    else:
        raise unsupported(f"directive {token!r}", line)


def _function(t: Tokens, module: ModuleIR) -> None:
    line = t.line
    is_entry = t.next() == ".entry"
    returns = parameter_list(t) if t.peek() == "(" else []
    function = FunctionIR(t.next(), is_entry, line, returns=returns)
    if t.peek() == "(":
        function.parameters = parameter_list(t)
    _directives(t, function)
    if t.accept(";"):
        return
    parse_body(t, function)
    module.functions[function.name] = function


def _directives(t: Tokens, function: FunctionIR) -> None:
    while t.peek() in _TUNING:
        name = t.next()[1:]
        values: list[int] = []
        while re.match(r"\d", t.peek()):
            values.append(t.integer())
            if not t.accept(","):
                break
        function.directives[name] = tuple(values)
