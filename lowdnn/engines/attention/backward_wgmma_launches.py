"""Kernels of ``attention_backward_wgmma`` and their launches."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.engines.attention.backward_wgmma_tiles import SUM_BYTES, WARPGROUPS, BackwardProblem
from lowdnn.engines.attention.mapped import consumer_registers, map_of, math_unit
from lowdnn.engines.gemm.wgmma_tiles import WARPGROUP_THREADS
from lowdnn.engines.launch import bytes_of, ceil_div, divider, i32, macros
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, KernelRef, Launch, MathUnit, Struct, Work, WorkspacePointer

#: Bytes of sums that a thread of the last launch rounds: 8 columns of two rows.
_THREAD_SUM_BYTES = 2 * 8 * SUM_BYTES


@dataclass(frozen=True)
class SumsParams:
    """Macros of ``attention_backward_sums.cu``."""

    OUT: str
    KEY_OUT: str
    TILE_Q: int
    HEAD_QK: int
    TILE_KV: int
    HEAD_V: int
    IS_FP8: int
    IS_SPLIT: int


@dataclass(frozen=True)
class Params:
    """Macros of ``attention_backward_wgmma.cuh``."""

    TYPE: str
    OUT: str
    TILE_Q: int
    TILE_KV: int
    HEAD_QK: int
    HEAD_V: int
    KEY_STAGES: int
    STAGES: int
    OUTPUT_STAGES: int
    SUM_PIECES: int
    WEIGHT_BYTES: int
    IN_ORDER: int
    IS_SPLIT: int
    PRODUCER_REGISTERS: int
    CONSUMER_REGISTERS: int
    IS_FP8: int
    WEIGHT_TYPE: str
    GRADIENT_TYPE: str


@dataclass(frozen=True)
class BackwardLaunches:
    """heads_at_once: heads whose blocks start together.  is_in_order: whether sums of dq have a fixed order."""

    problem: BackwardProblem
    heads_at_once: int
    is_in_order: bool

    def gradients(self, arch: ArchSpec) -> tuple[KernelRef, Launch]:
        """The kernel that computes dk, dv and the sums of dq."""
        backward, output_stages = self.problem.backward, self.problem.output_stages(arch)
        params = self._params(output_stages)
        order = "ordered" if self.is_in_order else "unordered"
        kernel = KernelRef(
            name=f"attention_backward_{backward.types_name('dk')}_{params.TILE_Q}x{params.TILE_KV}"
            f"_d{params.HEAD_QK}v{params.HEAD_V}_{order}{'_split' * params.IS_SPLIT}_sm90a",
            source=f"attention/attention_backward_{self.problem.kind.source}.cu",
            target=WGMMA_TARGET,
            parameters=macros(params),
        )
        kind = self.problem.kind
        boxes = (("q", kind.queries), ("k", kind.keys), ("v", kind.keys), ("d_o", kind.queries))
        arguments: tuple[Argument, ...] = (
            *(map_of(backward.operands[port], rows) for port, rows in boxes),
            backward.argument,
            *(backward.heads[port].argument for port in ("dk", "dv")),
            WorkspacePointer(self.problem.sums_offset),
            WorkspacePointer(self.problem.turns_offset),
            WorkspacePointer(self.problem.tickets_offset),
            self._key_order,
            Struct(divider(backward.operation.k.dims[1])),
            *i32((self.problem.query_tiles,)),
        )
        if self.problem.is_split:
            arguments += tuple(map(WorkspacePointer, self.problem.key_sums_offsets))
        moved = bytes_of(getattr(backward.operation, port) for port in ("q", "k", "v", "d_o", "dk", "dv"))
        return kernel, Launch(
            kernel=0,
            grid=(min(arch.sm_count, self.problem.shares), 1, 1),
            block=((WARPGROUPS + 1) * WARPGROUP_THREADS, 1, 1),
            arguments=(Struct(arguments),),
            shared_bytes=self.problem.shared_bytes_with(output_stages),
            work=Work(
                flops=backward.flops(3 * backward.size_qk + 2 * backward.size_v),
                bytes=moved + self.problem.turns_offset + self.problem.sums_bytes,
                unit=math_unit(backward.data_type),
            ),
            overlaps_previous=True,
        )

    def rounded_sums(self) -> tuple[KernelRef, Launch]:
        """The kernel that rounds the sums of dq and, where blocks share keys, those of dk and dv."""
        backward, operation, kind = self.problem.backward, self.problem.backward.operation, self.problem.kind
        params = SumsParams(
            backward.c_type_of("dq"),
            backward.c_type_of("dk" if self.problem.is_split else "dq"),
            TILE_Q=kind.queries,
            HEAD_QK=self.problem.head_qk,
            TILE_KV=kind.keys,
            HEAD_V=self.problem.head_v,
            IS_FP8=int(backward.fp8 is not None),
            IS_SPLIT=int(self.problem.is_split),
        )
        types = dict.fromkeys((params.OUT, params.KEY_OUT))
        kernel = KernelRef(
            name=f"attention_backward_sums_{'fp8_' * params.IS_FP8}{'_'.join(types)}_{params.TILE_Q}"
            f"_d{params.HEAD_QK}v{params.HEAD_V}{'_split' * params.IS_SPLIT}_sm90a",
            source="attention/attention_backward_sums.cu",
            target=WGMMA_TARGET,
            parameters=macros(params),
        )
        threads, blocks = self.problem.tile_sum_bytes // _THREAD_SUM_BYTES, self.problem.all_query_tiles
        arguments: tuple[Argument, ...] = (
            self._gradient("dq", self.problem.sums_offset),
            Struct(divider(self.problem.query_tiles)),
            WorkspacePointer(self.problem.turns_offset),
            backward.argument,
        )
        gradients: tuple[Tensor, ...] = (operation.dq,)
        if self.problem.is_split:
            of_keys = zip(("dk", "dv"), self.problem.key_sums_offsets, strict=True)
            arguments += tuple(self._gradient(port, offset) for port, offset in of_keys)
            arguments += (self._key_order, *i32((self.problem.all_query_tiles,)))
            gradients += (operation.dk, operation.dv)
            tiles_bytes = (kind.keys * size * SUM_BYTES for size in (self.problem.head_qk, self.problem.head_v))
            blocks += self.problem.split_tiles * sum(ceil_div(own, threads * _THREAD_SUM_BYTES) for own in tiles_bytes)
        return kernel, Launch(
            kernel=0,
            grid=(blocks, 1, 1),
            block=(threads, 1, 1),
            arguments=(Struct(arguments),),
            work=Work(
                flops=sum(gradient.element_count for gradient in gradients),
                bytes=bytes_of(gradients) + self.problem.sums_bytes,
                unit=MathUnit.FMA_F32,
            ),
            overlaps_previous=True,
        )

    def _gradient(self, port: str, sums_offset: int) -> Struct:
        """The kernel's ``Gradient``."""
        heads = self.problem.backward.heads[port]
        return Struct((heads.argument, WorkspacePointer(sums_offset), Struct(divider(heads.tensor.dims[1]))))

    @property
    def _key_order(self) -> Struct:
        """The kernels' ``KeyOrder``."""
        problem = self.problem
        whole_tiles = problem.all_key_tiles - problem.split_tiles
        counts = (problem.key_heads, problem.key_tiles, self.heads_at_once, whole_tiles, problem.splits)
        return Struct(i32(counts))

    def _params(self, output_stages: int) -> Params:
        return Params(
            self.problem.backward.c_type,
            self.problem.backward.c_type_of("dk"),
            TILE_Q=self.problem.kind.queries,
            TILE_KV=self.problem.kind.keys,
            HEAD_QK=self.problem.head_qk,
            HEAD_V=self.problem.head_v,
            KEY_STAGES=self.problem.kind.key_stages,
            STAGES=self.problem.kind.stages,
            OUTPUT_STAGES=output_stages,
            SUM_PIECES=self.problem.kind.sum_pieces,
            WEIGHT_BYTES=self.problem.kind.weight_bytes,
            IN_ORDER=int(self.is_in_order),
            IS_SPLIT=int(self.problem.is_split),
            PRODUCER_REGISTERS=self.problem.kind.producer_registers,
            CONSUMER_REGISTERS=consumer_registers(WARPGROUPS, self.problem.kind.producer_registers),
            IS_FP8=int(self.problem.backward.fp8 is not None),
            WEIGHT_TYPE=self.problem.backward.rounded_types[0],
            GRADIENT_TYPE=self.problem.backward.rounded_types[1],
        )
