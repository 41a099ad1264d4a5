"""The written header: it compiles without warnings, and programs in C use the library with it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lowdnn.capi import write_header, write_library
from lowdnn.capi.header import header
from lowdnn.capi.library import LIBRARY_NAME
from lowdnn.capi.signatures import functions

USE = """
#include "cudnn.h"
#include <stdio.h>
#define STATIC(condition) extern char check[(condition) ? 1 : -1]
STATIC(CUDNN_VERSION == 92800); STATIC(CUDNN_32BIT_INDICES == 0); STATIC(sizeof(cudnnFraction_t) == 16);
STATIC(sizeof(cudnnConvolutionFwdAlgoPerf_t) == 48); STATIC(sizeof(cudnnDebug_t) == 120);
STATIC(CUDNN_STATUS_ALLOC_FAILED == 4003); STATIC(CUDNN_BACKEND_OPERATION_ROPE_BWD_DESCRIPTOR == 50);
STATIC(CUDNN_TYPE_FRACTION == 26); STATIC(CUDNN_RESAMPLE_AVGPOOL == CUDNN_RESAMPLE_AVGPOOL_INCLUDE_PADDING);
static void (*const all[])(void) = {FUNCTIONS};
int main(void) {
  size_t found = 0;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) found += all[i] != NULL;
  printf("%zu %zu\\n", found, cudnnGetVersion());
  return 0;
}
"""


def test_every_function_is_declared_once() -> None:
    text = header()
    assert set(re.findall(r"\b(cudnn\w+)\(", text)) == set(functions())
    for name in functions():
        assert len(re.findall(rf"\b{name}\(", text)) == 1
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(("compiler", "standard"), [("gcc", "c99"), ("gcc", "c17"), ("g++", "c++17")])
def test_a_program_with_the_header(compiler: str, standard: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    write_header(tmp_path / "cudnn.h")
    write_library(tmp_path / LIBRARY_NAME)
    listed = ", ".join(f"(void (*)(void)){name}" for name in functions())
    source = tmp_path / ("use.c" if compiler == "gcc" else "use.cpp")
    source.write_text(USE.replace("FUNCTIONS", listed))
    strict = [f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    build = [compiler, *strict, str(source), f"./{LIBRARY_NAME}", "-o", "use", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run(build, cwd=tmp_path, check=True)
    assert subprocess.run(["./use"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "239 92800\n"
