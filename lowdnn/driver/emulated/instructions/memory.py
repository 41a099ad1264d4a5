"""ld, st and what goes with them. PTX ISA manual, "ld", "ld.global.nc", "ldu", "st", "prefetch", "fence".

Cache operators, eviction priorities, prefetch sizes, memory orders and scopes change no value here: they are taken
and listed in ``_NO_EFFECT``. Orders and scopes matter to the race detector.
"""

from __future__ import annotations

from lowdnn.driver.emulated.checking.epochs import CLUSTER, CTA, GPU, SYS, WEAK
from lowdnn.driver.emulated.copying import tensor_map_edits
from lowdnn.driver.emulated.generating.generator import SIZES, Emitter
from lowdnn.driver.emulated.generating.rows import Effect, Modifiers, Row, code_of
from lowdnn.driver.emulated.memory.access import kind_of
from lowdnn.driver.emulated.parsing.ir import Instruction, Mem, Operand, Sink, Sym, Vec
from lowdnn.driver.emulated.running import race_hooks

_NO_EFFECT = frozenset({
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio",
    "nc", "cta", "cluster", "gpu", "sys",
    "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
    "L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::64B", "L2::128B", "L2::256B",
})  # fmt: skip
_WIDEST_BYTES = 16
_FENCES = frozenset(
    {"sc", "acq_rel", "gl", "alias", "tensormap::generic", "async", "global", "shared::cta", "shared::cluster"}
)
_STRONG = frozenset({"relaxed", "acquire", "release", "acq_rel"})
#: Strong accesses of scope sys.
_VOLATILE = frozenset({"volatile", "mmio"})
_SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "sys": SYS}
_SPACES = {
    "global": "global", "const": "global", "shared": "shared", "shared::cta": "shared",
    "shared::cluster": "cluster", "local": "local",
    "param": "param", "param::entry": "param", "param::func": "param",
}  # fmt: skip


def space_of(m: Modifiers) -> str:
    """Takes the state space; generic where none is given."""
    for name in m.left:
        if name in _SPACES:
            m.left.remove(name)
            return _SPACES[name]
    return "generic"


def scope_of(m: Modifiers) -> int:
    """Scope of a strong access (``checking.epochs``), WEAK for others; an atomic without one has that of the GPU."""
    named = next((scope for name, scope in _SCOPES.items() if name in m.left), WEAK)
    if not _VOLATILE.isdisjoint(m.left):
        return SYS
    return named or (WEAK if _STRONG.isdisjoint(m.left) else GPU)


def drop_hints(m: Modifiers) -> bool:
    """Takes all modifiers that change no value. Returns whether a cache-policy operand follows."""
    m.left = [name for name in m.left if name not in _NO_EFFECT]
    return m.flag("L2::cache_hint")


def address_of(e: Emitter, operand: Operand) -> tuple[str, int]:
    """(name of the base's ``Address``, offset in bytes) of an address operand."""
    if not isinstance(operand, Mem):
        raise e.refuse("expected an address in brackets")
    return e.address(operand.base), operand.offset


def _vector_length(m: Modifiers) -> int:
    return {"v2": 2, "v4": 4}.get(m.choice("v2", "v4"), 1)


def _form(m: Modifiers) -> tuple[str, str, int, int]:
    """(state space, value code, vector length, scope) of a load or store."""
    space = space_of(m)
    scope = scope_of(m)
    drop_hints(m)
    count = _vector_length(m)
    code = code_of(m.type())
    m.done()
    if SIZES[code] * count > _WIDEST_BYTES:
        raise m.refusal(f"moves more than {_WIDEST_BYTES} bytes, which takes sm_100")
    return space, code, count, scope


def kind_name(e: Emitter, code: str, count: int, scope: int) -> str:
    """The name of the ``Kind`` of ``count`` elements of ``code``."""
    return e.object(f"L_{code}_{count}_{scope}", kind_of(code, SIZES[code], count, scope))


def _load(e: Emitter, instruction: Instruction) -> None:
    space, code, count, scope = _form(e.modifiers())
    target, source = instruction.operands[:2]
    if space == "param":
        _load_parameter(e, target, source, code, count)
    else:
        _load_from(e, space, target, source, code, count, scope)
    if "acquire" in instruction.modifiers:
        e.do(e.call(race_hooks.fence, "G", str(scope)))


def _load_from(
    e: Emitter, space: str, target: Operand, source: Operand, code: str, count: int, scope: int = WEAK
) -> None:
    base, offset = address_of(e, source)
    _assign(e, target, code, count, f"load(G,{space!r},{base},{offset},{kind_name(e, code, count, scope)})")


def _assign(e: Emitter, target: Operand, code: str, count: int, expression: str) -> None:
    if count == 1:
        e.out(target, code, expression)
        return
    if not isinstance(target, Vec) or len(target.items) != count:
        raise e.refuse(f"expected {count} destinations")
    values = e.temps(count, expression)
    for item, value in zip(target.items, values, strict=True):
        if not isinstance(item, Sink):
            e.out(item, code, value)


def _load_parameter(e: Emitter, target: Operand, source: Operand, code: str, count: int) -> None:
    """Parameters of the kernel by name are scalars of the launch; by address they are global memory; those of a call
    are local memory."""
    if not isinstance(source, Mem) or not isinstance(source.base, Sym):
        _load_from(e, "global", target, source, code, count)
        return
    if e.variable_space(source.base.name) == "local":
        _load_from(e, "local", target, source, code, count)
        return
    if source.base.name not in e.layout.parameters:
        raise e.refuse(f"no parameter {source.base.name!r}")
    start = e.layout.parameters[source.base.name] + source.offset
    size = SIZES[code]
    if start % size:
        raise e.refuse(f"parameter offset {start} is not {size}-byte aligned")
    values = [f"G.batch.parameter_views[{code!r}][{start // size + i}]" for i in range(count)]
    _assign(e, target, code, count, values[0] if count == 1 else f"({','.join(values)})")


def _store(e: Emitter, instruction: Instruction) -> None:
    space, code, count, scope = _form(e.modifiers())
    target, source = instruction.operands[:2]
    if space == "param":
        space = "local"
    base, offset = address_of(e, target)
    if count == 1:
        value = e.use(source, code)
    elif isinstance(source, Vec) and len(source.items) == count:
        value = f"({','.join(e.use(item, code) for item in source.items)})"
    else:
        raise e.refuse(f"expected {count} sources")
    if "release" in instruction.modifiers:
        e.do(e.call(race_hooks.fence, "G", str(scope)))
    e.do(f"store(G,{space!r},{base},{offset},{kind_name(e, code, count, scope)},{value})")


def _nothing(*allowed: str) -> Row:
    """An instruction without an effect on the emulated device, and the modifiers that it may carry."""

    def emit(e: Emitter, instruction: Instruction) -> None:
        m = e.modifiers()
        m.left = [name for name in m.left if name not in allowed and name not in _NO_EFFECT]
        m.done()

    return Row(emit, Effect.ACTION, destinations=0)


def _fence(e: Emitter, instruction: Instruction) -> None:
    """fence and membar: every store is seen at once; only the race detector minds them."""
    m = e.modifiers()
    scope = scope_of(m) or GPU
    between_proxies = m.flag("proxy") or m.flag("mbarrier_init")
    m.left = [name for name in m.left if name not in _FENCES and name not in _NO_EFFECT]
    m.done()
    if not between_proxies:
        e.do(e.call(race_hooks.fence, "G", str(scope)))
    elif "mbarrier_init" in instruction.modifiers:
        e.do(e.call(race_hooks.fence_mbarrier_init, "G"))
    elif "async" in instruction.modifiers:
        e.do(e.call(race_hooks.fence_proxy, "G"))
    elif "tensormap::generic" in instruction.modifiers:
        _fence_maps(e, instruction)


def _fence_maps(e: Emitter, instruction: Instruction) -> None:
    """fence.proxy.tensormap::generic.release.scope; .acquire.scope [map], 128."""
    if "release" in instruction.modifiers:
        e.do(e.call(race_hooks.release_maps, "G"))
    elif len(instruction.operands) == 2:
        base, offset = address_of(e, instruction.operands[0])
        e.do(e.call(tensor_map_edits.acquire_map, "G", f"({base},{offset})"))
    else:
        raise e.refuse("expected .release, or .acquire and [map], 128")


def _policy(e: Emitter, instruction: Instruction) -> None:
    """createpolicy: a cache policy means nothing here; its value is 0."""
    m = e.modifiers()
    m.need("fractional", "range")
    m.choice("global")
    m.left = [name for name in m.left if name not in _NO_EFFECT and name != "L2::evict_unchanged"]
    m.type("b64")
    m.done()
    e.out(instruction.operands[0], "u8", e.constant(0, "u8"))


TABLE: dict[str, Row] = {
    "ld": Row(_load, Effect.ACTION),
    "ldu": Row(_load, Effect.ACTION),
    "st": Row(_store, Effect.ACTION, destinations=0),
    "prefetch": _nothing("global", "local", "const", "param", "tensormap", "L1", "L2"),
    "prefetchu": _nothing("L1"),
    "createpolicy": Row(_policy),
    "discard": _nothing("global", "L2"),
    "applypriority": _nothing("global"),
    "membar": Row(_fence, Effect.ACTION, destinations=0),
    "fence": Row(_fence, Effect.ACTION, destinations=0),
}
