"""The PTX machine: loads PTX text, places its variables, launches its kernels on the CPU. The driver facade stands on
this.

    machine = Machine(Arena())
    module = machine.load(ptx)
    machine.launch(module.functions["axpy"], LaunchConfig((blocks, 1, 1), (256, 1, 1)), [x_bytes, y_bytes, n_bytes])
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lowdnn.arch.targets import runs_on
from lowdnn.driver.base import LaunchConfig
from lowdnn.driver.emulated.checking.launch import LaunchHistory
from lowdnn.driver.emulated.checking.records import Records
from lowdnn.driver.emulated.checking.task_order import TaskOrder
from lowdnn.driver.emulated.execution import Execution
from lowdnn.driver.emulated.faults import Dim3, EmulationFault, FaultKind, FaultReport, RefusedPtx
from lowdnn.driver.emulated.lanes import WARP, Geometry
from lowdnn.driver.emulated.memory.arena import Arena, Array
from lowdnn.driver.emulated.options import Options
from lowdnn.driver.emulated.parsing.ir import ModuleIR, Variable
from lowdnn.driver.emulated.program import Kernel, compile_module
from lowdnn.driver.emulated.running.batch import Batch
from lowdnn.driver.emulated.running.clock import DeviceClock
from lowdnn.driver.emulated.running.inquiry import Inquiry
from lowdnn.driver.emulated.running.policy import Policy
from lowdnn.driver.emulated.running.scheduler import BlockFunction
from lowdnn.driver.emulated.running.time_limit import TimeLimit

#: Most bytes of host memory for the shared and local memory of one batch.
_BATCH_BYTES = 32 << 20
_GRID_WORKSPACE_BYTES = 8


@dataclass(frozen=True)
class Function:
    """A kernel that is loaded: its blocks with the addresses of module variables."""

    kernel: Kernel = field(repr=False)
    blocks: tuple[BlockFunction, ...] = field(repr=False)


@dataclass
class Module:
    """Loaded PTX: its kernels, and the device addresses and sizes of its variables."""

    functions: Mapping[str, Function]
    variables: Mapping[str, tuple[int, int]]
    target: str


class Machine:
    """One emulated device with ``sm_count`` multiprocessors that runs kernels as ``options`` say.

    inquiry: asks the kernel under way where its blocks are.
    """

    def __init__(
        self,
        memory: Arena,
        compute_capability: tuple[int, int] = (9, 0),
        options: Options | None = None,
        sm_count: int = 132,
        clock: DeviceClock | None = None,
    ) -> None:
        self.memory = memory
        self.compute_capability = compute_capability
        self.sm_count = sm_count
        self.options = options or Options()
        self.inquiry = Inquiry()
        self._last_histories: dict[object, LaunchHistory] = {}
        self.clock = clock or DeviceClock(sm_count=sm_count)

    def load(self, ptx: str) -> Module:
        """Parses PTX and generates code for its kernels. Raises ``EmulationFault`` with the line that cannot run."""
        try:
            ir, kernels = compile_module(ptx)
        except RefusedPtx as refusal:
            lines = ptx.split("\n")
            text = lines[refusal.line - 1].strip() if 0 < refusal.line <= len(lines) else ""
            report = FaultReport(refusal.kind, refusal.message, ptx_line=refusal.line, ptx_text=text)
            raise EmulationFault(report) from None
        if not runs_on(ir.target, self.compute_capability):
            device = "{}.{}".format(*self.compute_capability)
            raise EmulationFault(
                FaultReport(FaultKind.WRONG_TARGET, f"code for {ir.target} does not run on compute capability {device}")
            )
        addresses = self._placed_addresses(ir)
        functions = {name: _function(kernel, addresses) for name, kernel in kernels.items()}
        sizes = {name: (addresses[name], variable.size or 0) for name, variable in _placed(ir).items()}
        return Module(functions, sizes, ir.target)

    def unload(self, module: Module) -> None:
        """Frees the module's variables; its functions must not be launched any more."""
        for address, _ in module.variables.values():
            self.memory.free(address)
        module.variables = {}
        module.functions = {}

    def launch(
        self, function: Function, config: LaunchConfig, parameters: Sequence[bytes], options: Options | None = None
    ) -> None:
        """Runs a kernel to its end. ``parameters``: one byte string for each kernel parameter.

        ``options`` stand in for the machine's own. All CTAs of a cooperative launch run in one batch, so that they
        may wait for each other. Raises ``EmulationFault``.
        """
        self.begin(function, config, parameters, options).run()

    def begin(
        self,
        function: Function,
        config: LaunchConfig,
        parameters: Sequence[bytes],
        options: Options | None = None,
        *,
        queue: object = None,
        records: Records | None = None,
        order: TaskOrder | None = None,
    ) -> Execution:
        """A launch that is about to run; see ``launch``. ``queue``: a launch with programmatic serialisation follows
        the last launch there.  records, order: as of ``LaunchHistory``."""
        kernel = function.kernel
        config = replace(config, cluster=kernel.clusters.chosen(config.cluster))
        _check_launch(kernel, config)
        options = options or self.options
        content = _parameter_block(kernel, parameters)
        address = self._parameter_address(kernel, content)
        workspace = self._grid_workspace() if config.cooperative else 0
        self.clock.launch()
        previous = self._last_histories.get(queue) if config.programmatic_serialization else None
        history = self._history(kernel, previous, queue, records, order) if options.races else None

        def end() -> None:
            if history is not None:
                history.previous = None
            for own in filter(None, (address, workspace)):
                self.memory.free(own)

        batches = self._batches(function, config, options, content, (address, workspace), history)
        device = self.memory.device if self.options.devices > 1 else None
        return Execution(kernel, function.blocks, batches, TimeLimit(options.timeout_s), self.inquiry, device, end)

    def _history(
        self,
        kernel: Kernel,
        previous: LaunchHistory | None,
        queue: object,
        records: Records | None,
        order: TaskOrder | None,
    ) -> LaunchHistory:
        if records is None or order is None:
            history = LaunchHistory(kernel, self.memory, previous)
        else:
            history = LaunchHistory(kernel, self.memory, previous, records, order)
            records.launches.append(history)
        self._last_histories[queue] = history
        return history

    def _batches(
        self,
        function: Function,
        config: LaunchConfig,
        options: Options,
        content: Array,
        addresses: tuple[int, int],
        history: LaunchHistory | None,
    ) -> Iterator[Batch]:
        """The batches of a launch. ``content``: its parameters.  addresses: theirs and the grid workspace's, or 0."""
        kernel, policy = function.kernel, Policy.parse(options.policy)
        picker = policy.picker(options.landing)
        for ctas in _batches(config, _ctas_of_a_batch(kernel, config, options, history), policy.reverses_ctas):
            yield Batch(
                Geometry(config.grid, config.block, ctas, self.sm_count, config.cluster),
                self.memory,
                list(kernel.unwritten),
                kernel.static_shared_bytes + config.shared_bytes,
                kernel.local_bytes,
                config.shared_bytes,
                content,
                np.uint64(addresses[0]),
                options.checks,
                picker,
                history,
                addresses[1],
                clock=self.clock,
            )

    def _placed_addresses(self, ir: ModuleIR) -> dict[str, int]:
        """Puts .global and .const variables into memory; never-initialised .global ones are zero."""
        addresses: dict[str, int] = {}
        try:
            for name, variable in _placed(ir).items():
                label, read_only = f"{variable.space} variable {name}", variable.space == "const"
                addresses[name] = self.memory.allocate(variable.size or 1, label, read_only)
            self._initialise(ir, addresses)
        except (EmulationFault, MemoryError):
            for address in addresses.values():
                self.memory.free(address)
            raise
        return addresses

    def _initialise(self, ir: ModuleIR, addresses: Mapping[str, int]) -> None:
        for name, variable in _placed(ir).items():
            content = bytearray(variable.initial or bytes(variable.size or 1))
            for offset, target in variable.symbols:
                if target not in addresses:
                    raise _refusal(f"{name} is initialised with {target!r}, which is no variable", ir, variable)
                value = addresses[target] + int.from_bytes(content[offset : offset + 8], "little")
                content[offset : offset + 8] = value.to_bytes(8, "little")
            self.memory.host_write(addresses[name], np.frombuffer(bytes(content), dtype=np.uint8))

    def _parameter_address(self, kernel: Kernel, content: Array) -> int:
        """Parameters whose address the kernel takes lie in memory during the launch; 0 where none is needed."""
        if not kernel.program.takes_parameter_address:
            return 0
        address = self.memory.allocate(content.size, f"parameters of {kernel.name}", read_only=True)
        self.memory.host_write(address, content)
        return address

    def _grid_workspace(self) -> int:
        """The memory that the driver gives a cooperative launch for a barrier of its grid: u32 bytes, u32 barrier, at
        first 0."""
        content = np.array([_GRID_WORKSPACE_BYTES, 0], dtype=np.uint32).view(np.uint8)
        address = self.memory.allocate(content.size, "grid workspace")
        self.memory.host_write(address, content)
        return address


def _function(kernel: Kernel, addresses: Mapping[str, int]) -> Function:
    return Function(kernel, kernel.functions(addresses))


def _check_launch(kernel: Kernel, config: LaunchConfig) -> None:
    grid, block = config.grid, config.block
    threads = math.prod(block)
    message = ""
    if min(*grid, *block) < 1:
        message = f"grid and block: expected positive extents, got {grid} and {block}"
    elif threads > kernel.max_threads:
        message = f"block: expected at most {kernel.max_threads} threads, got {threads}"
    elif kernel.required_block is not None and block != kernel.required_block:
        message = f"block: expected {kernel.required_block} (.reqntid), got {block}"
    elif not divides(config.cluster, grid):
        message = f"cluster: expected extents that divide the grid {grid}, got {config.cluster}"
    else:
        message = kernel.clusters.problem(config.cluster)
    if message:
        raise EmulationFault(FaultReport(FaultKind.INVALID_LAUNCH, message, kernel.name))


def divides(cluster: Dim3, grid: Dim3) -> bool:
    """Whether a grid of blocks consists of whole clusters."""
    return min(cluster) > 0 and all(g % c == 0 for g, c in zip(grid, cluster, strict=True))


def _ctas_of_a_batch(kernel: Kernel, config: LaunchConfig, options: Options, history: LaunchHistory | None) -> int:
    """The CTAs of a batch: what the lane budget and the host memory for shared and local memory allow, in whole
    clusters, at least one; all of a cooperative launch."""
    if config.cooperative:
        return math.prod(config.grid)
    lanes = -(-math.prod(config.block) // WARP) * WARP
    memory_bytes = kernel.static_shared_bytes + config.shared_bytes + lanes * kernel.local_bytes
    fitting = min(options.lane_budget // lanes, _BATCH_BYTES // max(memory_bytes, 1))
    if history is not None:
        fitting = min(fitting, history.ctas_that_fit(kernel.static_shared_bytes + config.shared_bytes))
    cluster = math.prod(config.cluster)
    return max(1, fitting // cluster) * cluster


def _batches(config: LaunchConfig, per_batch: int, reverse: bool) -> list[Array]:
    """The linear numbers of the CTAs of each batch, in the order of running: cluster by cluster, by rank in each."""
    ctas = np.arange(math.prod(config.grid), dtype=np.int64)
    if config.cluster != (1, 1, 1):
        (x, y, z), (cx, cy, cz) = config.grid, config.cluster
        ctas = ctas.reshape(z // cz, cz, y // cy, cy, x // cx, cx).transpose(0, 2, 4, 1, 3, 5).reshape(-1)
    batches = [ctas[start : start + per_batch] for start in range(0, ctas.size, per_batch)]
    return batches[::-1] if reverse else batches


def _placed(ir: ModuleIR) -> dict[str, Variable]:
    return {name: v for name, v in ir.variables.items() if v.space in ("global", "const")}


def _refusal(message: str, ir: ModuleIR, variable: Variable) -> EmulationFault:
    text = ir.lines[variable.line - 1].strip()
    return EmulationFault(FaultReport(FaultKind.INVALID_PTX, message, ptx_line=variable.line, ptx_text=text))


def _parameter_block(kernel: Kernel, parameters: Sequence[bytes]) -> Array:
    """All parameters at their offsets, padded to whole 16-byte words."""
    if len(parameters) != len(kernel.parameters):
        message = f"parameters: expected {len(kernel.parameters)}, got {len(parameters)}"
        raise EmulationFault(FaultReport(FaultKind.INVALID_LAUNCH, message, kernel.name))
    end = max((p.offset + p.size for p in kernel.parameters), default=0)
    content = bytearray(-(-end // 16) * 16 or 16)
    for place, (parameter, value) in enumerate(zip(kernel.parameters, parameters, strict=True)):
        if len(value) != parameter.size:
            message = f"parameters[{place}]: expected {parameter.size} bytes, got {len(value)}"
            raise EmulationFault(FaultReport(FaultKind.INVALID_LAUNCH, message, kernel.name))
        content[parameter.offset : parameter.offset + parameter.size] = value
    return np.frombuffer(bytes(content), dtype=np.uint8)
