"""Revisions of kernels: they change with what the kernels compute and how, and with nothing else.

A revision is a digest of the programs of some kernels: their text with every header, without comments and without what
blank space there is, and the options of the compiler. The names of kernels and the version of lowdnn are not in it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache

from lowdnn.plan import KernelRef
from lowdnn.runtime.sources import SourceTree

_REVISION_DIGITS = 16
_NAME_MACRO = "-DKERNEL_NAME="
#: A string is kept as it is, since it may hold what looks like a comment.
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.DOTALL)


def revision_of(kernels: Iterable[KernelRef], sources: SourceTree) -> str:
    """The revision of a plan's kernels, in hexadecimal; an empty text for none.

    Raises what ``SourceTree.read`` raises.
    """
    programs = sorted(_program_digest(kernel, sources) for kernel in kernels)
    return hashlib.sha256("".join(programs).encode()).hexdigest()[:_REVISION_DIGITS] if programs else ""


def _program_digest(kernel: KernelRef, sources: SourceTree) -> str:
    source = sources.read(kernel)
    options = (option for option in source.options if not option.startswith(_NAME_MACRO))
    headers = (f"{include} {_text_digest(text)}" for include, text in source.headers)
    parts = [_text_digest(source.text), *headers, *options]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@lru_cache(maxsize=256)
def _text_digest(text: str) -> str:
    """Most kernels share most headers, whose texts are digested once."""
    bare = _COMMENT.sub(lambda found: found[1] or " ", text)
    return hashlib.sha256(" ".join(bare.split()).encode()).hexdigest()
