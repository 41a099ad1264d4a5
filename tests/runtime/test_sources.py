from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from lowdnn.plan import KernelRef
from lowdnn.runtime.sources import SourceTree
from lowdnn.status import BadParamError, CompilationFailedError
from tests.support.runtime import write_sources

KERNEL = KernelRef("conv_f32", "conv/a.cu", "sm_90a", (("TILE", 64), ("X_TYPE", "bf16")), "// functor\n")


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    return write_sources(
        tmp_path,
        {
            "conv/a.cu": '#include "local.cuh"\n#include "generated.cuh"\n',
            "conv/local.cuh": "  #  include <include/numeric.cuh>\n",
            "include/numeric.cuh": "// numeric\n",
            "include/unused.cuh": "// unused\n",
        },
    )


def test_collects_what_is_reached_and_nothing_else(tree: SourceTree) -> None:
    source = tree.read(KERNEL)
    assert dict(source.headers) == {
        "local.cuh": "  #  include <include/numeric.cuh>\n",
        "include/numeric.cuh": "// numeric\n",
        "generated.cuh": "// functor\n",
    }


def test_options_follow_the_ref(tree: SourceTree) -> None:
    source = tree.read(KERNEL)
    assert source.options == (
        "--gpu-architecture=compute_90a",
        "-std=c++17",
        "-default-device",
        "-DKERNEL_NAME=conv_f32",
        "-DTILE=64",
        "-DX_TYPE=bf16",
    )
    assert source.options_for("sm_86") == ("--gpu-architecture=sm_86", *source.options[1:])


def test_digest_changes_with_every_input(tree: SourceTree, tmp_path: Path) -> None:
    first = tree.read(KERNEL)
    assert tree.read(KERNEL) == first
    others = [
        replace(KERNEL, name="conv_f16"),
        replace(KERNEL, target="sm_80"),
        replace(KERNEL, parameters=(("TILE", 128), ("X_TYPE", "bf16"))),
        replace(KERNEL, generated="// other\n"),
    ]
    digests = {first.digest, *(tree.read(other).digest for other in others)}
    (tmp_path / "include" / "numeric.cuh").write_text("// edited\n")
    assert tree.read(KERNEL) == first, "a tree reads a file once"
    digests.add(SourceTree(tmp_path).read(KERNEL).digest)
    assert len(digests) == 6


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": "../conv/a.cu"},
        {"source": "/etc/passwd"},
        {"source": "conv/a.py"},
        {"source": "conv/missing.cu"},
        {"name": "a b"},
        {"name": "1a"},
        {"target": "compute_90"},
        {"parameters": (("A B", 1),)},
        {"parameters": (("A", '";'),)},
        {"parameters": (("A", "1\n#include"),)},
    ],
)
def test_malformed_refs_are_refused(tree: SourceTree, wrong: dict[str, object]) -> None:
    with pytest.raises(BadParamError, match=r"KernelRef\."):
        tree.read(replace(KERNEL, **wrong))  # type: ignore[arg-type]


def test_digest_tells_where_a_text_ends(tmp_path: Path) -> None:
    digests = set()
    for first, second in (("// a", "z.cuh// b"), ("// az.cuh", "// b")):
        files = {"conv/a.cu": '#include "generated.cuh"\n#include "z.cuh"\n', "conv/z.cuh": second}
        digests.add(write_sources(tmp_path, files).read(replace(KERNEL, generated=first)).digest)
    assert len(digests) == 2


def test_a_header_of_the_kernels_folder_comes_first(tree: SourceTree, tmp_path: Path) -> None:
    (tmp_path / "local.cuh").write_text("// of the root\n")
    assert dict(tree.read(KERNEL).headers)["local.cuh"].startswith("  #")


@pytest.mark.parametrize("include", ["missing.cuh", "../secret.cuh", "/etc/passwd", "linked.cuh", "linked/secret.cuh"])
def test_headers_come_from_the_tree_only(tmp_path: Path, include: str) -> None:
    (tmp_path / "secret.cuh").write_text("// secret\n")
    tree = write_sources(tmp_path / "engines", {"conv/a.cu": f'#include "{include}"\n'})
    (tmp_path / "engines" / "conv" / "linked.cuh").symlink_to(tmp_path / "secret.cuh")
    (tmp_path / "engines" / "conv" / "linked").symlink_to(tmp_path)
    with pytest.raises(CompilationFailedError, match=r"conv/a\.cu\.include"):
        tree.read(KERNEL)


def test_an_include_begins_its_line(tmp_path: Path) -> None:
    text = '// #include "missing.cuh"\nint x; #include "missing.cuh"\n \t# include "z.cuh"'
    tree = write_sources(tmp_path, {"conv/a.cu": text, "conv/z.cuh": "// z"})
    assert tree.read(KERNEL).headers == (("z.cuh", "// z"),)


def test_a_tree_may_lie_in_an_archive(tree: SourceTree, tmp_path: Path) -> None:
    archive = tmp_path / "engines.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in tmp_path.rglob("*.cu*"):
            file.write(path, path.relative_to(tmp_path))
    packed = SourceTree(zipfile.Path(archive))
    assert packed.read(KERNEL) == tree.read(KERNEL)
    with pytest.raises(BadParamError, match="below lowdnn/engines"):
        packed.read(replace(KERNEL, source="conv/missing.cu"))


def test_kernels_of_the_package_are_found() -> None:
    with pytest.raises(BadParamError, match="below lowdnn/engines"):
        SourceTree().read(replace(KERNEL, source="no_such_family/no_such_kernel.cu"))
