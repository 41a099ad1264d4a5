"""PTX text as tokens with their lines; literals."""

from __future__ import annotations

import re
import struct
from functools import lru_cache

from lowdnn.driver.emulated.faults import invalid
from lowdnn.driver.emulated.parsing.ir import Imm

_TOKEN = re.compile(
    r'"[^"]*"|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+\.\d*(?:[eE][+-]?\d+)?|\d+U?'
    r"|[A-Za-z_$%.][\w$%.]*(?:::[\w$%.]+)*|\S"
)
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_PLACE = "\t.loc\t"
_IMPLICIT = re.compile(r"//\s*implicit-def:\s*(%[\w$]+)")


class Tokens:
    """The tokens of a text, read from front to back. Comments are gone; ``implicit-def`` becomes a statement."""

    def __init__(self, text: str) -> None:
        text = _BLOCK_COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)
        self.lines = text.split("\n")
        self.tokens: list[str] = []
        self.token_lines: list[int] = []
        for number, line in enumerate(self.lines, 1):
            # Lines with source locations are skipped, since half of a kernel's lines may be such.
            if not line.startswith(_PLACE):
                self._tokenise(line, number)
        self.tokens.append("")
        self.token_lines.append(len(self.lines))
        self.at = 0

    def _tokenise(self, line: str, number: int) -> None:
        code, slashes, comment = line.partition("//")
        if slashes:
            implicit = _IMPLICIT.match(slashes + comment)
            if implicit:
                code += f" implicit.def {implicit.group(1)};"
        found = _TOKEN.findall(code)
        self.tokens += found
        self.token_lines += [number] * len(found)

    @property
    def line(self) -> int:
        """The line of the next token."""
        return self.token_lines[self.at]

    def peek(self) -> str:
        """The next token; empty at the end."""
        return self.tokens[self.at]

    def next(self) -> str:
        token = self.tokens[self.at]
        if not token:
            raise invalid("unexpected end of the PTX text", self.line)
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.tokens[self.at] == token:
            self.at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        found = self.next()
        if found != token:
            raise invalid(f"expected {token!r}, got {found!r}", self.token_lines[self.at - 1])

    def integer(self) -> int:
        negative = self.accept("-")
        token = self.next()
        try:
            value = int(token.rstrip("U"), 0)
        except ValueError:
            raise invalid(f"expected an integer, got {token!r}", self.token_lines[self.at - 1]) from None
        return -value if negative else value

    def end_of_statement(self) -> int:
        """Where the next ``;`` stands."""
        try:
            return self.tokens.index(";", self.at)
        except ValueError:
            raise invalid("a statement without ';'", self.line) from None

    def skip_statement(self) -> None:
        self.skip_past(";")

    def skip_line(self, line: int) -> None:
        """Skips what is left of a line."""
        while self.tokens[self.at] and self.token_lines[self.at] == line:
            self.at += 1

    def skip_past(self, close: str) -> None:
        """Skips up to and with the token ``close``."""
        while self.next() != close:
            pass


def literal(token: str, line: int) -> Imm:
    """A number token: integer, 0f and 0d bits, or a decimal float."""
    try:
        return _literal(token)
    except ValueError:
        raise invalid(f"expected a number, got {token!r}", line) from None


@lru_cache(maxsize=1 << 12)
def _literal(token: str) -> Imm:
    prefix = token[:2].lower()
    if prefix == "0f":
        return Imm(int(token[2:], 16), "f4")
    if prefix == "0d":
        return Imm(int(token[2:], 16), "f8")
    if "." in token:
        return Imm(struct.unpack("<Q", struct.pack("<d", float(token)))[0], "f8")
    digits = token.rstrip("U")
    # Python has no octal numbers with a plain leading zero.
    return Imm(int(digits, 8 if re.fullmatch(r"0\d+", digits) else 0), "i")


def negated(number: Imm) -> Imm:
    """The number with its sign changed."""
    if number.kind == "i":
        return Imm(-number.value, "i")
    sign = 1 << (31 if number.kind == "f4" else 63)
    return Imm(number.value ^ sign, number.kind)
