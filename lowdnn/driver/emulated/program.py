"""Compiles PTX text into what a machine runs: layout of variables, generated code, steps of the scheduler. Cached by
text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from lowdnn.driver.emulated.checking.traits import Traits, traits_of
from lowdnn.driver.emulated.device import MAX_THREADS_PER_BLOCK
from lowdnn.driver.emulated.faults import Dim3, unsupported
from lowdnn.driver.emulated.generating.flow import WARPGROUP, Block, Flow, build_flow
from lowdnn.driver.emulated.generating.generator import (
    BlockCode,
    Layout,
    Program,
    check_variables,
    generate,
)
from lowdnn.driver.emulated.generating.namespace import base_namespace
from lowdnn.driver.emulated.instructions.control import barrier_operation
from lowdnn.driver.emulated.instructions.table import TABLE
from lowdnn.driver.emulated.instructions.targets import check_target
from lowdnn.driver.emulated.memory.arena import DTYPES
from lowdnn.driver.emulated.parsing.inlining import inlined
from lowdnn.driver.emulated.parsing.ir import FunctionIR, Imm, ModuleIR, Reg, Variable
from lowdnn.driver.emulated.parsing.module import parse_module
from lowdnn.driver.emulated.running.barriers import BarrierOp
from lowdnn.driver.emulated.running.batch import LOCAL_START, SHARED_START, Group, Unwritten
from lowdnn.driver.emulated.running.scheduler import BARRIER, BRANCH, EXIT, GO, TRAP, BlockFunction, Step
from lowdnn.driver.emulated.running.scheduler import TABLE as TABLE_END

_ENDS = {"bra": BRANCH, "brx": TABLE_END, "ret": EXIT, "exit": EXIT, "trap": TRAP, "bar": BARRIER, "barrier": BARRIER}


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter: offset, size and alignment in bytes within the parameter block."""

    name: str
    offset: int
    size: int
    align: int


@dataclass(frozen=True)
class ClusterBounds:
    """The directives of a kernel's clusters: ``required`` extents (``.reqnctapercluster``), the ``largest`` number of
    CTAs (``.maxclusterrank``, 0 without), ``explicit``: it must be launched with clusters."""

    required: Dim3 | None = None
    largest: int = 0
    explicit: bool = False

    def chosen(self, asked: Dim3) -> Dim3:
        """The cluster of a launch that asks for ``asked``, where (1, 1, 1) leaves it to the kernel."""
        return self.required if self.required is not None and asked == (1, 1, 1) else asked

    def problem(self, asked: Dim3) -> str:
        """Why a launch must not ask for the cluster; empty where it may."""
        chosen = self.chosen(asked)
        if self.required not in (None, chosen):
            return f"cluster: expected {self.required} (.reqnctapercluster), got {asked}"
        if self.largest and math.prod(chosen) > self.largest:
            return f"cluster: expected at most {self.largest} blocks (.maxclusterrank), got {asked}"
        if self.explicit and self.required is None and asked == (1, 1, 1):
            return "cluster: expected extents (.explicitcluster), got none"
        return ""


@dataclass(frozen=True)
class Kernel:
    """One kernel, independent of where module variables lie. Sizes are bytes; ``max_threads`` bounds a block's threads,
    ``required_block`` is the only block that ``.reqntid`` allows, ``clusters`` the clusters that it may run in,
    ``shared_variables`` where its variables start, counted from the first byte of shared memory that a kernel may use.
    Its instructions are not kept: many kernels live at a time, and the garbage collector would go through them all.
    """

    name: str
    parameters: tuple[Parameter, ...]
    static_shared_bytes: int
    local_bytes: int
    max_threads: int
    required_block: Dim3 | None
    clusters: ClusterBounds
    traits: Traits
    steps: tuple[Step, ...]
    program: Program
    unwritten: tuple[Unwritten, ...]
    ptx_lines: tuple[str, ...]
    shared_variables: Mapping[str, int]

    @property
    def code_lines(self) -> dict[str, tuple[int, ...]]:
        """By the file name of a block's code: the PTX line of each of its lines."""
        return {code.file_name: code.lines for code in self.program.blocks}

    def functions(self, addresses: Mapping[str, int]) -> tuple[BlockFunction, ...]:
        """The function of each block, with the addresses of module variables bound."""
        names = base_namespace()
        names.update(self.program.constants)
        for symbol, name in self.program.symbols.items():
            names[name] = np.uint64(addresses[symbol])
        return tuple(LazyBlock(code, names) for code in self.program.blocks)


class LazyBlock:
    """A block's function, made when it first runs."""

    __slots__ = ("_code", "_function", "_names")

    def __init__(self, code: BlockCode, names: dict[str, Any]) -> None:
        self._code = code
        self._names = names
        self._function: BlockFunction | None = None

    def __call__(self, group: Group, registers: list[Any]) -> Any:
        if self._function is None:
            exec(self._code.code, self._names)
            self._function = self._names["block"]
        return self._function(group, registers)


@lru_cache(maxsize=256)
def compile_module(ptx: str) -> tuple[ModuleIR, dict[str, Kernel]]:
    """The module, without its functions, and its kernels; the same text is compiled once. Raises ``RefusedPtx``."""
    ir = parse_module(ptx)
    kernels = {name: _kernel(function, ir) for name, function in ir.functions.items() if function.is_entry}
    return replace(ir, functions={}), kernels


def _kernel(function: FunctionIR, ir: ModuleIR) -> Kernel:
    function = inlined(function, ir)
    check_target(function, ir.target)
    variables = [*ir.variables.values(), *function.variables.values()]
    parameters = _parameters(function.parameters)
    shared, shared_bytes = _shared_layout(variables)
    local, local_bytes = _offsets([v for v in variables if v.space in ("local", "param")], LOCAL_START)
    layout = Layout({p.name: p.offset for p in parameters}, shared, local)
    flow = build_flow(function, TABLE)
    program = generate(function, flow, TABLE, layout)
    check_variables(function, ir.variables, program.symbols)
    slots = {name: slot for slot, name in enumerate(program.registers)}
    required = function.directives.get("reqntid")
    limit = required or function.directives.get("maxntid") or ()
    return Kernel(
        function.name,
        parameters,
        shared_bytes,
        local_bytes,
        math.prod(limit) if limit else MAX_THREADS_PER_BLOCK,
        _extents(required) if required else None,
        _cluster_bounds(function),
        traits_of(i for block in flow.blocks for i in block.body),
        tuple(_step(block, slots, flow.homes) for block in flow.blocks),
        program,
        _unwritten(flow, slots),
        tuple(ir.lines),
        {name: start - SHARED_START for name, start in shared.items()},
    )


def _unwritten(flow: Flow, slots: Mapping[str, int]) -> tuple[Unwritten, ...]:
    """The registers before a launch. No use is a fault of those that every reading block finds written on some way."""
    written: set[str] = set()
    read_before: set[str] = set()
    for block in flow.blocks:
        # A guarded write reads what it may keep, which is no use of it.
        kept = {
            name
            for instruction, (_, writes) in zip(block.body, block.touched, strict=True)
            if instruction.predicate is not None
            for name in writes
        }
        read_before |= block.reads - written - kept
        written |= block.writes
    return tuple(
        Unwritten(name, DTYPES.get(flow.homes[name]) if name in written - read_before else None) for name in slots
    )


def _cluster_bounds(function: FunctionIR) -> ClusterBounds:
    directives = function.directives
    if "blocksareclusters" in directives:
        raise unsupported(".blocksareclusters", function.line)
    required = directives.get("reqnctapercluster")
    largest = directives.get("maxclusterrank")
    return ClusterBounds(
        _extents(required) if required else None, largest[0] if largest else 0, "explicitcluster" in directives
    )


def _step(block: Block, slots: Mapping[str, int], homes: Mapping[str, str]) -> Step:
    end = block.end
    kind = GO if end is None or (end.opcode == "bra" and end.predicate is None) else _ENDS[end.opcode]
    jump = block.targets[0] if kind == GO and end is not None else block.next
    mask: int | None = None
    if isinstance(block.mask, Imm):
        mask = block.mask.value & 0xFFFFFFFF
    elif isinstance(block.mask, Reg):
        mask = ~slots[block.mask.name]
    barrier: BarrierOp | None = None
    if kind == BARRIER and end is not None:
        barrier, target = barrier_operation(end)
        if target is not None and target.name in slots:
            barrier = replace(barrier, slot=slots[target.name], code=homes[target.name])
    return Step(
        block.index,
        tuple(sorted(slots[name] for name in block.reads if name in slots)),
        tuple(sorted(slots[name] for name in block.writes if name in slots)),
        kind,
        jump,
        block.targets,
        block.line,
        mask,
        barrier,
        block.spins,
        block.polls,
        end.line if end is not None else block.line,
        block.mask == WARPGROUP,
        len(block.body) + (end is not None),
        block.varies,
    )


def _parameters(variables: list[Variable]) -> tuple[Parameter, ...]:
    parameters = []
    offset = 0
    for variable in variables:
        offset = -(-offset // variable.align) * variable.align
        parameters.append(Parameter(variable.name, offset, variable.size or 0, variable.align))
        offset += variable.size or 0
    return tuple(parameters)


def _shared_layout(variables: list[Variable]) -> tuple[dict[str, int], int]:
    """Layout of shared memory: static arrays first, then the dynamic ones, all at one offset. The size counts up
    to the dynamic ones."""
    shared = [v for v in variables if v.space == "shared"]
    layout, size = _offsets([v for v in shared if v.size is not None], SHARED_START)
    dynamic = [v for v in shared if v.size is None]
    if dynamic:
        align = max(v.align for v in dynamic)
        size = -(-(SHARED_START + size) // align) * align - SHARED_START
        layout.update({v.name: SHARED_START + size for v in dynamic})
    return layout, size


def _offsets(variables: list[Variable], start: int) -> tuple[dict[str, int], int]:
    layout = {}
    offset = start
    for variable in variables:
        offset = -(-offset // variable.align) * variable.align
        layout[variable.name] = offset
        offset += variable.size or 0
    return layout, offset - start


def _extents(values: tuple[int, ...]) -> Dim3:
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z
