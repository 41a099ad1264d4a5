from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lowdnn
from lowdnn.engines.registry import ENGINES
from lowdnn.plan import KernelRef
from lowdnn.runtime.kernel_rules import check_kernel
from lowdnn.status import BadParamError, CompilationFailedError
from tests.support.directives import READING
from tests.support.errors import raises
from tests.support.runtime import write_sources

GENERATED = """#pragma once

#include "include/numeric.cuh"

struct Functor {
  // the accumulator, rounded to its tensor's type
#pragma unroll
  float f(float x) { return x > 0 ? x * -1.5e3f : 0; }
};
"""
KERNEL = KernelRef(
    "matmul_bf16",
    "a.cu",
    "sm_90a",
    (("TILE", 128), ("IS_SPLIT", True), ("SUM", "Sum<f32,4>"), ("MAX", "-448.0f")),
    GENERATED,
)


def test_a_kernel_that_keeps_the_rules() -> None:
    check_kernel(KERNEL)


def test_kernels_of_the_engines_keep_them() -> None:
    kernels = [kernel for engine in ENGINES for kernel in engine.precompiled()]
    assert kernels
    for kernel in kernels:
        check_kernel(kernel)


@pytest.mark.parametrize(
    "line",
    [
        *READING,
        '#include "../../../../etc/hostname"',
        '#include "include/../../secret.cuh"',
        '#include "include/numeric.cuh" "x"',
        '#include "numeric.cuh"',
    ],
)
def test_no_line_opens_a_file(tmp_path: Path, line: str) -> None:
    tree = write_sources(tmp_path, {"a.cu": '#include "generated.cuh"\n', "include/numeric.cuh": ""})
    assert tree.read(KERNEL).name == KERNEL.name
    for text in (line, GENERATED + line, GENERATED.replace("struct", f"{line}\nstruct")):
        with pytest.raises(BadParamError, match=r"KernelRef\.generated: line \d+: expected C\+\+ in ASCII"):
            tree.read(replace(KERNEL, generated=text))


@pytest.mark.parametrize(
    "text",
    [
        *("#error x", "#define int float", "#line 1", "#pragma once x", " #pragma once", '_Pragma("once")'),
        *('asm("exit;");', "é", "\t", "\0", "int x; // ??/", "a\\", 'R"(x)"'),
    ],
)
def test_no_directive_but_those_of_the_generator(text: str) -> None:
    with pytest.raises(BadParamError, match=r"KernelRef\.generated: line 1"):
        check_kernel(replace(KERNEL, generated=text))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": "x" * 257}, "name"),
        ({"name": 7}, "name"),
        ({"source": "/etc/a.cu"}, "source"),
        ({"source": "../a.cu"}, "source"),
        ({"source": "conv/../a.cu"}, "source"),
        ({"source": "a.cu\0"}, "source"),
        ({"source": "conv//a.cu"}, "source"),
        ({"source": "a.cuh"}, "source"),
        ({"target": "sm_90b"}, "target"),
        ({"target": "compute_90"}, "target"),
        ({"target": "sm_90 -I/etc"}, "target"),
        ({"parameters": (("int", 1),)}, "parameters"),
        ({"parameters": (("A=1 -I/etc", 1),)}, "parameters"),
        ({"parameters": (("A", "1 2"),)}, "parameters.A"),
        ({"parameters": (("A", "f(x)"),)}, "parameters.A"),
        ({"parameters": (("A", '"/etc/passwd"'),)}, "parameters.A"),
        ({"parameters": (("A", "1\n#include"),)}, "parameters.A"),
        ({"parameters": (("A", "Sum<f32>>"),)}, "parameters.A"),
        ({"parameters": (("A", 1.5),)}, "parameters.A"),
        ({"parameters": (("A", 10**5000),)}, "parameters.A"),
        ({"generated": None}, "generated"),
        ({"generated": " " * (2**20 + 1)}, "generated"),
    ],
)
def test_what_breaks_a_rule_is_named(change: dict[str, Any], field: str) -> None:
    with raises(BadParamError, f"KernelRef.{field}"):
        check_kernel(replace(KERNEL, **change))


def test_links_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret.cuh").write_text("// secret\n")
    tree = write_sources(
        tmp_path / "engines", {"a.cu": '#include "b.cuh"\n', "c.cu": '#include "outside/secret.cuh"\n'}
    )
    (tmp_path / "engines" / "b.cuh").symlink_to(tmp_path / "secret.cuh")
    (tmp_path / "engines" / "outside").symlink_to(tmp_path)
    (tmp_path / "engines" / "d.cu").symlink_to(tmp_path / "secret.cuh")
    for source in ("a.cu", "c.cu"):
        with pytest.raises(CompilationFailedError, match="expected a header"):
            tree.read(replace(KERNEL, source=source))
    with raises(BadParamError, "KernelRef.source", expected="a file below lowdnn/engines"):
        tree.read(replace(KERNEL, source="d.cu"))


def test_lowdnn_s_own_sources_have_plain_includes_of_its_own_headers() -> None:
    root = Path(lowdnn.__file__).parent / "engines"
    directive = re.compile(r'#include "([a-z0-9_]+(?:/[a-z0-9_]+)*\.cuh)"')
    for path in (*root.rglob("*.cu"), *root.rglob("*.cuh")):
        for line in path.read_text().splitlines():
            if re.match(r"\s*#\s*include", line):
                found = directive.fullmatch(line)
                assert found is not None, f"{path}: {line}"
                own = (path.parent / found[1], root / found[1])
                assert found[1] == "generated.cuh" or any(file.is_file() for file in own), f"{path}: {line}"
