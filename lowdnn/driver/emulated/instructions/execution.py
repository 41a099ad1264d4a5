"""Instructions about how a kernel runs. PTX ISA manual, "griddepcontrol", "nanosleep", "setmaxnreg", "pmevent"."""

from __future__ import annotations

from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Effect, Row
from lowdnn.driver.emulated.parsing.ir import Imm, Instruction
from lowdnn.driver.emulated.running import race_hooks
from lowdnn.driver.emulated.running.clock import nanosleep

_FEWEST_REGISTERS, _MOST_REGISTERS = 24, 256


def _grid_dependency(e: Emitter, instruction: Instruction) -> None:
    """griddepcontrol: grids run one after the other, so only the race detector is informed that they might overlap."""
    m = e.modifiers()
    action = m.need("wait", "launch_dependents")
    m.done()
    if action == "wait":
        e.do(e.call(race_hooks.previous_launch_ended, "G"))


def _nanosleep(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.type("u32")
    m.done()
    e.do(e.call(nanosleep, "G", e.use(instruction.operands[0], "u4")))


def _set_register_count(e: Emitter, instruction: Instruction) -> None:
    """Registers are not counted here; the form is checked, and that whole warpgroups execute it."""
    m = e.modifiers()
    m.need("inc", "dec")
    m.need("sync")
    m.need("aligned")
    m.type("u32")
    m.done()
    (count,) = instruction.operands
    if not isinstance(count, Imm) or count.value % 8 or not _FEWEST_REGISTERS <= count.value <= _MOST_REGISTERS:
        raise e.refuse(f"expected a multiple of 8 from {_FEWEST_REGISTERS} to {_MOST_REGISTERS}")


def _performance_event(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.flag("mask")
    m.done()


TABLE: dict[str, Row] = {
    "griddepcontrol": Row(_grid_dependency, Effect.ACTION, destinations=0),
    "nanosleep": Row(_nanosleep, Effect.ACTION, destinations=0),
    "setmaxnreg": Row(_set_register_count, Effect.WARP, destinations=0),
    "pmevent": Row(_performance_event, Effect.ACTION, destinations=0),
}
