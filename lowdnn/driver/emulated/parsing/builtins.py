"""Functions of CUDA's device runtime, ``vprintf`` and ``__assertfail``: PTX around one instruction of our own.

CUDA C++ Programming Guide, "Formatted Output", "Assertion".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from lowdnn.driver.emulated.parsing.ir import FunctionIR
from lowdnn.driver.emulated.parsing.module import parse_module

_TEXT = """
.version 8.0
.target sm_80
.address_size 64
.func (.param .b32 result) vprintf(.param .b64 format, .param .b64 arguments)
{
  .reg .b64 %format, %arguments;
  .reg .b32 %result;
  ld.param.b64 %format, [format];
  ld.param.b64 %arguments, [arguments];
  __vprintf %result, %format, %arguments;
  st.param.b32 [result], %result;
  ret;
}
.func __assertfail(
  .param .b64 expression, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 character)
{
  .reg .b64 %expression, %file, %function;
  .reg .b32 %line;
  ld.param.b64 %expression, [expression];
  ld.param.b64 %file, [file];
  ld.param.b32 %line, [line];
  ld.param.b64 %function, [function];
  __assertfail %expression, %file, %line, %function;
  ret;
}
"""


def builtin(name: str, line: int) -> FunctionIR | None:
    """The function ``name``, with every instruction on the PTX line of the call; None where there is no such one."""
    function = _functions().get(name)
    if function is None:
        return None
    return replace(function, body=[instruction._replace(line=line) for instruction in function.body])


@cache
def _functions() -> Mapping[str, FunctionIR]:
    return parse_module(_TEXT).functions
