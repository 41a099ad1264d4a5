"""Edits of PTX: what a programmer may forget or get slightly wrong at one site.

A site is a name that follows its instruction as a comment (``bar.sync 0; // @tiles filled``); all copies of the
instruction carry it, and an edit changes them all. The declaration of an array in shared memory is a site too
(``shared part``). ``edits_of`` lists every edit that an instruction can suffer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_SITE = re.compile(
    r"^[ \t]*(?P<text>[^\n/]*;) // @(?P<site>[^\n]+?)\s*$"
    r"|^[ \t]*(?P<declaration>\.shared [^\n]*?E\d+(?P<array>\w+)\[\d+\];)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Edit:
    """``change`` takes the text of one instruction with its semicolon and gives what stands there instead."""

    name: str
    change: Callable[[str], str]

    def __str__(self) -> str:
        return self.name


def edited(ptx: str, site: str, edit: Edit) -> str:
    """``ptx`` with every copy of the site's instruction changed; raises ValueError where there is none or no change."""
    changed = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal changed
        if _name(match) != site:
            return match[0]
        text = edit.change(_text(match))
        changed += text != _text(match)
        return text

    result = _SITE.sub(replace, ptx)
    if not changed:
        raise ValueError(f"nothing to change: {edit} at {site!r}")
    return result


def sites(ptx: str) -> dict[str, str]:
    """Site -> its instruction (of several copies, the first)."""
    found: dict[str, str] = {}
    for match in _SITE.finditer(ptx):
        found.setdefault(_name(match), _text(match))
    return found


def edits_of(instruction: str) -> tuple[Edit, ...]:
    """Every edit for this instruction; raises ValueError for an opcode without a rule."""
    for opcode, edits in _RULES:
        if instruction.startswith(opcode):
            return edits
    raise ValueError(f"no edits for {instruction}")


def _name(match: re.Match[str]) -> str:
    return match["site"] or f"shared {match['array']}"


def _text(match: re.Match[str]) -> str:
    return match["text"] or match["declaration"]


def _substitution(name: str, pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> Edit:
    return Edit(name, lambda text: re.sub(pattern, replacement, text))


def _shifted(name: str, pattern: str, step: int) -> Edit:
    """Adds ``step`` to the number that the one group of ``pattern`` finds."""

    def shift(match: re.Match[str]) -> str:
        start, end = (place - match.start() for place in match.span(1))
        return match[0][:start] + str(int(match[1]) + step) + match[0][end:]

    return _substitution(name, pattern, shift)


REMOVED = Edit("removed", lambda text: "")
DOUBLED = Edit("doubled", lambda text: text + text)

WARP_ONLY = Edit("warp only", lambda text: "bar.warp.sync 0xffffffff;")
FEWER_THREADS = _shifted("32 threads fewer", r", (\d+);", -32)
MORE_THREADS = _shifted("32 threads more", r", (\d+);", 32)

COUNT_LESS = _shifted("count - 1", r", (\d+);", -1)
COUNT_MORE = _shifted("count + 1", r", (\d+);", 1)
BYTES_LESS = _shifted("16 bytes fewer", r", (\d+);", -16)
BYTES_MORE = _shifted("16 bytes more", r", (\d+);", 16)
PASSED = _substitution("always passes", r"^\S+ (\w+), .*;", r"setp.eq.u32 \1, 0, 0;")
OTHER_PARITY = _substitution(
    "other parity",
    r"^(mbarrier\.\S+) (\w+), (\[\S+\]), (\S+);",
    r"{ .reg .b32 other; xor.b32 other, \4, 1; \1 \2, \3, other; }",
)

ONE_MORE_PENDING = _shifted("one group more may wait", r"(\d+);", 1)

RELAXED = _substitution("relaxed", r"\.(release|acquire)\b", ".relaxed")
CTA_SCOPE = _substitution("scope cta", r"\.(gpu|cluster)\b(?!::|\.shared)", ".cta")
RELAXED_ARRIVE = _substitution("relaxed", r"\.release\.aligned", ".relaxed.aligned")

ONE_TOO_FAR = _substitution("one too far", r"\.lt\.", ".le.")
UNGUARDED = _substitution("unguarded", r"^setp\.lt\.s32 (\w+), (\S+), \S+;", r"setp.eq.s32 \1, \2, \2;")

HALF_AS_LARGE = _substitution("half as large", r"\[(\d+)\]", lambda match: f"[{int(match[1]) // 2}]")

#: How an opcode begins -> its edits; the first that fits counts.
_RULES: tuple[tuple[str, tuple[Edit, ...]], ...] = (
    (".shared", (HALF_AS_LARGE,)),
    ("setp.lt.s32", (ONE_TOO_FAR, UNGUARDED)),
    ("bar.sync 0;", (REMOVED, WARP_ONLY)),
    ("bar.sync", (REMOVED, FEWER_THREADS, MORE_THREADS)),
    ("bar.arrive", (REMOVED, FEWER_THREADS, MORE_THREADS)),
    ("mbarrier.init", (REMOVED, COUNT_LESS, COUNT_MORE)),
    ("mbarrier.arrive.expect_tx", (REMOVED, DOUBLED, BYTES_LESS, BYTES_MORE)),
    ("mbarrier.arrive.release.cluster", (REMOVED, DOUBLED, RELAXED)),
    ("mbarrier.arrive", (REMOVED, DOUBLED)),
    ("mbarrier.try_wait.parity.acquire", (PASSED, OTHER_PARITY, RELAXED)),
    ("mbarrier.try_wait.parity", (PASSED, OTHER_PARITY)),
    ("mbarrier.test_wait", (PASSED,)),
    ("fence.acq_rel", (REMOVED, CTA_SCOPE)),
    ("fence.", (REMOVED,)),
    ("atom.", (CTA_SCOPE,)),
    ("st.release", (RELAXED, CTA_SCOPE)),
    ("ld.acquire", (RELAXED, CTA_SCOPE)),
    ("barrier.cluster.arrive", (REMOVED, RELAXED_ARRIVE)),
    ("barrier.cluster.wait", (REMOVED,)),
    ("griddepcontrol", (REMOVED,)),
    ("cp.async.commit_group", (REMOVED,)),
    ("cp.async.wait_group", (REMOVED, ONE_MORE_PENDING)),
    ("cp.async.bulk.commit_group", (REMOVED,)),
    ("cp.async.bulk.wait_group", (REMOVED, ONE_MORE_PENDING)),
    ("wgmma.fence", (REMOVED,)),
    ("wgmma.commit_group", (REMOVED,)),
    ("wgmma.wait_group", (REMOVED, ONE_MORE_PENDING)),
)
