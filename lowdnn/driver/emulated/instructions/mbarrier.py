"""mbarrier. PTX ISA manual, "Parallel Synchronization and Communication Instructions: mbarrier".

Memory orders and scopes change no value here; ``.shared::cluster`` forms reach the barriers of other CTAs.
"""

from __future__ import annotations

from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Effect, Modifiers, Row
from lowdnn.driver.emulated.instructions.memory import address_of
from lowdnn.driver.emulated.memory.address import shared_bytes
from lowdnn.driver.emulated.parsing.ir import Instruction, Operand, Sink
from lowdnn.driver.emulated.running import mbarriers, race_hooks

_BARRIERS = "G.batch.mbarriers"
_OWN = ("shared", "shared::cta")


def barrier_place(e: Emitter, operand: Operand, space: str = "cluster") -> str:
    """The byte number of the barrier at an address operand, for each lane."""
    base, offset = address_of(e, operand)
    size = str(mbarriers.SIZE_BYTES)
    return e.call(shared_bytes, "G", base, str(offset), size, "write=True", f"space={space!r}")


def _mbarrier(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    form = m.need(*_FORMS)
    _FORMS[form](e, m, instruction, form)


def _init(e: Emitter, m: Modifiers, instruction: Instruction, form: str) -> None:
    m.choice(*_OWN)
    _end(m)
    address, count = instruction.operands
    place = e.temp(barrier_place(e, address, "shared"))
    e.do(e.call(race_hooks.mbarrier_written, "G", place))
    e.do(f"{_BARRIERS}.init({place},{e.use(count, 'u4')})")


def _invalidate(e: Emitter, m: Modifiers, instruction: Instruction, form: str) -> None:
    m.choice(*_OWN)
    _end(m)
    place = e.temp(barrier_place(e, instruction.operands[0], "shared"))
    e.do(e.call(race_hooks.mbarrier_written, "G", place))
    e.do(f"{_BARRIERS}.invalidate({place})")


def _arrive(e: Emitter, m: Modifiers, instruction: Instruction, form: str) -> None:
    """arrive and arrive_drop, with .expect_tx or .noComplete."""
    expects, partial = m.flag("expect_tx"), m.flag("noComplete")
    releases = _order(m, "release", "relaxed") != "relaxed"
    remote = m.choice(*_OWN, "shared::cluster") == "shared::cluster"
    _end(m)
    target, address, *more = instruction.operands
    silent = isinstance(target, Sink)
    if remote and not silent:
        raise e.refuse("the state of a .shared::cluster barrier cannot be had: expected _ as destination")
    if (expects or partial) and not more:
        raise e.refuse("needs a count")
    place = e.temp(barrier_place(e, address, "cluster" if remote else "shared"))
    e.do(e.call(race_hooks.mbarrier_used, "G", place))
    count = e.use(more[0], "u4") if more and not expects else "None"
    tx = e.use(more[0], "u4") if expects else "None"
    releasing = "G.lanes" if releases else "None"
    drop = form == "arrive_drop"
    call = (
        f"{_BARRIERS}.arrive({place},{count},{tx},drop={drop},partial={partial},silent={silent},releasing={releasing})"
    )
    e.do(call) if silent else e.out(target, "u8", call)


def _count_bytes(e: Emitter, m: Modifiers, instruction: Instruction, form: str) -> None:
    """expect_tx and complete_tx."""
    _order(m, "relaxed")
    remote = m.choice(*_OWN, "shared::cluster") == "shared::cluster"
    _end(m)
    address, tx = instruction.operands
    place = e.temp(barrier_place(e, address, "cluster" if remote else "shared"))
    e.do(e.call(race_hooks.mbarrier_used, "G", place))
    e.do(f"{_BARRIERS}.{form}({place},{e.use(tx, 'u4')})")


def _test(e: Emitter, m: Modifiers, instruction: Instruction, form: str) -> None:
    """test_wait and try_wait: both return at once, and loops around them wait. A time hint is ignored."""
    parity = m.flag("parity")
    acquires = _order(m, "acquire", "relaxed") != "relaxed"
    m.choice(*_OWN)
    _end(m)
    target, address, phase, *hint = instruction.operands
    if len(hint) > (form == "try_wait"):
        raise e.refuse("takes no further operand")
    base, offset = address_of(e, address)
    look, code = ("test_parity", "u4") if parity else ("test_state", "u8")
    e.out(target, "p", f"{_BARRIERS}.{look}(G,{base},{offset},{e.use(phase, code)},{instruction.line},{acquires})")


def _pending(e: Emitter, m: Modifiers, instruction: Instruction, form: str) -> None:
    _end(m)
    target, state = instruction.operands
    e.out(target, "u4", e.call(mbarriers.pending_count, e.use(state, "u8")))


def _order(m: Modifiers, *allowed: str) -> str:
    order = m.choice(*allowed)
    if order:
        m.need("cta", "cluster")
    return order


def _end(m: Modifiers) -> None:
    m.type("b64")
    m.done()


_FORMS = {
    "init": _init,
    "inval": _invalidate,
    "arrive": _arrive,
    "arrive_drop": _arrive,
    "expect_tx": _count_bytes,
    "complete_tx": _count_bytes,
    "test_wait": _test,
    "try_wait": _test,
    "pending_count": _pending,
}

TABLE: dict[str, Row] = {"mbarrier": Row(_mbarrier, Effect.ACTION)}
