"""The instructions inside ``vprintf`` and ``__assertfail`` (``parsing.builtins``)."""

from __future__ import annotations

from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Effect, Row
from lowdnn.driver.emulated.parsing.ir import Instruction
from lowdnn.driver.emulated.running.printing import fail_assertion, print_formatted


def _vprintf(e: Emitter, instruction: Instruction) -> None:
    result, *strings = instruction.operands
    e.out(result, "i4", e.call(print_formatted, "G", *(e.use(one, "u8") for one in strings)))


def _assertfail(e: Emitter, instruction: Instruction) -> None:
    expression, file, line, function = instruction.operands
    strings = [e.use(one, "u8") for one in (expression, file, function)]
    e.do(e.call(fail_assertion, "G", *strings, e.use(line, "u4")))


TABLE: dict[str, Row] = {
    "__vprintf": Row(_vprintf, Effect.ACTION),
    "__assertfail": Row(_assertfail, Effect.ACTION, destinations=0),
}
