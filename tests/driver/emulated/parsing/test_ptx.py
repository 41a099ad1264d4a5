"""The parser: scopes, statements, literals, variables, signatures; and calls taken apart."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind, RefusedPtx
from lowdnn.driver.emulated.parsing.inlining import inlined
from lowdnn.driver.emulated.parsing.ir import Imm, Mem, Pair, Reg, Sink, Sym, Vec
from lowdnn.driver.emulated.parsing.module import parse_module

HEADER = ".version 8.0\n.target sm_90, debug\n.address_size 64\n"


def body_of(text: str):
    module = parse_module(f"{HEADER}.visible .entry k(.param .u64 p)\n{{\n{text}\n}}\n\0")
    return module.functions["k"]


def test_scopes_may_repeat_labels_and_registers():
    function = body_of(
        ".reg .b32 r; { .reg .b32 r; L: mov.u32 r, 1; bra L; }\n{ .reg .b32 r; L: mov.u32 r, 2; bra L; }\nmov.u32 r, 3;"
    )
    written = [i.operands[0].name for i in function.body if i.opcode == "mov"]
    assert len(set(written)) == 3
    targets = [i.operands[0].name for i in function.body if i.opcode == "bra"]
    assert [function.labels[name] for name in targets] == [0, 2]


def test_branch_out_of_a_scope_and_forward():
    function = body_of("{ bra OUT; }\n{ bra IN; IN: ret; }\nOUT: ret;")
    first, second = (i.operands[0].name for i in function.body if i.opcode == "bra")
    assert (function.labels[first], function.labels[second]) == (3, 2)


def test_lines_are_counted_over_comments():
    function = body_of("/* one\ntwo */ .reg .b32 %r<3>; // three\n.loc 1 2 3\nmov.u32 %r1, 5; mov.u32 %r2, %r1;")
    assert [i.line for i in function.body] == [9, 9]


def test_operands_of_every_form():
    function = body_of(
        ".reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<3>; .reg .f32 %f<3>;\n"
        "shfl.sync.idx.b32 %r1|%p1, %r2, -3, 0x1f, -1;\n"
        "ld.global.v2.u32 {%r1, _}, [%rd1+-8];\n"
        "@!%p1 st.shared::cta.f32 [name+4], 0f3F800000;\n"
        "mov.f32 %f1, 1.5; mov.b32 %r1, 010; mov.u32 %r2, 7U;"
    )
    shuffle, load, store, *moves = function.body
    assert shuffle.operands == (Pair(Reg("%r1"), Reg("%p1")), Reg("%r2"), Imm(-3, "i"), Imm(31, "i"), Imm(-1, "i"))
    assert load.operands == (Vec((Reg("%r1"), Sink())), Mem(Reg("%rd1"), -8))
    assert store.operands == (Mem(Sym("name"), 4), Imm(0x3F800000, "f4"))
    assert (store.predicate, store.negated, store.modifiers) == (Reg("%p1"), True, ("shared::cta", "f32"))
    assert [move.operands[1] for move in moves] == [Imm(0x3FF8000000000000, "f8"), Imm(8, "i"), Imm(7, "i")]


def test_variables_with_initial_values():
    module = parse_module(
        HEADER + ".global .align 8 .u32 a[2][2] = {{1, 2}, {-1}};\n.const .f32 c[] = {0f3F800000, 2.0};\n"
        ".global .u64 q[2] = {a, generic(a)+4};\n.extern .shared .align 16 .b8 dyn[];\n.shared .v4 .f32 s;\n"
    )
    a, c, q, dyn, s = module.variables.values()
    assert np.frombuffer(a.initial, np.int32).tolist() == [1, 2, -1, 0]
    assert (a.size, a.align) == (16, 8)
    assert np.frombuffer(c.initial, np.float32).tolist() == [1.0, 2.0]
    assert c.size == 8
    assert q.symbols == ((0, "a"), (8, "a"))
    assert (dyn.size, dyn.align, s.size, s.align) == (None, 16, 16, 16)


def test_directives_between_signature_and_body():
    text = ".entry k(.param .align 64 .b8 m[128], .param .u64 .ptr .global .align 16 x)\n"
    text += ".maxntid 128, 1, 1\n.minnctapersm 2\n{ret;}"
    function = parse_module(HEADER + text).functions["k"]
    assert function.directives == {"maxntid": (128, 1, 1), "minnctapersm": (2,)}
    assert [(p.size, p.align) for p in function.parameters] == [(128, 64), (8, 8)]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("bra NOWHERE;", FaultKind.INVALID_PTX),
        ("mov.u32 %r1 %r2;", FaultKind.INVALID_PTX),
        ("L: ret; L: ret;", FaultKind.INVALID_PTX),
        ("@r bra L; L: ret;", FaultKind.INVALID_PTX),
        (".reg .b256 %q;", FaultKind.UNSUPPORTED),
        ("mov.u32 %r1, 5", FaultKind.INVALID_PTX),
    ],
)
def test_what_is_wrong_is_refused(text, kind):
    with pytest.raises(RefusedPtx) as caught:
        body_of(".reg .b32 %r<3>;\n" + text)
    assert caught.value.kind is kind


CALLS = """
.func (.param .b32 result) twice(.param .b32 x)
{
.reg .b32 %r<3>; .reg .pred %p;
ld.param.u32 %r1, [x];
setp.gt.s32 %p, %r1, 100;
@%p bra BIG;
add.s32 %r1, %r1, %r1;
st.param.b32 [result], %r1;
ret;
BIG:
st.param.b32 [result], 0;
ret;
}
.func (.param .b32 result) four(.param .b32 x)
{
.reg .b32 %r<3>;
ld.param.u32 %r1, [x];
{ .param .b32 a; .param .b32 r; st.param.b32 [a], %r1; call.uni (r), twice, (a); ld.param.b32 %r1, [r]; }
{ .param .b32 a; .param .b32 r; st.param.b32 [a], %r1; call.uni (r), twice, (a); ld.param.b32 %r1, [r]; }
st.param.b32 [result], %r1;
ret;
}
"""


@pytest.mark.parametrize("policy", ["lockstep", "warp-serial(2)"])
def test_calls_of_calls_with_divergent_returns(bench, policy):
    body = """
ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd1, %rd1, %rd2;
{ .param .b32 a; .param .b32 r; st.param.b32 [a+0], %r1; call.uni (r), four, (a); ld.param.b32 %r2, [r+0]; }
st.global.u32 [%rd1], %r2;
ret;"""
    y = bench.empty(4 * 128)
    bench.run(bench.ptx(body, declarations=CALLS), "k", 1, 128, y, policy=policy)
    expected = [0 if t > 100 or 2 * t > 100 else 4 * t for t in range(128)]
    assert bench.get(y, 128, np.int32).tolist() == expected


def test_recursion_and_unknown_functions_are_refused():
    recursive = ".func f()\n{\ncall.uni f, ();\nret;\n}\n.entry k()\n{\ncall.uni f, ();\nret;\n}\n"
    module = parse_module(HEADER + recursive)
    with pytest.raises(RefusedPtx, match="recursive"):
        inlined(module.functions["k"], module)
    module = parse_module(HEADER + ".entry k()\n{\ncall.uni g, ();\nret;\n}\n")
    with pytest.raises(RefusedPtx, match="does not define"):
        inlined(module.functions["k"], module)


@pytest.mark.parametrize("policy", ["lockstep", "warp-serial(2)"])
def test_jump_table(bench, policy):
    body = """
ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd1, %rd1, %rd2;
rem.u32 %r2, %r1, 3;
T: .branchtargets A, B, C;
brx.idx %r2, T;
A: mov.u32 %r3, 10; bra.uni E;
B: mov.u32 %r3, 20; bra.uni E;
C: mov.u32 %r3, 30;
E: st.global.u32 [%rd1], %r3;
ret;"""
    y = bench.empty(4 * 64)
    bench.run(bench.ptx(body), "k", 1, 64, y, policy=policy)
    assert bench.get(y, 64, np.int32).tolist() == [(10, 20, 30)[t % 3] for t in range(64)]


def test_index_past_its_jump_table(bench):
    module = bench.ptx("mov.u32 %r1, 2;\nT: .branchtargets A, B;\nbrx.idx %r1, T;\nA: ret;\nB: ret;", "")
    with pytest.raises(EmulationFault, match="index past its table"):
        bench.run(module, "k", 1, 32)


def test_one_text_is_compiled_once(bench):
    text = HEADER + ".entry k()\n{\nret;\n}\n"
    first, second = bench.machine.load(text), bench.machine.load(text)
    assert first.functions["k"].kernel is second.functions["k"].kernel
