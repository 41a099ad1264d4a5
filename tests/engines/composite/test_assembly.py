from __future__ import annotations

from dataclasses import replace

from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.composite.assembly import assemble
from lowdnn.engines.composite.parts import Part
from lowdnn.engines.relocation import moved
from lowdnn.enums import DataType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.plan import (
    KernelRef,
    Launch,
    Plan,
    ScalarType,
    Struct,
    TensorMap,
    TensorPointer,
    TensorValue,
    WorkspacePointer,
)
from lowdnn.tensor_map import TensorMapDataType, TiledMap

KERNELS = (KernelRef("first", "a.cu", "sm_80"), KernelRef("second", "b.cu", "sm_80"))


def chain(count: int) -> OperationGraph:
    """Matrix products, each of the one before, of 8 x 8 floats (256 bytes)."""
    builder = CaseBuilder()
    value = builder.tensor((8, 8), DataType.FLOAT)
    for number in range(count):
        weight = builder.tensor((8, 8), DataType.FLOAT)
        value = builder.matmul(value, weight, store=DataType.FLOAT if number == count - 1 else None)
    return builder.graph()


def parts_of(graph: OperationGraph, own_bytes: list[int]) -> list[Part]:
    """One part for each operation: its pointers in a struct, and two kernels where it has workspace of its own."""
    parts = []
    for operation, size_bytes in zip(graph.operations, own_bytes, strict=True):
        subgraph = graph.subgraph((operation,))
        (single,) = subgraph.operations
        tensors = (*inputs_of(single).values(), *outputs_of(single).values())
        pointers = Struct(tuple(TensorPointer(tensor.uid, 4) for tensor in tensors))
        launches = [Launch(0, (1, 1, 1), (32, 1, 1), (pointers,))]
        if size_bytes:
            launches.append(Launch(1, (1, 1, 1), (32, 1, 1), (Struct((pointers, WorkspacePointer(8))),)))
        kernels = KERNELS if size_bytes else KERNELS[:1]
        plan = Plan("fake", 9, "key", "sm_90a", (), kernels, tuple(launches), (), workspace_bytes=size_bytes)
        stored = tuple(tensor for tensor in outputs_of(single).values() if not tensor.is_virtual)
        parts.append(Part((operation,), stored, plan))
    return parts


def test_pointers_to_intermediates_become_workspace_pointers_with_their_offsets() -> None:
    graph = chain(2)
    first, second = (launch.arguments[0] for launch in assemble(graph, parts_of(graph, [0, 0])).launches)
    assert first == Struct((TensorPointer(1, 4), TensorPointer(2, 4), WorkspacePointer(4)))
    assert second == Struct((WorkspacePointer(4), TensorPointer(4, 4), TensorPointer(5, 4)))


def test_tensor_maps_follow_their_tensors() -> None:
    graph = chain(2)
    layout = TiledMap(TensorMapDataType.FLOAT32, 0, (8, 8), (32,), (8, 8), (1, 1))
    first, second = parts_of(graph, [0, 0])
    maps = Struct((TensorMap(TensorPointer(3, 16), layout), TensorMap(TensorPointer(4), layout)))
    second = replace(second, plan=replace(second.plan, launches=(Launch(0, (1, 1, 1), (32, 1, 1), (maps,)),)))
    assert assemble(graph, (first, second)).launches[1].arguments == (
        Struct((TensorMap(WorkspacePointer(16), layout), TensorMap(TensorPointer(4), layout))),
    )


def test_tensors_of_a_shared_plan_have_the_parts_names() -> None:
    shared = Struct((TensorPointer(1, 4), TensorPointer(2, 4), TensorValue(3, ScalarType.F32)))
    here = moved(shared, intermediates={8: 512}, own_bytes=0, uids={1: 7, 2: 8, 3: 9})
    assert here == Struct((TensorPointer(7, 4), WorkspacePointer(512 + 4), TensorValue(9, ScalarType.F32)))


def test_a_parts_own_workspace_lies_beside_the_living_intermediates() -> None:
    graph = chain(3)
    assembly = assemble(graph, parts_of(graph, [0, 300, 0]))
    inner, own = assembly.launches[2].arguments[0].fields  # type: ignore[union-attr]
    assert inner == Struct((WorkspacePointer(4), TensorPointer(4, 4), WorkspacePointer(256 + 4)))
    assert own == WorkspacePointer(512 + 8)
    assert assembly.workspace_bytes == 512 + 512


def test_memory_of_the_dead_is_used_again() -> None:
    graph = chain(4)
    assembly = assemble(graph, parts_of(graph, [0, 0, 0, 300]))
    last = assembly.launches[-1].arguments[0]
    assert isinstance(last, Struct)
    assert last.fields[1] == WorkspacePointer(256 + 8)
    assert assembly.workspace_bytes == 256 + 512


def test_an_intermediate_lives_to_its_last_reader_and_those_that_die_together_leave_one_gap() -> None:
    """Two products that a third one reads, and a last part whose own workspace takes the place of both."""
    builder = CaseBuilder()
    a, b, c = (builder.tensor((8, 8), DataType.FLOAT) for _ in range(3))
    joined = builder.matmul(builder.matmul(a, b), builder.matmul(b, c))
    builder.matmul(joined, a, store=DataType.FLOAT)
    graph = builder.graph()
    assembly = assemble(graph, parts_of(graph, [0, 0, 0, 300]))
    third, last = assembly.launches[2].arguments[0], assembly.launches[-1].arguments[0]
    assert third == Struct((WorkspacePointer(4), WorkspacePointer(256 + 4), WorkspacePointer(512 + 4)))
    assert isinstance(last, Struct)
    assert last.fields[1] == WorkspacePointer(8)
    assert assembly.workspace_bytes == 768


def test_a_chain_has_every_note_of_its_parts_once() -> None:
    graph = chain(2)
    first, second = parts_of(graph, [0, 0])
    notes = (NumericalNote.TENSOR_CORE, NumericalNote.TF32_INPUTS)
    parts = [replace(first, plan=replace(first.plan, numerical_notes=notes[:1]))]
    parts.append(replace(second, plan=replace(second.plan, numerical_notes=notes)))
    assert assemble(graph, parts).numerical_notes == notes


def test_kernels_are_listed_once() -> None:
    graph = chain(3)
    assembly = assemble(graph, parts_of(graph, [0, 64, 64]))
    assert assembly.kernels == KERNELS
    assert [launch.kernel for launch in assembly.launches] == [0, 0, 1, 0, 1]
