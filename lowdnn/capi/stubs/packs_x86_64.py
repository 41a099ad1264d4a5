"""The work on variant packs in the pool, in instructions of x86-64.

Only caller-saved registers are used. The arguments are as they were where the code goes on behind itself: r10 has the
pool, rax the pack.
Source: AMD64 Architecture Programmer's Manual, volume 3; System V ABI, AMD64 supplement.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from lowdnn.capi.stubs import pool
from lowdnn.capi.stubs.assembler_x86_64 import Assembler
from lowdnn.enums import AttributeName, AttributeType, DescriptorType

_IF_EQUAL, _IF_NOT, _IF_LESS_OR_EQUAL, _IF_GREATER, _JUMP = "0f84", "0f85", "0f8e", "0f8f", "e9"
#: Arrays of a pack: attribute, element type, offsets of the count and of the elements.
_ARRAYS: Final = (
    (AttributeName.VARIANT_PACK_DATA_POINTERS, AttributeType.VOID_PTR, pool.POINTER_COUNT, pool.POINTERS),
    (AttributeName.VARIANT_PACK_UNIQUE_IDS, AttributeType.INT64, pool.UID_COUNT, pool.UIDS),
)


def code(name: str, at: int, pool_at: int) -> bytes:
    """The code of the function ``name`` at ``at``; nothing for a function that does no work on packs."""
    write = _WRITERS.get(name)
    if write is None:
        return b""
    assembler = _Code(at, pool_at)
    write(assembler)
    assembler.label("python")
    return assembler.content()


class _Code(Assembler):
    def __init__(self, at: int, pool_at: int) -> None:
        super().__init__(at)
        self._pool = pool_at

    def create(self) -> None:
        """(type in edi, address of the pointer in rsi)"""
        self._with_number("81ff", DescriptorType.VARIANT_PACK)  # cmp edi, type
        self._branch(_IF_NOT, "python")
        self._add("4885f6")  # test rsi, rsi
        self._branch(_IF_EQUAL, "python")
        self._use_pool()
        self._with_number("b9", pool.PACKS)  # mov ecx, number of attempts
        self.label("next")
        self._with_number("b8", 1)  # mov eax, 1
        self._add(f"f0490fc142{pool.SERIAL:02x}")  # lock xadd [r10 + serial], rax
        self._add(f"89c283e2{pool.PACKS - 1:02x}")  # mov edx, eax; and edx, the place's bits
        self._add(f"48c1e0{pool.PLACE_BITS:02x}4809d0")  # shl rax, bits; or rax, rdx
        self._add(f"490b42{pool.TAG:02x}4989c1")  # or rax, [r10 + tag]; mov r9, rax
        self._add(f"48c1e2{pool.PACK_SHIFT:02x}498d5412{pool.FIRST_PACK:02x}")  # shl rdx, shift; lea rdx, its pack
        self._add("31c0f04c0fb10a")  # xor eax, eax; lock cmpxchg [rdx], r9
        self._branch(_IF_EQUAL, "found")
        self._add("ffc9")  # dec ecx
        self._branch(_IF_NOT, "next")
        self._branch(_JUMP, "python")
        self.label("found")
        for offset in (pool.IS_FINALIZED, pool.POINTER_COUNT, pool.UID_COUNT, pool.WORKSPACE):
            self._add(f"488942{offset:02x}")  # mov [rdx + offset], rax, which is 0
        self._add("4c890e")  # mov [rsi], r9
        self._return(0)

    def set(self) -> None:
        """(pointer in rdi, attribute in esi, type in edx, count in rcx, elements in r8)"""
        self._find()
        self._open_alone()
        self._add("4d85c0")  # test r8, r8
        self._branch(_IF_EQUAL, "python")
        self._add("4885c9")  # test rcx, rcx
        self._branch(_IF_LESS_OR_EQUAL, "python")
        self._add(f"4883f9{pool.MOST:02x}")  # cmp rcx, most
        self._branch(_IF_GREATER, "python")
        for name, kind, count, elements in _ARRAYS:
            self._with_number("81fe", name)  # cmp esi, name
            self._branch(_IF_NOT, f"behind {name}")
            self._add(f"83fa{kind:02x}")  # cmp edx, type
            self._branch(_IF_NOT, "python")
            self._with_number("4c8d98", elements)  # lea r11, [rax + elements]
            self._add(f"4c8d48{count:02x}")  # lea r9, [rax + count]
            self._branch(_JUMP, "copy")
            self.label(f"behind {name}")
        self._with_number("81fe", AttributeName.VARIANT_PACK_WORKSPACE)  # cmp esi, name
        self._branch(_IF_NOT, "python")
        self._add(f"83fa{AttributeType.VOID_PTR:02x}")  # cmp edx, type
        self._branch(_IF_NOT, "python")
        self._add("4883f901")  # cmp rcx, 1
        self._branch(_IF_NOT, "python")
        self._add(f"4d8b084c8948{pool.WORKSPACE:02x}")  # mov r9, [r8]; mov [rax + workspace], r9
        self._branch(_JUMP, "done")
        self.label("copy")
        self._add("498909")  # mov [r9], rcx
        self.label("element")
        self._add("498b54c8f8498954cbf8")  # mov rdx, [r8 + 8 rcx - 8]; mov [r11 + 8 rcx - 8], rdx
        self._add("48ffc9")  # dec rcx
        self._branch(_IF_NOT, "element")
        self.label("done")
        self._return(1)

    def finalize(self) -> None:
        """(pointer in rdi): for as many pointers as uids, no uid twice."""
        self._find()
        self._open_alone()
        self._add(f"488b48{pool.UID_COUNT:02x}4885c9")  # mov rcx, [rax + count]; test rcx, rcx
        self._branch(_IF_EQUAL, "python")
        self._add(f"483b48{pool.POINTER_COUNT:02x}")  # cmp rcx, [rax + count]
        self._branch(_IF_NOT, "python")
        self.label("uid")
        self._add("48ffc9")  # dec rcx
        self._branch(_IF_EQUAL, "done")
        self._with_number("4889ca4c8b8cc8", pool.UIDS)  # mov rdx, rcx; mov r9, [rax + 8 rcx + uids]
        self.label("other")
        self._with_number("4c398cd0", pool.UIDS - 8)  # cmp [rax + 8 rdx + uids - 8], r9
        self._branch(_IF_EQUAL, "python")
        self._add("48ffca")  # dec rdx
        self._branch(_IF_NOT, "other")
        self._branch(_JUMP, "uid")
        self.label("done")
        self._with_number(f"48c740{pool.IS_FINALIZED:02x}", 1)  # mov [rax + is_finalized], 1
        self._return(2)

    def destroy(self) -> None:
        """(pointer in rdi); of several threads that destroy one pack, one does, and none ends a newer one there."""
        self._find()
        self._add("4889c24889f831c9")  # mov rdx, rax; mov rax, rdi; xor ecx, ecx
        self._add("f0480fb10a")  # lock cmpxchg [rdx], rcx
        self._branch(_IF_NOT, "python")
        self._return(3)

    def _use_pool(self) -> None:
        self._add("4c8d15")  # lea r10, [pool]
        self._relative(self._pool)
        self._add("49833a00")  # cmp [r10], 0
        self._branch(_IF_EQUAL, "python")

    def _find(self) -> None:
        """The pack of the pointer in rdi, where it is the pack's owner."""
        self._use_pool()
        self._add("4885ff")  # test rdi, rdi
        self._branch(_IF_EQUAL, "python")
        self._add(f"89f883e0{pool.PACKS - 1:02x}")  # mov eax, edi; and eax, the place's bits
        self._add(f"48c1e0{pool.PACK_SHIFT:02x}498d4402{pool.FIRST_PACK:02x}")  # shl rax, shift; lea rax, its pack
        self._add("483938")  # cmp [rax], rdi
        self._branch(_IF_NOT, "python")

    def _open_alone(self) -> None:
        """Finds an open pack; a finalized one is handled by Python."""
        self._add(f"488378{pool.IS_FINALIZED:02x}00")  # cmp [rax + is_finalized], 0
        self._branch(_IF_NOT, "python")

    def _return(self, function: int) -> None:
        """Counts the call and returns success."""
        self._add(f"f049ff42{pool.CALLS + 8 * function:02x}31c0c3")  # lock inc [r10 + count]; xor eax, eax; ret

    def _with_number(self, opcode: str, number: int) -> None:
        """An instruction with a number, or an offset, of 32 bits at its end."""
        self._add(opcode)
        self._bytes += struct.pack("<i", number)


_WRITERS: Final[Mapping[str, Callable[[_Code], None]]] = dict(
    zip(pool.FUNCTIONS, (_Code.create, _Code.set, _Code.finalize, _Code.destroy), strict=True)
)
