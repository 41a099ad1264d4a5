"""Plans: the launches, as data.

A ``Plan`` is everything that an engine decided about one graph on one architecture: kernels, launches in stream order,
arguments, workspace bytes. It is frozen, comparable, printable, made without a device, and nothing in it but has a JSON
form (``codec.encode``). No plan is ever made from text: ``heuristics.stored_plans`` makes a stored one again and
compares. Tensors are named by uid; addresses come at execute.

Kernel parameters are by-value structs with natural C alignment (``Struct``), so that one launch has one parameter block
in which only pointers (those inside tensor maps too) and by-value tensors are ever patched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from lowdnn.enums import BehaviorNote, DataType, KnobType, NumericalNote
from lowdnn.status import BadParamError
from lowdnn.tensor_map import (
    TensorMapLayout,
    address_alignment,
    tensor_map_problem,
)


class ScalarType(Enum):
    """C types of kernel arguments; the value is the ``struct`` module's format character, also a plain attribute."""

    I32 = "i"
    U32 = "I"
    I64 = "q"
    U64 = "Q"
    F32 = "f"
    F64 = "d"

    def __init__(self, format_character: str) -> None:
        self.format_character = format_character


@dataclass(frozen=True)
class TensorPointer:
    """The device address of a tensor of the variant pack, plus a constant offset."""

    uid: int
    offset_bytes: int = 0


@dataclass(frozen=True)
class WorkspacePointer:
    """An address inside the workspace."""

    offset_bytes: int = 0


Pointer = TensorPointer | WorkspacePointer


@dataclass(frozen=True)
class TensorMap:
    """A tensor map (CUtensorMap) by value: 128 bytes, aligned to 64, for the kernel's tensor copies.

    target: the tensor that is copied.  layout: the driver's description of it, with address 0, since execute puts the
    target's address there.

    Raises BadParamError for a layout that the driver would refuse (``tensor_map.tensor_map_problem`` tells beforehand),
    for one with an address, and for an offset of the target that no tensor may start at.
    """

    target: Pointer
    layout: TensorMapLayout

    def __post_init__(self) -> None:
        if self.layout.address:
            raise BadParamError.at("TensorMap.layout.address", expected="0", got=f"{self.layout.address:#x}")
        if problem := tensor_map_problem(self.layout):
            raise BadParamError.at("TensorMap.layout", expected="a map that the driver takes", got=problem)
        if self.target.offset_bytes % self.alignment_bytes:
            raise BadParamError.at(
                "TensorMap.target.offset_bytes",
                expected=f"a multiple of {self.alignment_bytes}",
                got=self.target.offset_bytes,
            )

    @property
    def alignment_bytes(self) -> int:
        """The alignment of the target's address, in bytes."""
        return address_alignment(self.layout.interleave)


@dataclass(frozen=True)
class Scalar:
    """A number known when the plan is made: an extent, a stride, alpha."""

    type: ScalarType
    value: int | float


@dataclass(frozen=True)
class TensorValue:
    """The value of a by-value tensor, read from host memory at execute and converted to ``type``."""

    uid: int
    type: ScalarType


@dataclass(frozen=True)
class ValueCase:
    """``then`` where a by-value tensor holds ``value`` at execute, otherwise ``otherwise``."""

    uid: int
    type: ScalarType
    value: float
    then: int | float
    otherwise: int | float


@dataclass(frozen=True)
class Struct:
    """A by-value struct; fields lie in order with natural C alignment."""

    fields: tuple[Argument, ...]


Argument = Pointer | TensorMap | Scalar | TensorValue | ValueCase | Struct


@dataclass(frozen=True)
class KernelRef:
    """A kernel by its source and compile-time parameters; equal refs are the same binary.

    name: the symbol (family, idea, dtype, tile, arch, and a digest of ``generated`` where there is one).
    source: path of the ``.cu`` file under ``lowdnn/engines``.
    target: the PTX target, one of those in ``arch/targets.py``: ``sm_90a`` is compiled with ``compute_90a``.
    parameters: macro names and values, in the order of the engine's ``Params`` dataclass.
    generated: text of the header ``generated.cuh`` (a fused functor), or empty.
    """

    name: str
    source: str
    target: str
    parameters: tuple[tuple[str, int | str], ...] = ()
    generated: str = ""

    def __hash__(self) -> int:
        """The hash of the name, which differs between kernels."""
        return hash(self.name)


class MathUnit(Enum):
    """The unit that does a launch's arithmetic, for the cost model."""

    NONE = "none"
    FMA_F32 = "fma_f32"
    FMA_F64 = "fma_f64"
    MMA_F16 = "mma_f16"
    MMA_TF32 = "mma_tf32"
    MMA_INT8 = "mma_int8"
    WGMMA_F16 = "wgmma_f16"
    WGMMA_TF32 = "wgmma_tf32"
    WGMMA_TF32X3 = "wgmma_tf32x3"
    WGMMA_FP8 = "wgmma_fp8"
    WGMMA_INT8 = "wgmma_int8"


@dataclass(frozen=True)
class Work:
    """The work of a launch: operations (one FMA = 2), bytes of device memory read and written at least once each.

    busy_s: seconds that the busiest multiprocessor works, where the engine knows better than the other fields; or 0.
    """

    flops: int = 0
    bytes: int = 0
    unit: MathUnit = MathUnit.NONE
    busy_s: float = 0.0


@dataclass(frozen=True)
class Launch:
    """One kernel launch. ``kernel`` indexes ``Plan.kernels``; sizes in blocks, threads, blocks and bytes.

    cluster: the blocks of a cluster. Cheapest to launch where the kernel itself has the same ``__cluster_dims__``.
    overlaps_previous: the launch may start before the stream's previous kernel has ended (programmatic dependent
    launch). Each of its blocks must execute ``griddepcontrol.wait``, and touch no memory before.
    cooperative: blocks wait for each other, so all of the grid must fit the device at a time; else the driver refuses
    the launch.
    """

    kernel: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    work: Work = Work()
    overlaps_previous: bool = False
    cooperative: bool = False


@dataclass(frozen=True)
class PlanTensor:
    """The value that execute must be given for one uid. ``size_bytes`` spans the first to the last element touched."""

    uid: int
    name: str
    data_type: DataType
    size_bytes: int
    alignment_bytes: int
    is_output: bool
    is_by_value: bool = False


@dataclass(frozen=True)
class Plan:
    """See the module's docstring. ``workspace_bytes`` is what its launches need, 256-byte aligned."""

    engine: str
    engine_index: int
    graph_key: str
    target_arch: str
    choices: tuple[tuple[KnobType, int], ...]
    kernels: tuple[KernelRef, ...]
    launches: tuple[Launch, ...]
    tensors: tuple[PlanTensor, ...]
    workspace_bytes: int = 0
    numerical_notes: tuple[NumericalNote, ...] = ()
    behavior_notes: tuple[BehaviorNote, ...] = ()
    parts: tuple[str, ...] = field(default=())

    def __hash__(self) -> int:
        """The hash of the fields that differ between plans: hashing every argument of every launch would cost more than
        loading them."""
        return hash((self.graph_key, self.engine_index, self.target_arch, self.choices))

    @property
    def name(self) -> str:
        """``eng<index>_<engine>_k<knob>=<value>...``, the form that cuDNN's users know, with the engine's name."""
        knobs = "".join(f"_k{int(knob)}={value}" for knob, value in self.choices)
        return f"eng{self.engine_index}_{self.engine}{knobs}"

    @property
    def work(self) -> Work:
        """The sum over the launches; the unit is that of the launch with the most arithmetic."""
        heaviest = max((launch.work for launch in self.launches), key=lambda work: work.flops, default=Work())
        return Work(
            flops=sum(launch.work.flops for launch in self.launches),
            bytes=sum(launch.work.bytes for launch in self.launches),
            unit=heaviest.unit,
            busy_s=sum(launch.work.busy_s for launch in self.launches),
        )
