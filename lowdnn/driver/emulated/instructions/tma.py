"""Tensor copies and changes of tensor maps. PTX ISA manual, "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor",
"cp.async.bulk.prefetch.tensor", "tensormap.replace", "tensormap.cp_fenceproxy".

``tensor_copy`` emits every ``cp`` whose modifiers name ``tensor``.
"""

from __future__ import annotations

from lowdnn.driver.emulated.copying import tensor_copies, tensor_map_edits
from lowdnn.driver.emulated.copying.tensor_copies import TensorForm
from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Effect, Modifiers, Row
from lowdnn.driver.emulated.instructions.memory import address_of
from lowdnn.driver.emulated.parsing.ir import Imm, Instruction, Mem, Operand, Vec

_RANKS = {f"{rank}d": rank for rank in range(1, 6)}
_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_COMPLETION = "mbarrier::complete_tx::bytes"


def tensor_copy(e: Emitter, instruction: Instruction) -> None:
    """``cp.async.bulk.tensor``, ``cp.reduce.async.bulk.tensor``, ``cp.async.bulk.prefetch.tensor``."""
    m = e.modifiers()
    reduces = m.flag("reduce")
    m.need("async")
    m.need("bulk")
    prefetches = m.flag("prefetch")
    m.need("tensor")
    rank = _RANKS[m.need(*_RANKS)]
    operands = list(instruction.operands)
    if m.flag("L2::cache_hint"):
        operands.pop()
    if prefetches:
        _prefetch(e, m, rank, operands)
    elif "bulk_group" in m.left:
        _store(e, m, rank, operands, reduces)
    else:
        _load(e, m, rank, operands)


def _load(e: Emitter, m: Modifiers, rank: int, operands: list[Operand]) -> None:
    own = m.need("shared::cluster", "shared::cta") == "shared::cta"
    m.need("global")
    im2col = m.choice("tile", "im2col") == "im2col"
    m.need(_COMPLETION)
    multicast = not own and m.flag("multicast::cluster")
    m.done()
    ctas = e.use(operands.pop(), "u2") if multicast else "None"
    offsets = _offsets(e, operands.pop(), rank) if im2col else "()"
    if len(operands) != 3:
        raise e.refuse("expected [destination], [tensor map, coordinates], [mbarrier]")
    target, source, barrier = operands
    form = _form(e, TensorForm(rank, im2col, own))
    tensor_map, coordinates = _tensor(e, source, rank)
    places = (_place(e, target), tensor_map, coordinates, offsets, _place(e, barrier))
    e.do(e.call(tensor_copies.load, "G", form, *places, ctas, str(e.instruction.line)))


def _store(e: Emitter, m: Modifiers, rank: int, operands: list[Operand], reduces: bool) -> None:
    m.need("global")
    m.need("shared::cta")
    operation = m.need(*_REDUCTIONS) if reduces else ""
    im2col = m.choice("tile", "im2col_no_offs") == "im2col_no_offs"
    m.need("bulk_group")
    m.done()
    if len(operands) != 2:
        raise e.refuse("expected [tensor map, coordinates], [source]")
    form = _form(e, TensorForm(rank, im2col, own=True))
    tensor_map, coordinates = _tensor(e, operands[0], rank)
    arguments = (tensor_map, coordinates, _place(e, operands[1]), str(e.instruction.line))
    if reduces:
        e.do(e.call(tensor_copies.reduce, "G", form, repr(operation), *arguments))
    else:
        e.do(e.call(tensor_copies.store, "G", form, *arguments))


def _prefetch(e: Emitter, m: Modifiers, rank: int, operands: list[Operand]) -> None:
    m.need("L2")
    m.need("global")
    im2col = m.choice("tile", "im2col") == "im2col"
    m.done()
    offsets = _offsets(e, operands.pop(), rank) if im2col else "()"
    form = _form(e, TensorForm(rank, im2col, own=True))
    e.do(e.call(tensor_copies.prefetch, "G", form, *_tensor(e, operands[0], rank), offsets))


def _form(e: Emitter, form: TensorForm) -> str:
    if form.im2col and form.rank < 3:
        raise e.refuse("im2col needs 3 to 5 dimensions")
    return e.object(f"L_tensor_{form.rank}{'_im2col' * form.im2col}{'_own' * form.own}", form)


def _place(e: Emitter, operand: Operand) -> str:
    base, offset = address_of(e, operand)
    return f"({base},{offset})"


def _tensor(e: Emitter, operand: Operand, rank: int) -> tuple[str, str]:
    """(place of the map, coordinates) of ``[map, {coordinates}]``."""
    if not isinstance(operand, Mem) or len(operand.extra) != 1 or not isinstance(operand.extra[0], Vec):
        raise e.refuse("expected [tensor map, {coordinates}]")
    return _place(e, Mem(operand.base, operand.offset)), _numbers(e, operand.extra[0], rank, "i4")


def _offsets(e: Emitter, operand: Operand, rank: int) -> str:
    if not isinstance(operand, Vec):
        raise e.refuse("expected {offsets} of the filter")
    return _numbers(e, operand, rank - 2, "u2")


def _numbers(e: Emitter, operand: Vec, count: int, code: str) -> str:
    if len(operand.items) != count:
        raise e.refuse(f"expected {count} numbers in braces, got {len(operand.items)}")
    return f"({','.join(e.use(item, code) for item in operand.items)},)"


def _tensormap(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    if m.choice("replace", "cp_fenceproxy") == "replace":
        _replace(e, m, instruction)
    else:
        _copy_map(e, m, instruction)


def _replace(e: Emitter, m: Modifiers, instruction: Instruction) -> None:
    """tensormap.replace.tile.field{.space}.b1024.type [map], {dimension,} value."""
    m.need("tile")
    field = m.need(*tensor_map_edits.FIELDS)
    rule = tensor_map_edits.FIELDS[field]
    space = {"global": "global", "shared::cta": "shared"}.get(m.choice("global", "shared::cta"), "generic")
    m.need("b1024")
    m.need("b64" if rule.code == "u8" else "b32")
    m.done()
    operands = list(instruction.operands)
    dimension = "0"
    if rule.per_dimension:
        dimension = str(_number(e, operands.pop(1), rule.dimensions))
    if rule.choices:
        value = e.constant(_number(e, operands[1], rule.choices), rule.code)
    else:
        value = e.use(operands[1], rule.code)
    base, offset = address_of(e, operands[0])
    e.do(e.call(tensor_map_edits.replace_field, "G", repr(space), f"({base},{offset})", repr(field), dimension, value))


def _number(e: Emitter, operand: Operand, count: int) -> int:
    if not isinstance(operand, Imm) or not 0 <= operand.value < count:
        raise e.refuse(f"expected a number below {count}")
    return operand.value


def _copy_map(e: Emitter, m: Modifiers, instruction: Instruction) -> None:
    """tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned [to], [of], 128."""
    for part in ("global", "shared::cta", "tensormap::generic", "release", "sync", "aligned"):
        m.need(part)
    m.need("cta", "cluster", "gpu", "sys")
    m.done()
    target, source, size = instruction.operands
    if not isinstance(size, Imm) or size.value != 128:
        raise e.refuse("the size must be 128")
    e.do(e.call(tensor_map_edits.copy_map, "G", _place(e, target), _place(e, source)))


TABLE: dict[str, Row] = {"tensormap": Row(_tensormap, Effect.ACTION, destinations=0)}
