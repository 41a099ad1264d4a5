"""Bulk copies of bytes and their reductions. PTX ISA manual, "cp.async.bulk", "cp.reduce.async.bulk"."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowdnn.driver.base import LaunchConfig
from tests.calibration.case import Array, Case, Output
from tests.calibration.cases import numbers
from tests.calibration.cases.asynchronous import BARRIER_BYTES, FLUSH, REGISTERS, THREADS, barrier, fill, keep, wait
from tests.calibration.cases.program import element, program
from tests.calibration.inputs import random_bits

_WINDOW = 4 << 10
_REDUCTIONS = (
    *(("add", kind) for kind in ("u32", "s32", "u64", "f16", "bf16", "f32", "f64")),
    *((op, kind) for op in ("min", "max") for kind in ("u32", "s32", "u64", "s64", "f16", "bf16")),
    *((op, "u32") for op in ("inc", "dec")),
    *((op, kind) for op in ("and", "or", "xor") for kind in ("b32", "b64")),
)  # fmt: skip
#: Reductions between blocks' shared memory know fewer types.
_SHARED_REDUCTIONS = (
    *(("add", kind) for kind in ("u32", "s32")),
    *((op, kind) for op in ("min", "max") for kind in ("u32", "s32")),
    *((op, "u32") for op in ("inc", "dec")),
    *((op, "b32") for op in ("and", "or", "xor")),
)  # fmt: skip
#: The reductions into shared memory, and sums of 64 bits.
_WIDER = (*_SHARED_REDUCTIONS, ("add", "u64"))
_FLOATS = ("f16", "bf16", "f32", "f64")


def cases() -> Iterator[Case]:
    for size, source, target in ((16, 0, 0), (16, 48, 4064), (1008, 16, 32), (4096, 0, 0)):
        yield _load(size, source, target)
        yield _store(size, target, source)
    for operation, kind in _REDUCTIONS:
        yield _reduce(operation, kind)
    for operation, kind in _WIDER:
        yield _reduce_shared(operation, kind)
    yield _to_neighbour()
    for mask in (0b01, 0b10, 0b11):
        yield _multicast(mask)
    yield _store_async()
    for operation, kind in _WIDER:
        yield _reduce_async(operation, kind)
    for size in (4, 8, 16):
        yield _classic(size)


def _load(size: int, source: int, target: int) -> Case:
    body = f"""{REGISTERS}{fill("%i1", _WINDOW)}{barrier(_WINDOW)}
@!%first bra ISSUED;
add.u64 %a0, %i0, {source};
add.u32 %at, %base, {target};
mbarrier.arrive.expect_tx.shared.b64 %token, [%bar], {size};
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%at], [%a0], {size}, [%bar];
ISSUED:
{wait()}{keep("%o0", _WINDOW)}"""
    inputs = (_counter(), np.full(_WINDOW, 0xA5, np.uint8))
    return program(
        f"load {size} from {source} to {target}", body, inputs, (Output("shared", "u8", _WINDOW),), _launch()
    )


def _store(size: int, source: int, target: int) -> Case:
    body = f"""{REGISTERS}{fill("%i0", _WINDOW)}
@!%first bra DONE;
add.u64 %a0, %o0, {target};
add.u32 %at, %base, {source};
cp.async.bulk.global.shared::cta.bulk_group [%a0], [%at], {size};
{FLUSH}DONE:
"""
    outputs = (Output("memory", "u8", _WINDOW, initial=np.full(_WINDOW, 0xA5, np.uint8)),)
    return program(f"store {size} from {source} to {target}", body, (_counter(),), outputs, _launch())


def _reduce(operation: str, kind: str) -> Case:
    values, initial = _operands(operation, kind)
    noftz = ".noftz" if operation == "add" and kind in ("f16", "bf16") else ""
    body = f"""{REGISTERS}{fill("%i0", _WINDOW)}
@!%first bra DONE;
cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}{noftz}.{kind} [%o0], [%base], {_WINDOW};
{FLUSH}DONE:
"""
    outputs = (Output("memory", "u8", _WINDOW, initial=initial),)
    return program(f"reduce {operation} {kind}", body, (values,), outputs, _launch())


def _reduce_shared(operation: str, kind: str) -> Case:
    """Block 1 of a cluster reduces its window into that of block 0."""
    values, initial = _operands(operation, kind)
    form = f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{operation}.{kind}"
    issue = f"{form} [%to], [%base], {_WINDOW}, [%there];\n"
    inputs = (np.concatenate([initial, values]),)
    return program(
        f"reduce shared {operation} {kind}", _between(issue), inputs, (Output("shared", "u8", _WINDOW),), _pair_launch()
    )


def _to_neighbour() -> Case:
    issue = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%to], [%base], 1024, [%there];\n"
    return program(
        "to neighbour",
        _between(issue, 1024),
        (np.concatenate([_counter(), _counter()[::-1]]),),
        (Output("shared", "u8", _WINDOW),),
        _pair_launch(),
    )


def _between(issue: str, size: int = _WINDOW) -> str:
    """Both blocks fill their windows; block 1 issues, block 0 waits for the bytes and stores its window."""
    return f"""{REGISTERS}.reg .b32 %rank, %to, %there;
mov.u32 %rank, %cluster_ctarank;
mul.wide.u32 %a0, %rank, {_WINDOW};
add.u64 %a0, %a0, %i0;
{fill("%a0", _WINDOW)}{barrier(_WINDOW)}
setp.eq.u32 %q, %rank, 0;
and.pred %q, %q, %first;
@%q mbarrier.arrive.expect_tx.shared.b64 %token, [%bar], {size};
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
setp.ne.u32 %q, %rank, 0;
and.pred %q, %q, %first;
@!%q bra ISSUED;
mapa.shared::cluster.u32 %to, %base, 0;
mapa.shared::cluster.u32 %there, %bar, 0;
{issue}ISSUED:
setp.ne.u32 %q, %rank, 0;
@%q bra DONE;
{wait()}{keep("%o0", _WINDOW)}DONE:
barrier.cluster.arrive;
barrier.cluster.wait;
"""


def _multicast(mask: int) -> Case:
    """Block 0 loads into the windows of the blocks of ``mask``, each of which waits at its own barrier."""
    form = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    body = f"""{REGISTERS}.reg .b32 %rank;
.reg .b16 %mask;
mov.u32 %rank, %cluster_ctarank;
mov.u16 %mask, {mask};
{fill("%i1", _WINDOW)}{barrier(_WINDOW)}
shl.b32 %n, 1, %rank;
and.b32 %n, %n, {mask};
setp.ne.u32 %q, %n, 0;
selp.u32 %n, 1024, 0, %q;
@%first mbarrier.arrive.expect_tx.shared.b64 %token, [%bar], %n;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
setp.eq.u32 %q, %rank, 0;
and.pred %q, %q, %first;
add.u32 %at, %base, 512;
@%q {form} [%at], [%i0], 1024, [%bar], %mask;
{wait()}mul.wide.u32 %a2, %rank, {_WINDOW};
add.u64 %a2, %a2, %o0;
{keep("%a2", _WINDOW)}barrier.cluster.arrive;
barrier.cluster.wait;
"""
    inputs = (_counter(), np.full(_WINDOW, 0xA5, np.uint8))
    return program(f"multicast {mask:02b}", body, inputs, (Output("shared", "u8", 2 * _WINDOW),), _pair_launch())


def _store_async() -> Case:
    """st.async of words, vectors and 64-bit numbers by single threads of block 1 into block 0."""
    issue = """mov.b64 %wide, 0x1122334455667788;
st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%to], %rank, [%there];
st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%to+16], {1, 2, 3, 4}, [%there];
st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%to+32], {%wide, %wide}, [%there];
st.async.shared::cluster.mbarrier::complete_tx::bytes.u64 [%to+48], %wide, [%there];
"""
    return program(
        "st.async",
        _between(issue, 44),
        (np.concatenate([_counter(), _counter()]),),
        (Output("shared", "u8", _WINDOW),),
        _pair_launch(),
    )


def _reduce_async(operation: str, kind: str) -> Case:
    """red.async by one thread of block 1 on three words of block 0."""
    width = int(kind[1:])
    form = f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{operation}.{kind}"
    load = "".join(f"ld.shared.b{width} %v{i}, [%base+{16 * i}];\n" for i in range(3))
    issue = "".join(f"{form} [%to+{16 * i}], %v{i}, [%there];\n" for i in range(3))
    values, initial = _operands(operation, kind)
    body = _between(f".reg .b{width} %v<3>;\n{load}{issue}", 3 * width // 8)
    inputs = (np.concatenate([initial, values]),)
    return program(f"red.async {operation} {kind}", body, inputs, (Output("shared", "u8", _WINDOW),), _pair_launch())


def _classic(size: int) -> Case:
    """cp.async of ``size`` bytes by every thread, of which a number that differs by thread comes from memory."""
    kept = np.arange(THREADS, dtype=np.uint32) % np.uint32(size + 1)
    body = f"""{REGISTERS}{fill("%i1", _WINDOW)}
{element("%a0", "%i2", "%t", 4)}ld.global.b32 %n, [%a0];
{element("%a0", "%i0", "%t", size)}mad.lo.u32 %at, %t, {size}, %base;
cp.async.ca.shared.global [%at], [%a0], {size}, %n;
cp.async.commit_group;
cp.async.wait_group 0;
bar.sync 0;
{keep("%o0", _WINDOW)}"""
    inputs = (_counter(), np.full(_WINDOW, 0xA5, np.uint8), kept)
    return program(f"cp.async {size}", body, inputs, (Output("shared", "u8", _WINDOW),), _launch())


def _operands(operation: str, kind: str) -> tuple[Array, Array]:
    """Whole numbers for floats, so that their sums are exact; small numbers for inc and dec; random bits."""
    name = f"bulk{operation}{kind}"
    if kind in _FLOATS:
        count = 8 * _WINDOW // numbers.BITS[kind]
        return tuple(numbers.whole(kind, (count,), f"{name}{side}", 7).view(np.uint8) for side in "ab")
    values, initial = random_bits(name, _WINDOW, 1), random_bits(f"{name}b", _WINDOW, 1)
    if operation in ("inc", "dec"):
        return tuple((one.view(np.uint32) % np.uint32(100)).view(np.uint8) for one in (values, initial))
    return values, initial


def _counter() -> Array:
    return np.arange(_WINDOW // 2, dtype=np.uint16).view(np.uint8)


def _launch() -> LaunchConfig:
    return LaunchConfig((1, 1, 1), (THREADS, 1, 1), _WINDOW + BARRIER_BYTES)


def _pair_launch() -> LaunchConfig:
    return LaunchConfig((2, 1, 1), (THREADS, 1, 1), _WINDOW + BARRIER_BYTES, cluster=(2, 1, 1))
