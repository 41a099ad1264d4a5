"""Revisions of kernels: what changes them, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowdnn.plan import KernelRef
from lowdnn.runtime.revisions import revision_of
from lowdnn.runtime.sources import SourceTree

SOURCE = '#include "part.cuh"\n__global__ void KERNEL_NAME() { f("//"); }\n'
HEADER = "inline void f(const char* text) { }\n"


def revision(root: Path, source: str = SOURCE, header: str = HEADER, name: str = "k", tile: int = 8) -> str:
    (root / "k.cu").write_text(source)
    (root / "part.cuh").write_text(header)
    kernel = KernelRef(name, "k.cu", "sm_80", (("TILE", tile),))
    return revision_of((kernel,), SourceTree(root))


@pytest.mark.parametrize(
    "same",
    [
        {"source": "// a comment\n" + SOURCE},
        {"source": SOURCE.replace(" { ", "\n{\n  /* a\n comment */ ")},
        {"header": HEADER + "\n\n// f\n"},
        {"name": "another"},
    ],
)
def test_comments_blanks_and_names_change_nothing(same: dict[str, str], tmp_path: Path) -> None:
    assert revision(tmp_path, **same) == revision(tmp_path)


@pytest.mark.parametrize(
    "other",
    [
        {"source": SOURCE.replace('"//"', '"// "')},
        {"header": HEADER.replace("{ }", "{ text = 0; }")},
        {"tile": 16},
    ],
)
def test_code_headers_and_parameters_change_it(other: dict[str, str], tmp_path: Path) -> None:
    assert revision(tmp_path, **other) != revision(tmp_path)  # type: ignore[arg-type]


def test_the_order_of_kernels_does_not_count_and_none_have_no_revision(tmp_path: Path) -> None:
    revision(tmp_path)
    first, second = (KernelRef("k", "k.cu", "sm_80", (("TILE", tile),)) for tile in (8, 16))
    sources = SourceTree(tmp_path)
    assert revision_of((first, second), sources) == revision_of((second, first), sources)
    assert revision_of((), sources) == ""
